//! Bytes to values and back, for every protocol that Lunar speaks. No I/O, no allocation to decode.
#![forbid(unsafe_code)]

pub mod be;
pub mod iscsi;
pub mod iser;
pub mod iwarp;
pub mod nbd;
pub mod scsi;
pub mod srp;

//! Codecs of the protocols that Lunar speaks: SCSI, iSCSI, iSER, SRP, iWARP, NBD and NVMe over TCP.
//!
//! Encoding and decoding are pure functions on bytes. The crate does no I/O, and allocates nothing to decode a header.
//! A decoder never panics on bytes from the wire.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod be;
pub mod fnv;
pub mod iscsi;
pub mod iser;
pub mod iwarp;
pub mod le;
pub mod nbd;
pub mod nvme;
pub mod scsi;
pub mod srp;

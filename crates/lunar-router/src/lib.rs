//! The storage router: logical units of other targets, and SCSI devices of this host, as LUNs of this target.
//!
//! A logical unit elsewhere comes in two ways. *Block*: it is a [`lunar_block::Backend`], and the device server of this
//! target speaks for it. *Pass*: CDBs are carried to it as they are ([`lunar_target::Passage`]).
#![deny(unsafe_code)]

mod found;
mod hops;
mod limited;
pub mod loops;
pub mod pair;
pub mod pass;
pub mod ports;
pub mod routes;
pub mod sg;
mod swapped;
pub mod upstream;
pub mod watch;

pub use found::{Found, FoundLun, FoundTarget};
pub use hops::Hops;
pub use limited::limited;

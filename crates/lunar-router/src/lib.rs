//! The storage router: logical units of other targets, and SCSI devices of this host, as LUNs of this target.
//!
//! An upstream has one of two modes. *Block*: the upstream logical unit is a [`lunar_block::Backend`], and this target's
//! device server executes the commands. *Passthrough*: commands are forwarded unchanged ([`lunar_target::PassthroughLu`]).
#![deny(unsafe_code)]

pub mod failover;
mod found;
mod hops;
mod identity_change;
pub mod isids;
pub mod loops;
pub mod passthrough;
mod rate_limit;
pub mod routes;
pub mod sg;
pub mod upstream;
pub mod watch;

pub use found::{Found, FoundLun, FoundTarget};
pub use hops::Hops;
pub use rate_limit::with_rate_limit;

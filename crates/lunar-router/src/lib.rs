//! The storage router: it serves logical units of other targets, and SCSI devices of this host, as LUNs of this
//! target.
//!
//! An upstream has one of two modes. *Block*: the upstream logical unit is a [`lunar_block::Backend`], and this target's
//! device server executes the commands. *Passthrough*: commands are forwarded unchanged ([`lunar_target::PassthroughLu`]).
//!
//! # Block mode
//!
//! Each core that uses an upstream has one session for each of its URLs. A READ of a host becomes one READ upstream,
//! on the same core. All sessions are pinned to the discovered identity. Before a path is used, the router replaces
//! sessions of an earlier process that was killed (`isids`). The data of a long READ are forwarded while they arrive,
//! after a short first part. A long WRITE is sent upstream piece by piece, a shorter one as a whole. This target
//! keeps the reservations of hosts: the upstream sees none. The logical unit may be an NVMe namespace ([`namespaces`]).
//!
//! # Passthrough mode
//!
//! The device server answers REPORT LUNS and other commands that only this target can answer
//! (`crates/lunar-scsi/src/passthrough.rs`). All other commands are forwarded. Each host nexus has one session upstream,
//! with an ISID derived from that nexus, so that the upstream keeps reservations, unit attentions and order. A lost
//! session with orphans is kept until they have ended: a second session with its ISID would end it. All nexuses share
//! an SCSI device of this host, so there the device server keeps reservations. A unit attention for one nexus is
//! raised for the others. A task management function is rejected while one of its commands may still run. A device
//! that disappears is closed and searched for, and returns with the same LUNs.
//!
//! # Discovery and changes
//!
//! A separate event loop probes each upstream. It survives a configuration change. When a probe finds a change, the
//! server expands the mappings to targets and reloads, as for SIGHUP. Soon after a start, a target stays offline
//! until all of its mappings were found: returning hosts must not miss a disk. A configuration on trial runs beside
//! the current one, which continues after a rollback. `loops` sends each upstream a text request for the targets
//! behind it, and rejects a route that leads back to its start. A target that ends the session because of this
//! request is asked once, and again after an outage.
#![deny(unsafe_code)]

pub mod failover;
mod found;
mod hops;
mod identity_change;
pub mod isids;
pub mod loops;
pub mod namespaces;
pub mod passthrough;
mod rate_limit;
pub mod routes;
pub mod sg;
pub mod upstream;
pub mod watch;

pub use found::{Found, FoundLun, FoundTarget};
pub use hops::Hops;
pub use rate_limit::with_rate_limit;

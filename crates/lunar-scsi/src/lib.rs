//! The SCSI device server: it turns a CDB into an answer or into a plan of block operations (SAM-5, SPC-5,
//! SBC-4). It does no I/O and knows no transport.
//!
//! A [`Lu`] is a logical unit, shared by all cores. A [`Nexus`] is an I_T_L nexus, owned by the core of its
//! connection: it keeps a snapshot of what its logical unit allows, and looks again when the epoch of the
//! logical unit has moved on.
//!
//! A command goes the fast way (`fast`: READ and WRITE by the snapshot, no lock) or through `dispatch`: the
//! lock, the row of the command table, the checks that all commands share, the row's handler.
#![forbid(unsafe_code)]

mod alua;
mod attention;
mod buffer;
mod cache;
mod capacity;
mod cdrom;
mod copy;
mod defects;
mod designators;
mod diagnostic;
mod dispatch;
mod draft;
mod fast;
mod inquiry;
mod log;
mod lu;
mod luns;
mod medium;
mod modes;
mod nexus;
mod parts;
mod pass;
mod plan;
mod port;
mod provisioning;
mod range;
mod read_write;
mod ready;
mod redefine;
mod reservation;
mod sanitize;
mod saved;
mod state;
mod supported;
mod table;
mod verify;
mod vpd;

pub use alua::{Access, Group};
pub use copy::{CopyRange, CopyResult};
pub use draft::{Commit, Draft};
pub use log::Count;
pub use lu::{Identity, Invalid, Kind, Lu, Passes, Settings};
pub use luns::{absent, report_luns, well_known};
pub use medium::Withheld;
pub use nexus::{Nexus, NexusId};
pub use parts::{Part, Shard};
pub use plan::{Answer, Compare, CopySegment, Failure, Op, Plan};
pub use port::{Port, Protocol, TargetPort};
pub use provisioning::lba_status;
pub use sanitize::overwrite_block;
pub use table::Order;

pub(crate) use state::State;
pub(crate) use table::Allowed;

#[cfg(test)]
mod mutated;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod testing;

//! The SCSI device server: it turns a CDB into an answer or into a plan of block operations (SAM-5, SPC-5, SBC-4).
//! It does no I/O and knows no transport.
//!
//! A [`Lu`] is a logical unit, shared by all cores. A [`Nexus`] is an I_T_L nexus, owned by the core of its
//! connection: it keeps a snapshot of what its logical unit allows, and looks again when the epoch of the logical unit
//! has moved on.
#![forbid(unsafe_code)]

mod lu;
mod nexus;
mod plan;
mod table;

pub use lu::{Change, Identity, Kind, Lu, Settings, State};
pub use nexus::{Nexus, NexusId, Port};
pub use plan::{Answer, Compare, CopySegment, Failure, Op, Plan};
pub use table::{Allowed, Cx, Order, Row};

//! The SCSI device server: it converts a CDB to a response or to a plan of block operations (SAM-5, SPC-5, SBC-4). It
//! does no I/O, and does not depend on the transport.
//!
//! A [`Lu`] is a logical unit, shared by all cores. A [`Nexus`] is an I_T_L nexus, owned by the core of its
//! connection. It holds a snapshot of the state of its logical unit, and takes a new one when the epoch of the
//! logical unit has changed.
//!
//! If the snapshot allows it, READ and WRITE are planned from it without a lock (`nexus_snapshot`). All other
//! commands take the slow path in `dispatch`: the lock, the row of the command table, the common checks, the handler
//! of the row.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod alua;
mod buffer;
mod cache;
mod capacity;
mod cdrom;
mod copy;
mod defects;
mod designators;
mod diagnostic;
mod dispatch;
mod hand_over;
mod inquiry;
mod lba_range;
mod log;
mod lu;
mod luns;
mod medium;
mod modes;
mod namespace;
mod nexus;
mod nexus_snapshot;
mod op_attributes;
mod passthrough;
mod pending_commit;
mod per_core;
mod plan;
mod port;
mod provisioning;
mod read_write;
mod ready;
mod redefine;
mod reservation;
mod sanitize;
mod saved;
mod shared;
mod state;
mod supported;
mod table;
mod unit_attention;
mod verify;
mod vpd;

pub use alua::{AccessState, TargetPortGroup};
pub use copy::{CopyRange, CopyResult};
pub use log::LogCounter;
pub use lu::{
    InvalidDefinition, Lu, LuIdentity, LuSettings, LuWatcher, PassthroughMode, PeripheralDeviceType,
};
pub use luns::{absent_lun, report_luns, well_known_lu};
pub use medium::Withheld;
pub use namespace::{NamespaceView, ReportedRegistrant, ReservationsView};
pub use nexus::{Nexus, NexusId};
pub use op_attributes::OpAttributes;
pub use pending_commit::{CommitOutcome, PendingCommit};
pub use per_core::{CoreIndex, PerCore};
pub use plan::{CommandError, Compare, CopySegment, Op, Plan, PlanResult};
pub use port::{InitiatorPort, NexusPorts, TargetPort, TargetPorts, TransportProtocol};
pub use provisioning::lba_status;
pub use sanitize::overwrite_block;
pub use shared::InstalledEffects;
pub use table::Concurrency;

pub(crate) use state::State;
pub(crate) use table::ReservationClass;

#[cfg(test)]
mod mutated;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod testing;

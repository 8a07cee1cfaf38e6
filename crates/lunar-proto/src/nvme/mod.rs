//! NVMe over TCP without I/O: authentication, keys of TLS, the properties of a controller, its asynchronous events, and the NVM
//! command set on SCSI logical units, with the statuses of both.

pub mod auth;
mod commands;
mod controller;
mod copy;
mod events;
mod key_text;
mod status;
pub mod tls;

pub use commands::{BlockCommand, MAX_RANGES, NvmAction, fused, transfer, translate, unmap_list};
pub use controller::{ControllerKind, ControllerProperties, PropertyChange};
pub use copy::{MAX_COPY_RANGES, copy_segments, max_copy_blocks, max_copy_range};
pub use events::{AsyncEvent, EventQueue};
pub use status::{of_scsi, to_scsi};

//! The SCSI target without a transport: the tasks of an I_T nexus from their command to their end, and task management.
//!
//! A front end ([`FrontEnd`]) brings commands and data, and takes data, requests for data and responses. It is the place of
//! SAM-5's transport protocol services. Nothing here knows a PDU.

mod access_rights;
pub mod command;
mod complete;
mod context;
mod cut_through;
pub mod data_in;
mod data_out;
mod direct_io;
mod execution;
mod front_end;
mod io_queue;
pub mod keepalive;
mod late;
mod lun_map;
pub mod messages;
mod nexus;
mod passthrough;
mod perform;
mod pieces;
mod places;
mod response;
mod submit;
mod task;
mod task_management;
mod transfer;

pub use command::{Attribute, Cdb, Command};
pub use front_end::{FrontEnd, InFlightData, InFlightReads, LAST_ANSWERS, MAX_FUNCTIONS, MAX_WAITING};
pub use late::READS;

pub use nexus::{ItNexus, Life, Opening, State};
pub use response::{Residual, Response, Sent};
pub use task::Aborted;
pub use task_management::{Function, Managed};
pub use transfer::{Arrival, Origin, Taken, Transfer};

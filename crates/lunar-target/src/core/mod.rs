//! The transport-independent SCSI target: the tasks of an I_T nexus from command to response, and task management.
//!
//! A front end ([`FrontEnd`]) submits commands and data, and receives data, requests for data, and responses. These
//! are the transport protocol services of SAM-5. The core does not know PDUs.

mod abort;
mod access_rights;
mod begin_function;
mod chunked_write;
pub mod command;
mod complete;
mod cut_through;
pub mod data_in;
mod data_out;
mod data_out_buffers;
mod data_out_requests;
mod data_out_timeout;
mod data_out_transfer;
mod direct_io;
mod execution;
mod front_end;
mod function;
mod function_state;
mod io_queue;
pub mod keepalive;
mod lanes;
mod lun_handle;
mod lun_map;
pub mod messages;
mod nexus;
mod passed_commands;
mod passthrough;
mod perform;
mod response;
mod response_log;
pub mod session_end;
mod stale;
mod submit;
mod task;
mod task_context;
mod task_execution;
mod task_management;
mod task_table;
mod transfer;

pub use begin_function::FunctionRefusal;
pub use command::{Cdb, ScsiCommand, TaskAttribute};
pub use front_end::{FrontEnd, InFlightData, InFlightReads, MAX_QUEUED_BYTES};

pub use function::{Function, FunctionRequest, ManagementResponse};
pub use nexus::{ItNexus, NexusParams, NexusState, SessionPhase, nexus_ports};
pub use response::{CommandResponse, DataInProgress, Residual};
pub use response_log::{ResponseLog, SendPosition};
pub use task::AbortResponse;
pub use transfer::{DataOutId, DataOutResult, DataRequest};

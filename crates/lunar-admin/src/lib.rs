//! Objects of a running server that its API shows, and the interface of a server for its API.
//!
//! `lunar-api` has the HTTP server and client. This crate has no HTTP, so that other crates can use its types.
#![forbid(unsafe_code)]

pub mod attachment;
mod config_history;
mod connect;
mod control;
mod difference;
mod end;
mod events;
pub mod folders;
pub mod gateway;
pub mod history;
pub mod metrics;
mod metrics_listener;
mod object;
mod parameters;
pub mod rfc3339;
pub mod router;
pub mod rows;
mod session;
mod socket;

pub use attachment::AttachmentReport;
pub use config_history::{
    ApplyCause, HistoryEntry, HistoryPoint, HistoryTree, InvalidHistoryPoint, RollbackRequest,
};
pub use connect::{connect, is_answered};
pub use control::{
    ApplyOptions, Asker, Capacities, ControlError, ControlErrorKind, DetachRequest, Request, Response,
    RouterAction, ServerControl, TargetAction, WaitingAsker,
};
pub use difference::{Change, Difference};
pub use end::{EndWaiter, ServerEnd};
pub use events::{EventLog, EventPart, ServerEvent};
pub use gateway::{GatewayReport, GroupReport, SharedUnitReport};
pub use metrics_listener::{cannot_serve_metrics, metrics_listener};
pub use object::{
    ConfigObject, ConfigSnapshot, Document, Keys, ObjectAction, ObjectChange, ObjectId, ObjectOrigin,
    ObjectSource, ReloadOutcome, TargetState,
};
pub use parameters::Parameters;
pub use router::RouterReport;
pub use session::{Counters, NvmeReport, SessionReport, Srp, TlsReport, table};
pub use socket::{AdminSocket, can_bind, listener, listening, may_ask};

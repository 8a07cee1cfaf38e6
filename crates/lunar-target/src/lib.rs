//! The SCSI target: portals, access lists, logical units and task sets, with iSCSI, iSER and SRP as front ends.
#![forbid(unsafe_code)]

mod accept;
pub mod access;
pub mod config;
mod connection_slots;
pub(crate) mod core;
mod deferred_responses;
mod end_reason;
mod exec;
mod fair_share;
mod fence;
mod flush_failure;
mod foreign_protocol;
mod heartbeat;
mod initiator_totals;
mod instance;
mod io_failures;
mod iscsi;
mod iser;
mod listening;
mod logical_unit;
mod login_error;
mod lu_counters;
mod missing_medium;
mod nexus_list;
mod nvme;
mod open_portal;
mod passthrough;
mod quiesce;
mod rdma_portals;
mod rdma_receiver;
mod registry;
mod scsi_error;
mod served_sessions;
mod server;
mod server_events;
mod server_state;
mod session_counter;
mod session_entry;
mod session_info;
mod session_key;
mod sharing;
pub mod single_connection;
pub mod srp;
mod state_file;
mod task_set_lock;
mod tcp_portals;
#[cfg(test)]
mod test_target;
mod tls;
mod turns;

pub use iscsi::testing;

pub use connection_slots::AdmissionError;
pub use flush_failure::FlushFailure;
pub use initiator_totals::{InitiatorKey, InitiatorTotals, MAX_INITIATORS, OTHER_INITIATORS};
pub use instance::{Instance, InstanceSession};
pub use listening::{PreparedPortals, SocketSource, cannot_bind, listen};
pub use logical_unit::LogicalUnit;
pub use login_error::LoginError;
pub use lu_counters::{
    FAILURES, LATENCY_BUCKETS, LatencyTotals, LuCounters, LuTotals, OpClass, StageTotals, bucket_bound_s,
};
pub use missing_medium::OnMissing;
pub use nexus_list::NexusList;
pub use open_portal::BoundPortal;
pub use passthrough::{
    Cdb, CommandFate, PassthroughCommand, PassthroughData, PassthroughLu, PassthroughNexus, PassthroughQueue,
    PassthroughResponse,
};
pub use quiesce::Quiesced;
pub use scsi_error::ScsiError;
pub use served_sessions::ServedSessions;
pub use server::{ServerResources, TargetServer};
pub use server_events::EventTotals;
pub use session_counter::SessionCounter;
pub use session_info::{
    Addresses, IscsiSessionInfo, NvmeSessionInfo, SessionCounters, SessionInfo, SessionProtocol,
    SessionTransport, SrpSessionInfo, TlsSessionInfo,
};
pub use sharing::{RemotePort, SharingLost, StateSharing};
pub use state_file::{remove_leftovers, remove_leftovers_in, replace as replace_file};

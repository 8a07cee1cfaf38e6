//! iSCSI sessions: login and full feature phase, over any transport that carries PDUs.

pub mod connection;
mod dispatch;
mod front_end;
mod full_feature;
mod keepalive;
pub mod login;
mod login_status;
mod request_order;
mod scsi_command;
mod services;
pub mod session;
mod stale;
mod target_directory;
mod task_management;
mod tcp_transport;
pub mod testing;
#[cfg(test)]
mod tests;
pub mod transport;

pub use full_feature::run;
pub use lunar_runtime::iscsi::{pdu_queue, receive};

//! SRP, the SCSI RDMA Protocol (SRP r16a). A session exchanges PDUs with a Datamover, which converts them to SRP
//! information units and back. No iSCSI PDU is transmitted.
//!
//! Login is part of connecting. There is no discovery, key text or CHAP.

#[cfg(feature = "rdma")]
mod channels;
#[cfg(feature = "rdma")]
mod credits;
#[cfg(feature = "rdma")]
mod datamover;
mod description;
#[cfg(feature = "rdma")]
mod incoming;
#[cfg_attr(not(feature = "rdma"), path = "without_rdma.rs")]
mod login;
mod ports;
#[cfg(feature = "rdma")]
mod requests;
#[cfg(feature = "rdma")]
mod responses;
#[cfg(all(test, feature = "rdma"))]
mod tests;

pub use description::{asked, granted};
pub use login::{SrpLoginConnection, request};
pub use ports::{DIGITS, are_digits, half, initiator_port, no_discovery, target_name, target_port};

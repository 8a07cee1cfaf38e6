//! iSER: iSCSI over RDMA (RFC 7145). PDUs are sent in messages. The target reads and writes the memory of commands by
//! RDMA.

#[cfg(feature = "rdma")]
mod datamover;
#[cfg_attr(not(feature = "rdma"), path = "without_rdma.rs")]
mod login;
#[cfg(all(test, feature = "rdma"))]
mod tests;

#[cfg(feature = "rdma")]
pub use datamover::IserDatamover;
pub use login::IserLoginConnection;

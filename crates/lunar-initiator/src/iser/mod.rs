//! iSER: the same sessions over RDMA (RFC 7145). PDUs travel in messages, and the target reads and writes the memory of
//! commands itself.

mod datamover;
mod login;
#[cfg(test)]
mod tests;

pub use datamover::IserDatamover;
pub use login::LoginConnection;

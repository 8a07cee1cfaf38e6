//! iSER: the same sessions over RDMA (RFC 7145). PDUs travel in messages, and the target reads and writes the memory of
//! commands itself.

mod mover;
#[cfg(test)]
mod tests;
mod wire;

pub use mover::Mover;
pub use wire::Wire;

//! Limits of queues and transfers.

/// The most data in a capsule, on all queues. A controller must take as many on its admin queue.
pub const IN_CAPSULE_LEN: usize = 8192;
/// The binary logarithm of the most data of a command, in pages of 4 KiB (MDTS).
pub const MAX_TRANSFER_SHIFT: u8 = 8;
/// The most data of a command, and of a PDU, in bytes.
pub const MAX_TRANSFER: u32 = 4096 << MAX_TRANSFER_SHIFT;
/// The most entries of a queue.
pub const MAX_QUEUE_LEN: u32 = 1024;
/// The most I/O queues of a controller. More than the cores of most servers gain nothing.
pub const MAX_IO_QUEUES: u16 = 64;
/// The identifier of a controller that the target chooses.
pub const DYNAMIC_CONTROLLER: u16 = u16::MAX;
pub use crate::config::MAX_NAMESPACES;

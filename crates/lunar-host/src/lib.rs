//! Exports a [`lunar_block::Backend`] to this host, as a ublk device or a FUSE file.
//!
//! ublk: each tag of a queue is a task with one buffer, on the core of the queue. One operation of the event loop
//! carries the completion of a request and fetches the next one, so all ready completions cost one system call. If
//! the process dies, the kernel keeps the device and its requests until another process recovers it.
//!
//! FUSE: one task reads requests, and up to 32 are executed at a time. The data of a WRITE is aligned in its buffer.
//! When the process ends, a separate shell process unmounts the file.

mod error;
pub mod fuse;
pub mod ublk;

pub use error::Error;

//! Makes a [`lunar_block::Backend`] a disk of this host: a ublk device or a FUSE file.
//!
//! ublk: each tag of a queue is a task with one buffer, on the core of the queue. One operation of the event loop carries
//! the completion of a request and fetches the next one, so all ready completions cost one system call. If the process dies,
//! the kernel keeps the device and its requests until another process takes both over.
//!
//! FUSE: one task reads requests, and at most 32 run at a time. The data of a WRITE are aligned in its buffer. A shell
//! beside the process unmounts the file when the process has gone.

mod error;
pub mod fuse;
pub mod ublk;

pub use error::Error;

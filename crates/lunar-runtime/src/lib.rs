//! Per-core event loops, sockets, buffers and send queues: everything between the kernel and the protocol crates.
//!
//! This crate holds the `unsafe` of the data path: page-aligned buffers that the kernel fills, and a multishot poll
//! that the event loop does not offer.
#![deny(missing_docs)]

pub mod buf;
mod busy_poll;
pub mod child;
mod core_selection;
pub mod cores;
pub mod descriptors;
pub mod error;
pub mod host;
pub mod iscsi;
pub mod latency;
pub mod local;
mod log_rate_limit;
mod memory;
mod multishot_poll;
pub mod nvme;
pub mod pipe;
pub mod piped_bytes;
pub mod pool;
pub mod pump;
mod race;
mod received;
mod recheck;
pub mod regions;
mod scratch;
pub mod send_queue;
pub mod shared_library;
pub mod stream;
pub mod threads;
mod timer;

pub use buf::Buf;
pub use core_selection::{CoreSelection, CoreSelectionError};
pub use cores::{Cores, processors, spawn};
pub use local::{CoreHandle, CoreLocal, Registration};
pub use log_rate_limit::{LogRateLimit, OncePerMinute};
pub use piped_bytes::PipedBytes;
pub use pool::Pool;
pub use pump::{SendPump, SendSide};
pub use race::{all, either, yield_now};
pub use received::{ReceiveStatus, ReceivedData};
pub use recheck::{Recheck, begin_batch, current_batch};
pub use scratch::{SCRATCH, with_scratch};
pub use stream::{Hangup, Listener, PeerState, Stream};
pub use threads::{ThreadPermit, blocking};
pub use timer::sleep_until;

/// A boxed future of one core: it need not be `Send`.
pub type LocalBoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + 'a>>;

//! The edge of the runtime: per-core event loops, sockets and buffers.
//!
//! The one crate of the data path that holds `unsafe`: a buffer that the kernel fills must tell the runtime
//! how much of it is valid, and a poll that stays is an operation of its own.

pub mod buf;
mod core_selection;
pub mod cores;
pub mod descriptors;
pub mod error;
pub mod host;
pub mod iscsi;
pub mod latency;
pub mod local;
mod memory;
mod multishot_poll;
pub mod out;
pub mod pool;
pub mod pump;
mod race;
mod recheck;
pub mod regions;
mod scratch;
mod seldom;
pub mod stream;
pub mod threads;
mod timer;

pub use buf::Buf;
pub use core_selection::{CoreSelection, CoreSelectionError};
pub use cores::{Cores, spawn};
pub use local::{CoreHandle, CoreLocal, Registration};
pub use pool::Pool;
pub use pump::{SendPump, SendSide};
pub use race::{either, yield_now};
pub use recheck::Recheck;
pub use scratch::{SCRATCH, with_scratch};
pub use seldom::{LogRateLimit, OncePerMinute};
pub use stream::{Hangup, Listener, PeerState, Stream};
pub use threads::{ThreadPermit, blocking};
pub use timer::sleep_until;

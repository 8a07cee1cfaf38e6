//! The edge of the runtime: per-core event loops, sockets and buffers.
//!
//! The one crate of the data path that holds `unsafe`: a buffer that the kernel fills must tell the runtime
//! how much of it is valid.

pub mod buf;
pub mod cores;
pub mod pool;
pub mod stream;
mod timer;

pub use buf::Buf;
pub use cores::Cores;
pub use pool::Pool;
pub use stream::{Listener, Stream};
pub use timer::sleep_until;

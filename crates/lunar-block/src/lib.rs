//! Block storage. A [`Backend`] is an array of bytes with a capacity. [`open`] opens one of a kind (null, memory, file,
//! device), and the filters of [`filter`] wrap any backend.
#![deny(unsafe_code)]

mod backend;
mod file;
pub mod filter;
mod format;
mod memory;
mod missing;
mod null;
pub mod offload;
mod open;
pub mod range;
pub mod testing;
#[cfg(test)]
mod turns;

pub use backend::{Backend, BackendInfo, BackendQueue, BufResult, Extent, LocalBoxFuture, TryIo};
pub use file::{next_turn, users};
pub use missing::{FileId, MissingMedium};
pub use open::{BackendKind, BackendSpec, ExamineReport, InUse, OpenError, examine, open};

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most that any backend writes atomically, in bytes.
pub const MAX_ATOMIC: u32 = 1 << 20;

/// No blocks at all: for what has none of its own.
pub fn nothing() -> std::sync::Arc<dyn Backend> {
    std::sync::Arc::new(null::NullBackend::new(0))
}

/// Checks that a range ends within `capacity`.
///
/// # Errors
/// `UnexpectedEof` when it does not: the medium has become shorter than the caller knows.
pub fn within(capacity: u64, offset: u64, len: u64) -> io::Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= capacity => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the end of the medium")),
    }
}

/// The lock, also after a panic elsewhere: no holder leaves what it guards half changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The `n`th of a row of numbers that look random and are the same for the same `seed` (SplitMix64).
fn random(seed: u64, n: u64) -> u64 {
    let mut x = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

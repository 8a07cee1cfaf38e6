//! Block storage. A [`Backend`] is a byte-addressed disk. [`open`] opens a null, memory, file or device backend, and
//! the filters of [`filter`] wrap any backend.
#![deny(unsafe_code, missing_docs)]

mod backend;
mod file;
pub mod filter;
#[cfg(test)]
mod fork_lock;
mod format;
mod kind;
pub mod lock_file;
mod memory;
mod missing;
mod null;
pub mod offload;
mod open;
pub mod range_lock;
mod rbd;
pub mod testing;

pub use backend::{Backend, BackendInfo, BackendQueue, BufResult, Extent, PipedResult, TryIo, describe_row};
pub use file::users;
pub use kind::{BackendKind, DataLifetime, SizeRule};
pub use lunar_runtime::LocalBoxFuture;
pub use missing::{FileId, MissingMedium, shell_word};
pub use open::{BackendSpec, ExamineReport, InUse, OpenError, examine, open};
pub use rbd::{
    ImageLease, Notification, NotifyReplies, RBD_PREFIX, RbdBackend, RbdLocation, SharedObject, Watch,
    WatchEvent,
};

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The limit of [`Backend::write_atomic`] in all backends, in bytes.
pub const MAX_ATOMIC: u32 = 1 << 20;

/// A backend of capacity 0.
pub fn nothing() -> std::sync::Arc<dyn Backend> {
    std::sync::Arc::new(null::NullBackend::new(0))
}

/// Checks that a range is within `capacity`.
///
/// # Errors
/// `UnexpectedEof` when it is not: the medium has shrunk below the capacity that the caller knows.
pub fn within(capacity: u64, offset: u64, len: u64) -> io::Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= capacity => Ok(()),
        _ => {
            let what = format!(
                "{len} bytes at offset {offset} are beyond the end of the medium, which has {capacity} bytes"
            );
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, what))
        }
    }
}

/// Locks despite poisoning: no holder leaves the guarded value half changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The `n`th pseudo-random number of a `seed` (SplitMix64).
fn random(seed: u64, n: u64) -> u64 {
    let mut x = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

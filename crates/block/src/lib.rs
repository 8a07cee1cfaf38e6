//! Where blocks live. A [`Backend`] is a line of bytes with a capacity; [`open`] makes one of a kind (null, memory,
//! file, device).
#![forbid(unsafe_code)]

mod backend;
mod file;
mod memory;
mod null;
mod open;

pub use backend::{Backend, Extent, Facts, Finished, Future, Inline};
pub use open::{Kind, OpenError, Spec, open};

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Fails for what reaches beyond `capacity`: the medium has become shorter than the caller knows.
fn within(capacity: u64, offset: u64, len: u64) -> io::Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= capacity => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the end of the medium")),
    }
}

/// The lock, also after a panic elsewhere: no holder leaves what it guards half changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! A lock between tests that start programs and tests that expect a lock to end with its file.
//!
//! Between fork and exec, a new process shares every open file. A file that is closed meanwhile stays locked.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Acquires the lock.
pub(crate) fn lock() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

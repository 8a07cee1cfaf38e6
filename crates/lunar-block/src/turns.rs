//! Turns of tests that start programs and tests that expect a lock to go with its file.
//!
//! A new process shares every open file until it runs its program. A file that is closed meanwhile stays locked.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits for the turn.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

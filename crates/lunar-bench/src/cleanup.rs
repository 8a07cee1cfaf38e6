//! Cleanup of the objects that a measurement creates: processes, mounts, devices, folders. It runs when the owner is
//! dropped, or at once when a second signal ends the process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

type CleanupAction = Box<dyn FnOnce() + Send>;

/// The pending cleanups, in the order of creation.
static PENDING: Mutex<BTreeMap<u64, CleanupAction>> = Mutex::new(BTreeMap::new());

fn pending() -> MutexGuard<'static, BTreeMap<u64, CleanupAction>> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a cleanup when it is dropped.
pub struct CleanupGuard(u64);

impl CleanupGuard {
    /// Creates an object together with its cleanup. During and after [`clean_up_all`], this call blocks: nothing
    /// would remove the object.
    ///
    /// # Errors
    /// Those of `make`, which leaves nothing to clean up.
    pub fn create<T, E, U: FnOnce() + Send + 'static>(
        make: impl FnOnce() -> Result<(T, U), E>,
    ) -> Result<(T, CleanupGuard), E> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let mut left = pending();
        let (made, undo) = make()?;
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        left.insert(number, Box::new(undo));
        Ok((made, CleanupGuard(number)))
    }

    /// Drops the cleanup without running it, if the caller has already cleaned up.
    pub fn forget(self) {
        pending().remove(&self.0);
    }
}

impl Drop for CleanupGuard {
    fn drop(&mut self) {
        let mut left = pending();
        // `clean_up_all` waits for this lock.
        left.remove(&self.0).into_iter().for_each(|undo| undo());
    }
}

/// Runs all pending cleanups, the latest first, for a process that ends without waiting for the owners. Afterwards
/// [`CleanupGuard::create`] and the drop of a guard block until the process ends.
pub fn clean_up_all() {
    let mut left = pending();
    while let Some((_, undo)) = left.pop_last() {
        undo();
    }
    std::mem::forget(left);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn cleanup_runs_once_unless_creation_failed_or_forgotten() {
        let undone = Arc::new(AtomicU64::new(0));
        let make = || {
            let undone = undone.clone();
            CleanupGuard::create(|| Ok::<_, ()>((7, move || _ = undone.fetch_add(1, Ordering::Relaxed))))
        };
        let (made, undo) = make().expect("made");
        assert_eq!((made, undone.load(Ordering::Relaxed)), (7, 0));
        drop(undo);
        assert_eq!(undone.load(Ordering::Relaxed), 1);
        make().expect("made").1.forget();
        assert!(CleanupGuard::create(|| Err::<((), fn()), _>("it cannot be")).is_err());
        assert_eq!(undone.load(Ordering::Relaxed), 1);
    }
}

//! What is made for the time of a measurement (processes, mounts, devices, folders) and goes away with its owner: or at once,
//! where somebody does not want to wait for that.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

type Action = Box<dyn FnOnce() + Send>;

/// What is still to be undone, in the order in which it was made.
static LEFT: Mutex<BTreeMap<u64, Action>> = Mutex::new(BTreeMap::new());

fn all_left() -> MutexGuard<'static, BTreeMap<u64, Action>> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Undoes something when it is dropped.
pub struct Undo(u64);

impl Undo {
    /// Makes something that is undone by what comes with it. Nothing is made while all is undone, or after that: it would
    /// stay for ever.
    ///
    /// # Errors
    /// Those of `make`: there is nothing to undo then.
    pub fn made<T, E, U: FnOnce() + Send + 'static>(
        make: impl FnOnce() -> Result<(T, U), E>,
    ) -> Result<(T, Undo), E> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let mut left = all_left();
        let (made, undo) = make()?;
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        left.insert(number, Box::new(undo));
        Ok((made, Undo(number)))
    }

    /// It is undone already.
    pub fn forget(self) {
        all_left().remove(&self.0);
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let mut left = all_left();
        // Under the lock: whoever undoes all waits for it.
        left.remove(&self.0).into_iter().for_each(|undo| undo());
    }
}

/// Undoes all that was made, the latest first, for a process that ends without waiting for its owners. From here on those
/// who make something, or undo it, wait for that end.
pub fn undo_all() {
    let mut left = all_left();
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
    fn it_is_undone_once_and_not_where_it_was_not_made_or_is_forgotten() {
        let undone = Arc::new(AtomicU64::new(0));
        let make = || {
            let undone = undone.clone();
            Undo::made(|| Ok::<_, ()>((7, move || _ = undone.fetch_add(1, Ordering::Relaxed))))
        };
        let (made, undo) = make().expect("made");
        assert_eq!((made, undone.load(Ordering::Relaxed)), (7, 0));
        drop(undo);
        assert_eq!(undone.load(Ordering::Relaxed), 1);
        make().expect("made").1.forget();
        assert!(Undo::made(|| Err::<((), fn()), _>("it cannot be")).is_err());
        assert_eq!(undone.load(Ordering::Relaxed), 1);
    }
}

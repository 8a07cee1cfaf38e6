//! The limit of file descriptors, with a reserve for operations that must not fail.

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

/// Descriptors that connections leave for state files, media and the like.
const KEPT_BACK: usize = 32;
/// Spare descriptors, closed for a moment when no other is free.
const SPARE: usize = 4;
/// An upper bound: a child process may close all descriptors up to the limit one by one, which would take too long.
const MAX: u64 = 1 << 20;

/// The hint when no descriptor is left.
pub const HINT: &str = "raise the limit on open files: ulimit -n, or LimitNOFILE= of a service";

static SPARES: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// Raises the soft limit of this process to the hard one.
///
/// # Errors
/// When the system rejects it; the limit stays.
pub fn raise() -> io::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(MAX).min(MAX);
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(wanted);
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(())
}

/// The limit of this process.
pub(crate) fn limit() -> usize {
    getrlimit(Resource::Nofile)
        .current
        .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// The number of descriptors that connections may still take.
pub fn room() -> usize {
    let limit = limit();
    if limit == usize::MAX {
        return limit;
    }
    let used = std::fs::read_dir("/proc/self/fd").map_or(KEPT_BACK, Iterator::count);
    limit.saturating_sub(used + KEPT_BACK).max(1)
}

/// Whether this new descriptor is one of the reserve. The kernel assigns the lowest free number, so all below are used.
pub(crate) fn is_of_reserve(fd: RawFd) -> bool {
    usize::try_from(fd).is_ok_and(|fd| fd + KEPT_BACK >= limit())
}

/// Opens the spare descriptors.
pub fn hold_spares() {
    refill(&mut SPARES.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Runs `work`, which needs descriptors; if none is free, runs it again with the spare ones closed.
///
/// # Errors
/// Those of `work`.
pub fn with_spares<T>(work: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match work() {
        Err(e) if is_exhausted(&e) => {
            let mut spares = SPARES.lock().unwrap_or_else(PoisonError::into_inner);
            spares.clear();
            let result = work();
            refill(&mut spares);
            result
        }
        result => result,
    }
}

fn refill(spares: &mut Vec<OwnedFd>) {
    while spares.len() < SPARE {
        // If no descriptor is free, the number of spares decreases by one.
        let Ok(spare) = open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return };
        spares.push(spare);
    }
}

/// Whether the process or the system has no descriptor left.
pub fn is_exhausted(e: &io::Error) -> bool {
    let exhausted = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];
    crate::error::raw_os_error(e).is_some_and(|n| exhausted.iter().any(|errno| errno.raw_os_error() == n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn last_descriptors_are_the_reserve() {
        let limit = limit() as RawFd;
        let fds = [0, limit - KEPT_BACK as RawFd - 1, limit - KEPT_BACK as RawFd, limit - 1];
        assert_eq!(fds.map(is_of_reserve), [false, false, true, true]);
    }

    #[test]
    fn work_without_descriptors_is_done_again_with_the_spares() {
        hold_spares();
        let tries = Cell::new(0);
        let done = with_spares(|| {
            tries.set(tries.get() + 1);
            let is_free = SPARES.try_lock().is_err();
            if is_free { Ok(7) } else { Err(rustix::io::Errno::MFILE.into()) }
        });
        assert_eq!((done.expect("the spares are free"), tries.get()), (7, 2));
        assert_eq!(SPARES.lock().expect("not poisoned").len(), SPARE, "the spares are open again");
        let failed = with_spares(|| Err::<(), _>(rustix::io::Errno::NOSPC.into()));
        assert_eq!(failed.expect_err("another error").raw_os_error(), Some(28));
    }
}

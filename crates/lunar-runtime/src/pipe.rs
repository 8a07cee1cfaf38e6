//! The pipes of a core. A pipe holds references to pages, which pass through it from a file or socket to a socket.

use crate::descriptors;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use std::cell::RefCell;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Maximum length of the data in a pipe, in bytes: the largest pipe that the kernel grants to every user.
pub(crate) const PIPE_LEN: usize = 1 << 20;
/// Maximum number of pipes of a process: half of those that an unprivileged user may have of this size (pipe(7),
/// `pipe-user-pages-soft`), so that other programs of the user get pipes too.
const MAX_PIPES: usize = 32;
/// Descriptors of a pipe.
const ENDS: usize = 2;
/// Pipes take at most this part of the file descriptors.
const DESCRIPTOR_PART: usize = 16;
/// After a failure, none is created for this long.
const PAUSE: Duration = Duration::from_secs(1);

/// The pipes of this process.
static OPEN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static PIPES: RefCell<PipePool> = RefCell::default();
}

/// A pipe with room for [`PIPE_LEN`] bytes of whole pages.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) reader: OwnedFd,
    pub(crate) writer: OwnedFd,
}

impl Pipe {
    fn new() -> io::Result<Pipe> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        OPEN.fetch_add(1, Relaxed);
        let pipe = Pipe { reader, writer };
        if [&pipe.reader, &pipe.writer].iter().any(|end| descriptors::is_of_reserve(end.as_raw_fd())) {
            return Err(Errno::MFILE.into());
        }
        // The kernel rounds up, or fails. It fails too if the pipe has two pages only, because the user has too many.
        fcntl_setpipe_size(&pipe.writer, PIPE_LEN)?;
        Ok(pipe)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Relaxed);
    }
}

/// The descriptors of the pipes of this process, which are closed when they are not used for some seconds.
pub fn open_descriptors() -> usize {
    ENDS * OPEN.load(Relaxed)
}

/// The pipes of a core.
#[derive(Default)]
struct PipePool {
    /// Empty pipes, last in, first out.
    free: Vec<Pipe>,
    /// Free pipes that were not used since the last trim.
    unused: usize,
    lent: usize,
    /// The time of the last failure to create a pipe.
    failed: Option<Instant>,
}

impl PipePool {
    fn take(&mut self, limit: usize, create: impl FnOnce() -> io::Result<Pipe>) -> Option<Pipe> {
        let pipe = match self.free.pop() {
            Some(pipe) => pipe,
            None if self.lent >= limit => return None,
            None => self.create(create)?,
        };
        self.unused = self.unused.min(self.free.len());
        self.lent += 1;
        Some(pipe)
    }

    #[cold]
    fn create(&mut self, create: impl FnOnce() -> io::Result<Pipe>) -> Option<Pipe> {
        if self.failed.is_some_and(|failed| failed.elapsed() < PAUSE) {
            return None;
        }
        let created = create();
        self.failed = created.is_err().then(Instant::now);
        created.ok()
    }

    fn trim(&mut self) -> Vec<Pipe> {
        let unused = self.free.drain(..self.unused).collect();
        self.unused = self.free.len();
        unused
    }
}

/// An empty pipe. None: the core has as many as it may, or the system grants no more. Then the data must be copied.
pub(crate) fn take() -> Option<Pipe> {
    PIPES.with_borrow_mut(|pipes| pipes.take(core_limit(), Pipe::new))
}

/// Takes a pipe back. None: it had data, and was closed.
pub(crate) fn put_back(pipe: Option<Pipe>) {
    // On an ending thread, the pipe is closed.
    _ = PIPES.try_with(|pipes| {
        let mut pipes = pipes.borrow_mut();
        pipes.lent = pipes.lent.saturating_sub(1);
        pipes.free.extend(pipe);
    });
}

/// Closes the pipes of this core that were not used since the last trim.
pub(crate) fn trim() {
    drop(PIPES.try_with(|pipes| pipes.borrow_mut().trim()));
}

/// Maximum number of pipes of a core.
fn core_limit() -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    *LIMIT.get_or_init(|| limit_of(descriptors::limit(), cores()))
}

/// As [`core_limit`], with a limit of file descriptors and a number of cores.
fn limit_of(descriptors: usize, cores: usize) -> usize {
    let pipes = MAX_PIPES.min(descriptors / DESCRIPTOR_PART / ENDS);
    (pipes / cores).max(1)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The free and the lent pipes of this core.
    pub(crate) fn counts() -> (usize, usize) {
        PIPES.with_borrow(|pipes| (pipes.free.len(), pipes.lent))
    }

    /// The maximum number of pipes of this core.
    pub(crate) fn limit() -> usize {
        core_limit()
    }

    #[test]
    fn pipes_are_shared_by_cores_and_leave_descriptors() {
        assert_eq!((limit_of(1 << 20, 1), limit_of(1 << 20, 16)), (32, 2));
        assert_eq!((limit_of(1024, 1), limit_of(1024, 4)), (32, 8));
        assert_eq!((limit_of(64, 1), limit_of(0, 8), limit_of(1 << 20, 100)), (2, 1, 1));
    }

    #[test]
    fn pipes_that_are_not_used_are_closed_at_the_second_trim() {
        let mut pool = PipePool::default();
        let lent: Vec<Pipe> = (0..3).filter_map(|_| pool.take(3, Pipe::new)).collect();
        assert_eq!((lent.len(), pool.take(3, Pipe::new).is_none()), (3, true));
        pool.free.extend(lent);
        pool.lent = 0;
        assert_eq!(pool.trim().len(), 0, "all were used");
        let used = pool.take(3, Pipe::new).expect("a free pipe");
        pool.free.push(used);
        assert_eq!((pool.trim().len(), pool.free.len()), (2, 1));
        assert_eq!((pool.trim().len(), pool.trim().len()), (1, 0));
    }

    #[test]
    fn failure_to_create_a_pipe_is_not_repeated_at_once() {
        let mut pool = PipePool::default();
        assert!(pool.take(9, || Err(Errno::PERM.into())).is_none());
        assert!(pool.take(9, || unreachable!("the pool pauses")).is_none());
        pool.failed = Instant::now().checked_sub(PAUSE);
        let pipe = pool.take(9, Pipe::new).expect("after the pause");
        pool.failed = Some(Instant::now());
        pool.free.push(pipe);
        assert!(pool.take(9, || unreachable!("one is free")).is_some(), "free pipes are lent during a pause");
    }
}

//! Several paths to one logical unit: I/O continues while one of them works.

mod alua;
mod backend;
mod join;
mod orphan_recovery;
mod path;
mod path_checker;
mod path_selector;
mod queue;
#[cfg(test)]
mod tests;
mod times;

#[cfg(doc)]
use crate::Lun;
use crate::{Error, ErrorCode, Timeouts};
use event_listener::{Event as Bell, EventListener};
use lunar_block::LocalBoxFuture;
use lunar_block::range_lock::RangeLocks;
use lunar_runtime::Buf;
use lunar_runtime::latency::LatencyCounter;
pub use path::LunPath;
use path_selector::PathSelector;
pub use path_selector::{PathPolicy, State};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
pub use times::Times;

/// How the paths are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultipathOptions {
    /// Which of the best paths takes the next operation.
    pub policy: PathPolicy,
    /// The interval of path checks.
    pub check: Duration,
    /// How long operations wait for a path after the last one was lost; then they fail at once. Zero disables the
    /// wait.
    pub queue: Duration,
    /// An operation of this age is not tried on another path.
    pub operation: Duration,
}

impl Default for MultipathOptions {
    fn default() -> Self {
        MultipathOptions {
            policy: PathPolicy::LeastQueue,
            check: Duration::from_secs(5),
            queue: Duration::from_secs(120),
            operation: Timeouts::default().operation,
        }
    }
}

/// A logical unit that is reached over several paths.
pub struct Multipath {
    ways: Vec<Arc<dyn LunPath>>,
    paths: PathSelector,
    settings: MultipathOptions,
    /// Rings when the state of a path changes.
    state_changed: Bell,
    /// Of each path: makes its checker check now.
    doubts: Vec<flume::Sender<()>>,
    /// Since when there is no path.
    outage: Mutex<Option<Instant>>,
    /// No path is waited for any more.
    gives_up: AtomicBool,
    queued: LatencyCounter,
    served: LatencyCounter,
    /// The ranges that are being written, on any path: each command holds its range until the target has ended it.
    ranges: Arc<RangeLocks>,
}

impl Multipath {
    /// Each path: where it leads, how it is, and how many operations are on it.
    pub fn paths(&self) -> Vec<(String, State, usize)> {
        self.ways
            .iter()
            .enumerate()
            .map(|(at, w)| (w.name(), self.paths.state(at), self.paths.load(at)))
            .collect()
    }

    /// Operations that wait for a path fail now, and later ones at once, while there is none.
    pub fn give_up(&self) {
        self.gives_up.store(true, SeqCst);
        self.state_changed.notify(usize::MAX);
    }

    /// Since when there is no path that takes I/O; None while there is one.
    pub fn outage(&self) -> Option<Instant> {
        *self.lock_outage()
    }

    /// Every path leads to another logical unit than it did: operations fail at once.
    pub fn is_changed(&self) -> bool {
        self.paths.all_changed()
    }

    /// Ends when the state of a path changes after this call, or when the paths are dropped.
    pub fn state_change(&self) -> EventListener {
        self.state_changed.listen()
    }

    /// Waiting and service times of operations.
    pub fn times(&self) -> Times {
        Times { queue: self.queued.total(), service: self.served.total() }
    }

    fn lock_outage(&self) -> MutexGuard<'_, Option<Instant>> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A path has failed under an operation. The failure may be over: the path is checked.
    fn fail(&self, at: usize, state: State) {
        if self.paths.state(at) != state {
            self.set(at, state);
            self.doubt(at);
        }
    }

    /// Requests a check of a path.
    fn doubt(&self, at: usize) {
        // Full: it will be.
        _ = self.doubts[at].try_send(());
    }

    fn set(&self, at: usize, state: State) {
        if state.is_usable() {
            self.ways[at].share(&self.ranges);
        }
        let before = self.paths.set(at, state);
        if before == state {
            return;
        }
        self.take_time();
        self.state_changed.notify(usize::MAX);
        if before.is_usable() == state.is_usable() {
            return;
        }
        let path = self.ways[at].name();
        if state.is_usable() {
            tracing::info!(path, "the path is back");
        } else {
            tracing::warn!(path, ?state, "the path is out of use");
        }
    }

    /// Takes note of when an outage begins, and of its end.
    fn take_time(&self) {
        let mut outage = self.lock_outage();
        if self.paths.has_usable() {
            *outage = None;
        } else if outage.is_none() {
            *outage = Some(Instant::now());
            // Those that were not needed may be needed now.
            (0..self.ways.len()).for_each(|at| self.doubt(at));
        }
    }

    /// Runs an operation on a path, on others while paths fail, and waits for one when none is left.
    async fn run<T, R>(
        &self,
        what: T,
        does: impl for<'a> Fn(&'a dyn LunPath, T) -> LocalBoxFuture<'a, (io::Result<R>, T)>,
    ) -> (io::Result<R>, T) {
        self.run_since(Instant::now(), what, does).await
    }

    /// The same with what has begun earlier.
    async fn run_since<T, R>(
        &self,
        begun: Instant,
        mut what: T,
        does: impl for<'a> Fn(&'a dyn LunPath, T) -> LocalBoxFuture<'a, (io::Result<R>, T)>,
    ) -> (io::Result<R>, T) {
        let mut sent = begun;
        loop {
            let Some(turn) = self.paths.choose() else {
                if let Err(e) = Box::pin(self.wait()).await {
                    self.queued.add(begun.elapsed());
                    return (Err(e.into()), what);
                }
                sent = Instant::now();
                continue;
            };
            let (result, back) = does(&*self.ways[turn.at], what).await;
            what = back;
            match result {
                Err(e) if let Some(state) = path::fault(&e) => {
                    if let Err(e) = self.leave(turn.at, state, e, begun).await {
                        return (Err(e), what);
                    }
                }
                end => {
                    self.queued.add(sent - begun);
                    self.served.add(sent.elapsed());
                    return (end, what);
                }
            }
        }
    }

    /// A path has failed under an operation, which may be done on another one now.
    ///
    /// # Errors
    /// The failure, when the operation has lasted too long.
    async fn leave(&self, at: usize, state: State, e: io::Error, begun: Instant) -> io::Result<()> {
        tracing::debug!(path = self.ways[at].name(), "{e}");
        self.fail(at, state);
        self.ways[at].reset_abandoned().await;
        if begun.elapsed() >= self.settings.operation { Err(e) } else { Ok(()) }
    }

    /// Compares blocks with the first half of `data` and, if they are equal, writes the second half, as one step
    /// (COMPARE AND WRITE). False if they differ. It goes on another path only where the first has not carried it out
    /// for certain.
    ///
    /// # Errors
    /// As of [`Lun::compare_and_write`], and that no path is left.
    pub async fn compare_and_write(&self, offset: u64, mut data: Buf) -> Result<bool, Error> {
        let begun = Instant::now();
        loop {
            let Some(turn) = self.paths.choose() else {
                self.wait().await?;
                continue;
            };
            let (result, back) = self.ways[turn.at].compare_and_write(offset, data).await;
            data = back;
            let e = match result {
                Ok(equal) => return Ok(equal),
                Err(e) => e,
            };
            let Some(state) = path::state_after(&e) else { return Err(e) };
            self.fail(turn.at, state);
            if !path::is_undone(&e) || begun.elapsed() >= self.settings.operation {
                return Err(e);
            }
        }
    }

    /// Waits until a path is in another state than it was.
    async fn wait(&self) -> Result<(), Error> {
        let turn = self.state_changed.listen();
        if self.paths.has_usable() {
            return Ok(());
        }
        if self.paths.all_changed() {
            return Err(Error::new(
                ErrorCode::IdentityMismatch,
                "every path leads to another logical unit than it did",
            ));
        }
        if self.gives_up.load(SeqCst) {
            return Err(Error::new(ErrorCode::SessionClosed, "no path is left, and none is waited for"));
        }
        let gone = self.outage().map_or(Duration::ZERO, |since| since.elapsed());
        let left = self.settings.queue.saturating_sub(gone);
        let in_time = !left.is_zero() && compio::time::timeout(left, turn).await.is_ok();
        in_time.then_some(()).ok_or_else(|| none_left(self.settings.queue))
    }

    /// The first path that works, or the first.
    fn any(&self) -> &dyn LunPath {
        let at = (0..self.ways.len()).find(|at| self.paths.state(*at).is_usable()).unwrap_or(0);
        &*self.ways[at]
    }
}

fn none_left(queue: Duration) -> Error {
    Error::new(ErrorCode::TimedOut, format!("no path is left, for {} s", queue.as_secs()))
}

impl Drop for Multipath {
    fn drop(&mut self) {
        self.state_changed.notify(usize::MAX);
    }
}

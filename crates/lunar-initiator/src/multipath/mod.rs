//! Multipath: several paths to one logical unit or NVMe namespace. I/O continues while at least one path works.

mod alua;
pub(crate) mod ana;
mod backend;
mod expected_unit;
mod join;
mod late_path;
mod options;
mod orphan_recovery;
mod path;
mod path_checker;
mod path_counters;
mod path_selector;
mod queue;
#[cfg(test)]
mod tests;
mod times;

#[cfg(doc)]
use crate::Lun;
use crate::{Error, ErrorCode, time_limit};
use event_listener::Event;
#[doc(inline)]
pub use event_listener::EventListener;
pub use expected_unit::ExpectedUnit;
pub use late_path::{LatePath, PathOpener};
#[doc(inline)]
pub use lunar_block::range_lock::RangeLocks;
use lunar_block::{BufResult, LocalBoxFuture};
use lunar_runtime::Buf;
use lunar_runtime::latency::LatencyCounter;
#[doc(inline)]
pub use lunar_runtime::latency::LatencyTotal;
pub use options::MultipathOptions;
pub use path::LunPath;
pub(crate) use path::state_after;
pub use path_counters::PathTotal;
use path_counters::{OpKind, PathCounters};
use path_selector::PathSelector;
pub use path_selector::{PathPolicy, PathState};
use queue::BlockIo;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
pub use times::Times;

/// A logical unit with several paths.
pub struct Multipath {
    lun_paths: Vec<Arc<dyn LunPath>>,
    paths: PathSelector,
    settings: MultipathOptions,
    /// Notified when the state of a path changes.
    state_changed: Event,
    /// Triggers an immediate check, one sender for each path.
    doubts: Vec<flume::Sender<()>>,
    /// The start of the outage, while there is no usable path.
    outage: Mutex<Option<Instant>>,
    /// Whether operations no longer wait for a path.
    gives_up: AtomicBool,
    queued: LatencyCounter,
    served: LatencyCounter,
    /// The operations of each path.
    counters: Vec<PathCounters>,
    /// The locked ranges of writes on all paths. A command locks its range until the target has ended it.
    ranges: Arc<RangeLocks>,
}

impl Multipath {
    /// The name, state, and number of operations of each path.
    pub fn paths(&self) -> Vec<(String, PathState, usize)> {
        self.lun_paths
            .iter()
            .enumerate()
            .map(|(at, w)| (w.name(), self.paths.state(at), self.paths.load(at)))
            .collect()
    }

    /// The operations of each path so far, in the order of [`Multipath::paths`].
    pub fn totals(&self) -> Vec<PathTotal> {
        self.counters.iter().map(PathCounters::total).collect()
    }

    /// Fails the operations that wait for a path. From now on, operations fail at once while no path is usable.
    pub fn give_up(&self) {
        self.gives_up.store(true, SeqCst);
        self.state_changed.notify(usize::MAX);
    }

    /// The start of the outage. None while a path is usable.
    pub fn outage(&self) -> Option<Instant> {
        *self.lock_outage()
    }

    /// Whether every path leads to another logical unit. Operations then fail at once.
    pub fn is_changed(&self) -> bool {
        self.paths.all_changed()
    }

    /// A listener for the next state change of a path, or for the drop of this value.
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

    /// Handles the failure of an operation on a path. Checks the path at once, because the failure may be temporary.
    fn fail(&self, at: usize, state: PathState) {
        if self.paths.state(at) != state {
            self.set(at, state);
            self.doubt(at);
        }
    }

    /// Requests a check of a path.
    fn doubt(&self, at: usize) {
        // A full queue means that a check is already requested.
        _ = self.doubts[at].try_send(());
    }

    fn set(&self, at: usize, state: PathState) {
        if state.is_usable() {
            self.lun_paths[at].share(&self.ranges);
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
        let path = self.lun_paths[at].name();
        if state.is_usable() && self.paths.take_was_usable(at) {
            tracing::info!(name: "path.usable", path, "the path to the LUN works again");
        } else if state.is_usable() {
            tracing::info!(name: "path.usable", path, "the path to the LUN works");
        } else {
            tracing::warn!(name: "path.unusable", path, ?state, "the path to the LUN is no longer used");
        }
    }

    /// Records the start and the end of an outage.
    fn take_time(&self) {
        let mut outage = self.lock_outage();
        if self.paths.has_usable() {
            *outage = None;
        } else if outage.is_none() {
            *outage = Some(Instant::now());
            // Paths in standby may be needed now.
            (0..self.lun_paths.len()).for_each(|at| self.doubt(at));
        }
    }

    /// Runs an operation on a path. If the path fails, tries the others. Waits while no path is usable.
    async fn run<T, R>(
        &self,
        kind: OpKind,
        what: T,
        does: impl for<'a> Fn(&'a dyn LunPath, T) -> LocalBoxFuture<'a, (io::Result<R>, T)>,
    ) -> (io::Result<R>, T) {
        self.run_since(Instant::now(), kind, what, does).await
    }

    /// The same for an operation that began earlier.
    async fn run_since<T, R>(
        &self,
        started_at: Instant,
        kind: OpKind,
        mut what: T,
        does: impl for<'a> Fn(&'a dyn LunPath, T) -> LocalBoxFuture<'a, (io::Result<R>, T)>,
    ) -> (io::Result<R>, T) {
        let (mut sent, mut tried) = (started_at, started_at);
        loop {
            let Some(lease) = self.paths.choose() else {
                if let Err(e) = Box::pin(self.wait()).await {
                    self.queued.add(started_at.elapsed());
                    return (Err(e.into()), what);
                }
                sent = Instant::now();
                tried = sent;
                continue;
            };
            let (result, back) = does(&*self.lun_paths[lease.at], what).await;
            what = back;
            let ended = Instant::now();
            self.counters[lease.at].add(kind, result.is_ok(), ended - tried);
            match result {
                Err(e) if let Some(state) = path::fault(&e) => {
                    if let Err(e) = self.leave(lease.at, state, e, started_at).await {
                        return (Err(e), what);
                    }
                    tried = Instant::now();
                }
                end => {
                    self.queued.add(sent - started_at);
                    self.served.add(ended - sent);
                    return (end, what);
                }
            }
        }
    }

    /// Runs a read or a write.
    async fn run_io(&self, job: BlockIo, buf: Buf) -> BufResult {
        self.run_io_since(Instant::now(), job, buf).await
    }

    /// The same for one that began earlier.
    async fn run_io_since(&self, started_at: Instant, job: BlockIo, buf: Buf) -> BufResult {
        let kind = job.kind(buf.len());
        self.run_since(started_at, kind, buf, move |path, buf| job.on(path, buf)).await
    }

    /// Prepares the retry of an operation after its path has failed.
    ///
    /// # Errors
    /// The failure, when the operation has exceeded its time limit.
    async fn leave(&self, at: usize, state: PathState, e: io::Error, started_at: Instant) -> io::Result<()> {
        tracing::debug!(path = self.lun_paths[at].name(), "{e}");
        self.fail(at, state);
        self.lun_paths[at].reset_abandoned().await;
        if started_at.elapsed() >= self.settings.operation { Err(e) } else { Ok(()) }
    }

    /// Compares blocks with the first half of `data`. If they are equal, writes the second half in the same atomic
    /// step (COMPARE AND WRITE). Returns false if they differ. Tries another path only if the first one has certainly
    /// not executed the command.
    ///
    /// # Errors
    /// Those of [`Lun::compare_and_write`], and an error when no path is left.
    pub async fn compare_and_write(&self, offset: u64, mut data: Buf) -> Result<bool, Error> {
        let started_at = Instant::now();
        loop {
            let Some(lease) = self.paths.choose() else {
                self.wait().await?;
                continue;
            };
            let (result, back) = self.lun_paths[lease.at].compare_and_write(offset, data).await;
            data = back;
            self.counters[lease.at].add(OpKind::Other, result.is_ok(), Duration::ZERO);
            let e = match result {
                Ok(equal) => return Ok(equal),
                Err(e) => e,
            };
            let Some(state) = path::state_after(&e) else { return Err(e) };
            self.fail(lease.at, state);
            if !path::is_undone(&e) || started_at.elapsed() >= self.settings.operation {
                return Err(e);
            }
        }
    }

    /// Waits until the state of a path changes.
    async fn wait(&self) -> Result<(), Error> {
        let changed = self.state_changed.listen();
        if self.paths.has_usable() {
            return Ok(());
        }
        if self.paths.all_changed() {
            return Err(Error::new(
                ErrorCode::IdentityMismatch,
                "every path of the LUN now leads to another logical unit than before",
            ));
        }
        if self.gives_up.load(SeqCst) {
            return Err(Error::new(ErrorCode::SessionClosed, "all paths to the LUN have failed"));
        }
        let gone = self.outage().map_or(Duration::ZERO, |started_at| started_at.elapsed());
        let left = self.settings.queue.saturating_sub(gone);
        let in_time = !left.is_zero() && time_limit::within(left, changed).await.is_some();
        in_time.then_some(()).ok_or_else(|| none_left(self.settings.queue))
    }

    /// The first usable path, or else the first path.
    fn any(&self) -> &dyn LunPath {
        let at = (0..self.lun_paths.len()).find(|at| self.paths.state(*at).is_usable()).unwrap_or(0);
        &*self.lun_paths[at]
    }
}

fn none_left(queue: Duration) -> Error {
    let what = match queue.is_zero() {
        true => "no path to the LUN is usable".into(),
        false => format!("no path to the LUN was usable for {} s", queue.as_secs_f32()),
    };
    Error::new(ErrorCode::TimedOut, what)
}

impl fmt::Debug for Multipath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Multipath").field("paths", &self.paths()).finish_non_exhaustive()
    }
}

impl Drop for Multipath {
    fn drop(&mut self) {
        self.state_changed.notify(usize::MAX);
    }
}

//! One session of a job, on its core.

use super::arrivals::ArrivalTimes;
use super::session_result::SessionResult;
use super::worker_queue::WorkerQueue;
use super::{JobClock, SessionContext};
use crate::data_pattern::DataPattern;
use crate::job::{ArrivalProcess, Job};
use crate::offsets::{NextCommand, OffsetGenerator};
use crate::open_targets::TargetSession;
use crate::outcome::IoCounts;
use crate::session_stats::{CommandTimes, SessionStats};
use crate::verify::{UnitClaim, WriteLedger};
use crate::{RunHandle, text_report};
use compio::runtime::spawn;
use compio::time::sleep;
use flume::{Receiver, Sender};
use lunar_block::{Backend, BufResult};
use lunar_initiator::Lun;
use lunar_initiator::multipath::LunPath;
use lunar_runtime::Buf;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The interval at which a session checks whether it is over, and publishes its progress.
const TICK: Duration = Duration::from_millis(50);
/// The number of commands after which a worker yields, for disks that complete at once.
const COMMANDS_PER_YIELD: u32 = 64;
/// The time limit for commands in flight at the end.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit if the user ended the job.
const ABORT_TIMEOUT: Duration = Duration::from_secs(2);
/// The number of attempts to claim free units before a worker sleeps.
const CLAIM_ATTEMPTS: u32 = 16;
/// The duration of that sleep.
const CLAIM_RETRY: Duration = Duration::from_millis(1);
/// The content of a buffer before a verified read: no stamped unit consists of it.
const POISON: u8 = 0xa5;

/// The pattern and the buffer of each worker.
pub type WorkerBuffers = Vec<(DataPattern, Buf)>;

/// Creates the buffers of a session.
pub fn buffers(job: &Job, index: usize) -> WorkerBuffers {
    (0..job.workers()).map(|lane| DataPattern::new(job, (index * 2 * job.depth + lane) as u64)).collect()
}

/// A running session of a job.
pub struct JobSession {
    job: Job,
    clock: JobClock,
    disk: Arc<dyn Backend>,
    /// The shared queue, if the disk has one.
    queue: Option<WorkerQueue>,
    lun: Option<Arc<Lun>>,
    ledger: Option<Arc<WriteLedger>>,
    is_read_back: bool,
    handle: RunHandle,
    offsets: RefCell<OffsetGenerator>,
    stats: RefCell<SessionStats>,
    arrivals: RefCell<Option<ArrivalTimes>>,
    /// Remaining bytes and commands.
    left: Cell<u64>,
    commands: Cell<u64>,
    /// Commands that were submitted and have not ended.
    in_flight: Cell<usize>,
    /// The pending command of each worker: whether it reads, and when it started.
    started_at: Vec<Cell<Option<(bool, Instant)>>>,
    /// Whether a command that was charged to the amount did not end in time.
    is_cut: Cell<bool>,
    errors: Cell<u64>,
    /// The counts published to the handle.
    published: Cell<IoCounts>,
    last: Cell<Instant>,
    /// The reason of an early end, and its time.
    why: RefCell<Option<(Instant, String)>>,
    /// Whether any session of the job ended early, which ends all of them.
    has_failed: Arc<AtomicBool>,
    /// Dropping it wakes the sleeping workers.
    sleepers: RefCell<Option<Sender<()>>>,
    woken: Receiver<()>,
}

impl JobSession {
    /// Creates a session that starts at the clock's time.
    pub fn new(
        job: Job,
        clock: JobClock,
        target_session: TargetSession,
        handle: RunHandle,
        context: SessionContext,
    ) -> JobSession {
        let SessionContext { index, sessions, at_target: (position, total), span, is_read_back, has_failed } =
            context;
        // The first session gets the rest that cannot be divided.
        let share = |all: Option<u64>, unit: u64| {
            let part = |all: u64| all / sessions as u64 / unit * unit;
            let remainder = |all: u64| all - part(all) * (sessions as u64 - 1);
            let all = all.filter(|_| !is_read_back);
            all.map_or(u64::MAX, |all| if index == 0 { remainder(all) } else { part(all) })
        };
        let (sleepers, woken) = flume::bounded(1);
        JobSession {
            offsets: RefCell::new(OffsetGenerator::new(&job, job.offset, span, index, (position, total))),
            stats: RefCell::new(SessionStats::new(
                clock.measured_from,
                job.interval,
                job.pace != ArrivalProcess::Closed,
            )),
            arrivals: RefCell::new(ArrivalTimes::new(&job, clock.start, index, sessions)),
            left: Cell::new(share(job.amount, job.granule())),
            commands: Cell::new(share(job.commands, 1)),
            in_flight: Cell::new(0),
            started_at: vec![Cell::new(None); job.workers()],
            is_cut: Cell::new(false),
            errors: Cell::new(0),
            published: Cell::new(IoCounts::default()),
            last: Cell::new(clock.measured_from),
            why: RefCell::new(None),
            has_failed,
            sleepers: RefCell::new(Some(sleepers)),
            woken,
            queue: target_session.disk.clone().queue().map(|queue| WorkerQueue::new(queue, job.workers())),
            job,
            clock,
            disk: target_session.disk,
            lun: target_session.lun,
            ledger: target_session.ledger,
            is_read_back,
            handle,
        }
    }

    /// Runs the session to its end.
    pub async fn run(self: Rc<Self>, index: usize, buffers: WorkerBuffers) -> SessionResult {
        let workers =
            buffers.into_iter().enumerate().map(|(lane, buffer)| self.clone().run_worker(lane, buffer));
        let all = async {
            match &self.queue {
                Some(queue) => queue.run(workers.map(|worker| Some(Box::pin(worker) as _)).collect()).await,
                None => run_as_tasks(workers).await,
            }
            if self.job.flush && !self.has_failed.load(Relaxed) {
                self.flush().await;
            }
        };
        let _ = lunar_runtime::either(all, self.supervise()).await;
        self.charge_unanswered();
        self.publish();
        let end = self.end();
        let backlog = self.charge_backlog(end);
        SessionResult {
            index,
            stats: self.stats.replace(SessionStats::new(self.clock.measured_from, self.job.interval, false)),
            errors: self.errors.get(),
            backlog,
            end,
            why: self.why.take().map(|(_, why)| why),
        }
    }

    /// The end of the measured time: the last command, if the amount was completed in time; otherwise the
    /// deadline, or the moment of an early end.
    fn end(&self) -> Instant {
        let failed = self.why.borrow().as_ref().map(|(when, _)| *when);
        let is_done = self.is_amount_issued() && !self.is_cut.get() && self.in_flight.get() == 0;
        if is_done && failed.is_none() {
            return self.last.get();
        }
        let stopped = failed.unwrap_or_else(Instant::now);
        let end = self.clock.deadline.map_or(stopped, |deadline| deadline.min(stopped));
        end.max(self.last.get())
    }

    /// Charges commands that never completed with the time that they have waited.
    fn charge_unanswered(&self) {
        let (mut stats, done) = (self.stats.borrow_mut(), Instant::now());
        for (read, started_at) in self.started_at.iter().filter_map(Cell::take) {
            stats.add_late(read, CommandTimes { due: started_at, started_at, done });
        }
    }

    /// Charges commands that were due and did not start with the time that they waited, so that a target that
    /// stalls at the end does not look fast. There are none once the amount is reached.
    fn charge_backlog(&self, stopped: Instant) -> u64 {
        let arrivals = self.arrivals.borrow();
        let waiting = arrivals.as_ref().filter(|_| !self.is_amount_issued());
        let groups = waiting.map(|arrivals| arrivals.backlog(stopped)).unwrap_or_default();
        let (mut stats, mut all) = (self.stats.borrow_mut(), 0);
        for (many, waited) in groups {
            let reads = self.job.direction.reads_of(all + many) - self.job.direction.reads_of(all);
            stats.add_waiting(true, reads, waited);
            stats.add_waiting(false, many - reads, waited);
            all += many;
        }
        all
    }

    /// Flushes. The time of the flush counts, even after the deadline.
    async fn flush(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
        let flushed = self.disk.flush().await;
        self.in_flight.set(self.in_flight.get() - 1);
        match flushed {
            Ok(()) => self.last.set(Instant::now()),
            Err(e) => self.fail(format!("flush failed: {e}")),
        }
    }

    /// Publishes progress, and wakes sleeping workers at the end. Returns when the workers have had enough time
    /// to end.
    async fn supervise(&self) {
        let mut over: Option<Instant> = None;
        loop {
            sleep(TICK).await;
            self.publish();
            let now = Instant::now();
            if !self.is_over(now) {
                continue;
            }
            drop(self.sleepers.take());
            let patience = if self.handle.is_ended() { ABORT_TIMEOUT } else { DRAIN_TIMEOUT };
            if now > *over.get_or_insert(now) + patience {
                let in_flight = text_report::count(self.in_flight.get(), "command");
                return self.fail(format!(
                    "{in_flight} without a response {} s after the end of the run{}",
                    patience.as_secs(),
                    self.obstacle()
                ));
            }
        }
    }

    /// The reason why the commands wait, after a colon, as far as the initiator knows it.
    fn obstacle(&self) -> String {
        let Some(lun) = &self.lun else { return String::new() };
        let silent = || format!("{} is connected, but does not respond", lun.name());
        format!(": {}", lun.session().obstacle().unwrap_or_else(silent))
    }

    fn publish(&self) {
        let done = self.stats.borrow().counts();
        self.handle.add(&self.published.replace(done), &done);
    }

    /// Whether the session must end before its time.
    fn is_stopped(&self) -> bool {
        self.handle.is_ended() || self.has_failed.load(Relaxed)
    }

    fn is_over(&self, now: Instant) -> bool {
        self.is_stopped() || self.clock.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// The first reason counts.
    fn fail(&self, why: String) {
        self.why.borrow_mut().get_or_insert_with(|| (Instant::now(), why));
        self.has_failed.store(true, Relaxed);
    }

    /// Runs one command after another.
    async fn run_worker(self: Rc<Self>, lane: usize, (mut content, mut buf): (DataPattern, Buf)) {
        let _alive = PanicGuard(self.clone());
        // With both directions at once, each has its own workers.
        let read = lane < self.job.depth;
        let mut now = Instant::now();
        for count in 1u32.. {
            if self.is_over(now) {
                break;
            }
            if count.is_multiple_of(COMMANDS_PER_YIELD) {
                lunar_runtime::yield_now().await;
                // Time spent in other workers is not latency.
                now = Instant::now();
            }
            let Some((next, mut claim)) = self.claim(read).await else { break };
            let is_taken = self.take(next, now);
            let Some(due) = self.due(now).await else {
                self.is_cut.set(true);
                break;
            };
            buf.set_visible(next.len as usize);
            if let Err(why) = prepare(next, &mut content, claim.as_mut(), &mut buf) {
                self.fail(why);
                break;
            }
            // The client's own checks are not latency of the target.
            let is_next = self.job.pace == ArrivalProcess::Closed && claim.is_none() && !self.job.compare;
            let started_at = if is_next { now } else { Instant::now() };
            let due = if self.job.pace == ArrivalProcess::Closed { started_at } else { due };
            self.started_at[lane].set(Some((next.read, started_at)));
            let ((result, back), came) = self.transfer(lane, next, buf).await;
            self.started_at[lane].set(None);
            (buf, now) = (back, came);
            if !is_taken {
                // The command was in flight when the warm-up ended, or ended during it.
                self.take(next, now);
            }
            let is_done = self.record_completion(next, CommandTimes { due, started_at, done: now }, result);
            if is_done && let Err(why) = check_data(next, &mut content, claim.as_ref(), &buf) {
                self.fail(why);
            }
            if !self.job.think.is_zero() {
                self.sleep_until(now + self.job.think).await;
                now = Instant::now();
            }
        }
    }

    /// The next command. With a ledger, its units are claimed, so that no other command uses them.
    async fn claim(&self, read: bool) -> Option<(NextCommand, Option<UnitClaim>)> {
        match &self.ledger {
            None => Some((self.next(read)?, None)),
            Some(ledger) if self.is_read_back => {
                let claim = ledger.claim_known(self.job.longest())?;
                Some((NextCommand { read: true, offset: claim.offset(), len: claim.len() }, Some(claim)))
            }
            Some(ledger) => self.free(read, ledger).await,
        }
    }

    async fn free(&self, read: bool, ledger: &Arc<WriteLedger>) -> Option<(NextCommand, Option<UnitClaim>)> {
        for look in 1u32.. {
            let next = self.next(read)?;
            if let Some(claim) = ledger.claim(next.offset, next.len) {
                return Some((next, Some(claim)));
            }
            if look.is_multiple_of(CLAIM_ATTEMPTS) {
                sleep(CLAIM_RETRY).await;
                if self.is_over(Instant::now()) {
                    return None;
                }
            }
        }
        None
    }

    /// Whether the amount, or the number of commands, is reached.
    fn is_amount_issued(&self) -> bool {
        self.left.get() == 0 || self.commands.get() == 0
    }

    /// The next command; None when the amount is reached.
    fn next(&self, read: bool) -> Option<NextCommand> {
        if self.is_amount_issued() {
            return None;
        }
        Some(self.offsets.borrow_mut().next(read, self.left.get()))
    }

    /// Charges a command to the amount; false during the warm-up, which charges nothing.
    fn take(&self, next: NextCommand, now: Instant) -> bool {
        let counts = now >= self.clock.measured_from;
        if counts {
            self.left.set(self.left.get().saturating_sub(next.len.into()));
            self.commands.set(self.commands.get().saturating_sub(1));
        }
        counts
    }

    /// Waits until the next command is due, and returns that time; `now` in a closed loop. None if the session
    /// ends first.
    async fn due(&self, now: Instant) -> Option<Instant> {
        let Some(due) = self.arrivals.borrow_mut().as_mut().map(ArrivalTimes::take) else { return Some(now) };
        self.sleep_until(self.clock.deadline.map_or(due, |deadline| deadline.min(due))).await;
        let is_late = self.clock.deadline.is_some_and(|deadline| due >= deadline);
        (!is_late && !self.is_stopped()).then_some(due)
    }

    /// Sleeps until the given time, or the end of the session.
    async fn sleep_until(&self, until: Instant) {
        let wait = until.saturating_duration_since(Instant::now());
        match wait {
            Duration::ZERO => {}
            // Waking up takes that long.
            wait if wait <= TICK => sleep(wait).await,
            wait => lunar_runtime::either(sleep(wait), async { _ = self.woken.recv_async().await }).await,
        }
    }

    /// Transfers data; returns the result and the time of completion.
    async fn transfer(&self, lane: usize, next: NextCommand, buf: Buf) -> (BufResult, Instant) {
        self.in_flight.set(self.in_flight.get() + 1);
        let ended = match (&self.queue, next.read) {
            (Some(queue), true) => queue.transfer(lane, |queue| queue.read(lane, next.offset, buf)).await,
            (Some(queue), false) => {
                queue.transfer(lane, |queue| queue.write(lane, next.offset, buf, self.job.fua)).await
            }
            (None, true) => (self.disk.read(next.offset, buf).await, Instant::now()),
            (None, false) => (self.disk.write(next.offset, buf, self.job.fua).await, Instant::now()),
        };
        self.in_flight.set(self.in_flight.get() - 1);
        ended
    }

    /// Records a completed command; false if it failed. A command in flight at the end of the time counts in
    /// the latency, but not in rates: a target that stalls must not look fast.
    fn record_completion(&self, next: NextCommand, times: CommandTimes, result: io::Result<()>) -> bool {
        // With a flush at the end, commands that end before it count.
        let is_late = !self.job.flush && self.clock.deadline.is_some_and(|deadline| times.done > deadline);
        let is_counted = times.done >= self.clock.measured_from && !is_late;
        if is_counted {
            self.last.set(times.done);
        }
        self.is_cut.set(self.is_cut.get() || is_late);
        let direction = if next.read { "read" } else { "write" };
        if let Err(e) = result {
            self.errors.set(self.errors.get() + 1);
            if !self.job.continue_on_error {
                self.fail(format!("{direction} of {} bytes at offset {} failed: {e}", next.len, next.offset));
            }
            return false;
        }
        match is_late {
            true => self.stats.borrow_mut().add_late(next.read, times),
            false if is_counted => self.stats.borrow_mut().add(next.read, next.len, times),
            false => {}
        }
        true
    }
}

/// Runs each worker in a separate task.
async fn run_as_tasks(workers: impl Iterator<Item = impl Future<Output = ()> + 'static>) {
    let workers: Vec<_> = workers.map(spawn).collect();
    for worker in workers {
        // A worker that panicked has already reported it.
        let _ = worker.await;
    }
}

/// Ends the job if the worker that owns it panics.
struct PanicGuard(Rc<JobSession>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail("a worker thread panicked: report this as a bug in Lunar".into());
        }
    }
}

/// Prepares the buffer for a command. Before a read that will be checked, the buffer must not contain valid
/// data: otherwise a target that returns nothing would pass.
fn prepare(
    next: NextCommand,
    content: &mut DataPattern,
    claim: Option<&mut UnitClaim>,
    buf: &mut Buf,
) -> Result<(), String> {
    match claim {
        Some(_) if next.read => buf.fill(POISON),
        Some(claim) => claim.begin(buf)?,
        None if next.read => content.before_read(next.offset, buf),
        None => content.before_write(next.offset, buf),
    }
    Ok(())
}

/// Checks the data of a read; acknowledges a write in the ledger.
fn check_data(
    next: NextCommand,
    content: &mut DataPattern,
    claim: Option<&UnitClaim>,
    buf: &[u8],
) -> Result<(), String> {
    match (claim, next.read) {
        (Some(claim), true) => claim.check(buf),
        (Some(claim), false) => claim.acknowledge(),
        (None, true) => match content.first_mismatch(next.offset, buf) {
            Some(at) => Err(format!("byte {at} differs from the data written")),
            None => Ok(()),
        },
        (None, false) => Ok(()),
    }
}

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
use lunar_runtime::Buf;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How often a session looks whether it is to end, and tells how far it is.
const TICK: Duration = Duration::from_millis(50);
/// Commands after which a worker lets others run, for disks that answer on the spot.
const COMMANDS_PER_TURN: u32 = 64;
/// How long commands in flight at the end are waited for.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// The same when somebody asked for the end.
const ABORT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a worker looks for a place that nobody is at, before it sleeps.
const CLAIM_ATTEMPTS: u32 = 16;
/// How long it sleeps then.
const CLAIM_RETRY: Duration = Duration::from_millis(1);
/// What is in a buffer before something is read that carries checks: no block of ours is made of it.
const POISON: u8 = 0xa5;

/// What each of the workers of a session sends and reads into.
pub type WorkerBuffers = Vec<(DataPattern, Buf)>;

/// Makes the buffers of a session, one for each of its workers.
pub fn buffers(job: &Job, index: usize) -> WorkerBuffers {
    (0..job.workers()).map(|lane| DataPattern::new(job, (index * 2 * job.depth + lane) as u64)).collect()
}

/// A session of a job while it runs.
pub struct JobSession {
    job: Job,
    clock: JobClock,
    disk: Arc<dyn Backend>,
    /// Where the disk takes the commands of all workers in one queue.
    queue: Option<WorkerQueue>,
    ledger: Option<Arc<WriteLedger>>,
    is_read_back: bool,
    handle: RunHandle,
    offsets: RefCell<OffsetGenerator>,
    stats: RefCell<SessionStats>,
    arrivals: RefCell<Option<ArrivalTimes>>,
    /// Bytes, and commands, that may still be asked for.
    left: Cell<u64>,
    commands: Cell<u64>,
    /// Commands that were handed over and have not ended.
    in_flight: Cell<usize>,
    /// Of each worker, whether the one that has not ended reads, and when it began.
    begun: Vec<Cell<Option<(bool, Instant)>>>,
    /// Something that was taken out of the amount did not end within the time.
    is_cut: Cell<bool>,
    errors: Cell<u64>,
    /// What the watch knows.
    published: Cell<IoCounts>,
    last: Cell<Instant>,
    /// Why it ends early, and since when.
    why: RefCell<Option<(Instant, String)>>,
    /// It, or another session of the job, ends early: then all do.
    has_failed: Arc<AtomicBool>,
    /// Those who sleep wake up when it is dropped.
    sleepers: RefCell<Option<Sender<()>>>,
    woken: Receiver<()>,
}

impl JobSession {
    /// One that begins now, as the clock says.
    pub fn new(
        job: Job,
        clock: JobClock,
        place: TargetSession,
        handle: RunHandle,
        seat: SessionContext,
    ) -> JobSession {
        let SessionContext { index, sessions, at_target: (turn, turns), span, is_read_back, has_failed } =
            seat;
        // Of all that is to be done, the first session has what cannot be divided.
        let share = |all: Option<u64>, unit: u64| {
            let part = |all: u64| all / sessions as u64 / unit * unit;
            let sleep_until = |all: u64| all - part(all) * (sessions as u64 - 1);
            let all = all.filter(|_| !is_read_back);
            all.map_or(u64::MAX, |all| if index == 0 { sleep_until(all) } else { part(all) })
        };
        let (sleepers, woken) = flume::bounded(1);
        JobSession {
            offsets: RefCell::new(OffsetGenerator::new(&job, job.offset, span, index, (turn, turns))),
            stats: RefCell::new(SessionStats::new(
                clock.begin,
                job.interval,
                job.pace != ArrivalProcess::Closed,
            )),
            arrivals: RefCell::new(ArrivalTimes::new(&job, clock.start, index, sessions)),
            left: Cell::new(share(job.amount, job.granule())),
            commands: Cell::new(share(job.commands, 1)),
            in_flight: Cell::new(0),
            begun: vec![Cell::new(None); job.workers()],
            is_cut: Cell::new(false),
            errors: Cell::new(0),
            published: Cell::new(IoCounts::default()),
            last: Cell::new(clock.begin),
            why: RefCell::new(None),
            has_failed,
            sleepers: RefCell::new(Some(sleepers)),
            woken,
            queue: place.disk.clone().queue().map(|queue| WorkerQueue::new(queue, job.workers())),
            job,
            clock,
            disk: place.disk,
            ledger: place.ledger,
            is_read_back,
            handle,
        }
    }

    /// Runs to its end.
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
            stats: self.stats.replace(SessionStats::new(self.clock.begin, self.job.interval, false)),
            errors: self.errors.get(),
            backlog,
            end,
            why: self.why.take().map(|(_, why)| why),
        }
    }

    /// The end of what it measured. Where it did all of its amount in time, that is the end of the last command;
    /// otherwise that of its time, whenever its last command ended, or the moment at which it was to end early.
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

    /// Commands that were not answered are in the latency as what they have waited until now.
    fn charge_unanswered(&self) {
        let (mut stats, done) = (self.stats.borrow_mut(), Instant::now());
        for (read, begun) in self.begun.iter().filter_map(Cell::take) {
            stats.add_late(read, CommandTimes { due: begun, begun, done });
        }
    }

    /// Commands that were due and that nobody took; none once the amount is reached. They are in the latency as what they
    /// had waited: a target that stalls at the end shall not look fast.
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

    /// Makes all stable. Its time counts, whatever the deadline says.
    async fn flush(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
        let flushed = self.disk.flush().await;
        self.in_flight.set(self.in_flight.get() - 1);
        match flushed {
            Ok(()) => self.last.set(Instant::now()),
            Err(e) => self.fail(format!("flush: {e}")),
        }
    }

    /// Tells how far it is, and wakes those who sleep when it is over. Ends when those who work have had time
    /// enough to end.
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
                return self
                    .fail(format!("not answered {} s after the end: {in_flight}", patience.as_secs()));
            }
        }
    }

    fn publish(&self) {
        let done = self.stats.borrow().counts();
        self.handle.add(&self.published.replace(done), &done);
    }

    /// It is to end, whatever the clock says.
    fn is_stopped(&self) -> bool {
        self.handle.is_ended() || self.has_failed.load(Relaxed)
    }

    fn is_over(&self, now: Instant) -> bool {
        self.is_stopped() || self.clock.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// The first reason stands.
    fn fail(&self, why: String) {
        self.why.borrow_mut().get_or_insert_with(|| (Instant::now(), why));
        self.has_failed.store(true, Relaxed);
    }

    /// One command after the other.
    async fn run_worker(self: Rc<Self>, lane: usize, (mut content, mut buf): (DataPattern, Buf)) {
        let _alive = PanicGuard(self.clone());
        // Where both ways are taken at once, each has workers of its own.
        let read = lane < self.job.depth;
        let mut now = Instant::now();
        for count in 1u32.. {
            if self.is_over(now) {
                break;
            }
            if count.is_multiple_of(COMMANDS_PER_TURN) {
                lunar_runtime::yield_now().await;
                // The turns of others are no latency of ours.
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
            // Where checks are made, they take time that the target is not to blame for.
            let is_next = self.job.pace == ArrivalProcess::Closed && claim.is_none() && !self.job.compare;
            let begun = if is_next { now } else { Instant::now() };
            let due = if self.job.pace == ArrivalProcess::Closed { begun } else { due };
            self.begun[lane].set(Some((next.read, begun)));
            let ((result, back), came) = self.transfer(lane, next, buf).await;
            self.begun[lane].set(None);
            (buf, now) = (back, came);
            if !is_taken {
                // It was in flight when the ramp ended, or ended in it.
                self.take(next, now);
            }
            let is_done = self.record_completion(next, CommandTimes { due, begun, done: now }, result);
            if is_done && let Err(why) = check_data(next, &mut content, claim.as_ref(), &buf) {
                self.fail(why);
            }
            if !self.job.think.is_zero() {
                self.sleep_until(now + self.job.think).await;
                now = Instant::now();
            }
        }
    }

    /// What is next. Where a ledger is kept, at a place that no other command is at.
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

    /// The amount, or the number of commands, is reached.
    fn is_amount_issued(&self) -> bool {
        self.left.get() == 0 || self.commands.get() == 0
    }

    /// None when the amount is reached.
    fn next(&self, read: bool) -> Option<NextCommand> {
        if self.is_amount_issued() {
            return None;
        }
        Some(self.offsets.borrow_mut().next(read, self.left.get()))
    }

    /// Takes a command out of the amount; false while the ramp lasts, in which nothing is.
    fn take(&self, next: NextCommand, now: Instant) -> bool {
        let counts = now >= self.clock.begin;
        if counts {
            self.left.set(self.left.get().saturating_sub(next.len.into()));
            self.commands.set(self.commands.get().saturating_sub(1));
        }
        counts
    }

    /// The moment at which the next command is due, once it is there; `now` in a closed loop. None when the end
    /// comes before it.
    async fn due(&self, now: Instant) -> Option<Instant> {
        let Some(due) = self.arrivals.borrow_mut().as_mut().map(ArrivalTimes::take) else { return Some(now) };
        self.sleep_until(self.clock.deadline.map_or(due, |deadline| deadline.min(due))).await;
        let is_late = self.clock.deadline.is_some_and(|deadline| due >= deadline);
        (!is_late && !self.is_stopped()).then_some(due)
    }

    /// Sleeps, and no longer than until it is over.
    async fn sleep_until(&self, until: Instant) {
        let wait = until.saturating_duration_since(Instant::now());
        match wait {
            Duration::ZERO => {}
            // To wake up takes as long.
            wait if wait <= TICK => sleep(wait).await,
            wait => lunar_runtime::either(sleep(wait), async { _ = self.woken.recv_async().await }).await,
        }
    }

    /// The end of a command, and when it came.
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

    /// Counts a command; false if it failed. One that was in flight when the time was over is in no rate, and how
    /// long it took is told as that of all others: a target that stalls shall not look fast.
    fn record_completion(&self, next: NextCommand, times: CommandTimes, result: io::Result<()>) -> bool {
        // Where a flush at the end is measured, so is what ends before it.
        let is_late = !self.job.flush && self.clock.deadline.is_some_and(|deadline| times.done > deadline);
        let is_counted = times.done >= self.clock.begin && !is_late;
        if is_counted {
            self.last.set(times.done);
        }
        self.is_cut.set(self.is_cut.get() || is_late);
        let direction = if next.read { "read" } else { "write" };
        if let Err(e) = result {
            self.errors.set(self.errors.get() + 1);
            if !self.job.continue_on_error {
                self.fail(format!("{direction} of {} bytes at {}: {e}", next.len, next.offset));
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

/// Runs workers to their ends, each in a task of its own.
async fn run_as_tasks(workers: impl Iterator<Item = impl Future<Output = ()> + 'static>) {
    let workers: Vec<_> = workers.map(spawn).collect();
    for worker in workers {
        // One that has died has told so.
        let _ = worker.await;
    }
}

/// Somebody who works for a session: his death is the end of the job.
struct PanicGuard(Rc<JobSession>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail("a worker died: this is a fault of Lunar, report it".into());
        }
    }
}

/// Makes the buffer ready for a command. Before something is read that will be checked, the buffer holds nothing
/// that would pass: a target that returns nothing shall be seen.
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

/// Whether what was read is right; what was written is, from now on.
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
            Some(at) => Err(format!("byte {at} is not what was written there")),
            None => Ok(()),
        },
        (None, false) => Ok(()),
    }
}

//! One session of a job, on its core.

use super::arrivals::Arrivals;
use super::ended::Ended;
use super::lanes::Lanes;
use super::{Clock, Seat};
use crate::content::Content;
use crate::job::{ArrivalProcess, Job};
use crate::offsets::{Next, Offsets};
use crate::open_targets::Place;
use crate::outcome::Share;
use crate::record::{Record, Times};
use crate::verify::{Claim, Ledger};
use crate::{Watch, text_report};
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
const TURN: u32 = 64;
/// How long commands in flight at the end are waited for.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// The same when somebody asked for the end.
const IMPATIENCE: Duration = Duration::from_secs(2);
/// How often a worker looks for a place that nobody is at, before it sleeps.
const LOOKS: u32 = 16;
/// How long it sleeps then.
const NAP: Duration = Duration::from_millis(1);
/// What is in a buffer before something is read that carries checks: no block of ours is made of it.
const SPOILT: u8 = 0xa5;

/// What each of the workers of a session sends and reads into.
pub type Buffers = Vec<(Content, Buf)>;

/// Makes the buffers of a session, one for each of its workers.
pub fn buffers(job: &Job, index: usize) -> Buffers {
    (0..job.lanes()).map(|lane| Content::new(job, (index * 2 * job.depth + lane) as u64)).collect()
}

/// A session of a job while it runs.
pub struct Session {
    job: Job,
    clock: Clock,
    disk: Arc<dyn Backend>,
    /// Where the disk takes the commands of all workers in one queue.
    lanes: Option<Lanes>,
    ledger: Option<Arc<Ledger>>,
    is_read_back: bool,
    watch: Watch,
    offsets: RefCell<Offsets>,
    record: RefCell<Record>,
    arrivals: RefCell<Option<Arrivals>>,
    /// Bytes, and commands, that may still be asked for.
    left: Cell<u64>,
    commands: Cell<u64>,
    /// Commands that were handed over and have not ended.
    flying: Cell<usize>,
    /// Of each worker, whether the one that has not ended reads, and when it began.
    begun: Vec<Cell<Option<(bool, Instant)>>>,
    /// Something that was taken out of the amount did not end within the time.
    is_cut: Cell<bool>,
    errors: Cell<u64>,
    /// What the watch knows.
    told: Cell<Share>,
    last: Cell<Instant>,
    /// Why it ends early, and since when.
    why: RefCell<Option<(Instant, String)>>,
    /// It, or another session of the job, ends early: then all do.
    has_failed: Arc<AtomicBool>,
    /// Those who sleep wake up when it is dropped.
    asleep: RefCell<Option<Sender<()>>>,
    woken: Receiver<()>,
}

impl Session {
    /// One that begins now, as the clock says.
    pub fn new(job: Job, clock: Clock, place: Place, watch: Watch, seat: Seat) -> Session {
        let Seat { index, sessions, at_target: (turn, turns), span, is_read_back, has_failed } = seat;
        // Of all that is to be done, the first session has what cannot be divided.
        let share = |all: Option<u64>, unit: u64| {
            let part = |all: u64| all / sessions as u64 / unit * unit;
            let rest = |all: u64| all - part(all) * (sessions as u64 - 1);
            let all = all.filter(|_| !is_read_back);
            all.map_or(u64::MAX, |all| if index == 0 { rest(all) } else { part(all) })
        };
        let (asleep, woken) = flume::bounded(1);
        Session {
            offsets: RefCell::new(Offsets::new(&job, job.offset, span, index, (turn, turns))),
            record: RefCell::new(Record::new(clock.begin, job.interval, job.pace != ArrivalProcess::Closed)),
            arrivals: RefCell::new(Arrivals::new(&job, clock.start, index, sessions)),
            left: Cell::new(share(job.amount, job.granule())),
            commands: Cell::new(share(job.commands, 1)),
            flying: Cell::new(0),
            begun: vec![Cell::new(None); job.lanes()],
            is_cut: Cell::new(false),
            errors: Cell::new(0),
            told: Cell::new(Share::default()),
            last: Cell::new(clock.begin),
            why: RefCell::new(None),
            has_failed,
            asleep: RefCell::new(Some(asleep)),
            woken,
            lanes: place.disk.clone().queue().map(|queue| Lanes::new(queue, job.lanes())),
            job,
            clock,
            disk: place.disk,
            ledger: place.ledger,
            is_read_back,
            watch,
        }
    }

    /// Runs to its end.
    pub async fn run(self: Rc<Self>, index: usize, buffers: Buffers) -> Ended {
        let workers = buffers.into_iter().enumerate().map(|(lane, buffer)| self.clone().work(lane, buffer));
        let all = async {
            match &self.lanes {
                Some(lanes) => lanes.run(workers.map(|worker| Some(Box::pin(worker) as _)).collect()).await,
                None => each_by_itself(workers).await,
            }
            if self.job.flush && !self.has_failed.load(Relaxed) {
                self.flush().await;
            }
        };
        let _ = lunar_runtime::either(all, self.supervise()).await;
        self.charge_unanswered();
        self.tell();
        let end = self.end();
        let backlog = self.charge_backlog(end);
        Ended {
            index,
            record: self.record.replace(Record::new(self.clock.begin, self.job.interval, false)),
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
        let is_done = self.is_all_asked() && !self.is_cut.get() && self.flying.get() == 0;
        if is_done && failed.is_none() {
            return self.last.get();
        }
        let stopped = failed.unwrap_or_else(Instant::now);
        let end = self.clock.deadline.map_or(stopped, |deadline| deadline.min(stopped));
        end.max(self.last.get())
    }

    /// Commands that were not answered are in the latency as what they have waited until now.
    fn charge_unanswered(&self) {
        let (mut record, done) = (self.record.borrow_mut(), Instant::now());
        for (read, begun) in self.begun.iter().filter_map(Cell::take) {
            record.add_late(read, Times { due: begun, begun, done });
        }
    }

    /// Commands that were due and that nobody took; none once the amount is reached. They are in the latency as what they
    /// had waited: a target that stalls at the end shall not look fast.
    fn charge_backlog(&self, stopped: Instant) -> u64 {
        let arrivals = self.arrivals.borrow();
        let waiting = arrivals.as_ref().filter(|_| !self.is_all_asked());
        let groups = waiting.map(|arrivals| arrivals.backlog(stopped)).unwrap_or_default();
        let (mut record, mut all) = (self.record.borrow_mut(), 0);
        for (many, waited) in groups {
            let reads = self.job.way.reads_of(all + many) - self.job.way.reads_of(all);
            record.add_waiting(true, reads, waited);
            record.add_waiting(false, many - reads, waited);
            all += many;
        }
        all
    }

    /// Makes all stable. Its time counts, whatever the deadline says.
    async fn flush(&self) {
        self.flying.set(self.flying.get() + 1);
        let flushed = self.disk.flush().await;
        self.flying.set(self.flying.get() - 1);
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
            self.tell();
            let now = Instant::now();
            if !self.is_over(now) {
                continue;
            }
            drop(self.asleep.take());
            let patience = if self.watch.is_ended() { IMPATIENCE } else { PATIENCE };
            if now > *over.get_or_insert(now) + patience {
                let flying = text_report::count(self.flying.get(), "command");
                return self.fail(format!("not answered {} s after the end: {flying}", patience.as_secs()));
            }
        }
    }

    fn tell(&self) {
        let done = self.record.borrow().share();
        self.watch.add(&self.told.replace(done), &done);
    }

    /// It is to end, whatever the clock says.
    fn is_stopped(&self) -> bool {
        self.watch.is_ended() || self.has_failed.load(Relaxed)
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
    async fn work(self: Rc<Self>, lane: usize, (mut content, mut buf): (Content, Buf)) {
        let _alive = Alive(self.clone());
        // Where both ways are taken at once, each has workers of its own.
        let read = lane < self.job.depth;
        let mut now = Instant::now();
        for count in 1u32.. {
            if self.is_over(now) {
                break;
            }
            if count.is_multiple_of(TURN) {
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
            let is_done = self.note(next, Times { due, begun, done: now }, result);
            if is_done && let Err(why) = right(next, &mut content, claim.as_ref(), &buf) {
                self.fail(why);
            }
            if !self.job.think.is_zero() {
                self.rest(now + self.job.think).await;
                now = Instant::now();
            }
        }
    }

    /// What is next. Where a ledger is kept, at a place that no other command is at.
    async fn claim(&self, read: bool) -> Option<(Next, Option<Claim>)> {
        match &self.ledger {
            None => Some((self.next(read)?, None)),
            Some(ledger) if self.is_read_back => {
                let claim = ledger.claim_known(self.job.longest())?;
                Some((Next { read: true, offset: claim.offset(), len: claim.len() }, Some(claim)))
            }
            Some(ledger) => self.free(read, ledger).await,
        }
    }

    async fn free(&self, read: bool, ledger: &Arc<Ledger>) -> Option<(Next, Option<Claim>)> {
        for look in 1u32.. {
            let next = self.next(read)?;
            if let Some(claim) = ledger.claim(next.offset, next.len) {
                return Some((next, Some(claim)));
            }
            if look.is_multiple_of(LOOKS) {
                sleep(NAP).await;
                if self.is_over(Instant::now()) {
                    return None;
                }
            }
        }
        None
    }

    /// The amount, or the number of commands, is reached.
    fn is_all_asked(&self) -> bool {
        self.left.get() == 0 || self.commands.get() == 0
    }

    /// None when the amount is reached.
    fn next(&self, read: bool) -> Option<Next> {
        if self.is_all_asked() {
            return None;
        }
        Some(self.offsets.borrow_mut().next(read, self.left.get()))
    }

    /// Takes a command out of the amount; false while the ramp lasts, in which nothing is.
    fn take(&self, next: Next, now: Instant) -> bool {
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
        let Some(due) = self.arrivals.borrow_mut().as_mut().map(Arrivals::take) else { return Some(now) };
        self.rest(self.clock.deadline.map_or(due, |deadline| deadline.min(due))).await;
        let is_late = self.clock.deadline.is_some_and(|deadline| due >= deadline);
        (!is_late && !self.is_stopped()).then_some(due)
    }

    /// Sleeps, and no longer than until it is over.
    async fn rest(&self, until: Instant) {
        let wait = until.saturating_duration_since(Instant::now());
        match wait {
            Duration::ZERO => {}
            // To wake up takes as long.
            wait if wait <= TICK => sleep(wait).await,
            wait => lunar_runtime::either(sleep(wait), async { _ = self.woken.recv_async().await }).await,
        }
    }

    /// The end of a command, and when it came.
    async fn transfer(&self, lane: usize, next: Next, buf: Buf) -> (BufResult, Instant) {
        self.flying.set(self.flying.get() + 1);
        let ended = match (&self.lanes, next.read) {
            (Some(lanes), true) => lanes.transfer(lane, |queue| queue.read(lane, next.offset, buf)).await,
            (Some(lanes), false) => {
                lanes.transfer(lane, |queue| queue.write(lane, next.offset, buf, self.job.stable)).await
            }
            (None, true) => (self.disk.read(next.offset, buf).await, Instant::now()),
            (None, false) => (self.disk.write(next.offset, buf, self.job.stable).await, Instant::now()),
        };
        self.flying.set(self.flying.get() - 1);
        ended
    }

    /// Counts a command; false if it failed. One that was in flight when the time was over is in no rate, and how
    /// long it took is told as that of all others: a target that stalls shall not look fast.
    fn note(&self, next: Next, times: Times, result: io::Result<()>) -> bool {
        // Where a flush at the end is measured, so is what ends before it.
        let is_late = !self.job.flush && self.clock.deadline.is_some_and(|deadline| times.done > deadline);
        let is_counted = times.done >= self.clock.begin && !is_late;
        if is_counted {
            self.last.set(times.done);
        }
        self.is_cut.set(self.is_cut.get() || is_late);
        let way = if next.read { "read" } else { "write" };
        if let Err(e) = result {
            self.errors.set(self.errors.get() + 1);
            if !self.job.go_on {
                self.fail(format!("{way} of {} bytes at {}: {e}", next.len, next.offset));
            }
            return false;
        }
        match is_late {
            true => self.record.borrow_mut().add_late(next.read, times),
            false if is_counted => self.record.borrow_mut().add(next.read, next.len, times),
            false => {}
        }
        true
    }
}

/// Runs workers to their ends, each in a task of its own.
async fn each_by_itself(workers: impl Iterator<Item = impl Future<Output = ()> + 'static>) {
    let workers: Vec<_> = workers.map(spawn).collect();
    for worker in workers {
        // One that has died has told so.
        let _ = worker.await;
    }
}

/// Somebody who works for a session: his death is the end of the job.
struct Alive(Rc<Session>);

impl Drop for Alive {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail("a worker died: this is a fault of Lunar, report it".into());
        }
    }
}

/// Makes the buffer ready for a command. Before something is read that will be checked, the buffer holds nothing
/// that would pass: a target that returns nothing shall be seen.
fn prepare(
    next: Next,
    content: &mut Content,
    claim: Option<&mut Claim>,
    buf: &mut Buf,
) -> Result<(), String> {
    match claim {
        Some(_) if next.read => buf.fill(SPOILT),
        Some(claim) => claim.begin(buf)?,
        None if next.read => content.soil(next.offset, buf),
        None => content.prepare(next.offset, buf),
    }
    Ok(())
}

/// Whether what was read is right; what was written is, from now on.
fn right(next: Next, content: &mut Content, claim: Option<&Claim>, buf: &[u8]) -> Result<(), String> {
    match (claim, next.read) {
        (Some(claim), true) => claim.check(buf),
        (Some(claim), false) => claim.acknowledge(),
        (None, true) => match content.wrong(next.offset, buf) {
            Some(at) => Err(format!("byte {at} is not what was written there")),
            None => Ok(()),
        },
        (None, false) => Ok(()),
    }
}

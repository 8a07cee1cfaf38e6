//! Running a job: on each core a loop per session, and in it as many workers as the job is deep.

mod arrivals;
mod ended;

use crate::content::Content;
use crate::job::{Job, Pace, Way};
use crate::offsets::{Next, Offsets};
use crate::outcome::{Cpu, Outcome, Share};
use crate::record::{Record, Times};
use crate::rig::Place;
use crate::verify::{Claim, Ledger};
use crate::{Error, Kind, Rig, Watch, cpu, steps};
use arrivals::Arrivals;
use block::Backend;
use compio::runtime::spawn;
use compio::time::sleep;
use ended::{Ended, outcome};
use net::Buf;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a session looks whether it is to end, and tells how far it is.
const TICK: Duration = Duration::from_millis(50);
/// Commands after which a worker lets others run, for disks that answer on the spot.
const TURN: u32 = 64;
/// How long commands in flight at the end are waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same when somebody asked for the end.
const IMPATIENCE: Duration = Duration::from_secs(2);

/// When things begin and end.
#[derive(Clone, Copy)]
struct Clock {
    /// What ends from here on is counted.
    begin: Instant,
    /// What ends after this is not.
    deadline: Option<Instant>,
}

/// Which of the sessions of a job one is.
#[derive(Clone, Copy)]
struct Seat {
    index: usize,
    sessions: usize,
    /// It reads what the ledgers know, once, wherever the job would go.
    is_read_back: bool,
}

/// How often a worker looks for a place that nobody is at, before it sleeps.
const LOOKS: u32 = 16;
/// How long it sleeps then.
const NAP: Duration = Duration::from_millis(1);

/// A session of a job while it runs.
struct Session {
    job: Job,
    clock: Clock,
    disk: Arc<dyn Backend>,
    ledger: Option<Arc<Ledger>>,
    is_read_back: bool,
    watch: Watch,
    offsets: RefCell<Offsets>,
    record: RefCell<Record>,
    arrivals: RefCell<Option<Arrivals>>,
    /// Bytes that may still be asked for.
    left: Cell<u64>,
    errors: Cell<u64>,
    /// What the watch knows.
    told: Cell<Share>,
    last: Cell<Instant>,
    why: RefCell<Option<String>>,
}

impl Rig {
    /// Runs a job to its end, with a loop for each session. Failures of commands end it early, unless it is to
    /// go on; what was measured until then comes back.
    ///
    /// # Errors
    /// When the job does not make sense on these targets: nothing ran.
    pub fn run(&self, job: &Job, watch: &Watch) -> Result<Outcome, Error> {
        let span = check(job, self.capacity())?;
        self.perform(job, span, watch, false)
    }

    /// Reads all that the targets' ledgers know, once, with the lengths, depth and pace of a job.
    ///
    /// # Errors
    /// As [`Rig::run`].
    pub(crate) fn read_back(&self, job: &Job, watch: &Watch) -> Result<Outcome, Error> {
        steps::check(job)?;
        self.perform(job, u64::from(job.longest()), watch, true)
    }

    fn perform(&self, job: &Job, span: u64, watch: &Watch, is_read_back: bool) -> Result<Outcome, Error> {
        let (start, sessions) = (Instant::now(), self.sessions());
        let begin = start + job.ramp;
        let clock = Clock { begin, deadline: job.time.map(|time| begin + time) };
        let (done, ends) = flume::unbounded();
        for (index, place) in self.places.iter().enumerate() {
            let (job, done, watch) = (job.clone(), done.clone(), watch.clone());
            let (place, seat) = (place.clone(), Seat { index, sessions, is_read_back });
            self.cores.run_on(place.core, move || {
                let session = Rc::new(Session::new(job, clock, start, span, place, watch, seat));
                spawn(async move { drop(done.send(session.run(index).await)) }).detach();
            });
        }
        drop(done);
        std::thread::sleep(begin.saturating_duration_since(Instant::now()));
        let before = self.cpu();
        let ended: Vec<Ended> = ends.iter().collect();
        let cpu = self.cpu_since(before);
        if ended.len() < sessions {
            return Err(Error::new(
                Kind::System,
                "an event loop died",
                "this is a fault of Lunar: report it",
            ));
        }
        Ok(outcome(job, clock, ended, cpu))
    }

    fn cpu(&self) -> (f64, Option<f64>) {
        (cpu::own(), self.target_pid.and_then(|pid| cpu::of(pid).ok()))
    }

    fn cpu_since(&self, before: (f64, Option<f64>)) -> Cpu {
        let now = self.cpu();
        let target_s = now.1.zip(before.1).map(|(now, before)| now - before);
        Cpu { client_s: now.0 - before.0, target_s, cores: crate::Host::here().cores }
    }
}

/// Bytes that the job uses on a target of this capacity.
pub(crate) fn check(job: &Job, capacity: u64) -> Result<u64, Error> {
    let invalid = |what: String, hint: &str| Err(Error::new(Kind::Invalid, what, hint));
    let room = capacity.saturating_sub(job.offset);
    let span = job.span.unwrap_or(room);
    if job.sizes.is_empty() || job.sizes.iter().any(|size| size.0 == 0 || size.1 == 0) || job.depth == 0 {
        return invalid("a size, its weight, or the depth is zero".into(), "name at least 1 of each");
    }
    if span > room {
        let what = format!("{span} bytes from {} on do not fit into {capacity}", job.offset);
        return invalid(what, "use less of it");
    }
    if u64::from(job.longest()) > span {
        let what = format!("commands of {} bytes do not fit into {span}", job.longest());
        return invalid(what, "use shorter ones, or a larger target");
    }
    if job.time.is_none() && job.amount.is_none() {
        return invalid("it would never end".into(), "name a time or an amount");
    }
    if job.compare && job.way.reads() && job.fill == crate::job::Fill::Random {
        return invalid("random data cannot be compared".into(), "use another filling");
    }
    steps::check(job)?;
    Ok(span)
}

impl Session {
    fn new(
        job: Job,
        clock: Clock,
        start: Instant,
        span: u64,
        place: Place,
        watch: Watch,
        seat: Seat,
    ) -> Session {
        let Seat { index, sessions, is_read_back } = seat;
        let granule = job.granule();
        let part = |amount: u64| amount / sessions as u64 / granule * granule;
        let rest = |amount: u64| amount - part(amount) * (sessions as u64 - 1);
        let amount = job.amount.filter(|_| !is_read_back);
        let left = amount.map_or(u64::MAX, |sum| if index == 0 { rest(sum) } else { part(sum) });
        Session {
            offsets: RefCell::new(Offsets::new(&job, job.offset, span, index, sessions)),
            record: RefCell::new(Record::new(clock.begin, job.interval, job.pace != Pace::Closed)),
            arrivals: RefCell::new(Arrivals::new(&job, start, index, sessions)),
            left: Cell::new(left),
            errors: Cell::new(0),
            told: Cell::new(Share::default()),
            last: Cell::new(clock.begin),
            why: RefCell::new(None),
            job,
            clock,
            disk: place.disk,
            ledger: place.ledger,
            is_read_back,
            watch,
        }
    }

    async fn run(self: Rc<Self>, index: usize) -> Ended {
        let ways: &[bool] = if self.job.way == Way::Both { &[true, false] } else { &[true] };
        let lanes = ways.iter().flat_map(|read| std::iter::repeat_n(*read, self.job.depth)).enumerate();
        let workers: Vec<_> = lanes
            .map(|(lane, read)| spawn(self.clone().work(read, (index * 2 * self.job.depth + lane) as u64)))
            .collect();
        let all = async {
            for worker in workers {
                let _ = worker.await;
            }
            if self.job.flush && self.why.borrow().is_none() {
                self.flush().await;
            }
        };
        let _ = net::either(all, self.supervise()).await;
        self.tell();
        let now = Instant::now();
        let stopped = self.clock.deadline.map_or(now, |deadline| deadline.min(now));
        Ended {
            index,
            record: self.record.replace(Record::new(self.clock.begin, self.job.interval, false)),
            errors: self.errors.get(),
            backlog: self.backlog(stopped),
            left_over: self.left.get() > 0,
            last: self.last.get(),
            stopped,
            why: self.why.take(),
        }
    }

    /// Commands that were due and that nobody took; none once the amount is reached.
    fn backlog(&self, stopped: Instant) -> u64 {
        let arrivals = self.arrivals.borrow();
        let waiting = arrivals.as_ref().filter(|_| self.left.get() > 0);
        waiting.map_or(0, |arrivals| arrivals.backlog(stopped))
    }

    /// Makes all stable. Its time counts, whatever the deadline says.
    async fn flush(&self) {
        match self.disk.flush().await {
            Ok(()) => self.last.set(Instant::now()),
            Err(e) => self.fail(format!("flush: {e}")),
        }
    }

    /// Tells how far it is. Ends when those who work have had time enough to end.
    async fn supervise(&self) {
        let mut over: Option<Instant> = None;
        loop {
            sleep(TICK).await;
            self.tell();
            let now = Instant::now();
            let patience = if self.watch.is_ended() { IMPATIENCE } else { PATIENCE };
            if self.is_over(now) && now > *over.get_or_insert(now) + patience {
                return self
                    .fail(format!("commands were not answered {} s after the end", patience.as_secs()));
            }
        }
    }

    fn tell(&self) {
        let done = self.record.borrow().share();
        self.watch.add(&self.told.replace(done), &done);
    }

    fn is_over(&self, now: Instant) -> bool {
        self.watch.is_ended()
            || self.why.borrow().is_some()
            || self.clock.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// The first reason stands.
    fn fail(&self, why: String) {
        self.why.borrow_mut().get_or_insert(why);
    }

    /// One command after the other.
    async fn work(self: Rc<Self>, read: bool, lane: u64) {
        let (mut content, mut buf) = Content::new(&self.job, lane);
        let mut now = Instant::now();
        for count in 1u32.. {
            if self.is_over(now) {
                break;
            }
            if count.is_multiple_of(TURN) {
                net::after_others().await;
            }
            let Some((next, mut claim)) = self.claim(read).await else { break };
            let is_taken = self.take(next, now);
            let due = self.due(now).await;
            if self.clock.deadline.is_some_and(|deadline| due >= deadline) {
                break;
            }
            buf.set_visible(next.len as usize);
            match &mut claim {
                _ if next.read => content.soil(next.len),
                None => content.prepare(next.offset, &mut buf),
                Some(claim) => {
                    if let Err(why) = claim.begin(&mut buf) {
                        self.fail(why);
                        break;
                    }
                }
            }
            // Where checks are made, they take time that the target is not to blame for.
            let is_next = self.job.pace == Pace::Closed && claim.is_none();
            let begun = if is_next { now } else { Instant::now() };
            let (result, back) = self.transfer(next, buf).await;
            (buf, now) = (back, Instant::now());
            if !is_taken {
                // It was in flight when the ramp ended, or ended in it.
                self.take(next, now);
            }
            let is_done = self.note(next, Times { due, begun, done: now }, result);
            if is_done && let Err(why) = right(next, &mut content, claim.as_ref(), &buf) {
                self.fail(why);
            }
            if !self.job.think.is_zero() {
                sleep(self.job.think).await;
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

    /// None when the amount is reached.
    fn next(&self, read: bool) -> Option<Next> {
        if self.left.get() == 0 {
            return None;
        }
        Some(self.offsets.borrow_mut().next(read, self.left.get()))
    }

    /// Takes a command out of the amount; false while the ramp lasts, in which nothing is.
    fn take(&self, next: Next, now: Instant) -> bool {
        let counts = now >= self.clock.begin;
        if counts {
            self.left.set(self.left.get().saturating_sub(next.len.into()));
        }
        counts
    }

    /// The moment at which the next command is due, once it is there; `now` in a closed loop.
    async fn due(&self, now: Instant) -> Instant {
        let Some(due) = self.arrivals.borrow_mut().as_mut().map(Arrivals::take) else { return now };
        let end = self.clock.deadline.unwrap_or(due);
        if let Some(wait) = due.min(end).checked_duration_since(now) {
            sleep(wait).await;
        }
        due
    }

    async fn transfer(&self, next: Next, buf: Buf) -> (io::Result<()>, Buf) {
        match next.read {
            true => self.disk.read(next.offset, buf).await,
            false => self.disk.write(next.offset, buf, self.job.stable).await,
        }
    }

    /// Counts a command; false if it failed.
    fn note(&self, next: Next, times: Times, result: io::Result<()>) -> bool {
        let way = if next.read { "read" } else { "write" };
        if let Err(e) = result {
            self.errors.set(self.errors.get() + 1);
            if !self.job.go_on {
                self.fail(format!("{way} of {} bytes at {}: {e}", next.len, next.offset));
            }
            return false;
        }
        let is_late = self.clock.deadline.is_some_and(|deadline| times.done > deadline);
        if times.done >= self.clock.begin && !is_late {
            self.record.borrow_mut().add(next.read, next.len, times);
            self.last.set(times.done);
        }
        true
    }
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

#[cfg(test)]
pub(crate) mod tests;

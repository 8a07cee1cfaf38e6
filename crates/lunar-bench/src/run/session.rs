//! One session of a job, on its core.

use super::arrivals::ArrivalTimes;
use super::future_queue::FutureQueue;
use super::lane::{Lane, LaneState};
use super::session_result::SessionResult;
use super::sleepers::Sleepers;
use super::tick::Tick;
use super::{JobClock, SessionContext};
use crate::job::{ArrivalProcess, Job};
use crate::offsets::OffsetGenerator;
use crate::open_targets::TargetSession;
use crate::outcome::IoCounts;
use crate::session_stats::{CommandTimes, SessionStats};
use crate::verify::WriteLedger;
use crate::{RunHandle, text_report};
use lunar_block::{Backend, BackendQueue, LocalBoxFuture};
use lunar_initiator::Lun;
use lunar_initiator::multipath::LunPath;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The time limit for commands in flight at the end.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit if the user ended the job.
const ABORT_TIMEOUT: Duration = Duration::from_secs(2);

/// A running session of a job.
pub struct JobSession {
    pub(super) job: Job,
    pub(super) clock: JobClock,
    disk: Arc<dyn Backend>,
    pub(super) queue: Box<dyn BackendQueue>,
    /// Whether the operations that `queue` completes in one poll had ended before the poll.
    pub(super) is_batched: bool,
    lun: Option<Arc<Lun>>,
    pub(super) ledger: Option<Arc<WriteLedger>>,
    pub(super) is_read_back: bool,
    handle: RunHandle,
    pub(super) lanes: Vec<Lane>,
    /// Lanes that have not ended.
    pub(super) live: usize,
    pub(super) sleepers: Sleepers,
    /// The number of polls.
    pub(super) polls: u64,
    pub(super) offsets: OffsetGenerator,
    pub(super) stats: SessionStats,
    pub(super) arrivals: Option<ArrivalTimes>,
    /// Remaining bytes and commands.
    pub(super) left: u64,
    pub(super) commands: u64,
    is_flushing: bool,
    /// Whether a command that was charged to the amount did not end in time.
    pub(super) is_cut: bool,
    pub(super) errors: u64,
    /// The counts published to the handle.
    published: IoCounts,
    pub(super) last: Instant,
    /// When the session was first seen to be over.
    over: Option<Instant>,
    tick: Tick,
    /// The reason of an early end, and its time.
    why: Option<(Instant, String)>,
    /// Whether any session of the job ended early, which ends all of them.
    has_failed: Arc<AtomicBool>,
}

impl JobSession {
    /// Creates a session that starts at the clock's time.
    pub fn new(
        job: Job,
        clock: JobClock,
        target_session: TargetSession,
        handle: RunHandle,
        context: SessionContext,
        lanes: Vec<Lane>,
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
        let TargetSession { disk, lun, ledger, .. } = target_session;
        let shared = disk.clone().queue();
        let is_batched = shared.is_some();
        JobSession {
            offsets: OffsetGenerator::new(&job, job.offset, span, index, (position, total)),
            stats: SessionStats::new(clock.measured_from, job.interval, job.pace != ArrivalProcess::Closed),
            arrivals: ArrivalTimes::new(&job, clock.start, index, sessions),
            left: share(job.amount, job.granule()),
            commands: share(job.commands, 1),
            is_flushing: false,
            is_cut: false,
            errors: 0,
            published: IoCounts::default(),
            last: clock.measured_from,
            over: None,
            tick: Tick::new(),
            why: None,
            has_failed,
            queue: shared.unwrap_or_else(|| Box::new(FutureQueue::new(&disk, lanes.len()))),
            is_batched,
            live: lanes.len(),
            lanes,
            sleepers: Sleepers::default(),
            polls: 0,
            job,
            clock,
            disk,
            lun,
            ledger,
            is_read_back,
            handle,
        }
    }

    /// Runs the session to its end.
    pub async fn run(mut self, index: usize) -> SessionResult {
        (0..self.lanes.len()).for_each(|lane| self.sleepers.add(lane, self.clock.start));
        poll_fn(|cx| self.poll_caught(cx)).await;
        if self.job.flush && !self.has_failed.load(Relaxed) {
            self.flush().await;
        }
        self.charge_unanswered();
        self.publish();
        let end = self.end();
        let backlog = self.charge_backlog(end);
        SessionResult {
            index,
            stats: self.stats,
            errors: self.errors,
            backlog,
            end,
            why: self.why.map(|(_, why)| why),
        }
    }

    /// Runs the lanes. A panic ends the job.
    fn poll_caught(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        catch_unwind(AssertUnwindSafe(|| self.poll(cx))).unwrap_or_else(|_| {
            self.fail("a worker thread panicked: report this as a bug in Lunar".into());
            Poll::Ready(())
        })
    }

    /// Commands that were submitted and have not ended.
    fn in_flight(&self) -> usize {
        let commands = self.lanes.iter().filter(|lane| lane.state == LaneState::InFlight).count();
        commands + usize::from(self.is_flushing)
    }

    /// The end of the measured time: the last command, if the amount was completed in time; otherwise the
    /// deadline, or the moment of an early end.
    fn end(&self) -> Instant {
        let failed = self.why.as_ref().map(|(when, _)| *when);
        let is_done = self.is_amount_issued() && !self.is_cut && self.in_flight() == 0;
        if is_done && failed.is_none() {
            return self.last;
        }
        let stopped = failed.unwrap_or_else(Instant::now);
        let end = self.clock.deadline.map_or(stopped, |deadline| deadline.min(stopped));
        end.max(self.last)
    }

    /// Charges commands that never completed with the time that they have waited.
    fn charge_unanswered(&mut self) {
        let done = Instant::now();
        for lane in self.lanes.iter().filter(|lane| lane.state == LaneState::InFlight) {
            let started_at = lane.started_at;
            self.stats.add_late(lane.command.read, CommandTimes { due: started_at, started_at, done });
        }
    }

    /// Charges commands that were due and did not start with the time that they waited, so that a target that
    /// stalls at the end does not look fast. There are none once the amount is reached.
    fn charge_backlog(&mut self, stopped: Instant) -> u64 {
        let waiting = self.arrivals.as_ref().filter(|_| !self.is_amount_issued());
        let groups = waiting.map(|arrivals| arrivals.backlog(stopped)).unwrap_or_default();
        let mut all = 0;
        for (many, waited) in groups {
            let reads = self.job.direction.reads_of(all + many) - self.job.direction.reads_of(all);
            self.stats.add_waiting(true, reads, waited);
            self.stats.add_waiting(false, many - reads, waited);
            all += many;
        }
        all
    }

    /// Flushes. The time of the flush counts, even after the deadline.
    async fn flush(&mut self) {
        let disk = self.disk.clone();
        let mut flush: LocalBoxFuture<'_, io::Result<()>> = disk.flush();
        self.is_flushing = true;
        let flushed = poll_fn(|cx| match flush.as_mut().poll(cx) {
            Poll::Pending => self.poll_tick(None, cx).map(|()| None),
            ended => ended.map(Some),
        });
        let Some(flushed) = flushed.await else { return };
        self.is_flushing = false;
        match flushed {
            Ok(()) => self.last = Instant::now(),
            Err(e) => self.fail(format!("flush failed: {e}")),
        }
    }

    /// At each tick, publishes progress, and wakes sleeping lanes at the end. Ready when the commands in flight have
    /// had enough time to end.
    pub(super) fn poll_tick(&mut self, now: Option<Instant>, cx: &mut Context<'_>) -> Poll<()> {
        while self.tick.poll(now, cx).is_ready() {
            self.publish();
            let now = Instant::now();
            if self.is_over(now) {
                self.sleepers.wake_all(now);
                cx.waker().wake_by_ref();
                if self.is_out_of_patience(now) {
                    return Poll::Ready(());
                }
            }
        }
        Poll::Pending
    }

    /// Whether the commands in flight had enough time to end after the end of the run, which fails then.
    fn is_out_of_patience(&mut self, now: Instant) -> bool {
        let patience = if self.handle.is_ended() { ABORT_TIMEOUT } else { DRAIN_TIMEOUT };
        let is_late = now > *self.over.get_or_insert(now) + patience;
        if is_late {
            let in_flight = text_report::count(self.in_flight(), "command");
            self.fail(format!(
                "{in_flight} without a response {} s after the end of the run{}",
                patience.as_secs(),
                self.obstacle()
            ));
        }
        is_late
    }

    /// The reason why the commands wait, after a colon, as far as the initiator knows it.
    fn obstacle(&self) -> String {
        let Some(lun) = &self.lun else { return String::new() };
        let silent = || format!("{} is connected, but does not respond", lun.name());
        format!(": {}", lun.session().obstacle().unwrap_or_else(silent))
    }

    fn publish(&mut self) {
        let done = self.stats.counts();
        self.handle.add(&std::mem::replace(&mut self.published, done), &done);
    }

    /// Whether the session must end before its time.
    pub(super) fn is_stopped(&self) -> bool {
        self.handle.is_ended() || self.has_failed.load(Relaxed)
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.is_stopped() || self.clock.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Whether the amount, or the number of commands, is reached.
    pub(super) fn is_amount_issued(&self) -> bool {
        self.left == 0 || self.commands == 0
    }

    /// The first reason counts.
    pub(super) fn fail(&mut self, why: String) {
        self.why.get_or_insert_with(|| (Instant::now(), why));
        self.has_failed.store(true, Relaxed);
    }
}

//! Runs a job: each session has a task on one core, with one lane for each command in flight.

mod arrivals;
mod future_queue;
mod lane;
mod meter;
mod session;
mod session_result;
mod sleepers;
mod steps;
mod tick;

use crate::job::{AccessPattern, Job};
use crate::machine_load::LoadMeter;
use crate::outcome::{CpuTime, JobOutcome};
use crate::{Error, ErrorKind, OpenTargets, RunHandle, time_series};
use flume::{Receiver, Sender};
use meter::CpuMeter;
pub use session::DRAIN_TIMEOUT;
use session::JobSession;
use session_result::{SessionResult, outcome};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// The times of a job.
#[derive(Clone, Copy)]
struct JobClock {
    /// The first commands may start.
    start: Instant,
    /// Commands that end from here on are counted.
    measured_from: Instant,
    /// Commands that end later count only in the latency distribution.
    deadline: Option<Instant>,
}

/// The position of a session in its job.
#[derive(Clone)]
struct SessionContext {
    index: usize,
    sessions: usize,
    /// Its index among the sessions with its target, and the number of these.
    at_target: (usize, usize),
    /// The number of bytes of the target that the job uses.
    span: u64,
    /// Whether it reads back once what the ledgers contain, instead of the job's offsets.
    is_read_back: bool,
    /// Whether a session has failed, which ends all of them.
    has_failed: Arc<AtomicBool>,
}

impl JobClock {
    fn now(job: &Job) -> JobClock {
        let start = Instant::now();
        let measured_from = start + job.ramp;
        JobClock { start, measured_from, deadline: job.time.map(|time| measured_from + time) }
    }
}

impl OpenTargets {
    /// Runs a job to its end, with one task for each session. A failed command ends the job, unless it
    /// continues on errors; the results up to then are returned. For logical units, an amount is rounded up to
    /// whole blocks.
    ///
    /// # Errors
    /// If the job is not valid for these targets; nothing runs then.
    pub fn run(&self, job: &Job, handle: &RunHandle) -> Result<JobOutcome, Error> {
        let (span, block_size) = (self.check(job)?, self.block_size());
        let whole = |amount: u64| amount.checked_next_multiple_of(block_size).unwrap_or(amount);
        let job = Job { amount: job.amount.map(whole), ..job.clone() };
        self.run_sessions(&job, span, handle, false)
    }

    /// Checks a job against these targets, and returns the number of bytes that it uses of each.
    ///
    /// # Errors
    /// If the job is not valid.
    pub(crate) fn check(&self, job: &Job) -> Result<u64, Error> {
        let span = check(job, self.capacity())?;
        check_blocks(job, self.block_size())?;
        Ok(span)
    }

    /// Reads once all blocks in the targets' ledgers, with the lengths, depth and rate of a job.
    ///
    /// # Errors
    /// As [`OpenTargets::run`].
    pub(crate) fn read_back(&self, job: &Job, handle: &RunHandle) -> Result<JobOutcome, Error> {
        time_series::check(job)?;
        self.run_sessions(job, u64::from(job.longest()), handle, true)
    }

    fn run_sessions(
        &self,
        job: &Job,
        span: u64,
        handle: &RunHandle,
        is_read_back: bool,
    ) -> Result<JobOutcome, Error> {
        let (sessions, meter) = (self.sessions(), CpuMeter::new(&self.cores, self.options.target_pid));
        let (ready, prepared) = flume::unbounded();
        let (done, ends) = flume::unbounded();
        let has_failed = Arc::<AtomicBool>::default();
        for index in 0..sessions {
            let (at_target, has_failed) = (self.index_at_target(index), has_failed.clone());
            let context = SessionContext { index, sessions, at_target, span, is_read_back, has_failed };
            self.start_session(context, job, handle, (ready.clone(), done.clone()));
        }
        drop((ready, done));
        // Everything slow happens before the clock starts.
        let waiting: Vec<Sender<JobClock>> = prepared.iter().collect();
        let load = LoadMeter::start(self.options.target_pid);
        let clock = JobClock::now(job);
        handle.set_measured_from(clock.measured_from);
        for session in waiting {
            // A missing result shows that the event loop of a session has died.
            let _ = session.send(clock);
        }
        let (ended, cpu) = collect(clock, job.flush, &meter, &ends);
        if ended.len() < sessions {
            return Err(Error::new(
                ErrorKind::System,
                "an event loop thread panicked",
                "this is a bug in Lunar: report it",
            ));
        }
        Ok(JobOutcome { load: load.finish(), ..outcome(job, clock, ended, cpu) })
    }

    /// Prepares a session on its core. The session sends a channel when it is ready, receives the clock through
    /// it, and sends its result at the end.
    fn start_session(
        &self,
        context: SessionContext,
        job: &Job,
        handle: &RunHandle,
        (ready, done): (Sender<Sender<JobClock>>, Sender<SessionResult>),
    ) {
        let (place, job, handle) = (self.target_sessions[context.index].clone(), job.clone(), handle.clone());
        self.cores.run_on(place.core, move || {
            let index = context.index;
            let lanes = lane::lanes(&job, index);
            let (send, clock) = flume::bounded(1);
            let run = async move {
                let Ok(clock) = clock.recv_async().await else { return };
                let session = JobSession::new(job, clock, place, handle, context, lanes);
                drop(done.send(session.run(index).await));
            };
            lunar_runtime::spawn(run);
            drop(ready.send(send));
        });
    }
}

/// The results of the sessions, and the CPU time from the start to the deadline. It excludes the warm-up and
/// the wait for the last commands, and includes a flush at the end.
fn collect(
    clock: JobClock,
    flush: bool,
    meter: &CpuMeter,
    ends: &Receiver<SessionResult>,
) -> (Vec<SessionResult>, CpuTime) {
    let mut ended = Vec::new();
    collect_until(Some(clock.measured_from), ends, &mut ended);
    let before = meter.read();
    collect_until(clock.deadline.filter(|_| !flush), ends, &mut ended);
    let cpu = meter.since(before);
    collect_until(None, ends, &mut ended);
    (ended, cpu)
}

/// Collects the results of sessions that end before `moment`, or of all sessions.
fn collect_until(moment: Option<Instant>, ends: &Receiver<SessionResult>, ended: &mut Vec<SessionResult>) {
    let next = || match moment {
        Some(moment) => ends.recv_deadline(moment).ok(),
        None => ends.recv().ok(),
    };
    ended.extend(std::iter::from_fn(next));
}

/// Checks a job against a capacity, and returns the number of bytes that it uses.
pub(crate) fn check(job: &Job, capacity: u64) -> Result<u64, Error> {
    let invalid = |what: String, hint: &'static str| Err(Error::new(ErrorKind::Invalid, what, hint));
    let room = capacity.saturating_sub(job.offset);
    let span = job.span.unwrap_or(room);
    if job.sizes.is_empty() || job.sizes.iter().any(|size| size.0 == 0 || size.1 == 0) || job.depth == 0 {
        return invalid(
            "a command length, a weight or the queue depth is 0".into(),
            "use values of at least 1",
        );
    }
    if span > room {
        let what =
            format!("{span} bytes from offset {} exceed the {capacity} bytes of the target", job.offset);
        return invalid(what, "reduce --span or --offset");
    }
    if u64::from(job.longest()) > span {
        let what = format!("commands of {} bytes exceed the range of {span} bytes", job.longest());
        return invalid(what, "use shorter commands, or a larger target or --span");
    }
    if job.time.is_none() && job.amount.is_none() && job.commands.is_none() {
        return invalid("the job has neither a time limit nor an amount".into(), "set a time or an amount");
    }
    if job.compare && job.direction.reads() && job.fill == crate::job::Fill::Random {
        return invalid("--compare: random data cannot be compared".into(), "use another --fill");
    }
    time_series::check(job)?;
    Ok(span)
}

/// Checks that commands are whole blocks. For a partial block, the initiator would have to read, modify and
/// write: another workload than requested.
fn check_blocks(job: &Job, block_size: u64) -> Result<(), Error> {
    let stride = if let AccessPattern::Strided(stride) = job.order { stride } else { 0 };
    let odd = [job.granule(), job.offset, stride].into_iter().find(|bytes| bytes % block_size != 0);
    let Some(odd) = odd else { return Ok(()) };
    let what =
        format!("a length, offset or stride of {odd} bytes is not a multiple of the block size {block_size}");
    let hint = "use lengths, offsets and strides that are multiples of the block size";
    Err(Error::new(ErrorKind::Invalid, what, hint))
}

#[cfg(test)]
pub(crate) mod tests;

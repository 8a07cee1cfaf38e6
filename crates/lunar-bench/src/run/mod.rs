//! Running a job: on each core a loop per session, and in it as many workers as the job is deep.

mod arrivals;
mod meter;
mod session;
mod session_result;
mod worker_queue;

use crate::job::{AccessPattern, Job};
use crate::outcome::{CpuTime, JobOutcome};
use crate::{Error, ErrorKind, OpenTargets, RunHandle, time_series};
use flume::{Receiver, Sender};
use meter::CpuMeter;
pub use session::DRAIN_TIMEOUT;
use session::{JobSession, buffers};
use session_result::{SessionResult, outcome};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// When things begin and end.
#[derive(Clone, Copy)]
struct JobClock {
    /// The first commands may go out.
    start: Instant,
    /// What ends from here on is counted.
    begin: Instant,
    /// What ends after this is in the distribution of latency alone.
    deadline: Option<Instant>,
}

/// Which of the sessions of a job one is.
#[derive(Clone)]
struct SessionContext {
    index: usize,
    sessions: usize,
    /// Which of those with its target, and of how many.
    at_target: (usize, usize),
    /// Bytes of the target that are used.
    span: u64,
    /// It reads what the ledgers know, once, wherever the job would go.
    is_read_back: bool,
    /// One of the sessions has failed: it is the end of all.
    has_failed: Arc<AtomicBool>,
}

impl JobClock {
    fn now(job: &Job) -> JobClock {
        let start = Instant::now();
        let begin = start + job.ramp;
        JobClock { start, begin, deadline: job.time.map(|time| begin + time) }
    }
}

impl OpenTargets {
    /// Runs a job to its end, with a loop for each session. Failures of commands end it early, unless it is to
    /// go on; what was measured until then comes back. Of a logical unit an amount is rounded up to whole blocks.
    ///
    /// # Errors
    /// When the job does not make sense on these targets: nothing ran.
    pub fn run(&self, job: &Job, handle: &RunHandle) -> Result<JobOutcome, Error> {
        let (span, block_size) = (self.check(job)?, self.block_size());
        let whole = |amount: u64| amount.checked_next_multiple_of(block_size).unwrap_or(amount);
        let job = Job { amount: job.amount.map(whole), ..job.clone() };
        self.run_sessions(&job, span, handle, false)
    }

    /// Whether a job makes sense on these targets, and the bytes that it uses of each.
    ///
    /// # Errors
    /// When it does not.
    pub(crate) fn check(&self, job: &Job) -> Result<u64, Error> {
        let span = check(job, self.capacity())?;
        check_blocks(job, self.block_size())?;
        Ok(span)
    }

    /// Reads all that the targets' ledgers know, once, with the lengths, depth and pace of a job.
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
        let (sessions, meter) = (self.sessions(), CpuMeter::new(&self.cores, self.opening.target_pid));
        let (ready, prepared) = flume::unbounded();
        let (done, ends) = flume::unbounded();
        let has_failed = Arc::<AtomicBool>::default();
        for index in 0..sessions {
            let (at_target, has_failed) = (self.index_at_target(index), has_failed.clone());
            let seat = SessionContext { index, sessions, at_target, span, is_read_back, has_failed };
            self.start_session(seat, job, handle, (ready.clone(), done.clone()));
        }
        drop((ready, done));
        // All that takes time before the first command is done before the clock starts.
        let waiting: Vec<Sender<JobClock>> = prepared.iter().collect();
        let clock = JobClock::now(job);
        handle.set_measurement_begin(clock.begin);
        for session in waiting {
            // One whose loop has died is missed at the end.
            let _ = session.send(clock);
        }
        let (ended, cpu) = collect(clock, job.flush, &meter, &ends);
        if ended.len() < sessions {
            return Err(Error::new(
                ErrorKind::System,
                "an event loop died",
                "this is a fault of Lunar: report it",
            ));
        }
        Ok(outcome(job, clock, ended, cpu))
    }

    /// Lets a session get ready on its core. It says so by a channel on which it waits for the clock, and tells
    /// what came of it at its end.
    fn start_session(
        &self,
        seat: SessionContext,
        job: &Job,
        handle: &RunHandle,
        (ready, done): (Sender<Sender<JobClock>>, Sender<SessionResult>),
    ) {
        let (place, job, handle) = (self.places[seat.index].clone(), job.clone(), handle.clone());
        self.cores.run_on(place.core, move || {
            let index = seat.index;
            let buffers = buffers(&job, index);
            let (send, clock) = flume::bounded(1);
            let run = async move {
                let Ok(clock) = clock.recv_async().await else { return };
                let session = Rc::new(JobSession::new(job, clock, place, handle, seat));
                drop(done.send(session.run(index, buffers).await));
            };
            lunar_runtime::spawn(run);
            drop(ready.send(send));
        });
    }
}

/// What sessions tell at their ends, and the CPU time from the begin to the deadline: neither that of the
/// ramp, nor that of waiting for the last commands. A flush at the end counts, and so does its CPU time.
fn collect(
    clock: JobClock,
    flush: bool,
    meter: &CpuMeter,
    ends: &Receiver<SessionResult>,
) -> (Vec<SessionResult>, CpuTime) {
    let mut ended = Vec::new();
    collect_until(Some(clock.begin), ends, &mut ended);
    let before = meter.read();
    collect_until(clock.deadline.filter(|_| !flush), ends, &mut ended);
    let cpu = meter.since(before);
    collect_until(None, ends, &mut ended);
    (ended, cpu)
}

/// Takes what sessions tell that end before a moment, or what all of them do.
fn collect_until(moment: Option<Instant>, ends: &Receiver<SessionResult>, ended: &mut Vec<SessionResult>) {
    let next = || match moment {
        Some(moment) => ends.recv_deadline(moment).ok(),
        None => ends.recv().ok(),
    };
    ended.extend(std::iter::from_fn(next));
}

/// Bytes that the job uses on a target of this capacity.
pub(crate) fn check(job: &Job, capacity: u64) -> Result<u64, Error> {
    let invalid = |what: String, hint: &str| Err(Error::new(ErrorKind::Invalid, what, hint));
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
    if job.time.is_none() && job.amount.is_none() && job.commands.is_none() {
        return invalid("it would never end".into(), "name a time or an amount");
    }
    if job.compare && job.direction.reads() && job.fill == crate::job::Fill::Random {
        return invalid("random data cannot be compared".into(), "use another filling");
    }
    time_series::check(job)?;
    Ok(span)
}

/// Commands are whole blocks: the initiator would read the rest of one and write it back, another work than was
/// asked for.
fn check_blocks(job: &Job, block_size: u64) -> Result<(), Error> {
    let stride = if let AccessPattern::Strided(stride) = job.order { stride } else { 0 };
    let odd = [job.granule(), job.offset, stride].into_iter().find(|bytes| bytes % block_size != 0);
    let Some(odd) = odd else { return Ok(()) };
    let what = format!("{odd} bytes are no whole blocks of {block_size}");
    let hint = "use lengths, offsets and strides that are multiples of the target's blocks";
    Err(Error::new(ErrorKind::Invalid, what, hint))
}

#[cfg(test)]
pub(crate) mod tests;

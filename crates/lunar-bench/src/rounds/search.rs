//! The highest rate at which a bound on latency is kept.

use super::{TRY, next};
use crate::document::{BoundVerdict, JobRun, RateSearch, RateTrial};
use crate::job::{ArrivalProcess, Job};
use crate::outcome::{JobOutcome, Latency};
use crate::{Error, ErrorKind, OpenTargets, RunHandle, plain};
use std::fmt;
use std::time::Duration;

/// A rate is reached if this much of what was due was served.
const MIN_SERVED: f64 = 0.95;
/// The most tries of a search.
const MAX_TRIALS: usize = 12;
/// It is over when the lowest rate that is too high is so near the highest that is not.
const CLOSE_ENOUGH: f64 = 1.02;
/// Fewer commands than these tell nothing of any percentile.
const MIN_COMMANDS: f64 = 10.0;
/// Of all commands ("100 %") no number tells; as many as of 99.9 are asked for.
const OF_ALL: f64 = 99.9;
/// At random times there may be fewer than are to be expected: so many standard deviations more are planned for.
const SPARE_DEVIATIONS: f64 = 3.0;
/// Without a time, this share of the fastest is the lowest rate that is tried: it takes as much longer.
const SLOWEST: f64 = 1.0 / 256.0;

/// A bound on latency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyBound {
    /// So many of a hundred commands must end within the time.
    pub percent: f64,
    /// The time, from the moment a command is due.
    pub within: Duration,
}

impl LatencyBound {
    /// Commands of a direction without which its percentile means nothing: of fewer than 100 commands the 99th is the
    /// longest.
    pub(super) fn commands(self) -> u64 {
        let percent = if self.percent < 100.0 { self.percent } else { OF_ALL };
        // 99.9 leaves a little less than 0.1: what rounding added is no command.
        (100.0 / (100.0 - percent) - 1e-6).ceil().max(MIN_COMMANDS) as u64
    }

    /// The percentile, of the direction where it is longer.
    fn latency(self, outcome: &JobOutcome) -> Option<u64> {
        let of = |latency: &Latency| latency.quantile(self.percent / 100.0);
        of(&outcome.read.total).max(of(&outcome.write.total))
    }

    /// Whether it was kept in a run that took its time.
    pub(super) fn verdict(self, outcome: &JobOutcome) -> BoundVerdict {
        // Who was served after the time was over came in time.
        let served = outcome.ios() + outcome.late;
        let due = served + outcome.backlog;
        let is_late = self.latency(outcome).is_some_and(|ns| u128::from(ns) > self.within.as_nanos());
        if outcome.errors > 0 || (served as f64) < due as f64 * MIN_SERVED || is_late {
            return BoundVerdict::NotKept;
        }
        let counts = [&outcome.read, &outcome.write].map(|totals| totals.total.count());
        let fewest = counts.into_iter().filter(|count| *count > 0).min().unwrap_or(0);
        if fewest < self.commands() { BoundVerdict::TooFew } else { BoundVerdict::Kept }
    }

    /// The lowest rate at which a try of this job has commands enough to be judged.
    fn floor(self, job: &Job, fastest: f64) -> f64 {
        let reads = job.direction.reads_of(100);
        let share = [reads, 100 - reads].into_iter().filter(|share| *share > 0).min().unwrap_or(100);
        let many = self.commands() as f64;
        let many = (many + SPARE_DEVIATIONS * many.sqrt()) * 100.0 / share as f64;
        job.time.map_or(fastest * SLOWEST, |time| many / time.as_secs_f64())
    }
}

/// Where the highest rate may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateRange {
    fastest: f64,
    floor: f64,
    /// The highest that was kept.
    pub low: Option<f64>,
    /// The lowest that was not.
    pub high: Option<f64>,
    /// By how much the next rate is below the fastest, while none was kept.
    down: f64,
}

impl RateRange {
    pub fn new(fastest: f64, floor: f64) -> RateRange {
        RateRange { fastest, floor, low: None, high: None, down: 2.0 }
    }

    /// The rate to try next; None when it is known well enough.
    ///
    /// Down from the fastest in steps that grow, and from the first that is kept on in halves of what the rates are
    /// apart as a ratio: a rate far below the fastest is found as exactly as one that is near.
    pub fn next(&self) -> Option<f64> {
        match (self.low, self.high) {
            (Some(low), Some(high)) => (high / low > CLOSE_ENOUGH).then(|| (low * high).sqrt()),
            (Some(_), None) => None,
            (None, None) => (self.fastest > 0.0).then_some(self.fastest),
            (None, Some(high)) => (high > self.floor).then(|| (self.fastest / self.down).max(self.floor)),
        }
    }

    /// What became of it.
    pub fn record_trial(&mut self, rate: f64, is_kept: bool) {
        if is_kept {
            self.low = Some(rate);
        } else {
            self.down = if self.high.is_some() { self.down * self.down } else { self.down };
            self.high = Some(rate);
        }
    }
}

impl fmt::Display for RateSearch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let within = humantime::format_duration(Duration::from_nanos(self.within_ns));
        write!(f, "{} % within {within}: ", self.percent)?;
        let lowest = self.tries.iter().map(|trial| trial.rate).reduce(f64::min);
        match (self.rate, lowest) {
            (Some(rate), _) => {
                let fastest = self.fastest;
                write!(f, "up to {rate:.0} commands a second (as fast as it goes: {fastest:.0})")?;
            }
            (None, Some(lowest)) => {
                write!(f, "at none of the rates that were tried, down to {lowest:.0} a second")?;
            }
            (None, None) => write!(f, "no rate was tried")?,
        }
        self.gave_up.as_ref().map_or(Ok(()), |why| write!(f, "; {why}"))
    }
}

/// Looks for the highest rate at which the bound is kept: first as fast as it goes, then at given rates. A try that failed
/// or was cut short is the last one, and does not count.
///
/// # Errors
/// As [`OpenTargets::run`]; when the job has a rate already.
pub fn highest_rate(
    opened: &OpenTargets,
    job: &Job,
    bound: LatencyBound,
    handle: &RunHandle,
) -> Result<(Vec<JobRun>, RateSearch), Error> {
    if job.pace != ArrivalProcess::Closed {
        let what = "a rate is given, and one is to be found";
        return Err(Error::new(ErrorKind::Invalid, what, "leave out --rate"));
    }
    let first = plain::one(opened, job, handle)?;
    let fastest = first.outcome.iops();
    let mut search = RateSearch {
        percent: bound.percent,
        within_ns: bound.within.as_nanos().try_into().unwrap_or(u64::MAX),
        rate: None,
        latency_ns: None,
        fastest,
        tries: Vec::new(),
        gave_up: None,
    };
    let is_whole = first.outcome.ended_early.is_none() && !handle.is_ended();
    let mut runs = vec![first];
    if is_whole {
        try_rates(opened, job, bound, handle, (&mut runs, &mut search));
    } else {
        search.gave_up = Some("the first run did not take its time".into());
    }
    Ok((runs, search))
}

/// Tries one rate after the other.
fn try_rates(
    opened: &OpenTargets,
    job: &Job,
    bound: LatencyBound,
    handle: &RunHandle,
    (runs, search): (&mut Vec<JobRun>, &mut RateSearch),
) {
    let title = runs[0].label.clone();
    let floor = bound.floor(job, search.fastest);
    let (mut range, mut best) = (RateRange::new(search.fastest, floor), None);
    while let Some(rate) = range.next().filter(|_| search.tries.len() < MAX_TRIALS) {
        let name = format!("{TRY}{}, {rate:.0} a second", search.tries.len() + 1);
        let paced = Job { pace: ArrivalProcess::Poisson(rate), ..job.round(runs.len()) };
        let (mut run, is_whole) = next(opened, &paced, handle, &name);
        let (verdict, latency_ns) = (bound.verdict(&run.outcome), bound.latency(&run.outcome));
        if is_whole {
            run.label = format!("{name}: {verdict}");
        }
        runs.push(run);
        if !is_whole {
            search.gave_up = Some("the last try did not take its time".into());
            break;
        }
        search.tries.push(RateTrial { rate, latency_ns, verdict });
        if verdict == BoundVerdict::TooFew {
            break;
        }
        if verdict == BoundVerdict::Kept {
            (best, search.rate, search.latency_ns) = (Some(runs.len() - 1), Some(rate), latency_ns);
        }
        range.record_trial(rate, verdict == BoundVerdict::Kept);
    }
    if search.gave_up.is_none() && search.rate.is_none() {
        search.gave_up = Some(reason_for_no_rate(bound, job, search));
    }
    if let Some(best) = best {
        // Of two searches these are compared.
        runs[best].label = format!("highest rate: {title}");
    }
}

/// Why no rate was found where all tries took their time.
fn reason_for_no_rate(bound: LatencyBound, job: &Job, search: &RateSearch) -> String {
    let last = search.tries.last().map(|record_trial| record_trial.verdict);
    let few = format!("too few commands to judge (it takes {}): use a longer --runtime", bound.commands());
    match (last, job.time) {
        (None, _) => "not even one command ended, as fast as it goes".into(),
        (Some(BoundVerdict::TooFew), _) => format!("the last try had {few}"),
        (_, Some(_)) => format!("slower ones would have {few}"),
        (_, None) => "slower ones are tried with a longer --runtime".into(),
    }
}

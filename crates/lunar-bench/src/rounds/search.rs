//! Searches the highest rate that meets a latency bound.

use super::{TRY, next};
use crate::document::{BoundVerdict, JobRun, RateSearch, RateTrial};
use crate::job::{ArrivalProcess, Job};
use crate::outcome::{JobOutcome, Latency};
use crate::{Error, ErrorKind, OpenTargets, RunHandle, plain};
use std::fmt;
use std::time::Duration;

/// A rate is reached if at least this share of the due commands ran.
const MIN_SERVED: f64 = 0.95;
/// The maximum number of trials.
const MAX_TRIALS: usize = 12;
/// The search ends when the lowest missed rate is within this factor of the highest met one.
const CLOSE_ENOUGH: f64 = 1.02;
/// Fewer commands than this say nothing about any percentile.
const MIN_COMMANDS: f64 = 10.0;
/// A percentile of 100 can never be confirmed; require as many commands as for 99.9.
const OF_ALL: f64 = 99.9;
/// Random arrivals vary: plan for this many standard deviations more commands.
const SPARE_DEVIATIONS: f64 = 3.0;
/// Without a time, trials go down to this share of the full rate, and take that much longer.
const SLOWEST: f64 = 1.0 / 256.0;

/// A latency bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyBound {
    /// The percentage of commands that must end within the time.
    pub percent: f64,
    /// The time, from the moment a command is due.
    pub within: Duration,
}

impl LatencyBound {
    /// The number of commands in a direction that its percentile requires: among fewer than 100 commands, the
    /// 99th percentile is the maximum.
    pub(super) fn commands(self) -> u64 {
        let percent = if self.percent < 100.0 { self.percent } else { OF_ALL };
        // In floating point, 100 - 99.9 is a little less than 0.1. The tolerance keeps this from adding a
        // command.
        (100.0 / (100.0 - percent) - 1e-6).ceil().max(MIN_COMMANDS) as u64
    }

    /// The percentile, in the slower direction.
    fn latency(self, outcome: &JobOutcome) -> Option<u64> {
        let of = |latency: &Latency| latency.quantile(self.percent / 100.0);
        of(&outcome.read.total).max(of(&outcome.write.total))
    }

    /// Whether a run of full length met the bound.
    pub(super) fn verdict(self, outcome: &JobOutcome) -> BoundVerdict {
        // Commands that ended after the end of the time count as served.
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

    /// The lowest rate at which a trial of this job has enough commands.
    fn floor(self, job: &Job, fastest: f64) -> f64 {
        let reads = job.direction.reads_of(100);
        let share = [reads, 100 - reads].into_iter().filter(|share| *share > 0).min().unwrap_or(100);
        let many = self.commands() as f64;
        let many = (many + SPARE_DEVIATIONS * many.sqrt()) * 100.0 / share as f64;
        job.time.map_or(fastest * SLOWEST, |time| many / time.as_secs_f64())
    }
}

/// The range that contains the highest rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateRange {
    fastest: f64,
    floor: f64,
    /// The highest rate that met the bound.
    pub low: Option<f64>,
    /// The lowest rate that missed it.
    pub high: Option<f64>,
    /// The factor between the full rate and the next trial, while no rate met the bound.
    down: f64,
}

impl RateRange {
    pub fn new(fastest: f64, floor: f64) -> RateRange {
        RateRange { fastest, floor, low: None, high: None, down: 2.0 }
    }

    /// The next rate to try; None when the result is accurate enough.
    ///
    /// The rate first decreases from the full rate in growing steps. Once a rate meets the bound, each trial
    /// takes the geometric mean of the range, so that the relative error is the same for low and high rates.
    pub fn next(&self) -> Option<f64> {
        match (self.low, self.high) {
            (Some(low), Some(high)) => (high / low > CLOSE_ENOUGH).then(|| (low * high).sqrt()),
            (Some(_), None) => None,
            (None, None) => (self.fastest > 0.0).then_some(self.fastest),
            (None, Some(high)) => (high > self.floor).then(|| (self.fastest / self.down).max(self.floor)),
        }
    }

    /// Records the result of a trial.
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
                write!(f, "up to {rate:.0} commands per second (at full speed: {fastest:.0})")?;
            }
            (None, Some(lowest)) => {
                write!(f, "no tried rate meets the target, down to {lowest:.0} commands per second")?;
            }
            (None, None) => write!(f, "no trial was completed")?,
        }
        self.gave_up.as_ref().map_or(Ok(()), |why| write!(f, "; {why}"))
    }
}

/// Searches the highest rate that meets the bound: first a run at full speed, then trials at given rates. A
/// trial that failed or was ended early is the last one, and does not count.
///
/// # Errors
/// As [`OpenTargets::run`]; if the job already has a rate.
pub fn highest_rate(
    opened: &OpenTargets,
    job: &Job,
    bound: LatencyBound,
    handle: &RunHandle,
) -> Result<(Vec<JobRun>, RateSearch), Error> {
    if job.pace != ArrivalProcess::Closed {
        let what = "--rate cannot be combined with --latency-target";
        return Err(Error::new(ErrorKind::Invalid, what, "omit --rate"));
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
        search.gave_up = Some("the first run ended before its time".into());
    }
    Ok((runs, search))
}

/// Tries one rate after another.
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
        let name = format!("{TRY}{}, {rate:.0} per second", search.tries.len() + 1);
        let paced = Job { pace: ArrivalProcess::Poisson(rate), ..job.round(runs.len()) };
        let (mut run, is_whole) = next(opened, &paced, handle, &name);
        let (verdict, latency_ns) = (bound.verdict(&run.outcome), bound.latency(&run.outcome));
        if is_whole {
            run.label = format!("{name}: {verdict}");
        }
        runs.push(run);
        if !is_whole {
            search.gave_up = Some("the last trial ended before its time".into());
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
        // Comparisons of two searches use these runs.
        runs[best].label = format!("highest rate: {title}");
    }
}

/// The reason why no rate was found, if all trials ran for their full time.
fn reason_for_no_rate(bound: LatencyBound, job: &Job, search: &RateSearch) -> String {
    let last = search.tries.last().map(|record_trial| record_trial.verdict);
    let few = format!("too few commands (required: {}): use a longer --runtime", bound.commands());
    match (last, job.time) {
        (None, _) => "no command ended, even at full speed".into(),
        (Some(BoundVerdict::TooFew), _) => format!("the last trial had {few}"),
        (_, Some(_)) => format!("lower rates would have {few}"),
        (_, None) => "use a longer --runtime to try lower rates".into(),
    }
}

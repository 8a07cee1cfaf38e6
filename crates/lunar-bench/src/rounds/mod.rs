//! Repeated runs of a job: until a metric is steady, or to find the highest rate that meets a latency bound.

mod search;
mod steady;
#[cfg(test)]
mod tests;

pub use search::{LatencyBound, highest_rate};
pub use steady::{SteadyMetric, until_steady};

use crate::document::JobRun;
use crate::job::Job;
use crate::outcome::JobOutcome;
use crate::{OpenTargets, RunHandle, plain};

/// The label prefix of trials, except the one with the highest rate. Trials of two searches have different
/// rates and must not be compared.
pub(crate) const TRY: &str = "try ";

/// One run with its own label, and whether it is valid. A run that ended early, or that the user ended, is invalid. A
/// run that could not start is invalid too, but does not end with an error, so that earlier runs are kept.
fn next(opened: &OpenTargets, job: &Job, handle: &RunHandle, name: &str) -> (JobRun, bool) {
    let mut run = plain::one(opened, job, handle).unwrap_or_else(|e| failed(opened, job, e.what));
    let is_whole = run.outcome.ended_early.is_none() && !handle.is_ended();
    let how = if is_whole { "" } else { ", cut short" };
    run.label = format!("{name}{how}: {}", run.label);
    (run, is_whole)
}

fn failed(opened: &OpenTargets, job: &Job, why: String) -> JobRun {
    let outcome = JobOutcome { ended_early: Some(why), ..JobOutcome::default() };
    plain::labelled_run(opened, job, outcome)
}

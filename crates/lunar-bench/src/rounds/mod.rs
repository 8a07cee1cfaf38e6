//! Jobs that are run several times: until the figures are steady, or to find the highest rate that keeps a
//! bound on latency.

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

/// Labels of the tries of a search begin so, apart from that of the highest rate: those of two searches are at
/// different rates, and are not to be compared.
pub(crate) const TRY: &str = "try ";

/// One run of several, with a label of its own, and whether it counts. What ended early or was cut short by somebody
/// does not; nor does one that could not be run at all, and those before it stand all the same.
fn next(opened: &OpenTargets, job: &Job, handle: &RunHandle, name: &str) -> (JobRun, bool) {
    let mut run = plain::one(opened, job, handle).unwrap_or_else(|e| failed(opened, job, e.what));
    let is_whole = run.outcome.ended_early.is_none() && !handle.is_ended();
    let how = if is_whole { "" } else { ", cut short" };
    run.label = format!("{name}{how}: {}", run.label);
    (run, is_whole)
}

fn failed(opened: &OpenTargets, job: &Job, why: String) -> JobRun {
    let outcome = JobOutcome { ended_early: Some(why), ..JobOutcome::default() };
    plain::told_of(opened, job, outcome)
}

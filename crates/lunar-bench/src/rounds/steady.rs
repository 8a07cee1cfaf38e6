//! Repeats a job in rounds until a metric is steady (SNIA PTS).

use super::next;
use crate::document::{JobRun, SteadyState, SteadyWindow};
use crate::job::Job;
use crate::outcome::JobOutcome;
use crate::{Error, OpenTargets, RunHandle, text_report};
use std::fmt;

/// The number of rounds in the window (SNIA PTS 2.0.2, steady state).
const WINDOW: usize = 5;
/// The maximum distance between the largest and the smallest value, relative to the mean.
const EXCURSION: f64 = 0.20;
/// The maximum rise or fall of the fitted line over the window, relative to the mean.
const SLOPE: f64 = 0.10;

/// The metric that must be steady.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SteadyMetric {
    /// Commands per second.
    Iops,
    /// Bytes per second.
    Bw,
    /// Mean latency.
    Lat,
}

impl SteadyMetric {
    /// Its name on the command line.
    fn name(self) -> &'static str {
        match self {
            SteadyMetric::Iops => "iops",
            SteadyMetric::Bw => "bw",
            SteadyMetric::Lat => "lat",
        }
    }

    fn of(self, outcome: &JobOutcome) -> f64 {
        let (read, write) = (&outcome.read, &outcome.write);
        match self {
            SteadyMetric::Iops => outcome.iops(),
            SteadyMetric::Bw => outcome.rate(),
            SteadyMetric::Lat => {
                let [reads, writes] = [read, write].map(|totals| totals.total.count() as f64);
                let sum = read.total.mean_ns * reads + write.total.mean_ns * writes;
                sum / (reads + writes).max(1.0)
            }
        }
    }
}

impl SteadyWindow {
    /// The window of the last rounds; None if there are too few.
    pub(super) fn of(figures: &[f64]) -> Option<SteadyWindow> {
        let window = &figures[figures.len().checked_sub(WINDOW)?..];
        let n = window.len() as f64;
        let mean = window.iter().sum::<f64>() / n;
        let (low, high) = window.iter().fold((f64::MAX, f64::MIN), |(l, h), x| (l.min(*x), h.max(*x)));
        let middle = (n - 1.0) / 2.0;
        let at = |i: usize| i as f64 - middle;
        let square: f64 = (0..window.len()).map(|i| at(i) * at(i)).sum();
        let rise = window.iter().enumerate().map(|(i, x)| at(i) * (x - mean)).sum::<f64>() / square;
        // A mean of 0 has no relative deviation.
        let relative = |figure: f64| if mean > 0.0 { figure / mean } else { 0.0 };
        Some(SteadyWindow {
            rounds: window.len(),
            mean,
            excursion: relative(high - low),
            excursion_limit: EXCURSION,
            slope: relative((rise * (n - 1.0)).abs()),
            slope_limit: SLOPE,
        })
    }

    /// Whether both limits hold; a mean of 0 is never steady.
    pub(super) fn is_steady(&self) -> bool {
        self.mean > 0.0 && self.excursion <= EXCURSION && self.slope <= SLOPE
    }
}

impl fmt::Display for SteadyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(window) = &self.window else {
            let rounds = text_report::count(self.rounds, "round");
            return write!(f, "not steady: {rounds}, at least {WINDOW} are required");
        };
        let percent = |share: f64| share * 100.0;
        write!(
            f,
            "{} after {} rounds: in the last {} the excursion is {:.1} % of the mean (at most {:.0} %), \
             the slope {:.1} % (at most {:.0} %)",
            if self.is_steady { "steady" } else { "not steady" },
            self.rounds,
            window.rounds,
            percent(window.excursion),
            percent(window.excursion_limit),
            percent(window.slope),
            percent(window.slope_limit)
        )
    }
}

/// Runs a job in rounds until the last five are steady, at most `max` times, with different random offsets in
/// each round. A round that failed or was ended early is the last one, and does not count.
///
/// # Errors
/// As [`OpenTargets::run`].
pub fn until_steady(
    opened: &OpenTargets,
    job: &Job,
    figure: SteadyMetric,
    max: usize,
    handle: &RunHandle,
) -> Result<(Vec<JobRun>, SteadyState), Error> {
    opened.check(job)?;
    let (mut runs, mut figures, mut window) = (Vec::new(), Vec::new(), None::<SteadyWindow>);
    for round in 1..=max {
        let (run, is_whole) = next(opened, &job.round(round - 1), handle, &format!("round {round}"));
        let figure = figure.of(&run.outcome);
        runs.push(run);
        if !is_whole {
            break;
        }
        figures.push(figure);
        window = SteadyWindow::of(&figures);
        if window.as_ref().is_some_and(SteadyWindow::is_steady) {
            break;
        }
    }
    let is_steady = window.as_ref().is_some_and(SteadyWindow::is_steady);
    let steady = SteadyState { figure: figure.name().into(), is_steady, rounds: figures.len(), window };
    Ok((runs, steady))
}

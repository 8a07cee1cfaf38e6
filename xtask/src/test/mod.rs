//! `cargo xtask test`: all checks that this machine can run, step by step.

pub mod cargo;
mod disk;
mod follow;
mod fuzz;
mod hang;
mod output;
mod packages;
mod programs;
mod python;
pub mod soak;
mod steps;
mod uring;

use std::thread::ScopedJoinHandle;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;

use crate::root::StepResult;
use steps::STEPS;

/// Options of `cargo xtask test`.
#[derive(Debug, Args)]
pub struct Options {
    /// Only the steps that take a minute or two
    #[arg(long)]
    quick: bool,
    /// Only these steps (and the build)
    steps: Vec<String>,
}

/// Counts of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TestCounts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl TestCounts {
    fn add(&mut self, other: TestCounts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// A single check that is not a Rust test.
    fn one(step: &StepResult) -> TestCounts {
        let mut counts = TestCounts::default();
        match step {
            StepResult::Ok => counts.passed = 1,
            StepResult::Failed(_) => counts.failed = 1,
            StepResult::Skipped(_) => counts.skipped = 1,
        }
        counts
    }
}

/// The result of one step.
#[derive(Debug)]
pub struct StepReport {
    step: StepResult,
    counts: TestCounts,
    /// Output for the end of the summary: that of failed tests
    details: String,
    /// Tests that passed only when they ran again
    flaky: Vec<String>,
}

impl From<StepResult> for StepReport {
    fn from(step: StepResult) -> StepReport {
        StepReport { counts: TestCounts::one(&step), step, details: String::new(), flaky: Vec::new() }
    }
}

/// Runs the steps and prints the summary; its last line has the sum of all tests.
pub fn run(options: &Options) -> Result<StepResult> {
    let known = |name: &String| STEPS.iter().any(|step| step.name == name);
    if let Some(unknown) = options.steps.iter().find(|name| !known(name)) {
        let names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
        bail!("unknown step {unknown}; use: {}", names.join(", "));
    }
    let mut sum = RunSummary::default();
    std::thread::scope(|scope| {
        let mut parallel = ParallelSteps::new();
        for step in STEPS.iter().filter(|step| wanted(step, options)) {
            if step.alone {
                sum.join(&mut parallel);
            }
            println!("\n=== {}: {}", step.name, step.what);
            if step.parallel {
                parallel.push((step, scope.spawn(|| timed(step))));
                continue;
            }
            let (report, seconds) = timed(step);
            sum.add(step.name, &report, seconds);
            if step.always && matches!(report.step, StepResult::Failed(_)) {
                sum.lines += "the following steps did not run\n";
                break;
            }
        }
        sum.join(&mut parallel);
    });
    Ok(sum.end())
}

/// Runs a step; returns its result and duration in seconds.
fn timed(step: &steps::Row) -> (StepReport, u64) {
    let started_at = Instant::now();
    let report = outcome((step.run)());
    (report, started_at.elapsed().as_secs())
}

/// A step that returns an error has failed.
fn outcome(report: Result<StepReport>) -> StepReport {
    report.unwrap_or_else(|error| StepResult::Failed(format!("{error:#}")).into())
}

/// Steps that run in parallel with others.
type ParallelSteps<'scope> = Vec<(&'static steps::Row, ScopedJoinHandle<'scope, (StepReport, u64)>)>;

/// More flaky tests than this fail the run.
const MAX_FLAKY: usize = 3;

/// The results of all steps.
#[derive(Default)]
struct RunSummary {
    /// One line for each step
    lines: String,
    details: String,
    total: TestCounts,
    flaky: Vec<String>,
}

impl RunSummary {
    /// Prints the summary.
    fn end(self) -> StepResult {
        let RunSummary { lines, details, total, flaky } = &self;
        println!("\n{details}\n{lines}");
        if !flaky.is_empty() {
            println!("flaky: {}", flaky.join(", "));
        }
        println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
        self.verdict()
    }

    fn verdict(&self) -> StepResult {
        if self.total.failed > 0 {
            return StepResult::Failed(format!("{} failed", self.total.failed));
        }
        let count = self.flaky.len();
        if count > MAX_FLAKY {
            return StepResult::Failed(format!("{count} tests are flaky, the maximum is {MAX_FLAKY}"));
        }
        StepResult::Ok
    }

    /// Waits for steps that run in parallel.
    fn join(&mut self, steps: &mut ParallelSteps) {
        for (step, ended) in steps.drain(..) {
            let (report, seconds) = ended.join().expect("a step does not panic");
            self.add(step.name, &report, seconds);
        }
    }

    fn add(&mut self, name: &str, report: &StepReport, seconds: u64) {
        self.lines += &line(name, report, seconds);
        self.details += &report.details;
        self.flaky.extend(report.flaky.iter().cloned());
        self.total.add(report.counts);
    }
}

fn wanted(step: &steps::Row, options: &Options) -> bool {
    let named = options.steps.is_empty() || options.steps.iter().any(|name| name == step.name);
    step.always || (named && (step.quick || !options.quick))
}

fn line(name: &str, report: &StepReport, seconds: u64) -> String {
    let (word, why) = match &report.step {
        StepResult::Ok => ("ok", ""),
        StepResult::Failed(why) => ("failed", why.as_str()),
        StepResult::Skipped(why) => ("skipped", why.as_str()),
    };
    let TestCounts { passed, failed, skipped } = report.counts;
    let counts = format!("{passed:>5} passed {failed:>3} failed {skipped:>3} skipped");
    format!("{name:<12} {word:<8} {seconds:>5} s {counts}  {why}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_with_many_flaky_tests_fails() {
        let sum = |count: usize| RunSummary { flaky: vec!["a".into(); count], ..RunSummary::default() };
        assert_eq!(sum(MAX_FLAKY).verdict(), StepResult::Ok);
        assert!(matches!(sum(MAX_FLAKY + 1).verdict(), StepResult::Failed(_)));
    }

    #[test]
    fn named_and_quick_steps_are_selected() {
        let chosen = |quick, names: &[&str]| {
            let options = Options { quick, steps: names.iter().map(|n| n.to_string()).collect() };
            STEPS.iter().filter(|step| wanted(step, &options)).map(|step| step.name).collect::<Vec<_>>()
        };
        assert_eq!(chosen(false, &["peers"]), ["packages", "build", "peers"]);
        assert_eq!(chosen(false, &[]).len(), STEPS.len());
        assert!(!chosen(true, &[]).contains(&"lab"));
    }
}

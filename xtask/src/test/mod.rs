//! `cargo xtask test`: everything that can be checked on this machine, step by step.

pub mod cargo;
mod disk;
mod follow;
mod fuzz;
mod hang;
mod output;
mod packages;
mod programs;
pub mod soak;
mod steps;
mod uring;

use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;

use crate::root::Step;
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

/// Numbers of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// One check that is no test of Rust's.
    fn one(step: &Step) -> Tally {
        let mut tally = Tally::default();
        match step {
            Step::Ok => tally.passed = 1,
            Step::Failed(_) => tally.failed = 1,
            Step::Skipped(_) => tally.skipped = 1,
        }
        tally
    }
}

/// What came of one step.
#[derive(Debug)]
pub struct Report {
    step: Step,
    tally: Tally,
    /// What people should see at the end: the words of tests that failed
    told: String,
    /// Tests that passed only when they ran again
    unsteady: Vec<String>,
}

impl From<Step> for Report {
    fn from(step: Step) -> Report {
        Report { tally: Tally::one(&step), step, told: String::new(), unsteady: Vec::new() }
    }
}

/// Runs the steps and prints the summary; its last line is the sum of all tests.
pub fn run(options: &Options) -> Result<Step> {
    let known = |name: &String| STEPS.iter().any(|step| step.name == name);
    if let Some(unknown) = options.steps.iter().find(|name| !known(name)) {
        let names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
        bail!("no step is called {unknown}; there are: {}", names.join(", "));
    }
    let mut sum = Sum::default();
    std::thread::scope(|scope| {
        let mut beside = Vec::new();
        for step in STEPS.iter().filter(|step| wanted(step, options)) {
            println!("\n=== {}: {}", step.name, step.what);
            if step.beside {
                beside.push((step, scope.spawn(|| timed(step))));
                continue;
            }
            let (report, seconds) = timed(step);
            sum.add(step.name, &report, seconds);
            if step.always && matches!(report.step, Step::Failed(_)) {
                sum.lines += "the steps after it were not run\n";
                break;
            }
        }
        for (step, ended) in beside {
            let (report, seconds) = ended.join().expect("a step does not panic");
            sum.add(step.name, &report, seconds);
        }
    });
    Ok(sum.end())
}

/// Does a step; what came of it, and how many seconds it took.
fn timed(step: &steps::Row) -> (Report, u64) {
    let begin = Instant::now();
    let report = outcome((step.run)());
    (report, begin.elapsed().as_secs())
}

/// An error that ends a step is its failure.
fn outcome(report: Result<Report>) -> Report {
    report.unwrap_or_else(|error| Step::Failed(format!("{error:#}")).into())
}

/// More unsteady tests than this fail the run.
const MAX_UNSTEADY: usize = 3;

/// What came of all steps.
#[derive(Default)]
struct Sum {
    /// A line for each
    lines: String,
    told: String,
    total: Tally,
    unsteady: Vec<String>,
}

impl Sum {
    /// Prints the summary.
    fn end(self) -> Step {
        let Sum { lines, told, total, unsteady } = &self;
        println!("\n{told}\n{lines}");
        if !unsteady.is_empty() {
            println!("unsteady: {}", unsteady.join(", "));
        }
        println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
        self.verdict()
    }

    fn verdict(&self) -> Step {
        if self.total.failed > 0 {
            return Step::Failed(format!("{} failed", self.total.failed));
        }
        let count = self.unsteady.len();
        if count > MAX_UNSTEADY {
            return Step::Failed(format!("{count} tests are unsteady, at most {MAX_UNSTEADY} may be"));
        }
        Step::Ok
    }

    fn add(&mut self, name: &str, report: &Report, seconds: u64) {
        self.lines += &line(name, report, seconds);
        self.told += &report.told;
        self.unsteady.extend(report.unsteady.iter().cloned());
        self.total.add(report.tally);
    }
}

fn wanted(step: &steps::Row, options: &Options) -> bool {
    let named = options.steps.is_empty() || options.steps.iter().any(|name| name == step.name);
    step.always || (named && (step.quick || !options.quick))
}

fn line(name: &str, report: &Report, seconds: u64) -> String {
    let (word, why) = match &report.step {
        Step::Ok => ("ok", ""),
        Step::Failed(why) => ("failed", why.as_str()),
        Step::Skipped(why) => ("skipped", why.as_str()),
    };
    let Tally { passed, failed, skipped } = report.tally;
    let counts = format!("{passed:>5} passed {failed:>3} failed {skipped:>3} skipped");
    format!("{name:<12} {word:<8} {seconds:>5} s {counts}  {why}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_with_many_unsteady_tests_fails() {
        let sum = |count: usize| Sum { unsteady: vec!["a".into(); count], ..Sum::default() };
        assert_eq!(sum(MAX_UNSTEADY).verdict(), Step::Ok);
        assert!(matches!(sum(MAX_UNSTEADY + 1).verdict(), Step::Failed(_)));
    }

    #[test]
    fn named_and_quick_steps_are_chosen() {
        let chosen = |quick, names: &[&str]| {
            let options = Options { quick, steps: names.iter().map(|n| n.to_string()).collect() };
            STEPS.iter().filter(|step| wanted(step, &options)).map(|step| step.name).collect::<Vec<_>>()
        };
        assert_eq!(chosen(false, &["peers"]), ["packages", "build", "peers"]);
        assert_eq!(chosen(false, &[]).len(), STEPS.len());
        assert!(!chosen(true, &[]).contains(&"lab"));
    }
}

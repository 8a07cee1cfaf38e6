//! `cargo xtask test`: everything that can be checked on this machine, step by step.

pub mod cargo;
mod disk;
mod fuzz;
mod hang;
mod output;
mod packages;
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
}

impl From<Step> for Report {
    fn from(step: Step) -> Report {
        Report { tally: Tally::one(&step), step, told: String::new() }
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
            sum.add(step, &report, seconds);
            if step.always && matches!(report.step, Step::Failed(_)) {
                sum.lines += "the steps after it were not run\n";
                break;
            }
        }
        for (step, ended) in beside {
            let (report, seconds) = ended.join().expect("a step does not panic");
            sum.add(step, &report, seconds);
        }
    });
    let Sum { lines, told, total } = sum;
    println!("\n{told}\n{lines}{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    Ok(if total.failed == 0 { Step::Ok } else { Step::Failed(format!("{} failed", total.failed)) })
}

/// Does a step; what came of it, and how many seconds it took.
fn timed(step: &steps::Row) -> (Report, u64) {
    let begin = Instant::now();
    let report = (step.run)().unwrap_or_else(|error| Step::Failed(format!("{error:#}")).into());
    (report, begin.elapsed().as_secs())
}

/// What came of all steps.
#[derive(Default)]
struct Sum {
    /// A line for each
    lines: String,
    told: String,
    total: Tally,
}

impl Sum {
    fn add(&mut self, step: &steps::Row, report: &Report, seconds: u64) {
        self.lines += &line(step.name, report, seconds);
        self.told += &report.told;
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

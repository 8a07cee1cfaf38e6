//! `cargo xtask soak`: tests that take too long for every test run.

use std::ffi::OsStr;
use std::time::Instant;

use anyhow::Result;
use clap::Args;

use super::cargo::{self, ONE_BY_ONE, TestSelection};
use super::fuzz::{self, FuzzBudget};
use super::{RunSummary, StepReport, outcome, packages, steps};
use crate::campaign;
use crate::root::{self, Profile, StepResult};

/// Options of `cargo xtask soak`.
#[derive(Debug, Args)]
pub struct Options {
    /// Minutes of each fuzz target, and of all campaigns together
    #[arg(long, default_value_t = 20)]
    minutes: u64,
    /// Run only these steps: fuzz, polling, campaign, gateways, schedules
    steps: Vec<String>,
}

struct Row {
    name: &'static str,
    what: &'static str,
    /// Runs it for a number of minutes
    run: fn(u64) -> Result<StepReport>,
}

const STEPS: [Row; 5] = [
    Row { name: "fuzz", what: "every fuzz target", run: fuzz },
    Row { name: "polling", what: "all tests of the server without io_uring", run: polling },
    Row { name: "campaign", what: "all campaigns", run: campaigns },
    Row { name: "gateways", what: "faults of gateways under dm-multipath", run: gateways },
    Row { name: "schedules", what: "simulated gateways", run: |_| steps::schedules(SCHEDULES) },
];

/// The number of schedules of each simulation of gateways: about ten minutes for each 100,000.
const SCHEDULES: &str = "200000";

/// Runs all steps, and prints the summary like `cargo xtask test`.
pub fn run(options: &Options) -> Result<StepResult> {
    let names = STEPS.map(|row| row.name);
    if let Some(unknown) = options.steps.iter().find(|step| !names.contains(&step.as_str())) {
        anyhow::bail!("unknown step {unknown}; use: {}", names.join(", "));
    }
    packages::install()?;
    root::lunar(Profile::Test)?;
    let mut sum = RunSummary::default();
    for Row { name, what, run } in STEPS {
        if options.steps.is_empty() || options.steps.iter().any(|step| step == name) {
            println!("\n=== {name}: {what}");
            let started_at = Instant::now();
            let report = outcome(run(options.minutes));
            sum.add(name, &report, started_at.elapsed().as_secs());
        }
    }
    Ok(sum.end())
}

fn fuzz(minutes: u64) -> Result<StepReport> {
    fuzz::run_for(FuzzBudget { seconds: minutes * 60, part: 1, opt_level: "3" })
}

fn polling(_minutes: u64) -> Result<StepReport> {
    steps::without_io_uring(|_| true)
}

fn campaigns(minutes: u64) -> Result<StepReport> {
    Ok(campaign::run(&["--minutes".into(), minutes.to_string()])?.into())
}

/// Six faults of each kind. It prints the longest gap that a host sees.
fn gateways(_minutes: u64) -> Result<StepReport> {
    cargo::test(&TestSelection {
        selection: &["--package", "interop", "--test", "lab"],
        variables: &[("LUNAR_TEST_FAULTS", OsStr::new("36"))],
        options: &["gateways::", "--nocapture"],
        ..ONE_BY_ONE
    })
}

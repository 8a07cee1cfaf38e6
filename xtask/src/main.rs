//! `cargo xtask`: checks, tests, measures and documents the project.
#![forbid(unsafe_code)]

mod bench;
mod campaign;
mod conformance;
mod interop;
mod lab;
mod root;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use root::Step;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Checks, tests, measures and documents the project")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Hold the style's outer limits: sizes, floors, unsafe, links
    Tidy,
    /// Run every test, with real peers and a real kernel
    Test(test::Options),
    /// Run what takes too long for every run of the tests: all fuzz targets, campaigns, all tests without io_uring
    Soak(test::soak::Options),
    /// Run test campaigns for a long time: `campaign kills linear --minutes 60`, `campaign --help`
    #[command(disable_help_flag = true)]
    Campaign {
        /// For interop/src/bin/campaign
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Which rules of RFC 7143 have a test; checks that those tests exist
    Conformance(conformance::Options),
    /// Whom Lunar speaks RDMA with, by which provider: runs the lab's tests and prints the matrix
    Interop(interop::Options),
    /// Boot the lab's guest: `lab run -- CMD`, `lab setup`
    Lab {
        /// For interop/lab/lab
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Measure Lunar against `floor` and STGT; fails when a ratio is missed
    Bench(bench::Options),
}

fn main() -> ExitCode {
    match run(&Arguments::parse().task) {
        Ok(Step::Ok | Step::Skipped(_)) => ExitCode::SUCCESS,
        Ok(Step::Failed(_)) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(task: &Task) -> Result<Step> {
    match task {
        Task::Tidy => tidy::run(),
        Task::Test(options) => test::run(options),
        Task::Soak(options) => test::soak::run(options),
        Task::Campaign { arguments } => campaign::run(arguments),
        Task::Conformance(options) => conformance::run(options),
        Task::Interop(options) => interop::run(options),
        Task::Lab { arguments } => lab::run(arguments),
        Task::Bench(options) => bench::run(options),
    }
}

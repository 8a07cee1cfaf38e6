//! `cargo xtask`: checks, tests, benchmarks and documents the project.
#![forbid(unsafe_code)]

mod bench;
mod campaign;
mod conformance;
mod dist;
mod interop;
mod lab;
mod package;
mod public_api;
mod root;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use root::StepResult;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Checks, tests, measures and documents the project")]
struct Cli {
    #[command(subcommand)]
    task: XtaskCommand,
}

#[derive(Debug, Subcommand)]
enum XtaskCommand {
    /// Check the limits of the style: sizes, layers, unsafe, links
    Tidy,
    /// Make packages for Debian and RPM, an OCI image, a tarball, a list of components, and checksums
    Dist(dist::Options),
    /// Package lunar-initiator and its crates, and use them outside the workspace
    Package,
    /// Compare the public API of each published crate with its file, or write the files
    PublicApi(public_api::Options),
    /// Run every test, with real peers and a real kernel
    Test(test::Options),
    /// Run tests that take too long for every test run: all fuzz targets, campaigns, all tests without io_uring
    Soak(test::soak::Options),
    /// Run test campaigns for a long time: `campaign kills linear --minutes 60`, `campaign --help`
    #[command(disable_help_flag = true)]
    Campaign {
        /// Arguments of interop/src/bin/campaign
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Show which rules of RFC 7143 have a test, and check that these tests exist
    Conformance(conformance::Options),
    /// Show the RDMA peers that Lunar works with, by provider: runs the lab's tests and prints a matrix
    Interop(interop::Options),
    /// Boot the lab's guest: `lab run -- CMD`, `lab setup`
    Lab {
        /// Arguments of interop/lab/lab
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Benchmark Lunar against `floor` and STGT; fails if a ratio is missed
    Bench(bench::Options),
}

fn main() -> ExitCode {
    match run(&Cli::parse().task) {
        Ok(StepResult::Ok | StepResult::Skipped(_)) => ExitCode::SUCCESS,
        Ok(StepResult::Failed(_)) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(task: &XtaskCommand) -> Result<StepResult> {
    match task {
        XtaskCommand::Tidy => tidy::run(),
        XtaskCommand::Dist(options) => dist::run(options),
        XtaskCommand::Package => package::run(),
        XtaskCommand::PublicApi(options) => public_api::run(options),
        XtaskCommand::Test(options) => test::run(options),
        XtaskCommand::Soak(options) => test::soak::run(options),
        XtaskCommand::Campaign { arguments } => campaign::run(arguments),
        XtaskCommand::Conformance(options) => conformance::run(options),
        XtaskCommand::Interop(options) => interop::run(options),
        XtaskCommand::Lab { arguments } => lab::run(arguments),
        XtaskCommand::Bench(options) => bench::run(options),
    }
}

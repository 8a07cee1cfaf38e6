//! `cargo xtask`: checks, tests, measures and documents the project.
#![forbid(unsafe_code)]

mod root;
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
    }
}

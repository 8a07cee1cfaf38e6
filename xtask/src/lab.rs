//! `cargo xtask lab`: runs the lab's script by hand.

use anyhow::{Context, Result};

use crate::root::{self, StepResult};

/// Runs `interop/lab/lab` with these arguments; fetches the guest's kernel first if it is missing.
pub fn run(arguments: &[String]) -> Result<StepResult> {
    let script = root::path().join("interop/lab/lab").display().to_string();
    if arguments.first().is_some_and(|first| first == "run") {
        root::must(&script, &["setup"])?;
    }
    let status = root::command(&script).args(arguments).status().context("cannot run the lab")?;
    Ok(if status.success() { StepResult::Ok } else { StepResult::Failed(status.to_string()) })
}

//! `cargo xtask lab`: the lab's script, for trying things by hand.

use anyhow::{Context, Result};

use crate::root::{self, StepResult};

/// Hands the arguments to `interop/lab/lab`; the guest's kernel is fetched first if need be.
pub fn run(arguments: &[String]) -> Result<StepResult> {
    let script = root::path().join("interop/lab/lab").display().to_string();
    if arguments.first().is_some_and(|first| first == "run") {
        root::must(&script, &["setup"])?;
    }
    let status = root::command(&script).args(arguments).status().context("cannot run the lab")?;
    Ok(if status.success() { StepResult::Ok } else { StepResult::Failed(status.to_string()) })
}

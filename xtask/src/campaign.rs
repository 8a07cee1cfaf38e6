//! `cargo xtask campaign`: builds and runs the campaigns and the program under test.

use anyhow::{Context, Result};

use crate::root::{self, Profile, StepResult};

/// Runs campaigns. Builds `lunar`, unless `--lunar` or `$LUNAR_BIN` names another one.
pub fn run(arguments: &[String]) -> Result<StepResult> {
    let program = root::build("interop", "campaign")?;
    let mut command = root::command(&program.display().to_string());
    if !arguments.iter().any(|a| a.starts_with("--lunar") || a == "--help") {
        command.env("LUNAR_BIN", root::lunar(Profile::Release)?);
    }
    let status = command.args(arguments).status().with_context(|| format!("run {}", program.display()))?;
    Ok(if status.success() { StepResult::Ok } else { StepResult::Failed("campaign".into()) })
}

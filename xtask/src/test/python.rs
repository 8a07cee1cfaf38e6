//! Programs of PyPI that tests use, in a virtual environment of their own.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use crate::root;

/// The packages with their versions.
const REQUIREMENTS: &str = "interop/schemathesis/requirements.txt";

/// The folder of the environment; tests find their programs in its folder `bin`.
fn folder() -> PathBuf {
    root::target_dir().join("tools/python")
}

/// Installs the packages, unless these versions are installed.
pub fn install() -> Result<()> {
    let wanted = fs::read_to_string(root::path().join(REQUIREMENTS)).context(REQUIREMENTS)?;
    let installed = folder().join("requirements.txt");
    if fs::read_to_string(&installed).is_ok_and(|text| text == wanted) {
        return Ok(());
    }
    let folder = folder().display().to_string();
    println!("installing {REQUIREMENTS} in {folder}");
    quiet("python3", &["-m", "venv", "--clear", &folder])?;
    let pip = format!("{folder}/bin/pip");
    quiet(&pip, &["install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r", REQUIREMENTS])?;
    fs::write(installed, wanted)?;
    Ok(())
}

/// Runs a program; prints its output only if it fails.
fn quiet(program: &str, arguments: &[&str]) -> Result<()> {
    let mut command = root::command(program);
    let output = command.args(arguments).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", arguments.join(" "), said.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_requirement_has_a_version() {
        let text = fs::read_to_string(root::path().join(REQUIREMENTS)).expect("the file");
        assert!(
            text.lines().all(|line| line.split_once("==").is_some_and(|(_, version)| !version.is_empty()))
        );
        assert!(text.lines().any(|line| line.starts_with("schemathesis==")));
    }
}

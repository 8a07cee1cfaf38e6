//! `cargo test`, with its output passed on and its results counted.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result};

use super::{Report, Tally};
use crate::root::{self, Step};

/// Runs `cargo test SELECTION -- OPTIONS` with `LUNAR_BIN` set. Tests that say `skipped: ...` count as
/// skipped.
pub fn test(selection: &[&str], options: &[&str]) -> Result<Report> {
    test_with(&[], selection, options)
}

/// As [`test`], with more environment variables.
pub fn test_with(variables: &[(&str, &OsStr)], selection: &[&str], options: &[&str]) -> Result<Report> {
    let mut command = root::command("cargo");
    command.args(["test", "--no-fail-fast"]).args(selection).args(["--", "--show-output"]).args(options);
    command.envs(variables.iter().copied());
    command.env("LUNAR_BIN", root::lunar_path()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot run cargo")?;
    let mut tally = Tally::default();
    for line in BufReader::new(child.stdout.take().context("piped")?).lines() {
        let line = line?;
        println!("{line}");
        count(&line, &mut tally);
    }
    tally.passed = tally.passed.saturating_sub(tally.skipped);
    let status = child.wait()?;
    if status.success() {
        return Ok(Report { step: Step::Ok, tally });
    }
    tally.failed = tally.failed.max(1); // it may not even have compiled
    Ok(Report { step: Step::Failed(format!("cargo test: {status}")), tally })
}

/// Takes one line of the output into account.
fn count(line: &str, tally: &mut Tally) {
    if line.starts_with("skipped: ") {
        tally.skipped += 1;
    }
    let Some(result) = line.strip_prefix("test result: ") else { return };
    let words: Vec<&str> = result.split(' ').collect();
    for pair in words.windows(2) {
        let number = pair[0].parse().unwrap_or(0);
        match pair[1] {
            "passed;" => tally.passed += number,
            "failed;" => tally.failed += number,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted() {
        let mut tally = Tally::default();
        for line in [
            "skipped: needs qemu-img (apt-get install qemu-utils)",
            "test result: FAILED. 7 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.00s",
            "test something ... ok",
        ] {
            count(line, &mut tally);
        }
        assert_eq!(tally, Tally { passed: 10, failed: 2, skipped: 1 });
    }
}

//! `cargo test`, with its output passed on and its results counted.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Report;
use super::output::{Failure, Output};
use crate::root::{self, Step};

/// Neither a build nor a test is silent for so long; one that is hangs.
const SILENCE: Duration = Duration::from_secs(20 * 60);
/// More failures than this are no accident of a busy machine.
const FEW: usize = 5;

/// Runs `cargo test SELECTION -- OPTIONS` with `LUNAR_BIN` set. Tests that say `skipped: ...` count as
/// skipped. Few that fail are run once more, each by itself: those that pass then are told as unsteady.
pub fn test(selection: &[&str], options: &[&str]) -> Result<Report> {
    test_with(&[], selection, options)
}

/// As [`test`], with more environment variables.
pub fn test_with(variables: &[(&str, &OsStr)], selection: &[&str], options: &[&str]) -> Result<Report> {
    let (is_ok, output) = counted(variables, selection, options)?;
    let Output { mut tally, failures, .. } = output;
    tally.passed = tally.passed.saturating_sub(tally.skipped);
    if is_ok {
        return Ok(Report { step: Step::Ok, tally, told: String::new() });
    }
    let mut told: String = failures.iter().map(story).collect();
    if !failures.is_empty() && failures.len() == tally.failed && failures.len() <= FEW {
        let names: Vec<&str> = failures.iter().map(|failure| failure.name.as_str()).collect();
        let alone = [&["--exact", "--test-threads=1"], names.as_slice()].concat();
        let (is_ok, again) = counted(variables, selection, &alone)?;
        if is_ok && again.tally.passed >= names.len() {
            told += &format!("unsteady (failed above, passed alone): {}\n", names.join(", "));
            tally.passed += tally.failed;
            tally.failed = 0;
            return Ok(Report { step: Step::Ok, tally, told });
        }
    }
    tally.failed = tally.failed.max(1); // it may not even have compiled
    Ok(Report { step: Step::Failed("cargo test".into()), tally, told })
}

fn story(failure: &Failure) -> String {
    format!("---- {}\n{}\n", failure.name, failure.said.join("\n"))
}

fn counted(variables: &[(&str, &OsStr)], selection: &[&str], options: &[&str]) -> Result<(bool, Output)> {
    let mut output = Output::default();
    let is_ok = run(variables, selection, options, |line| {
        println!("{line}");
        output.take(line);
    })?;
    Ok((is_ok, output))
}

/// Runs `cargo test SELECTION -- OPTIONS` with `LUNAR_BIN` set, and hands on each line of its output; true when all
/// passed.
///
/// # Errors
/// When cargo cannot be run, or nothing is heard for long.
pub fn run(
    variables: &[(&str, &OsStr)],
    selection: &[&str],
    options: &[&str],
    each: impl FnMut(&str),
) -> Result<bool> {
    let mut command = root::command("cargo");
    command.args(["test", "--no-fail-fast"]).args(selection).args(["--", "--show-output"]).args(options);
    command.envs(variables.iter().copied()).env("RUST_BACKTRACE", "0");
    command.env("LUNAR_BIN", root::lunar_path()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot run cargo")?;
    follow(&mut child, each)?;
    Ok(child.wait()?.success())
}

/// Passes on every line until the end.
fn follow(child: &mut Child, mut each: impl FnMut(&str)) -> Result<()> {
    let lines = BufReader::new(child.stdout.take().context("piped")?).lines();
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || lines.map_while(|line| line.ok()).try_for_each(|line| send.send(line)));
    loop {
        match receive.recv_timeout(SILENCE) {
            Ok(line) => each(&line),
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                child.kill()?;
                bail!("a test hangs: nothing was heard for {} minutes", SILENCE.as_secs() / 60);
            }
        }
    }
}

//! `cargo test`, with its output passed on and its results counted.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::output::{Failure, HANG, Output};
use super::{Report, hang};
use crate::root::{self, Step};

/// No test is silent for so long; one that is hangs.
const SILENCE: Duration = Duration::from_secs(10 * 60);
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
    output.settle();
    Ok((is_ok, output))
}

/// Runs `cargo test SELECTION -- OPTIONS` with `LUNAR_BIN` set, and hands on each line of its output; true when all
/// passed. A program of which nothing is heard for long is ended, and what begins with [`HANG`] tells where it stood.
///
/// # Errors
/// When cargo cannot be run, or nothing is heard for long though it runs no program.
pub fn run(
    variables: &[(&str, &OsStr)],
    selection: &[&str],
    options: &[&str],
    each: impl FnMut(&str),
) -> Result<bool> {
    let cargo = |how: &str| {
        let mut command = root::command("cargo");
        command.args(["test", how]).args(selection);
        command
    };
    // First, for no limit: a build may be silent for long.
    if !cargo("--no-run").status().context("cannot run cargo")?.success() {
        return Ok(false);
    }
    let mut command = cargo("--no-fail-fast");
    command.args(["--", "--show-output"]).args(options);
    command.envs(variables.iter().copied()).env("RUST_BACKTRACE", "0");
    command.env("LUNAR_BIN", root::lunar_path()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot run cargo")?;
    let output = child.stdout.take().context("piped")?;
    follow(&mut child, output, SILENCE, each)?;
    Ok(child.wait()?.success())
}

/// Passes on every line until the end.
fn follow(
    child: &mut Child,
    output: ChildStdout,
    silence: Duration,
    mut each: impl FnMut(&str),
) -> Result<()> {
    let lines = BufReader::new(output).lines();
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || lines.map_while(|line| line.ok()).try_for_each(|line| send.send(line)));
    loop {
        match receive.recv_timeout(silence) {
            Ok(line) => each(&line),
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                let stood = hang::end_children_of(child.id());
                let told = format!("nothing was heard for {} s", silence.as_secs());
                if stood.is_empty() {
                    child.kill()?;
                    bail!("{told}, and cargo runs no program");
                }
                each(&format!("{HANG}{told}\n{}", stood.join("\n")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_ended_and_the_rest_goes_on() {
        let mut shell = root::command("sh");
        let mut shell =
            shell.args(["-c", "echo one; sleep 1000; echo two"]).stdout(Stdio::piped()).spawn().expect("sh");
        let (output, mut heard) = (shell.stdout.take().expect("piped"), Vec::new());
        follow(&mut shell, output, Duration::from_millis(500), |line| heard.push(line.to_owned()))
            .expect("it ends");
        assert!(shell.wait().expect("it ends").success());
        assert_eq!((heard.len(), heard[0].as_str(), heard[2].as_str()), (3, "one", "two"));
        assert!(heard[1].starts_with(HANG), "{heard:?}");
    }

    #[test]
    fn who_is_silent_and_runs_nothing_is_ended() {
        let mut sleeper = root::command("sleep").arg("1000").stdout(Stdio::piped()).spawn().expect("sleep");
        let output = sleeper.stdout.take().expect("piped");
        follow(&mut sleeper, output, Duration::from_millis(100), |_| {}).expect_err("it hangs");
        assert!(!sleeper.wait().expect("it ends").success());
    }
}

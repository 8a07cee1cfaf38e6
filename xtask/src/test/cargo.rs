//! `cargo test`, with its output passed on and its results counted.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, PipeReader};
use std::process::{Child, Command};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::output::{Death, HANG, Output};
use super::{Report, hang};
use crate::root::{self, Step};

/// No test is silent for so long; one that is hangs.
const SILENCE: Duration = Duration::from_secs(10 * 60);
/// More failures than this are no accident of a busy machine.
const FEW: usize = 5;

/// Runs `cargo test SELECTION -- OPTIONS` with `LUNAR_BIN` set. Tests that say `skipped: ...` count as
/// skipped. Few that fail are run once more, each by itself, and so are programs that died: those that pass then are
/// told as unsteady.
pub fn test(selection: &[&str], options: &[&str]) -> Result<Report> {
    test_with(&[], selection, options)
}

/// As [`test`], with more environment variables.
pub fn test_with(variables: &[(&str, &OsStr)], selection: &[&str], options: &[&str]) -> Result<Report> {
    let (is_ok, output) = counted(variables, selection, options)?;
    let mut tally = output.tally;
    tally.passed = tally.passed.saturating_sub(tally.skipped);
    if is_ok {
        return Ok(Report { step: Step::Ok, tally, told: String::new() });
    }
    let mut told = stories(&output);
    if is_few(&output) && passes_alone(variables, selection, &output)? {
        told += &format!("unsteady (failed above, passed alone): {}\n", names(&output).join(", "));
        tally.passed += tally.failed;
        tally.failed = 0;
        return Ok(Report { step: Step::Ok, tally, told });
    }
    tally.failed = tally.failed.max(1); // it may not even have compiled
    Ok(Report { step: Step::Failed("cargo test".into()), tally, told })
}

/// What is known of the failures: a name, and what was said.
fn stories(Output { failures, deaths, .. }: &Output) -> String {
    let story = |name: &str, said: &[String]| format!("---- {name}\n{}\n", said.join("\n"));
    let failures = failures.iter().map(|failure| story(&failure.name, &failure.said));
    let died = |death: &Death| format!("{} died before {} tests had ended", death.selection, death.left);
    failures.chain(deaths.iter().map(|death| story(&died(death), &death.said))).collect()
}

fn names(Output { failures, deaths, .. }: &Output) -> Vec<&str> {
    let failures = failures.iter().map(|failure| failure.name.as_str());
    failures.chain(deaths.iter().map(|death| death.selection.as_str())).collect()
}

/// Whether there is something to run again: not much, and all that failed is known.
fn is_few(Output { failures, deaths, tally, .. }: &Output) -> bool {
    let known = failures.len() + deaths.iter().map(|death| death.left).sum::<usize>();
    (1..=FEW).contains(&(failures.len() + deaths.len())) && known == tally.failed
}

fn passes_alone(variables: &[(&str, &OsStr)], selection: &[&str], output: &Output) -> Result<bool> {
    let passes = |selection: &[&str], options: &[&str], tests: usize| {
        let options = [&["--test-threads=1"], options].concat();
        let (is_ok, again) = counted(variables, selection, &options)?;
        anyhow::Ok(is_ok && again.tally.passed >= tests)
    };
    for Death { selection, left, .. } in &output.deaths {
        if !passes(&selection.split(' ').collect::<Vec<_>>(), &[], *left)? {
            return Ok(false);
        }
    }
    let names: Vec<&str> = output.failures.iter().map(|failure| failure.name.as_str()).collect();
    Ok(names.is_empty() || passes(selection, &[&["--exact"], names.as_slice()].concat(), names.len())?)
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

/// Runs `cargo test SELECTION -- OPTIONS` with `LUNAR_BIN` set, and hands on each line of what it and its programs say;
/// true when all passed. A program of which nothing is heard for long is ended, and what begins with [`HANG`] tells where it stood.
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
    command.env("LUNAR_BIN", root::lunar_path());
    let (mut child, output) = spawn(command).context("cannot run cargo")?;
    follow(&mut child, output, SILENCE, each)?;
    Ok(child.wait()?.success())
}

/// Begins a command whose output and errors come in one stream, in the order in which they are told.
fn spawn(mut command: Command) -> io::Result<(Child, PipeReader)> {
    let (output, end) = io::pipe()?;
    let child = command.stdout(end.try_clone()?).stderr(end).spawn()?;
    Ok((child, output))
}

/// Passes on every line until the end.
fn follow(
    child: &mut Child,
    output: PipeReader,
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
        shell.args(["-c", "echo one >&2; sleep 1000; echo two"]);
        let (mut shell, output) = spawn(shell).expect("sh");
        let mut heard = Vec::new();
        follow(&mut shell, output, Duration::from_millis(500), |line| heard.push(line.to_owned()))
            .expect("it ends");
        assert!(shell.wait().expect("it ends").success());
        // The shell may tell of it, too.
        assert_eq!((heard[0].as_str(), heard.last().map(String::as_str)), ("one", Some("two")));
        assert!(heard[1].starts_with(HANG), "{heard:?}");
    }

    #[test]
    fn who_is_silent_and_runs_nothing_is_ended() {
        let mut sleeper = root::command("sleep");
        sleeper.arg("1000");
        let (mut sleeper, output) = spawn(sleeper).expect("sleep");
        follow(&mut sleeper, output, Duration::from_millis(100), |_| {}).expect_err("it hangs");
        assert!(!sleeper.wait().expect("it ends").success());
    }
}

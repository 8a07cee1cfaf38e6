//! `cargo test`, with its output passed on and its results counted.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::output::{Death, HANG, Output};
use super::{Report, hang};
use crate::root::{self, Step};

/// No test is silent for so long; one that is hangs.
const SILENCE: Duration = Duration::from_secs(10 * 60);
/// What has ended, and has said nothing on stdout for so long, says no more, though somebody holds it.
const LOOK: Duration = Duration::from_secs(2);
/// Lines of stderr that are read after the end come within this.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// More failures than this are no accident of a busy machine.
const FEW: usize = 5;
/// Failures that the summary names.
const NAMED: usize = 20;

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
    Ok(Report { step: Step::Failed(named(&output)), tally, told })
}

/// What is known of the failures: a name, and what was said.
fn stories(Output { failures, deaths, .. }: &Output) -> String {
    let story = |name: &str, said: &[String]| format!("---- {name}\n{}\n", said.join("\n"));
    let failures = failures.iter().map(|failure| story(&failure.name, &failure.said));
    let died = |death: &Death| format!("the tests of {} died", death.selection);
    failures.chain(deaths.iter().map(|death| story(&died(death), &death.said))).collect()
}

fn names(Output { failures, deaths, .. }: &Output) -> Vec<&str> {
    let failures = failures.iter().map(|failure| failure.name.as_str());
    failures.chain(deaths.iter().map(|death| death.selection.as_str())).collect()
}

/// The failures in one line, for the end of the summary: a log is often cut to its end.
fn named(output: &Output) -> String {
    let names = names(output);
    if names.is_empty() {
        return "cargo test".into();
    }
    let more = names.len().saturating_sub(NAMED);
    let rest = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{rest}", names[..names.len() - more].join(", "))
}

/// Whether there is something to run again: not much, and all that failed is known.
fn is_few(Output { failures, deaths, tally, .. }: &Output) -> bool {
    let known = failures.len() + deaths.iter().map(|death| death.lost).sum::<usize>();
    (1..=FEW).contains(&(failures.len() + deaths.len())) && known == tally.failed
}

fn passes_alone(variables: &[(&str, &OsStr)], selection: &[&str], output: &Output) -> Result<bool> {
    let passes = |selection: &[&str], options: &[&str], tests: usize| {
        let options = [&["--test-threads=1"], options].concat();
        let (is_ok, again) = counted(variables, selection, &options)?;
        anyhow::Ok(is_ok && again.tally.passed >= tests)
    };
    let names: Vec<&str> = output.failures.iter().map(|failure| failure.name.as_str()).collect();
    if !names.is_empty() && !passes(selection, &[&["--exact"], names.as_slice()].concat(), names.len())? {
        return Ok(false);
    }
    for Death { selection, lost, .. } in &output.deaths {
        if !passes(&selection.split(' ').collect::<Vec<_>>(), &[], *lost)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn counted(variables: &[(&str, &OsStr)], selection: &[&str], options: &[&str]) -> Result<(bool, Output)> {
    let mut output = Output::default();
    let is_ok = run(variables, selection, options, |line| match line {
        Line::Out(line) => {
            println!("{line}");
            output.take(&line);
        }
        Line::Err(line) => {
            eprintln!("{line}");
            output.take_error(&line);
        }
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
    each: impl FnMut(Line),
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
    // Its words are read.
    command.env("LUNAR_BIN", root::lunar_path()).env("CARGO_TERM_COLOR", "never");
    let mut child = spawn(command).context("cannot run cargo")?;
    follow(&mut child, SILENCE, each)?;
    Ok(child.wait()?.success())
}

/// A line of what a command says.
#[derive(Debug)]
pub enum Line {
    Out(String),
    Err(String),
}

fn spawn(mut command: Command) -> io::Result<Child> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// Passes on every line until the command has ended; programs that it leaves behind may keep what it wrote to. Silence is
/// that of stdout, where tests are told of.
fn follow(child: &mut Child, silence: Duration, mut each: impl FnMut(Line)) -> Result<()> {
    let (send, receive) = mpsc::channel();
    let (out, err) = child.stdout.take().zip(child.stderr.take()).context("piped")?;
    // A line, or the end of stdout.
    let said = send.clone();
    std::thread::spawn(move || lines(err).for_each(|line| drop(said.send(Some(Line::Err(line))))));
    std::thread::spawn(move || {
        lines(out).for_each(|line| drop(send.send(Some(Line::Out(line)))));
        send.send(None)
    });
    let (mut heard, look) = (Instant::now(), LOOK.min(silence));
    loop {
        match receive.recv_timeout(look) {
            Ok(Some(line)) => {
                if matches!(line, Line::Out(_)) {
                    heard = Instant::now();
                }
                each(line);
            }
            Ok(None) => break,
            Err(_) => {}
        }
        // Who holds its stdout still was left behind.
        if heard.elapsed() >= look && child.try_wait()?.is_some() {
            break;
        }
        if heard.elapsed() < silence {
            continue;
        }
        let stood = hang::end_children_of(child.id());
        heard = Instant::now();
        let told = format!("nothing was heard for {} s", silence.as_secs());
        if stood.is_empty() {
            child.kill()?;
            bail!("{told}, and cargo runs no program");
        }
        each(Line::Out(format!("{HANG}{told}\n{}", stood.join("\n"))));
    }
    child.wait()?;
    let end = Instant::now() + LAST_WORDS;
    while let Ok(Some(line)) = receive.recv_timeout(end.saturating_duration_since(Instant::now())) {
        each(line);
    }
    Ok(())
}

/// Up to the end; what is no UTF-8 is shown as well as it can be.
fn lines(from: impl Read) -> impl Iterator<Item = String> {
    let lines = BufReader::new(from).split(b'\n').map_while(Result::ok);
    lines.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::super::output::Failure;
    use super::*;

    #[test]
    fn failures_of_a_step_are_named_up_to_a_limit() {
        let failure = |n: usize| Failure { name: format!("t{n}"), said: Vec::new() };
        let output = |n: usize| {
            let mut output = Output::default();
            output.failures.extend((0..n).map(failure));
            output
        };
        assert_eq!(named(&output(0)), "cargo test");
        assert_eq!(named(&output(2)), "t0, t1");
        assert!(named(&output(NAMED + 3)).ends_with("t19 and 3 more"));
    }

    #[test]
    fn what_hangs_is_ended_and_the_rest_goes_on() {
        let mut shell = root::command("sh");
        shell.args(["-c", "echo one; echo beside >&2; sleep 1000; echo two"]);
        let (mut shell, mut heard, mut said) = (spawn(shell).expect("sh"), Vec::new(), Vec::new());
        follow(&mut shell, Duration::from_millis(500), |line| match line {
            Line::Out(line) => heard.push(line),
            Line::Err(line) => said.push(line),
        })
        .expect("it ends");
        assert!(shell.wait().expect("it ends").success());
        assert_eq!((heard.len(), heard[0].as_str(), heard[2].as_str()), (3, "one", "two"));
        assert!(heard[1].starts_with(HANG) && said[0] == "beside", "{heard:?} {said:?}");
    }

    /// What a command says on stdout while something, which is left behind if it ends before that, chatters on stderr.
    fn beside_chatter(script: &str, chatter: &str) -> Vec<String> {
        let mut shell = root::command("sh");
        shell.args(["-c", &format!("({chatter}) & echo $!; {script}")]);
        let (mut shell, mut heard) = (spawn(shell).expect("sh"), Vec::new());
        follow(&mut shell, Duration::from_millis(500), |line| {
            if let Line::Out(line) = line {
                heard.push(line);
            }
        })
        .expect("it ends");
        let _ = root::command("kill").arg(&heard[0]).stderr(Stdio::null()).status();
        heard
    }

    #[test]
    fn chatter_hides_no_hang_and_who_is_left_behind_holds_nothing_up() {
        const ON_STDERR: &str = "while :; do echo on >&2; sleep 0.1; done >/dev/null";
        let heard = beside_chatter("sleep 1000; echo two", ON_STDERR);
        assert!(heard[1].starts_with(HANG) && heard[2] == "two", "{heard:?}");
        assert_eq!(beside_chatter(":", ON_STDERR).len(), 1);
        assert_eq!(beside_chatter(":", "exec sleep 1000").len(), 1);
    }

    #[test]
    fn who_is_silent_and_runs_nothing_is_ended() {
        let mut sleeper = root::command("sleep");
        sleeper.arg("1000");
        let mut sleeper = spawn(sleeper).expect("sleep");
        follow(&mut sleeper, Duration::from_millis(100), |_| {}).expect_err("it hangs");
        assert!(!sleeper.wait().expect("it ends").success());
    }
}

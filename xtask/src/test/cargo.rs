//! Test programs, several at a time, with their output passed on and their results counted.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Result;

pub use super::follow::Line;
use super::output::{Death, Failure, Output};
use super::programs::{self, Program};
use super::{Report, Tally, follow};
use crate::root::{self, Step};

/// No test is silent for so long; one that is hangs.
const SILENCE: Duration = Duration::from_secs(10 * 60);
/// More failures than this are no accident of a busy machine.
const FEW: usize = 5;
/// In front of what programs print. Those that the tests of this file run are no tests of the step that runs these.
const MARGIN: &str = if cfg!(test) { "| " } else { "" };
/// Failures that the summary names.
const NAMED: usize = 20;
/// The exit status of a program whose tests ran to their end, and some failed.
const SOME_FAILED: i32 = 101;

/// Which tests to run, and how.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// Arguments of `cargo test` that select packages and targets
    pub selection: &'a [&'a str],
    /// More environment variables
    pub variables: &'a [(&'a str, &'a OsStr)],
    /// Arguments for each program
    pub options: &'a [&'a str],
    /// Programs at a time
    pub width: usize,
    /// Programs that take longest: they start first
    pub first: &'a [&'a str],
    /// Tests that look at the clock, by program: they run behind all others, one at a time
    pub alone: &'a [(&'a str, &'a [&'a str])],
}

/// Each program by itself.
pub const ONE_BY_ONE: Plan<'static> =
    Plan { selection: &[], variables: &[], options: &[], width: 1, first: &[], alone: &[] };

/// A run of a program.
#[derive(Clone, Debug)]
struct Job {
    program: Program,
    arguments: Vec<String>,
}

/// What came of it.
#[derive(Debug)]
struct Ran {
    job: Job,
    output: Output,
}

/// Runs tests with `LUNAR_BIN` set. Tests that print `skipped: ...` count as skipped. If few fail, each of those runs
/// once more, and so does a program that died: those that pass then are unsteady.
pub fn test(plan: &Plan) -> Result<Report> {
    let Some(programs) = programs::build(plan.selection)? else {
        let tally = Tally { failed: 1, ..Tally::default() };
        return Ok(Report { tally, ..Step::Failed("the tests do not build".into()).into() });
    };
    let (together, alone) = jobs(plan, &programs);
    let mut ran = run_all(plan, together, plan.width)?;
    ran.extend(run_all(plan, alone, 1)?);
    let mut tally = sum(&ran);
    let mut told: String = ran.iter().map(stories).collect();
    let unsteady = second_chances(plan, &ran)?;
    tally.passed = (tally.passed + unsteady.tests).saturating_sub(tally.skipped);
    tally.failed -= unsteady.tests.min(tally.failed);
    if !unsteady.names.is_empty() {
        told += &format!("passed alone, after failing above: {}\n", unsteady.names.join(", "));
    }
    let failed: Vec<String> =
        ran.iter().flat_map(names).filter(|name| !unsteady.names.contains(name)).collect();
    let step = if tally.failed == 0 { Step::Ok } else { Step::Failed(named(&failed)) };
    Ok(Report { step, tally, told, unsteady: unsteady.names })
}

/// The jobs that run together, and those that run alone.
fn jobs(plan: &Plan, programs: &[Program]) -> (Vec<Job>, Vec<Job>) {
    let rank = |program: &Program| {
        let at = plan.first.iter().position(|name| *name == program.name);
        at.unwrap_or(plan.first.len())
    };
    let tests_alone = |program: &Program| {
        let is_it = |(name, _): &&(&str, &[&str])| *name == program.name;
        plan.alone.iter().find(is_it).map_or(&[][..], |(_, tests)| tests)
    };
    let mut programs = programs.to_vec();
    programs.sort_by_key(rank);
    let job = |program: &Program, more: Vec<String>| {
        let options = plan.options.iter().map(|word| word.to_string());
        Job { program: program.clone(), arguments: options.chain(more).collect() }
    };
    let skip = |test: &&str| ["--skip".to_owned(), test.to_string()];
    let together = programs.iter().map(|p| job(p, tests_alone(p).iter().flat_map(skip).collect())).collect();
    let has_alone = programs.iter().filter(|program| !tests_alone(program).is_empty());
    (together, has_alone.map(|program| by_itself(plan, program, tests_alone(program))).collect())
}

/// These tests of a program, one at a time. The program takes a number of threads once.
fn by_itself<T: ToString>(plan: &Plan, program: &Program, tests: &[T]) -> Job {
    let options = plan.options.iter().filter(|word| !word.starts_with("--test-threads"));
    let arguments = options.map(|word| word.to_string()).chain(exactly(tests)).collect();
    Job { program: program.clone(), arguments }
}

/// Arguments that select these tests, one at a time.
fn exactly<T: ToString>(tests: &[T]) -> Vec<String> {
    let options = ["--test-threads=1".to_owned(), "--exact".to_owned()];
    options.into_iter().chain(tests.iter().map(T::to_string)).collect()
}

/// Runs jobs, so many at a time. The output of one that is not alone is printed when it has ended.
fn run_all(plan: &Plan, jobs: Vec<Job>, width: usize) -> Result<Vec<Ran>> {
    let width = width.min(jobs.len());
    let (queue, ran) = (Mutex::new(VecDeque::from(jobs)), Mutex::new(Vec::new()));
    let take = || queue.lock().expect("no panic").pop_front();
    let work = || {
        while let Some(job) = take() {
            let output = if width == 1 { run_aloud(plan, &job) } else { run_quietly(plan, &job) };
            ran.lock().expect("no panic").push(output.map(|output| Ran { job, output }));
        }
    };
    std::thread::scope(|scope| (0..width).for_each(|_| _ = scope.spawn(work)));
    ran.into_inner().expect("no panic").into_iter().collect()
}

fn run_aloud(plan: &Plan, job: &Job) -> Result<Output> {
    println!("\n--- {}", job.program.name);
    run_job(plan.variables, job, |line| match line {
        Line::Out(line) => println!("{MARGIN}{line}"),
        Line::Err(line) => eprintln!("{MARGIN}{line}"),
    })
}

fn run_quietly(plan: &Plan, job: &Job) -> Result<Output> {
    let (begin, mut text) = (Instant::now(), String::new());
    let output = run_job(plan.variables, job, |line| {
        let (Line::Out(line) | Line::Err(line)) = line;
        text += MARGIN;
        text += line;
        text.push('\n');
    })?;
    println!("\n--- {} ({} s)\n{text}", job.program.name, begin.elapsed().as_secs());
    Ok(output)
}

/// Runs a job, and hands on each line.
fn run_job(variables: &[(&str, &OsStr)], job: &Job, mut each: impl FnMut(&Line)) -> Result<Output> {
    let mut command =
        job.program.command(&[&["--show-output".to_owned()], job.arguments.as_slice()].concat());
    command.envs(variables.iter().copied()).env("RUST_BACKTRACE", "0");
    // Its words are read.
    command.env("LUNAR_BIN", root::lunar_path()).env("CARGO_TERM_COLOR", "never");
    let mut output = Output::default();
    let mut child = follow::spawn(command)?;
    follow::follow(&mut child, SILENCE, |line| {
        match &line {
            Line::Out(line) => output.take(line),
            Line::Err(line) => output.take_error(line),
        }
        each(&line);
    })?;
    let status = child.wait()?;
    let merely_failed = status.success() || status.code() == Some(SOME_FAILED);
    output.end((!merely_failed).then(|| status.to_string()).as_deref());
    if !status.success() {
        output.tally.failed = output.tally.failed.max(1);
    }
    Ok(output)
}

/// Runs the tests of a selection with these arguments, one program at a time, and hands on each line.
pub fn run(selection: &[&str], options: &[&str], mut each: impl FnMut(&Line)) -> Result<()> {
    for program in programs::build(selection)?.unwrap_or_default() {
        let arguments = options.iter().map(|word| word.to_string()).collect();
        run_job(&[], &Job { program, arguments }, &mut each)?;
    }
    Ok(())
}

fn sum(ran: &[Ran]) -> Tally {
    let mut tally = Tally::default();
    ran.iter().for_each(|ran| tally.add(ran.output.tally));
    tally
}

/// What passed when it ran again.
#[derive(Debug, Default)]
struct Unsteady {
    names: Vec<String>,
    /// Tests: a program that died stands for several
    tests: usize,
}

/// Runs the tests that failed once more, if they are few and all of them are known.
fn second_chances(plan: &Plan, ran: &[Ran]) -> Result<Unsteady> {
    let mut unsteady = Unsteady::default();
    let known = |Ran { output, .. }: &Ran| {
        output.failures.len() + output.death.as_ref().map_or(0, |death| death.lost)
    };
    let few = (1..=FEW).contains(&ran.iter().flat_map(names).count());
    if !few || ran.iter().any(|ran| known(ran) != ran.output.tally.failed) {
        return Ok(unsteady);
    }
    for Ran { job, output } in ran.iter().filter(|ran| ran.output.tally.failed > 0) {
        let failed: Vec<&str> = output.failures.iter().map(|failure| failure.name.as_str()).collect();
        let options = plan.options.iter().map(|word| word.to_string()).collect();
        let arguments = if output.death.is_some() { options } else { exactly(&failed) };
        let again = run_aloud(plan, &Job { program: job.program.clone(), arguments })?;
        if again.death.is_some() || again.tally.passed == 0 {
            continue;
        }
        if let Some(Death { lost, .. }) = &output.death
            && again.tally.failed == 0
        {
            unsteady.names.push(died(job));
            unsteady.tests += lost;
        } else if output.death.is_none() {
            let fails = |name: &str| again.failures.iter().any(|failure| failure.name == name);
            let passed: Vec<String> =
                failed.iter().filter(|name| !fails(name)).map(|name| full_name(job, name)).collect();
            unsteady.tests += passed.len();
            unsteady.names.extend(passed);
        }
    }
    Ok(unsteady)
}

fn full_name(job: &Job, test: &str) -> String {
    format!("{} {test}", job.program.name)
}

fn died(job: &Job) -> String {
    format!("{} (it died)", job.program.name)
}

/// What failed: tests, and a program that died.
fn names(Ran { job, output }: &Ran) -> Vec<String> {
    let tests = output.failures.iter().map(|failure| full_name(job, &failure.name));
    let unnamed = output.tally.failed > 0 && output.failures.is_empty() && output.death.is_none();
    let program = output.death.as_ref().map(|_| died(job)).or(unnamed.then(|| job.program.name.clone()));
    tests.chain(program).collect()
}

/// What is known of the failures: a name, and what was said.
fn stories(Ran { job, output: Output { failures, death, .. } }: &Ran) -> String {
    let story = |name: &str, said: &[String]| format!("---- {name}\n{}\n", said.join("\n"));
    let failures = failures.iter().map(|Failure { name, said }| story(&full_name(job, name), said));
    failures.chain(death.iter().map(|death| story(&died(job), &death.said))).collect()
}

/// The failures in one line, for the end of the summary: a log is often cut to its end.
fn named(names: &[String]) -> String {
    let more = names.len().saturating_sub(NAMED);
    let rest = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{rest}", names[..names.len() - more].join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_a_step_are_named_up_to_a_limit() {
        let names = |n: usize| (0..n).map(|n| format!("t{n}")).collect::<Vec<_>>();
        assert_eq!(named(&names(2)), "t0, t1");
        assert!(named(&names(NAMED + 3)).ends_with("t19 and 3 more"));
    }

    #[test]
    fn tests_alone_are_left_out_of_the_others() {
        let programs: Vec<Program> = ["a", "b"].map(Program::of_shell).to_vec();
        let options = &["--test-threads=4"];
        let plan = Plan { options, first: &["b"], alone: &[("a", &["slow::one"])], ..ONE_BY_ONE };
        let words = |jobs: Vec<Job>| {
            let text = |job: Job| format!("{} {}", job.program.name, job.arguments.join(" "));
            jobs.into_iter().map(text).collect::<Vec<_>>()
        };
        let (together, alone) = jobs(&plan, &programs);
        assert_eq!(words(together), ["b --test-threads=4", "a --test-threads=4 --skip slow::one"]);
        assert_eq!(words(alone), ["a --test-threads=1 --exact slow::one"]);
    }

    /// A program that runs this script; its arguments are behind `$0`.
    fn ran(script: &str) -> (Tally, Unsteady, Vec<String>) {
        let job = Job { program: Program::of_shell(script), arguments: Vec::new() };
        let ran = run_all(&ONE_BY_ONE, vec![job], 1).expect("it runs");
        let unsteady = second_chances(&ONE_BY_ONE, &ran).expect("it runs again");
        (sum(&ran), unsteady, ran.iter().flat_map(names).collect())
    }

    const TWO_FAIL: &str = "echo 'running 2 tests'; echo failures:; echo '---- a stdout ----'; echo '---- b stdout ----'; \
        echo 'test result: FAILED. 0 passed; 2 failed;'; exit 101";

    #[test]
    fn a_test_that_passes_alone_is_unsteady() {
        let script = format!(
            "case $* in *--exact*) echo 'running 2 tests'; echo failures:; echo '---- b stdout ----'; \
             echo 'test result: FAILED. 1 passed; 1 failed;'; exit 101 ;; esac; {TWO_FAIL}"
        );
        let (tally, unsteady, names) = ran(&script);
        assert_eq!((tally.failed, unsteady.tests, names.len()), (2, 1, 2));
        assert_eq!(unsteady.names, [names[0].clone()]);
        assert!(names[0].ends_with(" a") && names[1].ends_with(" b"), "{names:?}");
    }

    #[test]
    fn a_program_that_dies_twice_has_failed() {
        let (tally, unsteady, names) = ran("echo 'running 2 tests'; echo 'test a ... ok'; kill -9 $$");
        assert_eq!((tally, unsteady.tests), (Tally { passed: 1, failed: 1, skipped: 0 }, 0));
        assert_eq!(names.len(), 1);
    }

    #[test]
    fn a_program_that_fails_without_a_word_has_failed() {
        let (tally, unsteady, names) = ran("exit 101");
        assert_eq!((tally.failed, unsteady.tests, names.len()), (1, 0, 1));
    }
}

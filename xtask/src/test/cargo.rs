//! Runs test programs, several at a time, prints their output and counts their results.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Result;

pub use super::follow::OutputLine;
use super::output::{FailedTest, ProgramCrash, ProgramOutput};
use super::programs::{self, TestProgram};
use super::{StepReport, TestCounts, follow};
use crate::root::{self, StepResult};

/// A program without output for longer than this has hung.
const SILENCE: Duration = Duration::from_secs(10 * 60);
/// More failures than this are not caused by a busy machine.
const FEW: usize = 5;
/// The prefix of the output of programs. Programs run by the tests of this file must not look like tests of the
/// step.
const MARGIN: &str = if cfg!(test) { "| " } else { "" };
/// The maximum number of failures in the summary.
const NAMED: usize = 20;
/// The exit status of a program with failed tests.
const SOME_FAILED: i32 = 101;

/// The tests to run, and how.
#[derive(Clone, Copy, Debug)]
pub struct TestSelection<'a> {
    /// Arguments of `cargo test` that select packages and targets
    pub selection: &'a [&'a str],
    /// More environment variables
    pub variables: &'a [(&'a str, &'a OsStr)],
    /// Arguments of each program
    pub options: &'a [&'a str],
    /// Programs to run at a time. If it is more than one, the output of each is printed when it ends.
    pub width: usize,
    /// The longest programs, which start first
    pub first: &'a [&'a str],
    /// Tests that depend on the clock, by program: they run after all others, one at a time
    pub alone: &'a [(&'a str, &'a [&'a str])],
}

/// Runs one program at a time.
pub const ONE_BY_ONE: TestSelection<'static> =
    TestSelection { selection: &[], variables: &[], options: &[], width: 1, first: &[], alone: &[] };

/// A program and its arguments.
#[derive(Clone, Debug)]
struct ProgramRun {
    program: TestProgram,
    arguments: Vec<String>,
}

/// A program that has ended.
#[derive(Debug)]
struct FinishedRun {
    job: ProgramRun,
    output: ProgramOutput,
}

/// Runs tests with `LUNAR_BIN` set. Tests that print `skipped: ...` count as skipped. If few tests fail, these
/// run once more, and so does a program that crashed. Those that pass then are flaky.
pub fn test(plan: &TestSelection) -> Result<StepReport> {
    let Some(programs) = programs::build(plan.selection)? else {
        let counts = TestCounts { failed: 1, ..TestCounts::default() };
        return Ok(StepReport { counts, ..StepResult::Failed("the tests do not build".into()).into() });
    };
    let (together, alone) = jobs(plan, &programs);
    let mut ran = run_all(plan, together, plan.width)?;
    ran.extend(run_all(plan, alone, 1)?);
    let mut counts = sum(&ran);
    let mut details: String = ran.iter().map(failure_details).collect();
    let flaky = rerun_failed(plan, &ran)?;
    counts.passed = (counts.passed + flaky.tests).saturating_sub(counts.skipped);
    counts.failed -= flaky.tests.min(counts.failed);
    if !flaky.names.is_empty() {
        details += &format!("passed alone, after failing above: {}\n", flaky.names.join(", "));
    }
    let failed: Vec<String> = ran.iter().flat_map(names).filter(|name| !flaky.names.contains(name)).collect();
    let step = if counts.failed == 0 { StepResult::Ok } else { StepResult::Failed(named(&failed)) };
    Ok(StepReport { step, counts, details, flaky: flaky.names })
}

/// The programs that run in parallel, and those that run alone.
fn jobs(plan: &TestSelection, programs: &[TestProgram]) -> (Vec<ProgramRun>, Vec<ProgramRun>) {
    let rank = |program: &TestProgram| {
        let at = plan.first.iter().position(|name| *name == program.name);
        at.unwrap_or(plan.first.len())
    };
    let tests_alone = |program: &TestProgram| {
        let is_it = |(name, _): &&(&str, &[&str])| *name == program.name;
        plan.alone.iter().find(is_it).map_or(&[][..], |(_, tests)| tests)
    };
    let mut programs = programs.to_vec();
    programs.sort_by_key(rank);
    let job = |program: &TestProgram, more: Vec<String>| {
        let options = plan.options.iter().map(|word| word.to_string());
        ProgramRun { program: program.clone(), arguments: options.chain(more).collect() }
    };
    let skip = |test: &&str| ["--skip".to_owned(), test.to_string()];
    let together = programs.iter().map(|p| job(p, tests_alone(p).iter().flat_map(skip).collect())).collect();
    let has_alone = programs.iter().filter(|program| !tests_alone(program).is_empty());
    (together, has_alone.map(|program| by_itself(plan, program, tests_alone(program))).collect())
}

/// Selects these tests of a program, one at a time. libtest accepts one number of threads.
fn by_itself<T: ToString>(plan: &TestSelection, program: &TestProgram, tests: &[T]) -> ProgramRun {
    let options = plan.options.iter().filter(|word| !word.starts_with("--test-threads"));
    let arguments = options.map(|word| word.to_string()).chain(exactly(tests)).collect();
    ProgramRun { program: program.clone(), arguments }
}

/// Arguments that select these tests, one at a time.
fn exactly<T: ToString>(tests: &[T]) -> Vec<String> {
    let options = ["--test-threads=1".to_owned(), "--exact".to_owned()];
    options.into_iter().chain(tests.iter().map(T::to_string)).collect()
}

/// Runs programs, `width` at a time. If that is more than one, the output of a program is printed when it ends.
fn run_all(plan: &TestSelection, jobs: Vec<ProgramRun>, width: usize) -> Result<Vec<FinishedRun>> {
    let workers = width.min(jobs.len());
    let (queue, ran) = (Mutex::new(VecDeque::from(jobs)), Mutex::new(Vec::new()));
    let take = || queue.lock().expect("no thread panics while it holds the lock").pop_front();
    let work = || {
        while let Some(job) = take() {
            let output = if width == 1 { run_aloud(plan, &job) } else { run_quietly(plan, &job) };
            ran.lock()
                .expect("no thread panics while it holds the lock")
                .push(output.map(|output| FinishedRun { job, output }));
        }
    };
    std::thread::scope(|scope| (0..workers).for_each(|_| _ = scope.spawn(work)));
    ran.into_inner().expect("no panic").into_iter().collect()
}

fn run_aloud(plan: &TestSelection, job: &ProgramRun) -> Result<ProgramOutput> {
    println!("\n--- {}", job.program.name);
    run_job(plan.variables, job, |line| match line {
        OutputLine::Out(line) => println!("{MARGIN}{line}"),
        OutputLine::Err(line) => eprintln!("{MARGIN}{line}"),
    })
}

fn run_quietly(plan: &TestSelection, job: &ProgramRun) -> Result<ProgramOutput> {
    let (begin, mut text) = (Instant::now(), String::new());
    let output = run_job(plan.variables, job, |line| {
        let (OutputLine::Out(line) | OutputLine::Err(line)) = line;
        text += MARGIN;
        text += line;
        text.push('\n');
    })?;
    println!("\n--- {} ({} s)\n{text}", job.program.name, begin.elapsed().as_secs());
    Ok(output)
}

/// Runs a program, and passes on each line.
fn run_job(
    variables: &[(&str, &OsStr)],
    job: &ProgramRun,
    mut each: impl FnMut(&OutputLine),
) -> Result<ProgramOutput> {
    let mut command =
        job.program.command(&[&["--show-output".to_owned()], job.arguments.as_slice()].concat());
    command.envs(variables.iter().copied()).env("RUST_BACKTRACE", "0");
    // The output is parsed, so it must have no colors.
    command.env("LUNAR_BIN", root::lunar_path(root::Profile::Test)).env("CARGO_TERM_COLOR", "never");
    let mut output = ProgramOutput::default();
    let mut child = follow::spawn(command)?;
    follow::follow(&mut child, SILENCE, |line| {
        match &line {
            OutputLine::Out(line) => output.take(line),
            OutputLine::Err(line) => output.take_error(line),
        }
        each(&line);
    })?;
    let status = child.wait()?;
    let merely_failed = status.success() || status.code() == Some(SOME_FAILED);
    output.end((!merely_failed).then(|| status.to_string()).as_deref());
    if !status.success() {
        output.counts.failed = output.counts.failed.max(1);
    }
    Ok(output)
}

/// Runs the tests of a selection with these arguments, one program at a time, and passes on each line.
pub fn run(selection: &[&str], options: &[&str], mut each: impl FnMut(&OutputLine)) -> Result<()> {
    for program in programs::build(selection)?.unwrap_or_default() {
        let arguments = options.iter().map(|word| word.to_string()).collect();
        run_job(&[], &ProgramRun { program, arguments }, &mut each)?;
    }
    Ok(())
}

fn sum(ran: &[FinishedRun]) -> TestCounts {
    let mut counts = TestCounts::default();
    ran.iter().for_each(|ran| counts.add(ran.output.counts));
    counts
}

/// Tests that passed when they ran again.
#[derive(Debug, Default)]
struct FlakyTests {
    names: Vec<String>,
    /// The number of tests; a crashed program counts for several
    tests: usize,
}

/// Runs the failed tests once more, if they are few and all are known.
fn rerun_failed(plan: &TestSelection, ran: &[FinishedRun]) -> Result<FlakyTests> {
    let mut flaky = FlakyTests::default();
    let known = |FinishedRun { output, .. }: &FinishedRun| {
        output.failures.len() + output.crash.as_ref().map_or(0, |crash| crash.lost)
    };
    let few = (1..=FEW).contains(&ran.iter().flat_map(names).count());
    if !few || ran.iter().any(|ran| known(ran) != ran.output.counts.failed) {
        return Ok(flaky);
    }
    for FinishedRun { job, output } in ran.iter().filter(|ran| ran.output.counts.failed > 0) {
        let failed: Vec<&str> = output.failures.iter().map(|failure| failure.name.as_str()).collect();
        let options = plan.options.iter().map(|word| word.to_string()).collect();
        let arguments = if output.crash.is_some() { options } else { exactly(&failed) };
        let again = run_aloud(plan, &ProgramRun { program: job.program.clone(), arguments })?;
        if again.crash.is_some() || again.counts.passed == 0 {
            continue;
        }
        if let Some(ProgramCrash { lost, .. }) = &output.crash
            && again.counts.failed == 0
        {
            flaky.names.push(died(job));
            flaky.tests += lost;
        } else if output.crash.is_none() {
            let fails = |name: &str| again.failures.iter().any(|failure| failure.name == name);
            let passed: Vec<String> =
                failed.iter().filter(|name| !fails(name)).map(|name| full_name(job, name)).collect();
            flaky.tests += passed.len();
            flaky.names.extend(passed);
        }
    }
    Ok(flaky)
}

fn full_name(job: &ProgramRun, test: &str) -> String {
    format!("{} {test}", job.program.name)
}

fn died(job: &ProgramRun) -> String {
    format!("{} (it died)", job.program.name)
}

/// The names of failed tests, and of a crashed program.
fn names(FinishedRun { job, output }: &FinishedRun) -> Vec<String> {
    let tests = output.failures.iter().map(|failure| full_name(job, &failure.name));
    let unnamed = output.counts.failed > 0 && output.failures.is_empty() && output.crash.is_none();
    let program = output.crash.as_ref().map(|_| died(job)).or(unnamed.then(|| job.program.name.clone()));
    tests.chain(program).collect()
}

/// The details of failures: name and output.
fn failure_details(
    FinishedRun { job, output: ProgramOutput { failures, crash, .. } }: &FinishedRun,
) -> String {
    let story = |name: &str, printed: &[String]| format!("---- {name}\n{}\n", printed.join("\n"));
    let failures = failures.iter().map(|FailedTest { name, printed }| story(&full_name(job, name), printed));
    failures.chain(crash.iter().map(|crash| story(&died(job), &crash.printed))).collect()
}

/// The failures in one line at the end of the summary, because logs are often truncated to their end.
fn named(names: &[String]) -> String {
    let more = names.len().saturating_sub(NAMED);
    let rest = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{rest}", names[..names.len() - more].join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_names_its_failures_up_to_a_limit() {
        let names = |n: usize| (0..n).map(|n| format!("t{n}")).collect::<Vec<_>>();
        assert_eq!(named(&names(2)), "t0, t1");
        assert!(named(&names(NAMED + 3)).ends_with("t19 and 3 more"));
    }

    #[test]
    fn tests_that_run_alone_are_skipped_by_the_others() {
        let programs: Vec<TestProgram> = ["a", "b"].map(TestProgram::of_shell).to_vec();
        let options = &["--test-threads=4"];
        let plan = TestSelection { options, first: &["b"], alone: &[("a", &["slow::one"])], ..ONE_BY_ONE };
        let words = |jobs: Vec<ProgramRun>| {
            let text = |job: ProgramRun| format!("{} {}", job.program.name, job.arguments.join(" "));
            jobs.into_iter().map(text).collect::<Vec<_>>()
        };
        let (together, alone) = jobs(&plan, &programs);
        assert_eq!(words(together), ["b --test-threads=4", "a --test-threads=4 --skip slow::one"]);
        assert_eq!(words(alone), ["a --test-threads=1 --exact slow::one"]);
    }

    /// Runs a script as a program; its arguments are in `$0` and following.
    fn ran(script: &str) -> (TestCounts, FlakyTests, Vec<String>) {
        let job = ProgramRun { program: TestProgram::of_shell(script), arguments: Vec::new() };
        let ran = run_all(&ONE_BY_ONE, vec![job], 1).expect("the program runs");
        let flaky = rerun_failed(&ONE_BY_ONE, &ran).expect("the program runs again");
        (sum(&ran), flaky, ran.iter().flat_map(names).collect())
    }

    const TWO_FAIL: &str = "echo 'running 2 tests'; echo failures:; echo '---- a stdout ----'; echo '---- b stdout ----'; \
        echo 'test result: FAILED. 0 passed; 2 failed;'; exit 101";

    #[test]
    fn test_that_passes_alone_is_flaky() {
        let script = format!(
            "case $* in *--exact*) echo 'running 2 tests'; echo failures:; echo '---- b stdout ----'; \
             echo 'test result: FAILED. 1 passed; 1 failed;'; exit 101 ;; esac; {TWO_FAIL}"
        );
        let (counts, flaky, names) = ran(&script);
        assert_eq!((counts.failed, flaky.tests, names.len()), (2, 1, 2));
        assert_eq!(flaky.names, [names[0].clone()]);
        assert!(names[0].ends_with(" a") && names[1].ends_with(" b"), "{names:?}");
    }

    #[test]
    fn program_that_crashes_twice_has_failed() {
        let (counts, flaky, names) = ran("echo 'running 2 tests'; echo 'test a ... ok'; kill -9 $$");
        assert_eq!((counts, flaky.tests), (TestCounts { passed: 1, failed: 1, skipped: 0 }, 0));
        assert_eq!(names.len(), 1);
    }

    #[test]
    fn program_that_fails_silently_has_failed() {
        let (counts, flaky, names) = ran("exit 101");
        assert_eq!((counts.failed, flaky.tests, names.len()), (1, 0, 1));
    }
}

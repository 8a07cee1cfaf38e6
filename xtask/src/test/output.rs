//! Parses the output of `cargo test`: counts results and keeps the output of failed tests.

use super::TestCounts;

/// The maximum number of lines that are kept of a failed test: the end of its output, which has the reason.
const KEPT: usize = 40;

/// The prefix of a report about a program that hung.
pub const HANG: &str = "hang: ";
/// The name of an unknown test that hung.
const UNKNOWN: &str = "a test that hangs";

/// A failed test.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FailedTest {
    pub name: String,
    /// The end of its output
    pub printed: Vec<String>,
}

/// A program that crashed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ProgramCrash {
    /// Tests without a result; at least one
    pub lost: usize,
    /// The end of its stderr, and its exit status
    pub printed: Vec<String>,
}

/// The results of one program so far.
#[derive(Debug, Default)]
pub struct ProgramOutput {
    pub counts: TestCounts,
    pub failures: Vec<FailedTest>,
    pub crash: Option<ProgramCrash>,
    now: CurrentProgram,
}

/// The state of the running program.
#[derive(Debug, Default)]
struct CurrentProgram {
    /// Whether the current lines are output of failed tests, or the list of their names
    is_of_failures: bool,
    /// Slow tests that have not ended
    slow: Vec<String>,
    /// Tests without a result
    left: usize,
    /// Tests with a result, until the program reports its totals
    passed: usize,
    failed: usize,
    /// Whether it hung and was killed
    is_ended: bool,
    /// The end of its stderr
    printed: Vec<String>,
}

impl ProgramOutput {
    /// Processes a line of stdout.
    pub fn take(&mut self, line: &str) {
        if line.starts_with("skipped: ") {
            self.counts.skipped += 1;
        }
        if let Some(printed) = line.strip_prefix(HANG) {
            self.hang(printed);
        } else if let Some(tests) = beginning(line) {
            self.settle();
            self.now.left = tests;
        } else if let Some(result) = line.strip_prefix("test result: ") {
            let CurrentProgram { is_of_failures, left, passed, failed, .. } = &mut self.now;
            (*is_of_failures, *left, *passed, *failed) = (false, 0, 0, 0);
            self.count(result);
        } else if line == "failures:" {
            self.now.is_of_failures = true;
        } else if self.now.is_of_failures {
            self.keep(line);
        } else if let Some(test) = line.strip_prefix("test ") {
            self.watch(test);
        }
    }

    /// Processes a line of stderr.
    pub fn take_error(&mut self, line: &str) {
        push_kept(&mut self.now.printed, line);
    }

    /// Ends the program; `how` is its status if it neither passed nor merely failed.
    pub fn end(&mut self, how: Option<&str>) {
        let CurrentProgram { printed, left, failed, is_ended, .. } = &mut self.now;
        if let Some(how) = how.filter(|_| !*is_ended) {
            push_kept(printed, how);
            let lost = *left + *failed;
            self.crash = Some(ProgramCrash { lost: lost.max(1), printed: std::mem::take(printed) });
            self.counts.failed += usize::from(lost == 0);
        }
        self.settle();
    }

    /// Counts tests without a result as failed, because the program crashed or was killed.
    fn settle(&mut self) {
        let CurrentProgram { left, passed, failed, .. } = std::mem::take(&mut self.now);
        self.counts.passed += passed;
        self.counts.failed += left + failed;
    }

    fn count(&mut self, result: &str) {
        let words: Vec<&str> = result.split(' ').collect();
        for pair in words.windows(2) {
            let number = pair[0].parse().unwrap_or(0);
            match pair[1] {
                "passed;" => self.counts.passed += number,
                "failed;" => self.counts.failed += number,
                _ => {}
            }
        }
    }

    /// Processes the status of a test: it is slow, or has ended.
    fn watch(&mut self, test: &str) {
        let (name, what) = test.split_once(' ').unwrap_or_default();
        let CurrentProgram { slow, left, passed, failed, .. } = &mut self.now;
        if what.starts_with("has been running") {
            return slow.push(name.to_owned());
        }
        match test.rsplit_once(" ... ").map(|(_, ended)| ended) {
            Some("ok") => *passed += 1,
            Some("FAILED") => *failed += 1,
            Some(ended) if ended.starts_with("ignored") => {}
            _ => return,
        }
        *left = left.saturating_sub(1);
        slow.retain(|slow| slow != name);
    }

    /// Fails the tests that have not ended, with this reason.
    fn hang(&mut self, printed: &str) {
        self.now.is_ended = true;
        let mut names = std::mem::take(&mut self.now.slow);
        if names.is_empty() {
            names.push(UNKNOWN.to_owned());
        }
        self.now.left = self.now.left.saturating_sub(names.len());
        self.counts.failed += names.len();
        self.failures.extend(names.into_iter().map(|name| FailedTest { name, printed: Vec::new() }));
        let last = self.failures.last_mut().expect("at least one failure");
        last.printed = printed.lines().map(str::to_owned).collect();
    }

    fn keep(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.failures.push(FailedTest { name: name.to_owned(), printed: Vec::new() });
            return;
        }
        let is_name = |failure: &FailedTest| line.trim() == failure.name;
        if self.failures.iter().any(is_name) {
            return;
        }
        let Some(failure) = self.failures.last_mut() else { return };
        push_kept(&mut failure.printed, line);
    }
}

fn push_kept(lines: &mut Vec<String>, line: &str) {
    if line.is_empty() {
        return;
    }
    lines.push(line.to_owned());
    if lines.len() > KEPT {
        lines.remove(0);
    }
}

/// The number of tests that a program is about to run.
fn beginning(line: &str) -> Option<usize> {
    let (number, rest) = line.strip_prefix("running ")?.split_once(' ')?;
    number.parse().ok().filter(|_| ["test", "tests"].contains(&rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> ProgramOutput {
        let mut output = ProgramOutput::default();
        lines.iter().for_each(|line| output.take(line));
        output
    }

    #[test]
    fn results_are_counted() {
        let output = of(&[
            "skipped: needs qemu-img (apt-get install qemu-utils)",
            "test result: FAILED. 7 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.00s",
            "test something ... ok",
        ]);
        assert_eq!(output.counts, TestCounts { passed: 10, failed: 2, skipped: 1 });
    }

    #[test]
    fn output_of_failed_tests_is_kept() {
        let output = of(&[
            "successes:",
            "---- a::good_one stdout ----",
            "all is well",
            "failures:",
            "---- a::one stdout ----",
            "thread 'a::one' panicked at src/a.rs:1:1:",
            "left and right",
            "",
            "---- b::two stdout ----",
            "too late",
            "failures:",
            "    a::one",
            "    b::two",
            "test result: FAILED. 1 passed; 2 failed; 0 ignored",
            "of another program",
        ]);
        let printed: Vec<_> =
            output.failures.iter().map(|f| (f.name.as_str(), f.printed.join("|"))).collect();
        let one = "thread 'a::one' panicked at src/a.rs:1:1:|left and right".to_owned();
        assert_eq!(printed, [("a::one", one), ("b::two", "too late".to_owned())]);
    }

    #[test]
    fn hanging_test_has_failed() {
        let output = of(&[
            "running 2 tests",
            "test a::one has been running for over 60 seconds",
            "test b::two has been running for over 60 seconds",
            "test a::one ... ok",
            "hang: nothing was heard\n#0 wait",
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 0 ignored",
        ]);
        let printed = vec!["nothing was heard".to_owned(), "#0 wait".to_owned()];
        assert_eq!(output.failures, [FailedTest { name: "b::two".into(), printed }]);
        assert_eq!(output.counts, TestCounts { passed: 4, failed: 1, skipped: 0 });
    }

    #[test]
    fn hang_of_unknown_test_is_a_failure() {
        // With one test at a time, libtest neither ends its line nor reports a slow test.
        let output = of(&[
            "failures:",
            "---- a::one stdout ----",
            "no",
            "test result: FAILED. 0 passed; 1 failed; 0 ignored",
            "running 1 test",
            "hang: nothing was heard",
        ]);
        let details: Vec<_> =
            output.failures.iter().map(|f| (f.name.as_str(), f.printed.join("|"))).collect();
        assert_eq!(details, [("a::one", "no".to_owned()), (UNKNOWN, "nothing was heard".to_owned())]);
        assert_eq!(output.counts, TestCounts { passed: 0, failed: 2, skipped: 0 });
    }

    #[test]
    fn tests_of_a_crashed_program_have_failed() {
        let died = ["running 4 tests", "test a::one ... ok", "test a::two ... ", "test a::three ... ignored"];
        let mut output = of(&died);
        output.end(None);
        assert_eq!(
            (output.counts, output.failures.len()),
            (TestCounts { passed: 1, failed: 2, skipped: 0 }, 0)
        );
        let next = ["running 1 test", "test b::one ... ok", "test result: ok. 1 passed; 0 failed; 0 ignored"];
        let mut output = of(&[&died[..], &next].concat());
        output.end(None);
        assert_eq!(output.counts, TestCounts { passed: 2, failed: 2, skipped: 0 });
    }

    const KILLED: &str = "signal: 6 (SIGABRT)";

    fn died(lines: &[&str]) -> ProgramOutput {
        let mut output = of(lines);
        output.take_error("free(): invalid pointer");
        output.end(Some(KILLED));
        output
    }

    #[test]
    fn crash_is_reported_with_its_stderr() {
        let output =
            died(&["running 4 tests", "test a::one ... ok", "test a::two ... FAILED", "test a::three ... "]);
        let printed = ["free(): invalid pointer", KILLED].map(str::to_owned).to_vec();
        assert_eq!(output.crash, Some(ProgramCrash { lost: 3, printed }));
        assert_eq!(output.counts, TestCounts { passed: 1, failed: 3, skipped: 0 });
        let output =
            died(&["running 1 test", "test a ... ok", "test result: ok. 1 passed; 0 failed; 0 ignored"]);
        assert_eq!(output.crash.map(|crash| crash.lost), Some(1));
        assert_eq!(output.counts, TestCounts { passed: 1, failed: 1, skipped: 0 });
    }

    #[test]
    fn hang_or_failure_is_not_a_crash() {
        let output = died(&["running 3 tests", "hang: nothing was heard"]);
        assert_eq!((output.crash, output.counts.failed), (None, 3));
        let mut output = of(&["running 1 test", "test result: FAILED. 0 passed; 1 failed; 0 ignored"]);
        output.end(None);
        assert_eq!((output.crash, output.counts.failed), (None, 1));
    }

    #[test]
    fn end_of_long_output_is_kept() {
        let lines: Vec<String> = (0..100).map(|i| i.to_string()).collect();
        let mut output = of(&["failures:", "---- long stdout ----"]);
        lines.iter().for_each(|line| output.take(line));
        assert_eq!(output.failures[0].printed, lines[100 - KEPT..]);
    }
}

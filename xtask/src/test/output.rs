//! What the tests of a `cargo test` printed: results counted, and what the failed ones said kept.

use super::Tally;

/// Lines of a failed test that are kept: its end, where the reason stands.
const KEPT: usize = 40;

/// What the text begins with that tells of a program that hung.
pub const HANG: &str = "hang: ";
/// What cargo begins with when it tells of a program that neither passed nor merely failed.
const ENDED: &str = "process didn't exit successfully: ";
/// What it says before that, up to the arguments that run the program again.
const AGAIN: &str = "error: test failed, to rerun pass `";
/// In place of a test's name, where it is not known which one hung.
const UNKNOWN: &str = "a test that hangs";

/// A test that failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Failure {
    pub name: String,
    /// The end of what it printed
    pub said: Vec<String>,
}

/// A program that ended before it had told of all its tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Death {
    /// What `cargo test` needs to run it again
    pub selection: String,
    /// Tests of which it told nothing
    pub left: usize,
    /// The end of what was heard of it, and how it ended
    pub said: Vec<String>,
}

/// Everything that was counted so far.
#[derive(Debug, Default)]
pub struct Output {
    pub tally: Tally,
    pub failures: Vec<Failure>,
    pub deaths: Vec<Death>,
    /// What comes now is what failed tests printed, or the list of their names
    is_of_failures: bool,
    /// Tests that take long, and have not ended yet
    slow: Vec<String>,
    /// Tests of the program that runs now of which nothing was told yet
    left: usize,
    /// The end of what it and cargo said beside its tests
    heard: Vec<String>,
}

impl Output {
    /// Takes the next line into account.
    pub fn take(&mut self, line: &str) {
        if line.starts_with("skipped: ") {
            self.tally.skipped += 1;
        }
        if let Some(said) = line.strip_prefix(HANG) {
            self.hang(said);
        } else if let Some(tests) = beginning(line) {
            self.settle();
            self.left = tests;
        } else if line.trim_start().starts_with(ENDED) {
            self.bury(line);
        } else if let Some(result) = line.strip_prefix("test result: ") {
            (self.is_of_failures, self.left) = (false, 0);
            self.count(result);
        } else if line == "failures:" {
            self.is_of_failures = true;
        } else if self.is_of_failures {
            self.keep(line);
        } else if let Some(test) = line.strip_prefix("test ") {
            self.watch(test);
        } else {
            push_kept(&mut self.heard, line);
        }
    }

    /// A program is over. Tests of which it told nothing, because it died or was ended, have failed.
    pub fn settle(&mut self) {
        self.tally.failed += std::mem::take(&mut self.left);
        self.slow.clear();
        self.heard.clear();
    }

    /// Cargo tells how a program ended, and before it how to run it again. Those that only failed are known already.
    fn bury(&mut self, how: &str) {
        let selection = self.heard.iter().rev().find_map(|line| line.strip_prefix(AGAIN)?.strip_suffix('`'));
        if let (Some(selection), left @ 1..) = (selection, self.left) {
            let selection = selection.to_owned();
            push_kept(&mut self.heard, how);
            self.deaths.push(Death { selection, left, said: std::mem::take(&mut self.heard) });
        }
        self.settle();
    }

    fn count(&mut self, result: &str) {
        let words: Vec<&str> = result.split(' ').collect();
        for pair in words.windows(2) {
            let number = pair[0].parse().unwrap_or(0);
            match pair[1] {
                "passed;" => self.tally.passed += number,
                "failed;" => self.tally.failed += number,
                _ => {}
            }
        }
    }

    /// What is told of a test: that it takes long, or how it ended.
    fn watch(&mut self, test: &str) {
        let (name, what) = test.split_once(' ').unwrap_or_default();
        if what.starts_with("has been running") {
            self.slow.push(name.to_owned());
        } else if test.rsplit_once(" ... ").is_some_and(|(_, ended)| !ended.is_empty()) {
            self.left = self.left.saturating_sub(1);
            self.slow.retain(|slow| slow != name);
        }
    }

    /// The tests that have not ended have failed, and this is why.
    fn hang(&mut self, said: &str) {
        let mut names = std::mem::take(&mut self.slow);
        if names.is_empty() {
            names.push(UNKNOWN.to_owned());
        }
        self.left = self.left.saturating_sub(names.len());
        self.tally.failed += names.len();
        self.failures.extend(names.into_iter().map(|name| Failure { name, said: Vec::new() }));
        let last = self.failures.last_mut().expect("there is one at least");
        last.said = said.lines().map(str::to_owned).collect();
    }

    fn keep(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.failures.push(Failure { name: name.to_owned(), said: Vec::new() });
            return;
        }
        let is_name = |failure: &Failure| line.trim() == failure.name;
        if self.failures.iter().any(is_name) {
            return;
        }
        let Some(failure) = self.failures.last_mut() else { return };
        push_kept(&mut failure.said, line);
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

    fn of(lines: &[&str]) -> Output {
        let mut output = Output::default();
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
        assert_eq!(output.tally, Tally { passed: 10, failed: 2, skipped: 1 });
    }

    #[test]
    fn what_failed_tests_said_is_kept() {
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
        let said: Vec<_> = output.failures.iter().map(|f| (f.name.as_str(), f.said.join("|"))).collect();
        let one = "thread 'a::one' panicked at src/a.rs:1:1:|left and right".to_owned();
        assert_eq!(said, [("a::one", one), ("b::two", "too late".to_owned())]);
    }

    #[test]
    fn a_test_that_hangs_has_failed() {
        let output = of(&[
            "running 2 tests",
            "test a::one has been running for over 60 seconds",
            "test b::two has been running for over 60 seconds",
            "test a::one ... ok",
            "hang: nothing was heard\n#0 wait",
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 0 ignored",
        ]);
        let said = vec!["nothing was heard".to_owned(), "#0 wait".to_owned()];
        assert_eq!(output.failures, [Failure { name: "b::two".into(), said }]);
        assert_eq!(output.tally, Tally { passed: 3, failed: 1, skipped: 0 });
    }

    #[test]
    fn a_hang_without_a_name_is_a_failure_of_its_own() {
        // One test at a time: libtest neither ends its line nor tells that it takes long.
        let output = of(&[
            "failures:",
            "---- a::one stdout ----",
            "no",
            "test result: FAILED. 0 passed; 1 failed; 0 ignored",
            "running 1 test",
            "hang: nothing was heard",
        ]);
        let told: Vec<_> = output.failures.iter().map(|f| (f.name.as_str(), f.said.join("|"))).collect();
        assert_eq!(told, [("a::one", "no".to_owned()), (UNKNOWN, "nothing was heard".to_owned())]);
        assert_eq!(output.tally, Tally { passed: 0, failed: 2, skipped: 0 });
    }

    #[test]
    fn tests_of_a_program_that_died_have_failed() {
        let died = ["running 4 tests", "test a::one ... ok", "test a::two ... ", "test a::three ... ignored"];
        let mut output = of(&died);
        output.settle();
        assert_eq!((output.tally.failed, output.failures.len()), (2, 0));
        let how = "  process didn't exit successfully: `/a` (signal: 6, SIGABRT: process abort signal)";
        let again = "error: test failed, to rerun pass `-p a --lib`";
        let mut output =
            of(&[&died[..], &["", "free(): invalid pointer", again, "", "Caused by:", how]].concat());
        output.settle();
        let said = ["free(): invalid pointer", again, "Caused by:", how].map(str::to_owned).to_vec();
        assert_eq!(output.deaths, [Death { selection: "-p a --lib".into(), left: 2, said }]);
        assert_eq!(output.tally.failed, 2);
        let next = ["running 1 test", "test b::one ... ok", "test result: ok. 1 passed; 0 failed; 0 ignored"];
        let mut output = of(&[&died[..], &next].concat());
        output.settle();
        assert_eq!(output.tally, Tally { passed: 1, failed: 2, skipped: 0 });
    }

    #[test]
    fn the_end_of_a_long_story_is_kept() {
        let lines: Vec<String> = (0..100).map(|i| i.to_string()).collect();
        let mut output = of(&["failures:", "---- long stdout ----"]);
        lines.iter().for_each(|line| output.take(line));
        assert_eq!(output.failures[0].said, lines[100 - KEPT..]);
    }
}

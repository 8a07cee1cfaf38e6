//! What the tests of a `cargo test` printed: results counted, and what the failed ones said kept.

use super::Tally;

/// Lines of a failed test that are kept: its end, where the reason stands.
const KEPT: usize = 40;

/// What lines begin with that tell of a program that hung.
pub const HANG: &str = "hang: ";

/// A test that failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Failure {
    pub name: String,
    /// The end of what it printed
    pub said: Vec<String>,
}

/// Everything that was counted so far.
#[derive(Debug, Default)]
pub struct Output {
    pub tally: Tally,
    pub failures: Vec<Failure>,
    /// What comes now is what failed tests printed, or the list of their names
    is_of_failures: bool,
    /// Tests that take long, and have not ended yet
    slow: Vec<String>,
}

impl Output {
    /// Takes the next line into account.
    pub fn take(&mut self, line: &str) {
        if line.starts_with("skipped: ") {
            self.tally.skipped += 1;
        }
        self.watch(line);
        if let Some(said) = line.strip_prefix(HANG) {
            self.hang(said);
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.is_of_failures = false;
            self.count(result);
        } else if line == "failures:" {
            self.is_of_failures = true;
        } else if self.is_of_failures {
            self.keep(line);
        }
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

    fn watch(&mut self, line: &str) {
        let Some((name, what)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(' ')) else {
            return;
        };
        if what.starts_with("has been running") {
            self.slow.push(name.to_owned());
        } else {
            self.slow.retain(|slow| slow != name);
        }
    }

    /// The tests that have not ended have failed, and this is why.
    fn hang(&mut self, said: &str) {
        for name in std::mem::take(&mut self.slow) {
            self.tally.failed += 1;
            self.failures.push(Failure { name, said: Vec::new() });
        }
        if let Some(failure) = self.failures.last_mut() {
            failure.said.push(said.to_owned());
        }
    }

    fn keep(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.failures.push(Failure { name: name.to_owned(), said: Vec::new() });
            return;
        }
        let is_name = |failure: &Failure| line.trim() == failure.name;
        if line.is_empty() || self.failures.iter().any(is_name) {
            return;
        }
        let Some(failure) = self.failures.last_mut() else { return };
        failure.said.push(line.to_owned());
        if failure.said.len() > KEPT {
            failure.said.remove(0);
        }
    }
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
            "test a::one has been running for over 60 seconds",
            "test b::two has been running for over 60 seconds",
            "test a::one ... ok",
            "hang: nothing was heard",
            "hang: #0 wait",
            "test result: ok. 3 passed; 0 failed; 0 ignored",
        ]);
        let said = vec!["nothing was heard".to_owned(), "#0 wait".to_owned()];
        assert_eq!(output.failures, [Failure { name: "b::two".into(), said }]);
        assert_eq!(output.tally, Tally { passed: 3, failed: 1, skipped: 0 });
    }

    #[test]
    fn the_end_of_a_long_story_is_kept() {
        let lines: Vec<String> = (0..100).map(|i| i.to_string()).collect();
        let mut output = of(&["failures:", "---- long stdout ----"]);
        lines.iter().for_each(|line| output.take(line));
        assert_eq!(output.failures[0].said, lines[100 - KEPT..]);
    }
}

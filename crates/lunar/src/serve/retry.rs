//! Retries with increasing pauses. Failures are logged when they change.

use super::change::log_problems;
use lunar_server::Diagnostic;
use std::time::Duration;

const FIRST_S: u64 = 5;
const LONGEST_S: u64 = 60;

#[derive(Default)]
pub struct Retry {
    failures: u32,
    logged: Vec<Diagnostic>,
    /// Whether a retry is scheduled.
    is_due: bool,
}

impl Retry {
    /// Whether the last attempt failed, so that it is retried.
    pub fn is_in_progress(&self) -> bool {
        self.failures > 0
    }

    /// Records a failure. Returns the pause before the next attempt.
    pub fn failed(&mut self, problems: &[Diagnostic]) -> Duration {
        if self.logged != problems {
            log_problems(problems);
            tracing::warn!(
                "the server retries the failed step at least every {LONGEST_S} s until it succeeds"
            );
            self.logged = problems.to_vec();
        }
        let pause_s = FIRST_S.saturating_mul(1 << self.failures.min(8)).min(LONGEST_S);
        self.failures += 1;
        Duration::from_secs(pause_s)
    }

    /// As [`Retry::failed`], for attempts that may have other causes than a retry. None if a retry is scheduled
    /// already, so that there is only one at a time.
    pub fn failed_once_more(&mut self, problems: &[Diagnostic]) -> Option<Duration> {
        let is_due = std::mem::replace(&mut self.is_due, true);
        let pause = self.failed(problems);
        (!is_due).then_some(pause)
    }

    /// Records the start of the scheduled retry.
    pub fn comes(&mut self) {
        self.is_due = false;
    }

    /// Records a success. Returns true after a failure. A scheduled retry stays scheduled.
    pub fn succeeded(&mut self) -> bool {
        let before = std::mem::take(self);
        self.is_due = before.is_due;
        before.is_in_progress()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_doubles_up_to_its_bound() {
        let mut retry = Retry::default();
        let problems = [Diagnostic::new("x", "y")];
        let pauses: Vec<u64> = (0..6).map(|_| retry.failed(&problems).as_secs()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
        assert!(retry.succeeded() && !retry.succeeded());
        assert_eq!(retry.failed(&problems).as_secs(), 5);
    }

    #[test]
    fn one_try_is_due_whatever_causes_the_failures() {
        let mut retry = Retry::default();
        let problems = [Diagnostic::new("x", "y")];
        let fails = |retry: &mut Retry| retry.failed_once_more(&problems).is_some();
        assert!(fails(&mut retry));
        assert!(!fails(&mut retry) && !fails(&mut retry));
        assert!(retry.succeeded());
        assert!(!fails(&mut retry), "the first retry is still scheduled");
        retry.comes();
        assert!(fails(&mut retry) && !fails(&mut retry));
    }
}

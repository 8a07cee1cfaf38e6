//! What fails and is tried again by itself: less and less often, and logged when there is news.

use super::change::tell_problems;
use control::Problem;
use std::time::Duration;

const FIRST_S: u64 = 5;
const LONGEST_S: u64 = 60;

#[derive(Default)]
pub struct Retry {
    failures: u32,
    logged: Vec<Problem>,
}

impl Retry {
    /// Something failed, and is to be tried again.
    pub fn is_under_way(&self) -> bool {
        self.failures > 0
    }

    /// It failed. The pause before the next try.
    pub fn failed(&mut self, problems: &[Problem]) -> Duration {
        if self.logged != problems {
            tell_problems(problems);
            tracing::warn!("it is tried again by itself, at least every {LONGEST_S} s, until it works");
            self.logged = problems.to_vec();
        }
        let pause_s = FIRST_S.saturating_mul(1 << self.failures.min(8)).min(LONGEST_S);
        self.failures += 1;
        Duration::from_secs(pause_s)
    }

    /// It works. True: after a failure.
    pub fn succeeded(&mut self) -> bool {
        std::mem::take(self).is_under_way()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_doubles_up_to_its_bound() {
        let mut retry = Retry::default();
        let problems = [Problem::new("x", "y")];
        let pauses: Vec<u64> = (0..6).map(|_| retry.failed(&problems).as_secs()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
        assert!(retry.succeeded() && !retry.succeeded());
        assert_eq!(retry.failed(&problems).as_secs(), 5);
    }
}

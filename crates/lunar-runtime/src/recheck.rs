//! When to ask again what the kernel was asked before.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long an answer holds for the next batch of work. A question costs as much as a twentieth of a small command does at
/// depth 1; asked once in this time it costs less than 1 %.
const HOLDS: Duration = Duration::from_micros(100);

/// An answer of the kernel that holds for one batch of work, and no longer than one tick of its coarse clock (some
/// milliseconds): the thread may have been held up for any time since. For the next batch it holds if it is younger than
/// 100 microseconds.
#[derive(Default)]
pub struct Recheck {
    tick: Cell<Option<Timespec>>,
    asked: Cell<Option<Instant>>,
}

impl Recheck {
    /// Nothing was asked yet.
    pub const fn new() -> Recheck {
        Recheck { tick: Cell::new(None), asked: Cell::new(None) }
    }

    /// Whether to ask now. If so, the answer holds from now on.
    #[inline]
    pub fn is_due(&self) -> bool {
        // It costs a few nanoseconds, the other clock several times as much.
        let tick = Some(clock_gettime(ClockId::MonotonicCoarse));
        self.tick.replace(tick) != tick && self.is_old()
    }

    fn is_old(&self) -> bool {
        let now = Instant::now();
        let is_old = self.asked.get().is_none_or(|asked| now.duration_since(asked) >= HOLDS);
        if is_old {
            self.asked.set(Some(now));
        }
        is_old
    }

    /// Another batch of work begins.
    #[inline]
    pub fn next_batch(&self) {
        self.tick.set(None);
    }

    /// The answer holds no longer.
    #[inline]
    pub fn forget(&self) {
        self.tick.set(None);
        self.asked.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::{HOLDS, Recheck};
    use std::time::Instant;

    #[test]
    fn an_answer_that_is_forgotten_is_due() {
        let recheck = Recheck::new();
        assert!(recheck.is_due());
        recheck.forget();
        assert!(recheck.is_due());
    }

    #[test]
    fn an_old_answer_is_due_in_the_next_batch() {
        let recheck = Recheck::new();
        let begun = Instant::now();
        assert!(recheck.is_due());
        recheck.next_batch();
        // On a machine that is held up here the answer is old already.
        assert!(!recheck.is_due() || begun.elapsed() >= HOLDS);
        std::thread::sleep(HOLDS);
        recheck.next_batch();
        assert!(recheck.is_due());
    }
}

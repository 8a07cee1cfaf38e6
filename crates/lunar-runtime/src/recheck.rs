//! A time limit on a cached answer of the kernel.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long an answer stays valid for further batches. At depth 1, the system call costs a twentieth of a small
/// command. Once in this time, it costs less than 1 %.
const HOLDS: Duration = Duration::from_micros(100);

thread_local! {
    static BATCH: Cell<u64> = const { Cell::new(0) };
}

/// Starts another batch of work on this thread. [`Stream`](crate::Stream), the RDMA endpoints, and the queues of FUSE and
/// ublk call it for each receive, before the received requests start.
#[inline]
pub fn begin_batch() {
    BATCH.set(BATCH.get().wrapping_add(1));
}

/// The number of the current batch of work on this thread.
#[inline]
pub fn current_batch() -> u64 {
    BATCH.get()
}

/// Whether a cached answer of the kernel has expired. It is valid for one batch of work, and no longer than one tick
/// of the coarse clock (some milliseconds), because the thread may have been preempted. It is valid for the next
/// batch if it is younger than 100 microseconds.
#[derive(Default)]
pub struct Recheck {
    tick: Cell<Option<Timespec>>,
    asked: Cell<Option<Instant>>,
}

impl Recheck {
    /// Creates it without an answer.
    pub const fn new() -> Recheck {
        Recheck { tick: Cell::new(None), asked: Cell::new(None) }
    }

    /// Whether to ask the kernel now. If so, the new answer is valid from now on.
    #[inline]
    pub fn take_due(&self) -> bool {
        // The coarse clock costs a few nanoseconds, the precise one several times as much.
        let tick = Some(clock_gettime(ClockId::MonotonicCoarse));
        self.tick.replace(tick) != tick && self.renew_if_old()
    }

    fn renew_if_old(&self) -> bool {
        let now = Instant::now();
        let is_old = self.asked.get().is_none_or(|asked| now.duration_since(asked) >= HOLDS);
        if is_old {
            self.asked.set(Some(now));
        }
        is_old
    }

    /// Starts another batch of work.
    #[inline]
    pub fn next_batch(&self) {
        self.tick.set(None);
    }

    /// Discards the answer.
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
    fn answer_that_is_forgotten_is_due() {
        let recheck = Recheck::new();
        assert!(recheck.take_due());
        recheck.forget();
        assert!(recheck.take_due());
    }

    #[test]
    fn old_answer_is_due_in_the_next_batch() {
        let recheck = Recheck::new();
        let started_at = Instant::now();
        assert!(recheck.take_due());
        recheck.next_batch();
        // On a machine that stalls here, the answer may have expired already.
        assert!(!recheck.take_due() || started_at.elapsed() >= HOLDS);
        std::thread::sleep(HOLDS);
        recheck.next_batch();
        assert!(recheck.take_due());
    }
}

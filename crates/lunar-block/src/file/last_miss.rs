//! The time of the last read whose data were not in the page cache.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A device delivers data within this time, as a rule.
const DELIVERY: Duration = Duration::from_secs(1);

/// Shows whether pages may wait for their data.
pub(super) struct LastMiss {
    start: Instant,
    /// The time from `start` in milliseconds, plus one; 0 without a miss.
    at: AtomicU64,
}

impl Default for LastMiss {
    fn default() -> LastMiss {
        LastMiss { start: Instant::now(), at: AtomicU64::new(0) }
    }
}

impl LastMiss {
    /// Records a miss.
    #[cold]
    pub(super) fn record(&self) {
        self.record_at(self.start.elapsed());
    }

    fn record_at(&self, time: Duration) {
        self.at.store(time.as_millis() as u64 + 1, Relaxed);
    }

    /// Whether data of the last miss may still be on their way.
    #[inline]
    pub(super) fn is_recent(&self) -> bool {
        self.at.load(Relaxed) > 0 && self.is_recent_at(self.start.elapsed())
    }

    fn is_recent_at(&self, time: Duration) -> bool {
        let last = self.at.load(Relaxed);
        last > 0 && (time.as_millis() as u64 + 1).saturating_sub(last) < DELIVERY.as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn miss_is_recent_until_its_data_have_arrived() {
        let misses = LastMiss::default();
        let time = Duration::from_millis;
        assert_eq!((misses.is_recent(), misses.is_recent_at(time(0))), (false, false), "no miss");
        misses.record_at(time(0));
        assert_eq!([0, 999, 1000].map(|at| misses.is_recent_at(time(at))), [true, true, false]);
        misses.record_at(time(5000));
        assert_eq!([4999, 5999, 6000].map(|at| misses.is_recent_at(time(at))), [true, true, false]);
    }
}

//! Latency totals.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Count, sum and maximum of some latencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyTotal {
    /// The number of operations.
    pub count: u64,
    /// The sum in nanoseconds.
    pub sum_ns: u64,
    /// The longest in nanoseconds.
    pub max_ns: u64,
}

impl LatencyTotal {
    /// Adds one operation.
    pub fn add(&mut self, time: Duration) {
        let ns = nanoseconds(time);
        *self = self.and(LatencyTotal { count: 1, sum_ns: ns, max_ns: ns });
    }

    /// The combined total.
    pub fn and(self, other: LatencyTotal) -> LatencyTotal {
        LatencyTotal {
            count: self.count + other.count,
            sum_ns: self.sum_ns.saturating_add(other.sum_ns),
            max_ns: self.max_ns.max(other.max_ns),
        }
    }
}

/// A [`LatencyTotal`] that any core may add to.
#[derive(Debug, Default)]
pub struct LatencyCounter {
    count: AtomicU64,
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl LatencyCounter {
    /// Adds one operation.
    pub fn add(&self, time: Duration) {
        let ns = nanoseconds(time);
        self.add_all(LatencyTotal { count: 1, sum_ns: ns, max_ns: ns });
    }

    /// Adds a total, which is cheaper than many single operations.
    pub fn add_all(&self, more: LatencyTotal) {
        self.count.fetch_add(more.count, Relaxed);
        self.sum_ns.fetch_add(more.sum_ns, Relaxed);
        // A new maximum is rare, and a load is cheaper than a write.
        if more.max_ns > self.max_ns.load(Relaxed) {
            self.max_ns.fetch_max(more.max_ns, Relaxed);
        }
    }

    /// The total so far.
    pub fn total(&self) -> LatencyTotal {
        let [count, sum_ns, max_ns] = [&self.count, &self.sum_ns, &self.max_ns].map(|n| n.load(Relaxed));
        LatencyTotal { count, sum_ns, max_ns }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_add_up_and_the_longest_is_kept() {
        let tally = LatencyCounter::default();
        [5, 9, 2].into_iter().for_each(|ns| tally.add(Duration::from_nanos(ns)));
        assert_eq!(tally.total(), LatencyTotal { count: 3, sum_ns: 16, max_ns: 9 });
        let both = tally.total().and(LatencyTotal { count: 1, sum_ns: 20, max_ns: 20 });
        assert_eq!(both, LatencyTotal { count: 4, sum_ns: 36, max_ns: 20 });
    }
}

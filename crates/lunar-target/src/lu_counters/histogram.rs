//! Histograms of latencies with one writer.

use super::Stages;
use crate::session_counter::SessionCounter;
use std::time::Duration;

/// The number of buckets: upper bounds of 16 µs to 16.8 s in powers of two, and one without a bound.
pub const LATENCY_BUCKETS: usize = 22;
/// The first upper bound in nanoseconds.
const FIRST_NS: u64 = 16_000;

/// The upper bound of a bucket in seconds; infinite for the last one.
pub fn bucket_bound_s(bucket: usize) -> f64 {
    match bucket + 1 < LATENCY_BUCKETS {
        true => (FIRST_NS << bucket) as f64 / 1e9,
        false => f64::INFINITY,
    }
}

/// The bucket of a latency: the first whose upper bound it does not exceed.
fn bucket(ns: u64) -> usize {
    let above = ns.saturating_sub(1) / FIRST_NS;
    ((u64::BITS - above.leading_zeros()) as usize).min(LATENCY_BUCKETS - 1)
}

#[derive(Default)]
struct HistogramCounter {
    buckets: [SessionCounter; LATENCY_BUCKETS],
    sum_ns: SessionCounter,
}

impl HistogramCounter {
    fn add(&self, count: u64, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(ns)].add(count);
        self.sum_ns.add(ns.saturating_mul(count));
    }
}

/// The latencies of one kind of command: as a whole, and by stage.
#[derive(Default)]
pub(super) struct StageCounters([HistogramCounter; 4]);

impl StageCounters {
    pub(super) fn add(&self, count: u64, Stages { queue, backend, send }: Stages) {
        let times = [queue + backend + send, queue, backend, send];
        self.0.iter().zip(times).for_each(|(histogram, time)| histogram.add(count, time));
    }
}

/// A histogram of latencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyTotals {
    /// The number of commands in each bucket alone.
    pub buckets: [u64; LATENCY_BUCKETS],
    /// The sum in nanoseconds.
    pub sum_ns: u64,
}

impl LatencyTotals {
    fn add(&mut self, counter: &HistogramCounter) {
        self.buckets.iter_mut().zip(&counter.buckets).for_each(|(sum, bucket)| *sum += bucket.get());
        self.sum_ns = self.sum_ns.saturating_add(counter.sum_ns.get());
    }
}

/// The latencies of one kind of command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTotals {
    /// From its arrival until its response is handed to the network.
    pub whole: LatencyTotals,
    /// See [`Stages::queue`].
    pub queue: LatencyTotals,
    /// See [`Stages::backend`].
    pub backend: LatencyTotals,
    /// See [`Stages::send`].
    pub send: LatencyTotals,
}

impl StageTotals {
    pub(super) fn add(&mut self, StageCounters(counters): &StageCounters) {
        let all = [&mut self.whole, &mut self.queue, &mut self.backend, &mut self.send];
        all.into_iter().zip(counters).for_each(|(total, counter)| total.add(counter));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_in_first_bucket_that_bounds_it() {
        for (ns, expected) in [(0, 0), (16_000, 0), (16_001, 1), (32_000, 1), (32_001, 2), (64_000, 2)] {
            assert_eq!(bucket(ns), expected, "{ns}");
        }
        let last = FIRST_NS << 20;
        assert_eq!((bucket(last), bucket(last + 1), bucket(u64::MAX)), (20, 21, 21));
        assert_eq!((bucket_bound_s(0), bucket_bound_s(20)), (0.000016, 16.777216));
        assert!(bucket_bound_s(21).is_infinite());
    }
}

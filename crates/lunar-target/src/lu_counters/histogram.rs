//! Histograms of latencies with one writer.

use super::Stages;
use crate::session_counter::SessionCounter;

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

/// The number of stages, with the whole.
const STAGES: usize = 4;
/// A counter for each stage.
type ByStage = [SessionCounter; STAGES];

/// The latencies of one kind of command: as a whole, and by stage. The stages of a command are in a few near buckets, so
/// the counters of a bucket stand together: with many LUNs, each cache line that a command needs is missing.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct StageCounters {
    sums_ns: ByStage,
    buckets: [ByStage; LATENCY_BUCKETS],
}

impl StageCounters {
    pub(super) fn add(&self, count: u64, Stages { queue, backend, send }: Stages) {
        let times = [queue + backend + send, queue, backend, send];
        for (stage, time) in times.into_iter().enumerate() {
            let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            self.buckets[bucket(ns)][stage].add(count);
            self.sums_ns[stage].add(ns.saturating_mul(count));
        }
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
    fn add(&mut self, counters: &StageCounters, stage: usize) {
        self.buckets.iter_mut().zip(&counters.buckets).for_each(|(sum, bucket)| *sum += bucket[stage].get());
        self.sum_ns = self.sum_ns.saturating_add(counters.sums_ns[stage].get());
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
    pub(super) fn add(&mut self, counters: &StageCounters) {
        let all = [&mut self.whole, &mut self.queue, &mut self.backend, &mut self.send];
        all.into_iter().enumerate().for_each(|(stage, total)| total.add(counters, stage));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn short_command_counts_in_two_cache_lines() {
        let counters = StageCounters::default();
        let micros = Duration::from_micros;
        counters.add(3, Stages { queue: micros(20), backend: micros(1), send: micros(20) });
        // The lines of 64 bytes that a command changed, from the first byte of the counters.
        let all = counters.sums_ns.iter().chain(counters.buckets.iter().flatten()).enumerate();
        let used: Vec<usize> = all.filter(|(_, counter)| counter.get() > 0).map(|(at, _)| at / 8).collect();
        assert_eq!(used, [0, 0, 0, 0, 0, 1, 1, 1]);
        let mut totals = StageTotals::default();
        totals.add(&counters);
        let seen = [totals.whole, totals.queue, totals.backend, totals.send];
        assert_eq!(seen.map(|stage| stage.sum_ns), [123_000, 60_000, 3_000, 60_000]);
        assert_eq!(seen.map(|stage| stage.buckets.iter().position(|n| *n == 3)), [2, 1, 0, 1].map(Some));
        assert_eq!((align_of::<StageCounters>(), size_of::<StageCounters>()), (64, 12 * 64));
    }

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

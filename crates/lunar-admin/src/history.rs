//! Rates of the past hour: what the server transferred, in samples of equal length and in fixed memory.

use crate::metrics::{LunMetrics, MetricsReport};
use crate::rows::utc;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use utoipa::ToSchema;

/// The length of a sample.
pub const SAMPLE: Duration = Duration::from_secs(5);
/// Samples of an hour.
const KEPT: usize = 720;

/// The counters of a source of traffic, such as a LUN. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Commands that ended without GOOD.
    pub errors: u64,
    /// Reads whose latency is in `read_s`.
    pub timed_reads: u64,
    /// Writes whose latency is in `write_s`.
    pub timed_writes: u64,
    /// The sum of the latencies of reads in seconds.
    pub read_s: f64,
    /// The sum of the latencies of writes in seconds.
    pub write_s: f64,
}

/// The rates of one sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RateSample {
    /// Its number, from 1. It grows by one with each sample.
    pub sequence: u64,
    /// Its end (RFC 3339).
    pub time: String,
    /// Its length in seconds.
    pub seconds: f64,
    /// Reads a second.
    pub reads_s: f64,
    /// Writes a second.
    pub writes_s: f64,
    /// Bytes read a second.
    pub read_bytes_s: f64,
    /// Bytes written a second.
    pub written_bytes_s: f64,
    /// Commands a second that ended without GOOD.
    pub errors_s: f64,
    /// Mean latency of reads in seconds; null without reads, or if the server does not measure it.
    pub read_latency_s: Option<f64>,
    /// Mean latency of writes in seconds; null without writes, or if the server does not measure it.
    pub write_latency_s: Option<f64>,
}

/// The samples of the past hour. The sampler records them, and readers wait at most for one sample.
#[derive(Default)]
pub struct RateHistory(Mutex<RateRing>);

#[derive(Default)]
struct RateRing {
    last: u64,
    kept: VecDeque<RateSample>,
    before: Option<(Instant, BTreeMap<u64, Traffic>)>,
}

impl Traffic {
    /// The growth of the counters since `before`. A counter that shrank belongs to a new source, which began with 0.
    pub fn since(&self, before: &Traffic) -> Traffic {
        let count = |now: u64, then: u64| now.checked_sub(then).unwrap_or(now);
        let sum = |now: f64, then: f64| if now < then { now } else { now - then };
        Traffic {
            reads: count(self.reads, before.reads),
            writes: count(self.writes, before.writes),
            read_bytes: count(self.read_bytes, before.read_bytes),
            written_bytes: count(self.written_bytes, before.written_bytes),
            errors: count(self.errors, before.errors),
            timed_reads: count(self.timed_reads, before.timed_reads),
            timed_writes: count(self.timed_writes, before.timed_writes),
            read_s: sum(self.read_s, before.read_s),
            write_s: sum(self.write_s, before.write_s),
        }
    }

    /// The sum with those of another source.
    #[must_use]
    pub fn and(self, other: Traffic) -> Traffic {
        Traffic {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            read_bytes: self.read_bytes + other.read_bytes,
            written_bytes: self.written_bytes + other.written_bytes,
            errors: self.errors + other.errors,
            timed_reads: self.timed_reads + other.timed_reads,
            timed_writes: self.timed_writes + other.timed_writes,
            read_s: self.read_s + other.read_s,
            write_s: self.write_s + other.write_s,
        }
    }

    /// The rates of what was counted in a time.
    fn rates(&self, seconds: f64) -> RateSample {
        let rate = |count: u64| count as f64 / seconds;
        let mean = |sum: f64, count: u64| (count > 0).then(|| sum / count as f64);
        RateSample {
            seconds,
            reads_s: rate(self.reads),
            writes_s: rate(self.writes),
            read_bytes_s: rate(self.read_bytes),
            written_bytes_s: rate(self.written_bytes),
            errors_s: rate(self.errors),
            read_latency_s: mean(self.read_s, self.timed_reads),
            write_latency_s: mean(self.write_s, self.timed_writes),
            ..RateSample::default()
        }
    }
}

/// The traffic of each logical unit, by its number. Several LUNs may show one, each with all its traffic.
pub fn of_units(metrics: &MetricsReport) -> BTreeMap<u64, Traffic> {
    metrics.luns.iter().map(|lun| (lun.unit, of_lun(lun))).collect()
}

/// The traffic of a LUN.
pub fn of_lun(lun: &LunMetrics) -> Traffic {
    let op = |name: &str| lun.ops.iter().find(|op| op.op == name);
    let commands = |name| op(name).map_or(0, |op| op.commands);
    let latency = |name| op(name)?.latency.as_ref().map(|stages| &stages.whole);
    let timed = |name| latency(name).map_or(0, |whole| whole.counts.iter().sum::<u64>());
    let seconds = |name| latency(name).map_or(0.0, |whole| whole.sum_s);
    Traffic {
        reads: commands("read"),
        writes: commands("write"),
        read_bytes: lun.read_bytes,
        written_bytes: lun.written_bytes,
        errors: lun.failures.values().sum(),
        timed_reads: timed("read"),
        timed_writes: timed("write"),
        read_s: seconds("read"),
        write_s: seconds("write"),
    }
}

impl RateHistory {
    fn ring(&self) -> MutexGuard<'_, RateRing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a sample from the counters of all sources at the moment `now`. The first call only begins the first sample.
    pub fn record(&self, now: Instant, sources: BTreeMap<u64, Traffic>) {
        let mut ring = self.ring();
        let before = ring.before.replace((now, sources));
        let (Some((then, before)), Some((_, sources))) = (before, &ring.before) else { return };
        let seconds = now.saturating_duration_since(then).as_secs_f64();
        if seconds == 0.0 {
            return;
        }
        let one = |(name, traffic): (&u64, &Traffic)| {
            traffic.since(before.get(name).unwrap_or(&Traffic::default()))
        };
        let rates = sources.iter().map(one).fold(Traffic::default(), Traffic::and).rates(seconds);
        ring.last += 1;
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let sample = RateSample { sequence: ring.last, time: utc(clock), ..rates };
        ring.kept.push_back(sample);
        if ring.kept.len() > KEPT {
            ring.kept.pop_front();
        }
    }

    /// The samples after number `seen`, in order.
    pub fn after(&self, seen: u64) -> Vec<RateSample> {
        self.ring().kept.iter().filter(|sample| sample.sequence > seen).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{LatencyBuckets, OpMetrics, StageLatencies};

    fn source(reads: u64, read_s: f64) -> BTreeMap<u64, Traffic> {
        let traffic =
            Traffic { reads, read_bytes: reads * 512, timed_reads: reads, read_s, ..Traffic::default() };
        BTreeMap::from([(1, traffic)])
    }

    #[test]
    fn sample_has_the_rates_since_the_one_before() {
        let (history, start) = (RateHistory::default(), Instant::now());
        history.record(start, source(10, 1.0));
        assert!(history.after(0).is_empty(), "what was counted before the first sample has no rate");
        history.record(start + SAMPLE, source(30, 2.0));
        history.record(start + 2 * SAMPLE, source(30, 2.0));
        let samples = history.after(0);
        assert_eq!((samples[0].reads_s, samples[0].read_bytes_s, samples[0].seconds), (4.0, 2048.0, 5.0));
        assert_eq!((samples[0].read_latency_s, samples[0].write_latency_s), (Some(0.05), None));
        assert_eq!((samples[1].sequence, samples[1].reads_s, samples[1].read_latency_s), (2, 0.0, None));
        assert_eq!(history.after(1).len(), 1);
    }

    #[test]
    fn traffic_of_a_unit_is_counted_once() {
        let whole = |counts: &[u64], sum_s| LatencyBuckets { counts: counts.to_vec(), sum_s };
        let op = |op: &str, commands, whole| OpMetrics {
            op: op.into(),
            commands,
            latency: Some(StageLatencies { whole, ..StageLatencies::default() }),
        };
        let lun = LunMetrics {
            target: "iqn.a".into(),
            lun: 3,
            unit: 7,
            ops: vec![op("read", 9, whole(&[4, 4], 0.5)), op("flush", 7, whole(&[7], 9.0))],
            read_bytes: 512,
            failures: [("check".to_owned(), 2), ("busy".to_owned(), 1)].into(),
            ..LunMetrics::default()
        };
        let other = LunMetrics { target: "iqn.b".into(), ..lun.clone() };
        let traffic = of_units(&MetricsReport { luns: vec![lun, other], ..MetricsReport::default() });
        let expected = Traffic {
            reads: 9,
            read_bytes: 512,
            errors: 3,
            timed_reads: 8,
            read_s: 0.5,
            ..Traffic::default()
        };
        assert_eq!(traffic, BTreeMap::from([(7, expected)]));
    }

    #[test]
    fn source_that_restarts_or_ends_makes_no_wrong_rate() {
        let (history, start) = (RateHistory::default(), Instant::now());
        history.record(start, source(1000, 9.0));
        history.record(start + SAMPLE, source(5, 0.5));
        history.record(start + 2 * SAMPLE, BTreeMap::new());
        let rates: Vec<f64> = history.after(0).iter().map(|sample| sample.reads_s).collect();
        assert_eq!(rates, [1.0, 0.0]);
        assert_eq!(history.after(0)[0].read_latency_s, Some(0.1));
    }

    #[test]
    fn history_keeps_an_hour() {
        let (history, start) = (RateHistory::default(), Instant::now());
        for sample in 0..KEPT as u32 + 11 {
            history.record(start + sample * SAMPLE, source(0, 0.0));
        }
        let kept = history.after(0);
        assert_eq!((kept.len(), kept[0].sequence), (KEPT, 11));
    }
}

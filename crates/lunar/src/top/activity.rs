//! Counters of two moments as rates and latencies.

use lunar_admin::Counters as SessionCounters;
use lunar_admin::history::{Traffic, of_lun};
use lunar_admin::metrics::LunMetrics;
use lunar_admin::router::PathReport;
use serde::Serialize;
use utoipa::ToSchema;

/// The counters of a row at one moment. None: not counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    /// Commands, bytes and latencies.
    pub traffic: Option<Traffic>,
    /// Reads and writes by latency.
    pub buckets: Vec<u64>,
    /// Commands that have not ended.
    pub in_flight: Option<u64>,
}

/// The activity of a row between two moments. None: not counted, or no command ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Activity {
    /// Reads a second.
    pub reads_s: Option<f64>,
    /// Writes a second.
    pub writes_s: Option<f64>,
    /// Bytes read a second.
    pub read_bytes_s: Option<f64>,
    /// Bytes written a second.
    pub written_bytes_s: Option<f64>,
    /// Commands that have not ended.
    pub in_flight: Option<u64>,
    /// Mean latency of reads and writes in seconds.
    pub latency_s: Option<f64>,
    /// Half of the reads and writes ended within this time.
    pub latency_p50_s: Option<f64>,
    /// Of 100 reads and writes, 99 ended within this time.
    pub latency_p99_s: Option<f64>,
    /// Commands a second that ended without GOOD.
    pub errors_s: Option<f64>,
}

impl Counters {
    /// The counters of a LUN.
    pub fn of_lun(lun: &LunMetrics) -> Counters {
        let timed = lun.ops.iter().filter(|op| ["read", "write"].contains(&&*op.op));
        let mut buckets = Vec::new();
        for counts in timed.filter_map(|op| Some(&op.latency.as_ref()?.whole.counts)) {
            buckets.resize(counts.len().max(buckets.len()), 0);
            buckets.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        Counters { traffic: Some(of_lun(lun)), buckets, in_flight: Some(lun.in_flight) }
    }

    /// The counters of a session.
    pub fn of_session(counters: &SessionCounters) -> Counters {
        let traffic = Traffic {
            reads: counters.reads,
            writes: counters.writes,
            read_bytes: counters.read_bytes,
            written_bytes: counters.write_bytes,
            errors: counters.errors,
            // Of reads and writes together.
            timed_reads: counters.timed,
            read_s: counters.time_us as f64 / 1e6,
            ..Traffic::default()
        };
        Counters { traffic: Some(traffic), buckets: Vec::new(), in_flight: Some(counters.in_flight) }
    }

    /// The counters of a path on one core or for one host.
    pub fn of_path(path: &PathReport) -> Counters {
        let traffic = path.total.map(|total| Traffic {
            reads: total.reads,
            writes: total.writes,
            read_bytes: total.read_bytes,
            written_bytes: total.written_bytes,
            errors: total.errors,
            // Of reads and writes together.
            timed_reads: total.reads + total.writes,
            read_s: total.time_us as f64 / 1e6,
            ..Traffic::default()
        });
        Counters { traffic, in_flight: path.in_flight.map(|count| count as u64), ..Counters::default() }
    }

    /// Adds those of another core or host.
    pub fn add(&mut self, other: &Counters) {
        self.in_flight = match (self.in_flight, other.in_flight) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        self.traffic = match (self.traffic, other.traffic) {
            (Some(a), Some(b)) => Some(a.and(b)),
            (a, b) => a.or(b),
        };
    }

    /// The activity in the `seconds` since `before`. `bounds_s`: the upper bounds of the buckets.
    pub fn since(&self, before: &Counters, seconds: f64, bounds_s: &[f64]) -> Activity {
        let traffic = self.traffic.map(|now| now.since(&before.traffic.unwrap_or_default()));
        let rate =
            |count: fn(&Traffic) -> u64| traffic.as_ref().map(|traffic| count(traffic) as f64 / seconds);
        let buckets = grown(&self.buckets, &before.buckets);
        let timed =
            |traffic: Traffic| (traffic.read_s + traffic.write_s, traffic.timed_reads + traffic.timed_writes);
        let mean = traffic.map(timed).filter(|(_, count)| *count > 0).map(|(sum, count)| sum / count as f64);
        Activity {
            reads_s: rate(|traffic| traffic.reads),
            writes_s: rate(|traffic| traffic.writes),
            read_bytes_s: rate(|traffic| traffic.read_bytes),
            written_bytes_s: rate(|traffic| traffic.written_bytes),
            latency_s: mean,
            latency_p50_s: quantile(0.5, bounds_s, &buckets),
            latency_p99_s: quantile(0.99, bounds_s, &buckets),
            errors_s: rate(|traffic| traffic.errors),
            in_flight: self.in_flight,
        }
    }
}

impl Activity {
    /// The activity of a row that has no earlier counters.
    pub fn unmeasured(counters: &Counters) -> Activity {
        Activity { in_flight: counters.in_flight, ..Activity::default() }
    }
}

/// The growth of each bucket. If one shrank, the histogram is new.
fn grown(now: &[u64], before: &[u64]) -> Vec<u64> {
    let then = |at: usize| before.get(at).copied().unwrap_or_default();
    if now.iter().enumerate().any(|(at, count)| *count < then(at)) {
        return now.to_vec();
    }
    now.iter().enumerate().map(|(at, count)| count - then(at)).collect()
}

/// The quantile `q` of a histogram, as `histogram_quantile` of Prometheus computes it: linear within a bucket. The
/// last bucket has no bound, so its quantiles are those of its lower end.
fn quantile(q: f64, bounds_s: &[f64], counts: &[u64]) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    let rank = q * total as f64;
    let mut below = 0;
    for (at, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let lower = at.checked_sub(1).map_or(Some(0.0), |at| bounds_s.get(at).copied())?;
        if (below + count) as f64 >= rank {
            let upper = bounds_s.get(at).copied().unwrap_or(lower);
            return Some(lower + (upper - lower) * (rank - below as f64) / *count as f64);
        }
        below += count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_admin::metrics::{LatencyBuckets, OpMetrics, StageLatencies};

    fn lun(commands: u64, counts: [u64; 3]) -> LunMetrics {
        let whole = LatencyBuckets { counts: counts.to_vec(), sum_s: 0.001 * commands as f64 };
        let latency = Some(StageLatencies { whole, ..StageLatencies::default() });
        let op = |op: &str| OpMetrics { op: op.into(), commands, latency: latency.clone() };
        let failures = [("busy".to_owned(), commands / 10)].into();
        LunMetrics {
            ops: vec![op("read"), op("write"), op("flush")],
            read_bytes: 4096 * commands,
            in_flight: 7,
            failures,
            ..LunMetrics::default()
        }
    }

    const BOUNDS: [f64; 2] = [0.001, 0.002];

    #[test]
    fn growth_of_a_lun_becomes_rates_and_latencies() {
        let (before, now) = (lun(100, [100, 0, 0]), lun(200, [150, 50, 0]));
        let activity = Counters::of_lun(&now).since(&Counters::of_lun(&before), 2.0, &BOUNDS);
        assert_eq!((activity.reads_s, activity.writes_s), (Some(50.0), Some(50.0)));
        assert_eq!((activity.read_bytes_s, activity.written_bytes_s), (Some(204_800.0), Some(0.0)));
        assert_eq!((activity.errors_s, activity.in_flight), (Some(5.0), Some(7)));
        let mean = activity.latency_s.expect("commands ended");
        assert!((mean - 0.001).abs() < 1e-9, "{mean}");
        // Of 200 commands, 100 ended within 1 ms and 100 within 2 ms.
        assert_eq!(activity.latency_p50_s, Some(0.001));
        assert!((activity.latency_p99_s.expect("commands ended") - 0.00198).abs() < 1e-9);
    }

    #[test]
    fn counter_that_went_back_has_no_negative_rate() {
        let (before, now) = (lun(1000, [1000, 5, 0]), lun(10, [4, 6, 0]));
        let activity = Counters::of_lun(&now).since(&Counters::of_lun(&before), 1.0, &BOUNDS);
        assert_eq!((activity.reads_s, activity.read_bytes_s), (Some(10.0), Some(40_960.0)));
        assert_eq!(activity.errors_s, Some(1.0));
        assert!(activity.latency_s.is_some_and(|mean| mean > 0.0), "{activity:?}");
        assert!(activity.latency_p50_s.is_some_and(|p50| p50 > 0.001), "{activity:?}");
    }

    #[test]
    fn idle_lun_has_rates_and_no_latency() {
        let idle = Counters::of_lun(&lun(10, [10, 0, 0]));
        let activity = idle.since(&idle, 1.0, &BOUNDS);
        assert_eq!((activity.reads_s, activity.latency_s), (Some(0.0), None));
        assert_eq!((activity.latency_p50_s, activity.latency_p99_s), (None, None));
    }

    #[test]
    fn quantile_beyond_the_last_bound_is_that_bound() {
        assert_eq!(quantile(0.99, &BOUNDS, &[0, 0, 5]), Some(0.002));
        assert_eq!(quantile(0.5, &BOUNDS, &[]), None);
    }
}

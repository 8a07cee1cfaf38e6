//! What was measured. Rates are worked out from amounts and times, in one place.

use serde::{Deserialize, Serialize};

/// What came of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobOutcome {
    /// Seconds that were measured: without the ramp, to the end of the time, however long the last commands take;
    /// to the end of the last command where an amount was reached first, or to the moment of an early end.
    pub elapsed_s: f64,
    /// What was read.
    pub read: DirectionTotals,
    /// What was written.
    pub write: DirectionTotals,
    /// The same by session, in their order.
    pub sessions: Vec<IoCounts>,
    /// How long each of them took: as `elapsed_s`, which is that of the last one. Documents made before it was kept do
    /// not have it.
    #[serde(default)]
    pub sessions_s: Vec<f64>,
    /// Steps of time, in their order.
    pub series: Vec<SeriesStep>,
    /// CPU time.
    pub cpu: CpuTime,
    /// Commands that failed, where the job went on.
    pub errors: u64,
    /// Commands that were due at a given rate and had not begun when the time was over.
    pub backlog: u64,
    /// Commands that were in flight when the time was over, and ended later. How long they took is in the latencies;
    /// they are in no rate and no step. Documents of `lunar.bench/1` do not have them at all.
    #[serde(default)]
    pub late: u64,
    /// Why it ended early; what was measured until then stands.
    pub ended_early: Option<String>,
}

/// One direction. Rates come of what ended within the measured time, latencies also of what was in flight at its
/// end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionTotals {
    /// Commands that ended within the measured time.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From the moment a command was due until it was handed over. Only with a given rate; empty otherwise.
    pub submit: Latency,
    /// From handing over until the end.
    pub service: Latency,
    /// From the moment it was due until the end: what a user waits. In a closed loop the same as `service`.
    pub total: Latency,
}

/// What one session did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoCounts {
    /// Commands that read.
    pub read_ios: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Commands that wrote.
    pub write_ios: u64,
    /// Bytes that were written.
    pub write_bytes: u64,
}

/// What was done in a step of time, by all sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SeriesStep {
    /// End of the step in seconds after the begin of the measurement.
    pub until_s: f64,
    /// What was done.
    #[serde(flatten)]
    pub share: IoCounts,
    /// Mean of the total latency in nanoseconds.
    pub mean_ns: f64,
    /// The longest total latency in nanoseconds.
    pub max_ns: u64,
}

/// A distribution of times in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Arithmetic mean.
    pub mean_ns: f64,
    /// Standard deviation.
    pub stddev_ns: f64,
    /// The shortest.
    pub min_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Percentiles that people ask for: (percent, nanoseconds).
    pub percentiles: Vec<(f64, u64)>,
    /// All of it: (nanoseconds, how often), to three digits. Those of several runs may be added up.
    pub histogram: Vec<(u64, u64)>,
}

/// CPU time in seconds, user and system together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuTime {
    /// Of this process.
    pub client_s: f64,
    /// Of the target's process, where it was named.
    pub target_s: Option<f64>,
    /// Cores of this machine.
    pub cores: usize,
}

impl DirectionTotals {
    /// Commands a second.
    pub fn iops(&self, elapsed_s: f64) -> f64 {
        per(self.ios as f64, elapsed_s)
    }

    /// Bytes a second.
    pub fn rate(&self, elapsed_s: f64) -> f64 {
        per(self.bytes as f64, elapsed_s)
    }
}

impl Latency {
    /// How many times it holds.
    pub fn count(&self) -> u64 {
        self.histogram.iter().fold(0, |sum, bin| sum.saturating_add(bin.1))
    }

    /// The time that this share (0 to 1) of all has not exceeded, in nanoseconds, to the three digits of the
    /// histogram; none without one.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let exact = self.count() as f64 * share;
        // 99.9 / 100 is a little more than 0.999: what rounding added is no command.
        let rank = (exact - exact * 4.0 * f64::EPSILON).ceil().max(1.0);
        let mut below = 0f64;
        let reached = |bin: &&(u64, u64)| {
            below += bin.1 as f64;
            below >= rank
        };
        self.histogram.iter().find(reached).or(self.histogram.last()).map(|bin| bin.0)
    }
}

impl JobOutcome {
    /// Commands, both directions.
    pub fn ios(&self) -> u64 {
        self.read.ios.saturating_add(self.write.ios)
    }

    /// Bytes, both directions.
    pub fn bytes(&self) -> u64 {
        self.read.bytes.saturating_add(self.write.bytes)
    }

    /// Commands a second, both directions.
    pub fn iops(&self) -> f64 {
        per(self.ios() as f64, self.elapsed_s)
    }

    /// Bytes a second, both directions.
    pub fn rate(&self) -> f64 {
        per(self.bytes() as f64, self.elapsed_s)
    }

    /// What one session did, and its own seconds; none if there is no such session.
    pub fn session(&self, at: usize) -> Option<(&IoCounts, f64)> {
        Some((self.sessions.get(at)?, self.sessions_s.get(at).copied().unwrap_or(self.elapsed_s)))
    }

    /// Bytes a second of one session, both directions.
    pub fn session_rate(&self, at: usize) -> Option<f64> {
        self.session(at).map(|(share, s)| per((share.read_bytes + share.write_bytes) as f64, s))
    }

    /// Commands a second of one session, both directions.
    pub fn session_iops(&self, at: usize) -> Option<f64> {
        self.session(at).map(|(share, s)| per((share.read_ios + share.write_ios) as f64, s))
    }
}

/// How long each step is, in seconds.
pub fn widths(series: &[SeriesStep]) -> Vec<f64> {
    let begins = [0.0].into_iter().chain(series.iter().map(|step| step.until_s));
    series.iter().zip(begins).map(|(step, begin)| step.until_s - begin).collect()
}

/// How many for each of something that may be nothing.
fn per(many: f64, of: f64) -> f64 {
    if of > 0.0 { many / of } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_read_from_the_histogram() {
        let latency = Latency { histogram: vec![(10, 50), (20, 49), (30, 1)], ..Latency::default() };
        let at = |share| latency.quantile(share);
        assert_eq!([at(0.0), at(0.5), at(0.51), at(0.99), at(1.0)].map(Option::unwrap), [10, 10, 20, 20, 30]);
        assert_eq!((latency.count(), Latency::default().quantile(0.5)), (100, None));
    }

    #[test]
    fn a_quantile_is_not_off_by_one_command_where_a_fraction_was_rounded_up() {
        for (count, percent) in
            [(1000, 99.9), (10_000, 99.99), (100, 55.0), (1000, 0.1), (1_000_000_000, 99.9)]
        {
            let below = (count as f64 * percent / 100.0).round() as u64;
            let latency = Latency {
                histogram: vec![(10, below), (1_000_000_000, count - below)],
                ..Latency::default()
            };
            assert_eq!(latency.quantile(percent / 100.0), Some(10), "{percent} % of {count}");
            let more = (below + 1) as f64 / count as f64;
            assert_eq!(latency.quantile(more), Some(1_000_000_000), "{more} of {count}");
        }
    }

    #[test]
    fn a_session_has_the_rate_of_its_own_time() {
        let share = IoCounts { read_ios: 4, read_bytes: 4000, ..IoCounts::default() };
        let sessions_s = vec![2.0, 4.0];
        let outcome =
            JobOutcome { elapsed_s: 4.0, sessions: vec![share; 2], sessions_s, ..JobOutcome::default() };
        assert_eq!([0, 1, 2].map(|at| outcome.session_rate(at)), [Some(2000.0), Some(1000.0), None]);
        assert_eq!([0, 1, 2].map(|at| outcome.session_iops(at)), [Some(2.0), Some(1.0), None]);
        let old = JobOutcome { sessions_s: Vec::new(), ..outcome };
        assert_eq!(old.session_rate(0), Some(1000.0), "an older document has one time for all");
    }

    #[test]
    fn rates_of_nothing_are_zero() {
        assert_eq!(JobOutcome::default().iops(), 0.0);
        let read = DirectionTotals { ios: 10, bytes: 40960, ..DirectionTotals::default() };
        assert_eq!((read.iops(2.0), read.rate(2.0)), (5.0, 20480.0));
    }
}

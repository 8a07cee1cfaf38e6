//! Measured results. All rates are computed here, from amounts and times.

use serde::{Deserialize, Serialize};

/// The result of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobOutcome {
    /// Measured seconds, excluding the warm-up. A job with a time ends with that time, however long the last
    /// commands take. A job that reaches its amount first ends with its last command. A job that fails ends at
    /// that moment.
    pub elapsed_s: f64,
    /// Reads.
    pub read: DirectionTotals,
    /// Writes.
    pub write: DirectionTotals,
    /// The counts of each session, in order.
    pub sessions: Vec<IoCounts>,
    /// The duration of each session in seconds; `elapsed_s` is the longest. Older documents do not have it.
    #[serde(default)]
    pub sessions_s: Vec<f64>,
    /// The time series.
    pub series: Vec<SeriesStep>,
    /// CPU time.
    pub cpu: CpuTime,
    /// The load of the machine besides this run; None for a short run. Older documents do not have it.
    #[serde(default)]
    pub load: Option<MachineLoad>,
    /// Failed commands, if the job continues on errors.
    pub errors: u64,
    /// Commands that were due at a given rate and had not started at the end of the time.
    pub backlog: u64,
    /// Commands in flight at the end of the time that ended later. Latencies include them; rates and the time
    /// series do not. Documents of `lunar.bench/1` exclude them from both.
    #[serde(default)]
    pub late: u64,
    /// The reason, if the job ended early; the results up to then are valid.
    pub ended_early: Option<String>,
}

/// The totals of one direction. Rates include the commands that ended within the measured time; latencies
/// include also those in flight at its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionTotals {
    /// Commands that ended within the measured time.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The time from the moment that a command was due to its submission. Only with a given rate, otherwise
    /// empty.
    pub submit: Latency,
    /// The time from submission to completion.
    pub service: Latency,
    /// The time from the moment that a command was due to completion, as a user perceives it. Equals `service`
    /// in a closed loop.
    pub total: Latency,
}

/// Commands and bytes by direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoCounts {
    /// Reads.
    pub read_ios: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub write_ios: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

/// One interval of the time series, over all sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SeriesStep {
    /// The end of the interval in seconds after the start of the measurement.
    pub until_s: f64,
    /// Commands that ended in the interval.
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
    /// Common percentiles: (percent, nanoseconds).
    pub percentiles: Vec<(f64, u64)>,
    /// The whole distribution: (nanoseconds, count), to three digits. Histograms of several runs can be added.
    pub histogram: Vec<(u64, u64)>,
}

/// CPU time in seconds, user and system together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuTime {
    /// This process.
    pub client_s: f64,
    /// The target's process, with `--target-pid`.
    pub target_s: Option<f64>,
    /// Cores of this machine.
    pub cores: usize,
}

/// The load that other processes put on the machine during a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineLoad {
    /// Cores that other processes used, on average. Others are all but this process, the target's process with
    /// `--target-pid`, the descendants of both, and the threads of the kernel.
    pub others: f64,
    /// Cores that the hypervisor withheld, on average.
    pub stolen: f64,
    /// Cores of the machine.
    pub cores: usize,
}

impl MachineLoad {
    /// Cores that were not available to the run.
    pub fn total(&self) -> f64 {
        self.others + self.stolen
    }
}

impl DirectionTotals {
    /// Commands per second.
    pub fn iops(&self, elapsed_s: f64) -> f64 {
        per(self.ios as f64, elapsed_s)
    }

    /// Bytes per second.
    pub fn rate(&self, elapsed_s: f64) -> f64 {
        per(self.bytes as f64, elapsed_s)
    }
}

impl Latency {
    /// The number of values.
    pub fn count(&self) -> u64 {
        self.histogram.iter().fold(0, |sum, bin| sum.saturating_add(bin.1))
    }

    /// The time that this share (0 to 1) of all commands does not exceed, in nanoseconds, to the three digits
    /// of the histogram; None if it is empty.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let exact = self.count() as f64 * share;
        // In floating point, 99.9 / 100 exceeds 0.999. The tolerance keeps this from adding a command.
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
    /// Commands in both directions.
    pub fn ios(&self) -> u64 {
        self.read.ios.saturating_add(self.write.ios)
    }

    /// Bytes in both directions.
    pub fn bytes(&self) -> u64 {
        self.read.bytes.saturating_add(self.write.bytes)
    }

    /// Commands per second in both directions.
    pub fn iops(&self) -> f64 {
        per(self.ios() as f64, self.elapsed_s)
    }

    /// Bytes per second in both directions.
    pub fn rate(&self) -> f64 {
        per(self.bytes() as f64, self.elapsed_s)
    }

    /// The counts and the duration of one session; None if it does not exist.
    pub fn session(&self, at: usize) -> Option<(&IoCounts, f64)> {
        Some((self.sessions.get(at)?, self.sessions_s.get(at).copied().unwrap_or(self.elapsed_s)))
    }

    /// Bytes per second of one session, in both directions.
    pub fn session_rate(&self, at: usize) -> Option<f64> {
        self.session(at).map(|(share, s)| per((share.read_bytes + share.write_bytes) as f64, s))
    }

    /// Commands per second of one session, in both directions.
    pub fn session_iops(&self, at: usize) -> Option<f64> {
        self.session(at).map(|(share, s)| per((share.read_ios + share.write_ios) as f64, s))
    }
}

/// The duration of each interval, in seconds.
pub fn widths(series: &[SeriesStep]) -> Vec<f64> {
    let begins = [0.0].into_iter().chain(series.iter().map(|step| step.until_s));
    series.iter().zip(begins).map(|(step, begin)| step.until_s - begin).collect()
}

/// A quotient, or 0 if the divisor is 0.
fn per(many: f64, of: f64) -> f64 {
    if of > 0.0 { many / of } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_of_histogram_is_its_bin() {
        let latency = Latency { histogram: vec![(10, 50), (20, 49), (30, 1)], ..Latency::default() };
        let at = |share| latency.quantile(share);
        assert_eq!([at(0.0), at(0.5), at(0.51), at(0.99), at(1.0)].map(Option::unwrap), [10, 10, 20, 20, 30]);
        assert_eq!((latency.count(), Latency::default().quantile(0.5)), (100, None));
    }

    #[test]
    fn quantile_with_rounded_fraction_is_not_off_by_one() {
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
    fn session_rate_uses_its_own_duration() {
        let share = IoCounts { read_ios: 4, read_bytes: 4000, ..IoCounts::default() };
        let sessions_s = vec![2.0, 4.0];
        let outcome =
            JobOutcome { elapsed_s: 4.0, sessions: vec![share; 2], sessions_s, ..JobOutcome::default() };
        assert_eq!([0, 1, 2].map(|at| outcome.session_rate(at)), [Some(2000.0), Some(1000.0), None]);
        assert_eq!([0, 1, 2].map(|at| outcome.session_iops(at)), [Some(2.0), Some(1.0), None]);
        let old = JobOutcome { sessions_s: Vec::new(), ..outcome };
        assert_eq!(old.session_rate(0), Some(1000.0), "an older document has one time for all sessions");
    }

    #[test]
    fn rate_without_time_is_zero() {
        assert_eq!(JobOutcome::default().iops(), 0.0);
        let read = DirectionTotals { ios: 10, bytes: 40960, ..DirectionTotals::default() };
        assert_eq!((read.iops(2.0), read.rate(2.0)), (5.0, 20480.0));
    }
}

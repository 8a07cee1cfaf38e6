//! The time series of a measurement: counts and latencies of each interval.

use crate::job::Job;
use crate::outcome::{IoCounts, SeriesStep};
use crate::{Error, ErrorKind};
use std::time::{Duration, Instant};

/// The maximum number of intervals.
pub const MAX: usize = 1_000_000;

/// Checks that the interval of a job is not zero, and that its time has few enough intervals.
///
/// # Errors
/// If one of these does not hold.
pub fn check(job: &Job) -> Result<(), Error> {
    let invalid = |what: String, hint: &'static str| Err(Error::new(ErrorKind::Invalid, what, hint));
    if job.interval.is_zero() {
        return invalid("the interval of the time series is 0".into(), "use an interval such as 1 or 100ms");
    }
    let steps = job.time.unwrap_or_default().as_nanos().div_ceil(job.interval.as_nanos());
    if steps > MAX as u128 {
        let what = format!("the time series has {steps} intervals, the maximum is {MAX}");
        return invalid(what, "use a longer interval, or a shorter time");
    }
    Ok(())
}

/// The sums of one interval.
#[derive(Clone, Copy, Default)]
struct StepSum {
    share: IoCounts,
    total_ns: u64,
    max_ns: u64,
}

impl StepSum {
    fn merged_with(mut self, other: &StepSum) -> StepSum {
        add(&mut self.share, true, other.share.read_ios, other.share.read_bytes);
        add(&mut self.share, false, other.share.write_ios, other.share.write_bytes);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self
    }
}

fn add(share: &mut IoCounts, read: bool, ios: u64, bytes: u64) {
    let (n, sum) = match read {
        true => (&mut share.read_ios, &mut share.read_bytes),
        false => (&mut share.write_ios, &mut share.write_bytes),
    };
    *n += ios;
    *sum += bytes;
}

/// Intervals of equal width, from the start of a measurement.
#[derive(Clone)]
pub struct TimeSeries {
    measured_from: Instant,
    width: Duration,
    sums: Vec<StepSum>,
    /// The end of the last interval.
    end: Instant,
}

impl TimeSeries {
    /// Creates a series with its first interval.
    pub fn new(measured_from: Instant, width: Duration) -> TimeSeries {
        TimeSeries { measured_from, width, sums: vec![StepSum::default()], end: measured_from + width }
    }

    /// Records a command that ended, `ns` after it was due.
    pub fn add(&mut self, read: bool, bytes: u32, done: Instant, ns: u64) {
        self.extend_to(done);
        // A command that ended in an earlier interval is late by at most one pass of the event loop: it counts
        // in the last one.
        let step = self.sums.last_mut().expect("the series starts with one interval");
        add(&mut step.share, read, 1, bytes.into());
        step.total_ns += ns;
        step.max_ns = step.max_ns.max(ns);
    }

    /// Adds the series of another session.
    pub fn merge(&mut self, other: &TimeSeries) {
        let mut other = other.clone();
        while self.width < other.width {
            self.widen();
        }
        while other.width < self.width {
            other.widen();
        }
        self.extend_to(other.end);
        for (to, from) in self.sums.iter_mut().zip(&other.sums) {
            *to = to.merged_with(from);
        }
    }

    /// The intervals of a measurement that ended at `end`, including empty ones at the end; the last one may be
    /// shorter.
    pub fn series(&self, end: Instant) -> Vec<SeriesStep> {
        let elapsed = end.saturating_duration_since(self.measured_from).as_secs_f64();
        let mut whole = self.clone();
        whole.extend_to(end);
        let step = |(i, sum): (usize, &StepSum)| {
            let ios = sum.share.read_ios + sum.share.write_ios;
            SeriesStep {
                until_s: (whole.width.as_secs_f64() * (i + 1) as f64).min(elapsed),
                share: sum.share,
                mean_ns: sum.total_ns as f64 / ios.max(1) as f64,
                max_ns: sum.max_ns,
            }
        };
        whole.sums.iter().enumerate().map(step).collect()
    }

    /// Appends intervals up to the one that contains `to`.
    fn extend_to(&mut self, to: Instant) {
        while to > self.end {
            if self.sums.len() == MAX {
                self.widen();
            }
            self.sums.push(StepSum::default());
            self.end += self.width;
        }
    }

    /// Merges each pair of intervals.
    fn widen(&mut self) {
        self.width *= 2;
        self.sums = self
            .sums
            .chunks(2)
            .map(|two| two.iter().fold(StepSum::default(), StepSum::merged_with))
            .collect();
        self.end = self.measured_from + self.width * self.sums.len() as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn empty_intervals_at_the_end_are_kept() {
        let measured_from = Instant::now();
        let mut steps = TimeSeries::new(measured_from, MS * 1000);
        steps.add(true, 512, measured_from + MS * 400, 7);
        let series = steps.series(measured_from + MS * 4500);
        let ends: Vec<f64> = series.iter().map(|step| step.until_s).collect();
        assert_eq!(ends, [1.0, 2.0, 3.0, 4.0, 4.5]);
        assert_eq!((series[0].share.read_ios, series[0].max_ns), (1, 7));
        assert!(series[1..].iter().all(|step| step.share == IoCounts::default()));
        assert_eq!(
            steps.series(measured_from + MS * 1000).len(),
            1,
            "the series ends with the first interval"
        );
    }

    #[test]
    fn too_many_intervals_merge_in_pairs() {
        let measured_from = Instant::now();
        let (mut many, mut few) = (TimeSeries::new(measured_from, MS), TimeSeries::new(measured_from, MS));
        for second in 1..=2500 {
            many.add(true, 1, measured_from + MS * (second * 1000), 1);
        }
        few.add(false, 1, measured_from + MS * 5, 3);
        few.merge(&many);
        let series = few.series(measured_from + MS * 2_500_000);
        assert_eq!((series.len(), series[0].until_s), (625_000, 0.004), "four intervals merged in one");
        assert_eq!(series.iter().map(|step| step.share.read_ios).sum::<u64>(), 2500);
        assert_eq!((series[1].share.write_ios, series[249].share.read_ios), (1, 1));
        assert_eq!(series.last().map(|step| step.until_s), Some(2500.0));
    }
}

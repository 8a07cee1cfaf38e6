//! Reduces a time series to the points that a plot can show.

use crate::outcome::{SeriesStep, widths};

/// Rates of an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeriesPoint {
    /// Middle of the interval in seconds.
    pub middle_s: f64,
    /// End of the interval in seconds.
    pub until_s: f64,
    /// Bytes read per second.
    pub read: f64,
    /// Bytes written per second.
    pub write: f64,
    /// Commands per second.
    pub iops: f64,
    /// Mean latency in nanoseconds.
    pub mean_ns: f64,
    /// Maximum latency in nanoseconds.
    pub max_ns: u64,
}

/// At most `many` points of a time series; adjacent intervals are merged as needed. A last interval shorter
/// than half of the others is dropped, because its rates are not meaningful.
pub fn moments(series: &[SeriesStep], many: usize) -> Vec<SeriesPoint> {
    let widths = widths(series);
    let usual = widths.iter().copied().fold(0.0, f64::max);
    let whole = match widths.last() {
        Some(last) if *last < usual / 2.0 => series.len() - 1,
        _ => series.len(),
    };
    let each = whole.div_ceil(many.max(1)).max(1);
    let mut begin = 0.0;
    let mut moment = |steps: &[SeriesStep]| {
        let moment = added(begin, steps);
        begin = steps.last().map_or(begin, |step| step.until_s);
        moment
    };
    series[..whole].chunks(each).filter_map(&mut moment).collect()
}

fn added(begin: f64, steps: &[SeriesStep]) -> Option<SeriesPoint> {
    let until_s = steps.last()?.until_s;
    let width = until_s - begin;
    let sum = |of: fn(&SeriesStep) -> f64| steps.iter().map(of).sum::<f64>();
    let ios = |step: &SeriesStep| (step.share.read_ios as f64) + (step.share.write_ios as f64);
    let many = sum(ios);
    (width > 0.0).then(|| SeriesPoint {
        middle_s: begin + width / 2.0,
        until_s,
        read: sum(|step| step.share.read_bytes as f64) / width,
        write: sum(|step| step.share.write_bytes as f64) / width,
        iops: many / width,
        mean_ns: steps.iter().map(|step| step.mean_ns * ios(step)).sum::<f64>() / many.max(1.0),
        max_ns: steps.iter().map(|step| step.max_ns).max().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::IoCounts;

    fn step(until_s: f64, read_ios: u64, mean_ns: f64) -> SeriesStep {
        let share = IoCounts { read_ios, read_bytes: read_ios * 1000, ..IoCounts::default() };
        SeriesStep { until_s, share, mean_ns, max_ns: mean_ns as u64 * 2 }
    }

    #[test]
    fn intervals_are_merged_to_the_limit() {
        let steps = [step(1.0, 10, 100.0), step(2.0, 30, 200.0), step(3.0, 50, 300.0), step(4.0, 0, 0.0)];
        let two = moments(&steps, 2);
        assert_eq!((two[0].until_s, two[0].middle_s, two[0].read, two[0].iops), (2.0, 1.0, 20000.0, 20.0));
        assert_eq!((two[0].mean_ns, two[0].max_ns), (175.0, 400));
        assert_eq!((two.len(), two[1].read), (2, 25000.0));
    }

    #[test]
    fn short_last_interval_is_dropped() {
        let steps = [step(1.0, 10, 1.0), step(2.0, 10, 1.0), step(2.1, 10, 1.0)];
        assert_eq!(moments(&steps, 100).len(), 2);
        assert_eq!(moments(&[step(0.0, 10, 1.0)], 100), [], "a step without a duration has no rate");
        assert_eq!(moments(&[], 100), []);
    }
}

//! Differences and their confidence intervals.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// The largest autocorrelation that a series can be corrected for. A series beyond it drifts, and has the worth of
/// one value or two.
const MEMORY: f64 = 0.95;

/// The bound that a value of the t distribution exceeds in either direction with this probability.
pub fn t(freedom: f64, chance: f64) -> f64 {
    let freedom = if freedom >= 1.0 { freedom.min(1e6) } else { 1.0 };
    StudentsT::new(0.0, 1.0, freedom).map_or(f64::MAX, |t| t.inverse_cdf(1.0 - chance / 2.0))
}

/// The mean and the sample variance; None for less than two values.
pub fn moments(sample: &[f64]) -> Option<(f64, f64)> {
    if sample.len() < 2 {
        return None;
    }
    let many = sample.len() as f64;
    let mean = sample.iter().sum::<f64>() / many;
    Some((mean, sample.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (many - 1.0)))
}

/// A mean, its squared standard error, and the degrees of freedom.
#[derive(Clone, Copy, Debug)]
pub struct MeanEstimate {
    /// The mean.
    pub mean: f64,
    /// The squared standard error.
    pub error2: f64,
    /// Degrees of freedom.
    pub freedom: f64,
}

impl MeanEstimate {
    /// The mean of independent values; None for less than two.
    pub fn of(sample: &[f64]) -> Option<MeanEstimate> {
        let many = sample.len() as f64;
        moments(sample).map(|(mean, variance)| MeanEstimate {
            mean,
            error2: variance / many,
            freedom: many - 1.0,
        })
    }

    /// The estimate for any run of the same job, from one run.
    pub fn of_any_run(self) -> MeanEstimate {
        let between = (self.mean * BETWEEN_RUNS).powi(2);
        let error2 = self.error2 + between;
        // The deviation between runs is taken as known; it adds no uncertainty of its own.
        let freedom =
            if self.error2 > 0.0 { self.freedom * (error2 / self.error2).powi(2) } else { f64::MAX };
        MeanEstimate { error2, freedom, ..self }
    }

    /// The mean of a time series, whose values depend on the values before them; None for less than two.
    pub fn of_series(series: &[f64]) -> Option<MeanEstimate> {
        let (many, worth) = (series.len() as f64, worth(series));
        // The values of a series with a memory are also closer to their own mean than to the true one.
        let spread = |variance: f64| variance * (many - 1.0) / many * worth / (worth - 1.0);
        moments(series).map(|(mean, variance)| MeanEstimate {
            mean,
            error2: spread(variance) / worth,
            freedom: worth - 1.0,
        })
    }
}

/// The relative standard deviation between runs of the same job, for reasons that one run cannot show: the places of
/// its memory and threads, the clock of the processor, the other work of the host of a virtual machine.
const BETWEEN_RUNS: f64 = 0.02;

/// The number of independent values that a time series is worth, at least two. Its memory is taken as a decay from
/// one value to the next (a first-order autoregressive process).
pub fn worth(series: &[f64]) -> f64 {
    let many = series.len() as f64;
    let Some((mean, variance)) = moments(series).filter(|(_, variance)| *variance > 0.0) else {
        return many.max(2.0);
    };
    let products = series.windows(2).map(|two| (two[0] - mean) * (two[1] - mean));
    let seen = products.sum::<f64>() / (variance * (many - 1.0));
    // A short series shows less memory than the process has (Kendall 1954).
    let memory = (seen + (1.0 + 3.0 * seen) / many).clamp(0.0, MEMORY);
    (many * (1.0 - memory) / (1.0 + memory)).max(2.0)
}

/// The interval of the difference `b - a` of two means that is wrong with this probability, by Welch's t, which
/// allows different variances.
pub fn welch(a: MeanEstimate, b: MeanEstimate, chance: f64) -> (f64, f64) {
    let error2 = a.error2 + b.error2;
    let parts = [a, b].map(|of| of.error2.powi(2) / of.freedom).iter().sum::<f64>();
    let freedom = if parts > 0.0 { error2.powi(2) / parts } else { f64::MAX };
    let (difference, half) = (b.mean - a.mean, t(freedom, chance) * error2.sqrt());
    (difference - half, difference + half)
}

/// A figure with bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoundedFigure {
    /// Lower bound.
    pub low: f64,
    /// The figure.
    pub figure: f64,
    /// Upper bound.
    pub high: f64,
}

/// The variation of the latencies of a run, as its intervals show it.
#[derive(Clone, Copy, Debug)]
pub struct LatencyDrift {
    /// The number of commands that are worth one independent command.
    pub effect: f64,
    /// The relative standard error of all latencies together: their level differs between intervals by more than
    /// commands explain.
    pub level: f64,
    /// Degrees of freedom.
    pub freedom: f64,
}

/// A quantile of a histogram with bounds that are wrong with this probability: from the ranks of a binomial
/// distribution, from the drift of all latencies, and from the deviation between runs.
pub fn quantile(
    latency: &crate::outcome::Latency,
    share: f64,
    drift: LatencyDrift,
    chance: f64,
) -> Option<BoundedFigure> {
    let (many, bound) = (latency.count() as f64, t(drift.freedom, chance));
    let half = bound * (share * (1.0 - share) * drift.effect.max(1.0) / many).sqrt();
    let at = |share: f64| latency.quantile(share.clamp(0.0, 1.0)).map(|ns| ns as f64);
    let (low, figure, high) = (at(share - half)?, at(share)?, at(share + half)?);
    let level = (bound * drift.level).hypot(t(f64::MAX, chance) * BETWEEN_RUNS) * figure;
    Some(BoundedFigure {
        low: figure - (figure - low).hypot(level),
        figure,
        high: figure + (high - figure).hypot(level),
    })
}

/// The bounds of the difference `b - a` of two bounded figures (the method of variance estimates recovery).
pub fn difference(a: BoundedFigure, b: BoundedFigure) -> (f64, f64) {
    let figure = b.figure - a.figure;
    let down = ((b.figure - b.low).powi(2) + (a.high - a.figure).powi(2)).sqrt();
    let up = ((b.high - b.figure).powi(2) + (a.figure - a.low).powi(2)).sqrt();
    (figure - down, figure + up)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Latency;

    #[test]
    fn t_quantiles_match_published_tables() {
        let table = [
            (1.0, 0.05, 12.706),
            (10.0, 0.05, 2.228),
            (10.0, 0.01, 3.169),
            (40.0, 0.05, 2.021),
            (120.0, 0.001, 3.373),
            (1e9, 0.05, 1.960),
            (0.0, 0.05, 12.706),
            (f64::NAN, 0.05, 12.706),
        ];
        for (freedom, chance, expected) in table {
            assert!((t(freedom, chance) - expected).abs() < 0.001, "{freedom}: {}", t(freedom, chance));
        }
    }

    /// Two samples with a manually computed interval: means 5 and 8, variances 2.5 and 2.5, 8 degrees.
    #[test]
    fn welch_interval_matches_manual_result() {
        let a = MeanEstimate::of(&[3.0, 4.0, 5.0, 6.0, 7.0]).unwrap();
        let b = MeanEstimate::of(&[6.0, 7.0, 8.0, 9.0, 10.0]).unwrap();
        let (low, high) = welch(a, b, 0.05);
        assert!((low - (3.0 - 2.306)).abs() < 1e-3 && (high - (3.0 + 2.306)).abs() < 1e-3, "{low} {high}");
        let same = MeanEstimate::of(&[4.0, 4.0]).unwrap();
        assert_eq!(welch(same, same, 0.05), (0.0, 0.0), "no variance, no width");
        assert!(MeanEstimate::of(&[1.0]).is_none());
    }

    /// A sawtooth of period 20 has few independent values; alternating values are as good as independent ones.
    #[test]
    fn series_with_memory_is_worth_fewer_values() {
        let slow: Vec<f64> = (0..60).map(|n| f64::from((n / 10) % 2)).collect();
        let fast: Vec<f64> = (0..60).map(|n| f64::from(n % 2)).collect();
        assert!(worth(&slow) < 10.0, "{}", worth(&slow));
        assert_eq!((worth(&fast), worth(&[1.0; 9]), worth(&[1.0, 2.0])), (60.0, 9.0, 2.0));
        let [slow, fast] = [slow, fast].map(|series| MeanEstimate::of_series(&series).unwrap());
        assert!(slow.mean == fast.mean && slow.error2 > 4.0 * fast.error2 && slow.freedom < 9.0, "{slow:?}");
        assert!(MeanEstimate::of_series(&[1.0]).is_none());
    }

    #[test]
    fn one_run_stands_for_others_of_its_job() {
        let exact = MeanEstimate { mean: 100.0, error2: 0.0, freedom: 1.0 }.of_any_run();
        assert_eq!((exact.error2, exact.freedom), (4.0, f64::MAX));
        let noisy = MeanEstimate { mean: 100.0, error2: 4.0, freedom: 3.0 }.of_any_run();
        assert_eq!((noisy.error2, noisy.freedom), (8.0, 12.0));
    }

    #[test]
    fn quantile_bounds_widen_with_correlation() {
        let histogram = (1..=1000).map(|ns| (ns, 1)).collect();
        let latency = Latency { histogram, ..Latency::default() };
        let drift = LatencyDrift { effect: 1.0, level: 0.0, freedom: 1e6 };
        let median = quantile(&latency, 0.5, drift, 0.05).unwrap();
        let about = |found: f64, expected: f64| (found - expected).abs() < 1.0;
        // 470 and 531 by rank, and 3.9 % of 500 between runs.
        assert!(
            median.figure == 500.0 && about(median.low, 464.2) && about(median.high, 536.7),
            "{median:?}"
        );
        let wide = quantile(&latency, 0.5, LatencyDrift { effect: 4.0, ..drift }, 0.05).unwrap();
        assert!(about(wide.low, 436.0) && about(wide.high, 565.0), "{wide:?}");
        let drifting = quantile(&latency, 0.5, LatencyDrift { level: 0.1, ..drift }, 0.05).unwrap();
        assert!(drifting.low < 403.0 && drifting.high > 597.0, "{drifting:?}");
        assert_eq!(quantile(&Latency::default(), 0.5, drift, 0.05), None);
        let median = BoundedFigure { low: 470.0, figure: 500.0, high: 531.0 };
        let (low, high) = difference(median, BoundedFigure { low: 590.0, figure: 600.0, high: 610.0 });
        assert!(low < 100.0 - 30.0 && high > 100.0 + 30.0, "{low} {high}");
    }
}

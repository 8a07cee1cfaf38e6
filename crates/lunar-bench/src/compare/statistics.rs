//! Differences and their confidence intervals.

/// The 95 % bounds of the t distribution for 1 to 30 degrees of freedom.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
/// The 95 % bound of the normal distribution.
const Z: f64 = 1.959964;

/// The 95 % bound for a number of degrees of freedom.
pub fn t(freedom: f64) -> f64 {
    // Rounded down, so that an interval is rather too wide.
    match freedom.floor() {
        f if f < 1.0 || f.is_nan() => T[0],
        f if f <= 30.0 => T[f as usize - 1],
        f => {
            Z + (Z.powi(3) + Z) / (4.0 * f) + (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / (96.0 * f * f)
        }
    }
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
}

/// The 95 % interval of the difference `b - a` of two means, by Welch's t, which allows different variances.
pub fn welch(a: MeanEstimate, b: MeanEstimate) -> (f64, f64) {
    let error2 = a.error2 + b.error2;
    let parts = [a, b].map(|of| of.error2.powi(2) / of.freedom).iter().sum::<f64>();
    let freedom = if parts > 0.0 { error2.powi(2) / parts } else { f64::MAX };
    let (difference, half) = (b.mean - a.mean, t(freedom) * error2.sqrt());
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

/// A quantile of a histogram with 95 % bounds from the ranks of a binomial distribution. `effect` is the number
/// of commands that are worth one independent command.
pub fn quantile(latency: &crate::outcome::Latency, share: f64, effect: f64) -> Option<BoundedFigure> {
    let many = latency.count() as f64;
    let half = Z * (share * (1.0 - share) * effect.max(1.0) / many).sqrt();
    let at = |share: f64| latency.quantile(share.clamp(0.0, 1.0)).map(|ns| ns as f64);
    Some(BoundedFigure { low: at(share - half)?, figure: at(share)?, high: at(share + half)? })
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
        for (freedom, expected) in [(1.0, 12.706), (10.9, 2.228), (40.0, 2.021), (120.0, 1.980), (1e9, 1.960)]
        {
            assert!((t(freedom) - expected).abs() < 0.001, "{freedom}: {}", t(freedom));
        }
        assert_eq!([t(0.0), t(f64::NAN)], [12.706; 2]);
    }

    /// Two samples with a manually computed interval: means 5 and 8, variances 2.5 and 2.5, 8 degrees.
    #[test]
    fn welch_interval_matches_manual_result() {
        let a = MeanEstimate::of(&[3.0, 4.0, 5.0, 6.0, 7.0]).unwrap();
        let b = MeanEstimate::of(&[6.0, 7.0, 8.0, 9.0, 10.0]).unwrap();
        let (low, high) = welch(a, b);
        assert!((low - (3.0 - 2.306)).abs() < 1e-3 && (high - (3.0 + 2.306)).abs() < 1e-3, "{low} {high}");
        let same = MeanEstimate::of(&[4.0, 4.0]).unwrap();
        assert_eq!(welch(same, same), (0.0, 0.0), "no variance, no width");
        assert!(MeanEstimate::of(&[1.0]).is_none());
    }

    #[test]
    fn quantile_bounds_widen_with_correlation() {
        let histogram = (1..=1000).map(|ns| (ns, 1)).collect();
        let latency = Latency { histogram, ..Latency::default() };
        let median = quantile(&latency, 0.5, 1.0).unwrap();
        assert_eq!(median, BoundedFigure { low: 470.0, figure: 500.0, high: 531.0 });
        let wide = quantile(&latency, 0.5, 4.0).unwrap();
        assert_eq!((wide.low, wide.high), (439.0, 562.0));
        assert_eq!(quantile(&Latency::default(), 0.5, 1.0), None);
        let (low, high) = difference(median, BoundedFigure { low: 590.0, figure: 600.0, high: 610.0 });
        assert!(low < 100.0 - 30.0 && high > 100.0 + 30.0, "{low} {high}");
    }
}

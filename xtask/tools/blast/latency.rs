//! A histogram of latencies: steps of 0.1 us up to 2 ms, of 10 us above.

const FINE: usize = 20_000;
const BUCKETS: usize = 65_536;

/// Counted latencies.
#[derive(Debug)]
pub struct LatencyHistogram {
    buckets: Vec<u64>,
    total: u64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        LatencyHistogram { buckets: vec![0; BUCKETS], total: 0 }
    }
}

impl LatencyHistogram {
    /// Counts one command that took `ns` nanoseconds.
    pub fn count(&mut self, ns: u64) {
        let tenths = (ns / 100) as usize;
        let bucket = if tenths < FINE { tenths } else { FINE + (tenths - FINE) / 100 };
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
        self.total += 1;
    }

    /// Adds another histogram.
    pub fn add(&mut self, other: &LatencyHistogram) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.total += other.total;
    }

    /// The latency in microseconds that this share of all commands did not exceed.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        let wanted = quantile * self.total as f64;
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|count| {
            seen += count;
            seen as f64 >= wanted
        });
        match bucket.unwrap_or(0) {
            fine if fine < FINE => fine as f64 / 10.0,
            coarse => FINE as f64 / 10.0 + (coarse - FINE) as f64 * 10.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_comes_from_the_right_bucket() {
        let mut latency = LatencyHistogram::default();
        for us in 1..=100 {
            latency.count(us * 1000);
        }
        latency.count(5_000_000);
        assert_eq!(latency.quantile_us(0.5), 51.0);
        assert_eq!(latency.quantile_us(1.0), 5000.0);
    }
}

//! The times at which commands are due, at a given rate.

use crate::job::{ArrivalProcess, Job};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::Exp1;
use std::time::{Duration, Instant};

/// The maximum number of groups of a backlog.
const GROUPS: u64 = 1000;

/// Generates the times at which the commands of a session are due.
pub struct ArrivalTimes {
    next: Instant,
    mean: Duration,
    random: Option<SmallRng>,
}

impl ArrivalTimes {
    /// Creates the generator of a session; None in a closed loop.
    pub fn new(job: &Job, start: Instant, index: usize, sessions: usize) -> Option<ArrivalTimes> {
        let (rate, is_random) = match job.pace {
            ArrivalProcess::Closed => return None,
            ArrivalProcess::Even(rate) => (rate, false),
            ArrivalProcess::Poisson(rate) => (rate, true),
        };
        let mean = Duration::from_secs_f64(sessions as f64 / rate);
        let random = is_random.then(|| SmallRng::seed_from_u64(!job.stream_seed(index as u64)));
        // Stagger the sessions.
        let next = start + mean.mul_f64((index + 1) as f64 / sessions as f64);
        Some(ArrivalTimes { next, mean, random })
    }

    /// The next time.
    pub fn take(&mut self) -> Instant {
        let due = self.next;
        self.next += match &mut self.random {
            Some(random) => self.mean.mul_f64(random.sample(Exp1)),
            None => self.mean,
        };
        due
    }

    /// The commands that were due before `end` and did not start, as (count, time waited). A long backlog is
    /// returned in groups, each with the wait at its middle. For random arrivals the counts are the expected
    /// ones.
    pub fn backlog(&self, end: Instant) -> Vec<(u64, Duration)> {
        let late = end.saturating_duration_since(self.next);
        if late.is_zero() {
            return Vec::new();
        }
        let many = (late.as_secs_f64() / self.mean.as_secs_f64()) as u64 + 1;
        let groups = many.min(GROUPS);
        let first = |group: u64| (u128::from(many) * u128::from(group) / u128::from(groups)) as u64;
        let waits = |group: u64| {
            let (from, to) = (first(group), first(group + 1));
            (to - from, late.saturating_sub(self.mean.mul_f64(((from + to - 1) / 2) as f64)))
        };
        (0..groups).map(waits).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poisson_intervals_are_exponential_and_even_ones_equal() {
        const MANY: usize = 10_000;
        let gaps = |pace| {
            let job = Job { pace, ..Job::default() };
            let mut arrivals = ArrivalTimes::new(&job, Instant::now(), 0, 1).expect("a rate");
            let moments: Vec<Instant> = (0..=MANY).map(|_| arrivals.take()).collect();
            moments.windows(2).map(|two| (two[1] - two[0]).as_secs_f64()).collect::<Vec<f64>>()
        };
        let share =
            |gaps: &[f64], longer: f64| gaps.iter().filter(|gap| **gap > longer).count() as f64 / MANY as f64;
        let (even, poisson) = (gaps(ArrivalProcess::Even(1000.0)), gaps(ArrivalProcess::Poisson(1000.0)));
        assert!(even.iter().all(|gap| (gap - 1e-3).abs() < 1e-8), "{:?}", &even[..9]);
        let mean = poisson.iter().sum::<f64>() / MANY as f64;
        assert!((mean - 1e-3).abs() < 5e-5, "{mean}");
        // A share of e^-n of exponential intervals exceeds n means.
        for n in [0.1, 0.5, 1.0, 2.0, 4.0] {
            let (found, expected) = (share(&poisson, n * 1e-3), (-n).exp());
            assert!((found - expected).abs() < 0.02, "{found} exceed {n} means, expected {expected}");
        }
    }

    #[test]
    fn backlog_has_the_time_waited() {
        let start = Instant::now();
        let job = Job { pace: ArrivalProcess::Even(100.0), ..Job::default() };
        let mut arrivals = ArrivalTimes::new(&job, start, 0, 1).expect("a rate");
        let ms = Duration::from_millis;
        assert_eq!(arrivals.take(), start + ms(10));
        assert!(arrivals.backlog(start + ms(20)).is_empty());
        assert_eq!(arrivals.backlog(start + ms(41)), [(1, ms(21)), (1, ms(11)), (1, ms(1))]);
        // Two hours of commands, in groups.
        let groups = arrivals.backlog(start + ms(20) + Duration::from_secs(7200));
        assert_eq!((groups.len() as u64, groups.iter().map(|group| group.0).sum::<u64>()), (GROUPS, 720_001));
        assert!(groups.is_sorted_by(|a, b| a.1 > b.1) && groups[0].1 > Duration::from_secs(7190));
    }
}

//! When commands are due, at a given rate.

use crate::job::{Job, Pace};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::Exp1;
use std::time::{Duration, Instant};

/// The moments at which commands are due.
pub struct Arrivals {
    next: Instant,
    mean: Duration,
    random: Option<SmallRng>,
}

impl Arrivals {
    /// Those of a session; none in a closed loop.
    pub fn new(job: &Job, start: Instant, index: usize, sessions: usize) -> Option<Arrivals> {
        let (rate, is_random) = match job.pace {
            Pace::Closed => return None,
            Pace::Even(rate) => (rate, false),
            Pace::Poisson(rate) => (rate, true),
        };
        let mean = Duration::from_secs_f64(sessions as f64 / rate);
        let random = is_random.then(|| SmallRng::seed_from_u64(!job.chance(index as u64)));
        // Sessions do not all begin at the same moment.
        let next = start + mean.mul_f64((index + 1) as f64 / sessions as f64);
        Some(Arrivals { next, mean, random })
    }

    /// The next one.
    pub fn take(&mut self) -> Instant {
        let due = self.next;
        self.next += match &mut self.random {
            Some(random) => self.mean.mul_f64(random.sample(Exp1)),
            None => self.mean,
        };
        due
    }

    /// Commands that were due before `end`, and that nobody took.
    pub fn backlog(&self, end: Instant) -> u64 {
        let late = end.saturating_duration_since(self.next);
        (late.as_secs_f64() / self.mean.as_secs_f64()) as u64
    }
}

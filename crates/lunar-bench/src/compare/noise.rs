//! Tests that noise is no difference, and that a real difference is found in it: pairs of synthetic runs.

use super::{Comparison, compare};
use crate::outcome::{CpuTime, DirectionTotals, IoCounts, JobOutcome, Latency, SeriesStep};
use crate::sample;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, LogNormal, StandardNormal};
use std::collections::BTreeMap;

const PAIRS: u64 = 200;
/// The intervals of a run, each a second.
const STEPS: usize = 30;
/// The mean latency of a command, one at a time: about 200 commands a second.
const MEAN_NS: f64 = 5e6;

/// The noise of a machine.
#[derive(Clone, Copy, Debug)]
struct Noise {
    /// The relative deviation of the speed of an interval.
    deviation: f64,
    /// The correlation of the speed of an interval with that of the interval before.
    memory: f64,
    /// The probability that a disturbance begins in an interval; it halves the speed of two to four.
    disturbed: f64,
    /// The relative deviation of the speed of a whole run.
    between_runs: f64,
}

/// A machine without noise but that of commands.
const QUIET: Noise = Noise { deviation: 0.0, memory: 0.0, disturbed: 0.0, between_runs: 0.0 };

/// The speeds of the intervals of a run.
fn speeds(noise: Noise, rng: &mut SmallRng) -> Vec<f64> {
    let mut normal = || -> f64 { rng.sample(StandardNormal) };
    let (run, mut state) = (normal() * noise.between_runs, normal());
    let mut speeds: Vec<f64> = (0..STEPS)
        .map(|_| {
            let speed = (run + state * noise.deviation).exp();
            state = state * noise.memory + normal() * (1.0 - noise.memory.powi(2)).sqrt();
            speed
        })
        .collect();
    for at in 0..STEPS {
        if rng.random_bool(noise.disturbed) {
            let end = (at + rng.random_range(2..=4)).min(STEPS);
            speeds[at..end].iter_mut().for_each(|speed| *speed *= 0.5);
        }
    }
    speeds
}

/// A run of reads of 4 KiB, one at a time, with a tail of latencies.
fn run(label: &str, noise: Noise, slower: f64, rng: &mut SmallRng) -> crate::document::JobRun {
    let shape = LogNormal::new(-0.18, 0.6).expect("a distribution");
    let (mut bins, mut series) = (BTreeMap::<u64, u64>::new(), Vec::new());
    let (mut sum, mut squares, mut all) = (0.0, 0.0, 0u64);
    for (n, speed) in speeds(noise, rng).into_iter().enumerate() {
        let (mut left, mut ios, mut longest) = (1e9, 0u64, 0f64);
        let before = sum;
        while left > 0.0 {
            let ns: f64 = MEAN_NS * slower / speed * shape.sample(rng);
            (left, ios, longest) = (left - ns, ios + 1, longest.max(ns));
            (sum, squares) = (sum + ns, squares + ns * ns);
            // Three digits, as a histogram has.
            *bins.entry((ns / 1e4).round() as u64 * 10_000).or_default() += 1;
        }
        all += ios;
        let share = IoCounts { read_ios: ios, read_bytes: ios * 4096, ..IoCounts::default() };
        let mean_ns = (sum - before) / ios as f64;
        series.push(SeriesStep { until_s: (n + 1) as f64, share, mean_ns, max_ns: longest as u64 });
    }
    let mean_ns = sum / all as f64;
    let stddev_ns = (squares / all as f64 - mean_ns * mean_ns).sqrt();
    let total = Latency { mean_ns, stddev_ns, histogram: bins.into_iter().collect(), ..Latency::default() };
    let read = DirectionTotals { ios: all, bytes: all * 4096, total, ..DirectionTotals::default() };
    let cpu = CpuTime { client_s: all as f64 * 8e-6, ..CpuTime::default() };
    let outcome = JobOutcome { elapsed_s: STEPS as f64, read, series, cpu, ..JobOutcome::default() };
    crate::document::JobRun { label: label.into(), job: Vec::new(), targets: Vec::new(), outcome }
}

/// Compares a pair of documents with these labels; the second one is slower.
fn pair(labels: &[&str], noise: Noise, slower: f64, seed: u64) -> Comparison {
    let mut rng = SmallRng::seed_from_u64(seed);
    let [a, b] = [1.0, slower].map(|slower| {
        let runs = labels.iter().map(|label| run(label, noise, slower, &mut rng)).collect();
        crate::Document { runs, ..sample::empty("noise") }
    });
    compare(&a, &b, 5.0).expect("the same labels")
}

/// The number of pairs with a difference.
fn different(labels: &[&str], noise: Noise, slower: f64) -> u64 {
    (0..PAIRS).filter(|seed| !pair(labels, noise, slower, *seed).is_same()).count() as u64
}

/// Machines from quiet to one with a drift over many intervals.
const MACHINES: [Noise; 7] = [
    QUIET,
    Noise { deviation: 0.05, ..QUIET },
    Noise { deviation: 0.15, ..QUIET },
    Noise { deviation: 0.05, memory: 0.5, ..QUIET },
    Noise { deviation: 0.05, memory: 0.8, ..QUIET },
    Noise { deviation: 0.04, disturbed: 0.05, ..QUIET },
    Noise { deviation: 0.03, memory: 0.5, between_runs: 0.02, ..QUIET },
];

#[test]
fn noise_is_no_difference_in_19_of_20_pairs() {
    for noise in MACHINES {
        let found = different(&["read"], noise, 1.0);
        assert!(found * 20 <= PAIRS, "{noise:?}: {found} of {PAIRS}");
    }
}

#[test]
fn noise_of_several_jobs_is_no_difference() {
    for noise in [MACHINES[1], MACHINES[3], MACHINES[6]] {
        let found = different(&["a", "b", "c"], noise, 1.0);
        assert!(found * 20 <= PAIRS, "{noise:?}: {found} of {PAIRS}");
    }
}

#[test]
fn difference_of_ten_percent_is_found() {
    let still = Noise { deviation: 0.02, memory: 0.5, ..QUIET };
    for (noise, at_least) in [(QUIET, 180), (still, 160), (MACHINES[1], 150)] {
        let found = different(&["read"], noise, 1.1);
        assert!(found >= at_least, "{noise:?}: {found} of {PAIRS}");
    }
    // Runs that are repeated find it on a worse machine, and still find nothing where nothing is.
    let repeated = ["read"; 6];
    assert!(different(&repeated, MACHINES[6], 1.1) >= 180);
    assert!(different(&repeated, MACHINES[6], 1.0) * 20 <= PAIRS);
}

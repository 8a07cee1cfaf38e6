//! Jobs that are run several times: until the figures are steady, or to find the highest rate that keeps a
//! bound on latency.

use crate::document::Run;
use crate::job::{Job, Pace};
use crate::outcome::{Outcome, Totals};
use crate::{Error, Kind, Rig, Watch, plain};
use std::time::Duration;

/// Rounds that are looked at together (SNIA PTS 2.0.2, steady state).
const WINDOW: usize = 5;
/// The most that the largest and the smallest of them may be apart, relative to their mean.
const EXCURSION: f64 = 0.20;
/// The most that the fitted line may rise or fall over the window, relative to their mean.
const SLOPE: f64 = 0.10;

/// What must be steady.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Figure {
    /// Commands a second.
    Iops,
    /// Bytes a second.
    Bw,
    /// Mean latency.
    Lat,
}

impl Figure {
    fn of(self, outcome: &Outcome) -> f64 {
        let (read, write) = (&outcome.read, &outcome.write);
        match self {
            Figure::Iops => outcome.iops(),
            Figure::Bw => outcome.rate(),
            Figure::Lat => {
                let [reads, writes] = [read, write].map(|totals| totals.total.count() as f64);
                let sum = read.total.mean_ns * reads + write.total.mean_ns * writes;
                sum / (reads + writes).max(1.0)
            }
        }
    }
}

/// How far a window is from being level, relative to its mean.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Levelness {
    excursion: f64,
    slope: f64,
}

impl Levelness {
    fn of(window: &[f64]) -> Levelness {
        let n = window.len() as f64;
        let mean = window.iter().sum::<f64>() / n;
        let (low, high) = window.iter().fold((f64::MAX, f64::MIN), |(l, h), x| (l.min(*x), h.max(*x)));
        let middle = (n - 1.0) / 2.0;
        let at = |i: usize| i as f64 - middle;
        let square: f64 = (0..window.len()).map(|i| at(i) * at(i)).sum();
        let rise = window.iter().enumerate().map(|(i, x)| at(i) * (x - mean)).sum::<f64>() / square;
        Levelness { excursion: (high - low) / mean, slope: (rise * (n - 1.0)).abs() / mean }
    }

    fn is_steady(self) -> bool {
        self.excursion <= EXCURSION && self.slope <= SLOPE
    }
}

/// Runs a job in rounds until the last five are steady, at most `most` times, each at places of its own. The
/// note tells what was found.
///
/// # Errors
/// As [`Rig::run`].
pub fn until_steady(
    rig: &Rig,
    job: &Job,
    figure: Figure,
    most: usize,
    watch: &Watch,
) -> Result<(Vec<Run>, String), Error> {
    let (mut runs, mut figures) = (Vec::new(), Vec::new());
    for round in 1..=most {
        let mut run = plain::one(rig, &job.round(round - 1), watch)?;
        run.label = format!("round {round}: {}", run.label);
        figures.push(figure.of(&run.outcome));
        let is_whole = run.outcome.ended_early.is_none();
        runs.push(run);
        let level = figures.len().checked_sub(WINDOW).map(|first| Levelness::of(&figures[first..]));
        if let Some(level) = level.filter(|level| is_whole && level.is_steady()) {
            return Ok((runs, told(&figures, level, "steady")));
        }
        if watch.is_ended() || !is_whole {
            break;
        }
    }
    let note = match figures.len().checked_sub(WINDOW) {
        Some(first) => told(&figures, Levelness::of(&figures[first..]), "not steady"),
        None => format!("not steady: {} rounds, and it takes {WINDOW} to tell", figures.len()),
    };
    Ok((runs, note))
}

fn told(figures: &[f64], level: Levelness, how: &str) -> String {
    format!(
        "{how} after {} rounds: in the last {WINDOW} the excursion is {:.1} % of the mean (at most {:.0} %), \
         the slope {:.1} % (at most {:.0} %)",
        figures.len(),
        level.excursion * 100.0,
        EXCURSION * 100.0,
        level.slope * 100.0,
        SLOPE * 100.0
    )
}

/// A bound on latency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// So many of a hundred commands must end within the time.
    pub percent: f64,
    /// The time, from the moment a command is due.
    pub within: Duration,
}

/// Halvings of the range in which the rate is looked for.
const HALVINGS: usize = 7;
/// A rate is reached if this much of what was due was served.
const SERVED: f64 = 0.95;

impl Bound {
    fn is_kept(self, outcome: &Outcome) -> bool {
        let within = self.within.as_nanos() as u64;
        // Who was served after the time was over came in time.
        let served = outcome.ios() + outcome.late;
        let due = served + outcome.backlog;
        let late =
            |totals: &Totals| totals.total.quantile(self.percent / 100.0).is_some_and(|ns| ns > within);
        outcome.ended_early.is_none()
            && outcome.errors == 0
            && served as f64 >= due as f64 * SERVED
            && !late(&outcome.read)
            && !late(&outcome.write)
    }
}

/// Looks for the highest rate at which the bound is kept: first as fast as it goes, then by halving. The note
/// tells what was found.
///
/// # Errors
/// As [`Rig::run`]; when the job has a rate already.
pub fn highest_rate(rig: &Rig, job: &Job, bound: Bound, watch: &Watch) -> Result<(Vec<Run>, String), Error> {
    if job.pace != Pace::Closed {
        let what = "a rate is given, and one is to be found";
        return Err(Error::new(Kind::Invalid, what, "leave out --rate"));
    }
    let mut runs = vec![plain::one(rig, job, watch)?];
    let (mut low, mut high) = (0.0, runs[0].outcome.iops());
    let fastest = high;
    while runs.len() <= HALVINGS && !watch.is_ended() {
        let rate = if runs.len() == 1 { high } else { (low + high) / 2.0 };
        if rate <= 0.0 {
            break;
        }
        let mut run = plain::one(rig, &Job { pace: Pace::Poisson(rate), ..job.round(runs.len()) }, watch)?;
        let is_kept = bound.is_kept(&run.outcome);
        run.label = format!("{rate:.0} a second: {}", if is_kept { "kept" } else { "not kept" });
        runs.push(run);
        if is_kept {
            low = rate
        } else {
            high = rate
        }
        if low >= fastest {
            break;
        }
    }
    let bound = format!("{} % within {}", bound.percent, humantime::format_duration(bound.within));
    let note = match low > 0.0 {
        true => format!("{bound}: up to {low:.0} commands a second (as fast as it goes: {fastest:.0})"),
        false => format!("{bound}: at none of the rates that were tried, down to {high:.0} a second"),
    };
    Ok((runs, note))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Order;
    use crate::outcome::Latency;
    use crate::run::tests::odd;
    use crate::{Opening, Target};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_window_is_steady_when_it_is_level_and_narrow() {
        let steady = |window: &[f64]| Levelness::of(window).is_steady();
        assert!(steady(&[100.0; 5]));
        assert!(steady(&[95.0, 105.0, 100.0, 105.0, 95.0]));
        assert!(!steady(&[89.0, 111.0, 100.0, 111.0, 89.0]), "22 % apart");
        assert!(!steady(&[94.0, 97.0, 100.0, 103.0, 106.0]), "it rises by 12 %");
        let level = Levelness::of(&[90.0, 95.0, 100.0, 105.0, 110.0]);
        assert!((level.slope - 0.2).abs() < 1e-9 && (level.excursion - 0.2).abs() < 1e-9, "{level:?}");
    }

    fn rig() -> Rig {
        let target = [Target::parse("null:1M").expect("a target")];
        Rig::open(&target, &Opening::default()).expect("a rig")
    }

    fn short() -> Job {
        Job { time: Some(Duration::from_millis(30)), ..Job::default() }
    }

    #[test]
    fn rounds_go_on_until_the_most_or_until_they_are_steady() {
        let run = |most| until_steady(&rig(), &short(), Figure::Iops, most, &Watch::default()).expect("runs");
        let (runs, note) = run(3);
        assert_eq!((runs.len(), note.as_str()), (3, "not steady: 3 rounds, and it takes 5 to tell"));
        let (runs, note) = run(12);
        assert!(runs.len() >= 5 && note.contains("steady after"), "{} {note}", runs.len());
        assert!(runs[0].label.starts_with("round 1: read"));
    }

    #[test]
    fn each_round_visits_other_places_and_the_same_seed_the_same_ones() {
        let visited = |seed| {
            let (note, seen) = flume::unbounded();
            let rig = odd(move |offset| {
                let _ = note.send(offset);
                Box::pin(async { Ok(()) })
            });
            let job =
                Job { order: Order::Random, time: None, amount: Some(4096 * 64), seed, ..Job::default() };
            until_steady(&rig, &job, Figure::Iops, 2, &Watch::default()).expect("two rounds");
            seen.drain().collect::<Vec<u64>>()
        };
        let places = visited(7);
        assert_eq!(places.len(), 128);
        assert_ne!(places[..64], places[64..]);
        assert_eq!(places, visited(7));
        assert_ne!(places, visited(9));
    }

    /// A disk whose n-th read takes so many milliseconds.
    fn taking(ms: fn(u64) -> u64) -> Rig {
        let count = Arc::new(AtomicU64::new(0));
        odd(move |_| {
            let wait = Duration::from_millis(ms(count.fetch_add(1, Ordering::Relaxed)));
            Box::pin(async move {
                compio::time::sleep(wait).await;
                Ok(())
            })
        })
    }

    #[test]
    fn bandwidth_and_latency_are_steady_where_they_stay_and_not_where_they_drift() {
        let four = Job { time: None, amount: Some(4 * 4096), ..Job::default() };
        for figure in [Figure::Bw, Figure::Lat] {
            let run =
                |rig: Rig, most| until_steady(&rig, &four, figure, most, &Watch::default()).expect("runs");
            let (runs, note) = run(taking(|_| 50), 25);
            assert!(runs.len() >= 5 && note.starts_with("steady after"), "{figure:?}: {note}");
            let (runs, note) = run(taking(|n| 20 * (1 + n / 4)), 6);
            assert!(runs.len() == 6 && note.starts_with("not steady after 6 rounds"), "{figure:?}: {note}");
        }
    }

    #[test]
    fn a_rate_is_found_below_what_the_target_can_do_and_a_looser_bound_finds_no_lower_one() {
        const DELAY: Duration = Duration::from_millis(40);
        let mut rig = rig();
        rig.wrap(|_, disk| block::filter::delay(disk, DELAY, DELAY));
        let job = Job { depth: 8, time: Some(Duration::from_millis(500)), ..Job::default() };
        let found = |ms| {
            let bound = Bound { percent: 90.0, within: Duration::from_millis(ms) };
            let (runs, note) = highest_rate(&rig, &job, bound, &Watch::default()).expect("runs");
            let kept = |run: &Run| run.label.strip_suffix(" a second: kept")?.parse::<f64>().ok();
            let best = runs.iter().filter_map(kept).fold(0.0, f64::max);
            assert_eq!(best > 0.0, note.contains(&format!(": up to {best:.0} commands")), "{note}");
            best
        };
        let (never, tight, loose) = (found(20), found(150), found(10_000));
        // Eight at once, each of 40 ms, are 200 a second.
        assert!(never == 0.0 && tight >= 5.0 && loose <= 200.0 * 1.02, "{never} {tight} {loose}");
        assert!(tight <= loose * 1.5, "{tight} {loose}");
    }

    #[test]
    fn a_target_that_stalls_keeps_no_bound() {
        let stalling = taking(|n| if n < 20 { 1 } else { 400 });
        let job = Job {
            pace: Pace::Even(100.0),
            depth: 8,
            time: Some(Duration::from_millis(300)),
            ..Job::default()
        };
        let outcome = rig_run(&stalling, &job);
        assert!(outcome.late > 0 && outcome.read.ios == 20, "{} {}", outcome.late, outcome.read.ios);
        let bound = Bound { percent: 90.0, within: Duration::from_millis(100) };
        assert!(!bound.is_kept(&outcome), "{:?}", outcome.read.total);
    }

    #[test]
    fn what_a_stall_at_the_end_kept_from_beginning_is_in_the_latency() {
        let stalling = taking(|n| if n < 20 { 1 } else { 400 });
        let job = Job {
            pace: Pace::Even(100.0),
            depth: 2,
            time: Some(Duration::from_millis(300)),
            ..Job::default()
        };
        let outcome = rig_run(&stalling, &job);
        let Outcome { late, backlog, .. } = outcome;
        // Thirty are due, perhaps all but the last. Twenty are served, two never end, and seven or eight never begin;
        // on a machine that is busy fewer are served, and more never begin.
        let due = outcome.read.ios + late + backlog;
        assert!((29..=30).contains(&due) && outcome.read.ios <= 20, "{late} {backlog} of {due}");
        assert!((1..=2).contains(&late) && backlog >= 7, "{late} {backlog} of {due}");
        let total = &outcome.read.total;
        assert_eq!(total.count(), due);
        let slow = |ms: u64| {
            total.histogram.iter().filter(|bin| bin.0 > ms * 1_000_000).map(|bin| bin.1).sum::<u64>()
        };
        assert!(slow(15) >= 7, "{:?}", total.histogram);
        assert_eq!(outcome.read.service.count(), outcome.read.ios + outcome.late, "those never began");
    }

    fn rig_run(rig: &Rig, job: &Job) -> Outcome {
        rig.run(job, &Watch::default()).expect("an outcome")
    }

    #[test]
    fn a_bound_is_kept_if_the_rate_was_served_in_time_and_without_errors() {
        let total = Latency { histogram: vec![(1000, 99), (5000, 1)], ..Latency::default() };
        let read = Totals { ios: 100, total, ..Totals::default() };
        let outcome = Outcome { elapsed_s: 1.0, read, ..Outcome::default() };
        let bound = |percent, ns| Bound { percent, within: Duration::from_nanos(ns) };
        let with_backlog = |backlog| Outcome { backlog, ..outcome.clone() };
        assert!(bound(99.0, 1000).is_kept(&outcome));
        assert!(bound(99.0, 1000).is_kept(&with_backlog(5)), "95 % are enough");
        assert!(!bound(99.0, 1000).is_kept(&with_backlog(6)));
        assert!(!bound(99.5, 1000).is_kept(&outcome));
        assert!(bound(99.5, 5000).is_kept(&outcome));
        assert!(!bound(99.0, 1000).is_kept(&Outcome { errors: 1, ..outcome }));
    }

    #[test]
    fn a_bound_that_is_impossible_is_kept_at_no_rate() {
        let search = |within| {
            let bound = Bound { percent: 50.0, within };
            highest_rate(&rig(), &Job { depth: 4, ..short() }, bound, &Watch::default()).expect("runs").1
        };
        let never = search(Duration::from_nanos(1));
        assert!(never.contains("at none of the rates"), "{never}");
        let paced = Job { pace: Pace::Even(1.0), ..short() };
        let bound = Bound { percent: 99.0, within: Duration::from_millis(1) };
        assert_eq!(highest_rate(&rig(), &paced, bound, &Watch::default()).unwrap_err().kind, Kind::Invalid);
    }
}

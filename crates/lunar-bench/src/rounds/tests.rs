use super::search::RateRange;
use super::*;
use crate::document::{BoundVerdict, SteadyWindow};
use crate::job::{AccessPattern, ArrivalProcess};
use crate::outcome::{DirectionTotals, Latency};
use crate::run::tests::{lasting, odd};
use crate::{ErrorKind, TargetOptions, TargetSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[test]
fn window_is_steady_when_level_and_narrow() {
    let steady = |window: &[f64]| SteadyWindow::of(window).expect("five").is_steady();
    assert!(steady(&[100.0; 5]));
    assert!(steady(&[95.0, 105.0, 100.0, 105.0, 95.0]));
    assert!(!steady(&[89.0, 111.0, 100.0, 111.0, 89.0]), "22 % apart");
    assert!(!steady(&[94.0, 97.0, 100.0, 103.0, 106.0]), "a rise of 12 %");
    assert!(!steady(&[0.0; 5]), "a mean of zero");
    let level = SteadyWindow::of(&[7.0, 90.0, 95.0, 100.0, 105.0, 110.0]).expect("the last five");
    assert!((level.slope - 0.2).abs() < 1e-9 && (level.excursion - 0.2).abs() < 1e-9, "{level:?}");
    assert_eq!((level.mean, level.rounds, SteadyWindow::of(&[1.0; 4])), (100.0, 5, None));
}

fn opened() -> OpenTargets {
    let target = [TargetSpec::parse("null:1M").expect("a target")];
    OpenTargets::open(&target, &TargetOptions::default()).expect("a rig")
}

fn short() -> Job {
    Job { time: Some(Duration::from_millis(30)), ..Job::default() }
}

#[test]
fn rounds_end_at_steady_state_or_limit() {
    let run = |max| {
        until_steady(&opened(), &short(), SteadyMetric::Iops, max, &RunHandle::default()).expect("runs")
    };
    let (runs, steady) = run(3);
    assert_eq!((runs.len(), steady.rounds, steady.is_steady, &steady.window), (3, 3, false, &None));
    assert_eq!(steady.to_string(), "not steady: 3 rounds, at least 5 are required");
    let (runs, steady) = run(12);
    assert!(runs.len() >= 5 && steady.to_string().contains("steady after"), "{} {steady}", runs.len());
    let window = steady.window.expect("a window of five rounds");
    let mean = runs[runs.len() - 5..].iter().map(|run| run.outcome.iops()).sum::<f64>() / 5.0;
    assert!((window.mean / mean - 1.0).abs() < 1e-9, "{window:?}");
    assert!(runs[0].label.starts_with("round 1: read"));
}

/// A handle that is ended after this time.
fn ended_after(ms: u64) -> RunHandle {
    let handle = RunHandle::default();
    let ender = handle.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(ms));
        ender.end();
    });
    handle
}

#[test]
fn run_ended_by_user_is_labelled_and_not_counted() {
    let hour = Job { time: Some(Duration::from_secs(3600)), ..Job::default() };
    let (runs, steady) =
        until_steady(&opened(), &hour, SteadyMetric::Iops, 9, &ended_after(50)).expect("the results so far");
    assert_eq!((runs.len(), steady.rounds), (1, 0));
    assert!(runs[0].label.starts_with("round 1, cut short: read") && runs[0].outcome.read.ios > 0);
    // The first run takes half a second; the next trial is ended.
    let disk = taking(|_| 1);
    let job = Job { time: Some(Duration::from_millis(500)), ..Job::default() };
    let bound = LatencyBound { percent: 50.0, within: Duration::from_secs(10) };
    let (runs, search) = highest_rate(&disk, &job, bound, &ended_after(700)).expect("the results so far");
    assert_eq!((runs.len(), search.rate, search.tries.len()), (2, None, 0), "{search}");
    assert!(runs[1].label.contains(", cut short: "), "{}", runs[1].label);
    assert!(
        search.to_string().ends_with("no trial was completed; the last trial ended before its time"),
        "{search}"
    );
}

/// A disk whose reads fail from the n-th on.
fn dying(n: u64) -> OpenTargets {
    let count = Arc::new(AtomicU64::new(0));
    odd(move |_| {
        let is_dead = count.fetch_add(1, Ordering::Relaxed) >= n;
        Box::pin(async move {
            compio::time::sleep(Duration::from_millis(1)).await;
            if is_dead { Err(std::io::Error::other("it died")) } else { Ok(()) }
        })
    })
}

#[test]
fn failing_target_ends_search_and_rounds() {
    let job = Job { time: None, amount: Some(4096 * 50), ..Job::default() };
    let bound = LatencyBound { percent: 50.0, within: Duration::from_secs(10) };
    let (runs, search) =
        highest_rate(&dying(60), &job, bound, &RunHandle::default()).expect("the results so far");
    assert_eq!((runs.len(), search.rate), (2, None), "no further trial");
    assert!(runs[1].outcome.ended_early.as_ref().is_some_and(|why| why.contains("it died")));
    let (runs, steady) = until_steady(&dying(120), &job, SteadyMetric::Iops, 9, &RunHandle::default())
        .expect("the results so far");
    assert_eq!((runs.len(), steady.rounds), (3, 2));
}

#[test]
fn round_that_cannot_start_keeps_earlier_rounds() {
    let ten = Job { time: None, amount: Some(4096 * 10), ..Job::default() };
    let (runs, steady) = until_steady(&lasting(2), &ten, SteadyMetric::Iops, 9, &RunHandle::default())
        .expect("the results so far");
    assert_eq!((runs.len(), steady.rounds, runs[1].outcome.read.ios), (3, 2, 10));
    assert_eq!(runs[2].outcome.ended_early.as_deref(), Some("an event loop thread panicked"));
}

#[test]
fn rounds_use_different_offsets_reproducible_by_seed() {
    let visited = |seed| {
        let (note, seen) = flume::unbounded();
        let opened = odd(move |offset| {
            let _ = note.send(offset);
            Box::pin(async { Ok(()) })
        });
        let job =
            Job { order: AccessPattern::Random, time: None, amount: Some(4096 * 64), seed, ..Job::default() };
        until_steady(&opened, &job, SteadyMetric::Iops, 2, &RunHandle::default()).expect("two rounds");
        seen.drain().collect::<Vec<u64>>()
    };
    let places = visited(7);
    assert_eq!(places.len(), 128);
    assert_ne!(places[..64], places[64..]);
    assert_eq!(places, visited(7));
    assert_ne!(places, visited(9));
}

/// A disk whose n-th read takes this many milliseconds.
fn taking(ms: fn(u64) -> u64) -> OpenTargets {
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
fn bandwidth_and_latency_that_drift_are_not_steady() {
    let four = Job { time: None, amount: Some(4 * 4096), ..Job::default() };
    for figure in [SteadyMetric::Bw, SteadyMetric::Lat] {
        let run = |opened: OpenTargets, max| {
            until_steady(&opened, &four, figure, max, &RunHandle::default()).expect("runs")
        };
        let (runs, steady) = run(taking(|_| 50), 25);
        assert!(runs.len() >= 5 && steady.is_steady, "{figure:?}: {steady}");
        let (runs, steady) = run(taking(|n| 20 * (1 + n / 4)), 6);
        let text = steady.to_string();
        assert!(runs.len() == 6 && text.starts_with("not steady after 6 rounds"), "{figure:?}: {text}");
    }
}

#[test]
fn found_rate_is_below_capacity_and_grows_with_the_bound() {
    const DELAY: Duration = Duration::from_millis(40);
    let mut opened = opened();
    opened.wrap(|_, disk| lunar_block::filter::delay(disk, DELAY, DELAY));
    let job = Job { depth: 8, time: Some(Duration::from_millis(500)), ..Job::default() };
    let found = |ms| {
        let bound = LatencyBound { percent: 90.0, within: Duration::from_millis(ms) };
        let (runs, search) = highest_rate(&opened, &job, bound, &RunHandle::default()).expect("runs");
        let kept = search.tries.iter().filter(|tried| tried.verdict == BoundVerdict::Kept);
        let best = kept.map(|trial| trial.rate).fold(0.0, f64::max);
        assert_eq!(search.rate.unwrap_or(0.0), best);
        assert_eq!(
            best > 0.0,
            search.to_string().contains(&format!(": up to {best:.0} commands")),
            "{search}"
        );
        let labels: Vec<&str> = runs[1..].iter().map(|run| run.label.as_str()).collect();
        let found = labels.iter().filter(|label| **label == "highest rate: read, 4k, depth 8, 1 session");
        assert_eq!(found.count(), usize::from(best > 0.0), "{labels:?}");
        assert!(labels.iter().all(|label| label.starts_with(TRY) || label.starts_with("highest rate: ")));
        best
    };
    let (never, tight, loose) = (found(20), found(150), found(10_000));
    // Eight in flight, each of 40 ms, are 200 per second.
    assert!(never == 0.0 && tight >= 5.0 && loose <= 200.0 * 1.02, "{never} {tight} {loose}");
    assert!(tight <= loose * 1.5, "{tight} {loose}");
}

#[test]
fn stalling_target_meets_no_bound() {
    let stalling = taking(|n| if n < 20 { 1 } else { 400 });
    let job = Job {
        pace: ArrivalProcess::Even(100.0),
        depth: 8,
        time: Some(Duration::from_millis(300)),
        ..Job::default()
    };
    let outcome = rig_run(&stalling, &job);
    assert!(outcome.late > 0 && outcome.read.ios == 20, "{} {}", outcome.late, outcome.read.ios);
    let bound = LatencyBound { percent: 90.0, within: Duration::from_millis(100) };
    assert_eq!(bound.verdict(&outcome), BoundVerdict::NotKept, "{:?}", outcome.read.total);
}

#[test]
fn commands_not_started_after_a_stall_are_in_latency() {
    let stalling = taking(|n| if n < 20 { 1 } else { 400 });
    let job = Job {
        pace: ArrivalProcess::Even(100.0),
        depth: 2,
        time: Some(Duration::from_millis(300)),
        ..Job::default()
    };
    let outcome = rig_run(&stalling, &job);
    let JobOutcome { late, backlog, .. } = outcome;
    // About thirty commands are due. Twenty are served, two never end, and seven or eight never start. A busy machine
    // serves fewer and starts fewer.
    let due = outcome.read.ios + late + backlog;
    assert!((29..=30).contains(&due) && outcome.read.ios <= 20, "{late} {backlog} of {due}");
    assert!((1..=2).contains(&late) && backlog >= 7, "{late} {backlog} of {due}");
    let total = &outcome.read.total;
    assert_eq!(total.count(), due);
    let slow =
        |ms: u64| total.histogram.iter().filter(|bin| bin.0 > ms * 1_000_000).map(|bin| bin.1).sum::<u64>();
    assert!(slow(15) >= 7, "{:?}", total.histogram);
    assert_eq!(
        outcome.read.service.count(),
        outcome.read.ios + outcome.late,
        "the backlog has no service time"
    );
}

fn rig_run(opened: &OpenTargets, job: &Job) -> JobOutcome {
    opened.run(job, &RunHandle::default()).expect("an outcome")
}

#[test]
fn bound_is_met_by_rate_served_in_time_without_errors() {
    let total = Latency { histogram: vec![(1000, 99), (5000, 1)], ..Latency::default() };
    let read = DirectionTotals { ios: 100, total, ..DirectionTotals::default() };
    let outcome = JobOutcome { elapsed_s: 1.0, read, ..JobOutcome::default() };
    let bound = |percent, ns| LatencyBound { percent, within: Duration::from_nanos(ns) };
    let with_backlog = |backlog| JobOutcome { backlog, ..outcome.clone() };
    assert_eq!(bound(99.0, 1000).verdict(&outcome), BoundVerdict::Kept);
    assert_eq!(bound(99.0, 1000).verdict(&with_backlog(5)), BoundVerdict::Kept, "95 % suffice");
    assert_eq!(bound(99.0, 1000).verdict(&with_backlog(6)), BoundVerdict::NotKept);
    assert_eq!(bound(99.5, 1000).verdict(&outcome), BoundVerdict::NotKept);
    assert_eq!(bound(99.5, 5000).verdict(&outcome), BoundVerdict::TooFew, "200 are required");
    assert_eq!(bound(98.0, 5000).verdict(&outcome), BoundVerdict::Kept);
    assert_eq!(bound(99.0, 1000).verdict(&JobOutcome { errors: 1, ..outcome }), BoundVerdict::NotKept);
    assert_eq!(bound(99.0, 1000).verdict(&JobOutcome::default()), BoundVerdict::TooFew, "no command ended");
}

#[test]
fn percentile_requires_a_minimum_of_commands() {
    let commands = |percent| LatencyBound { percent, within: Duration::ZERO }.commands();
    assert_eq!([50.0, 95.0, 99.0, 99.9, 99.99, 100.0].map(commands), [10, 20, 100, 1000, 10_000, 1000]);
    // Directions count separately: of a thousand commands ten are writes.
    let of = |count| {
        let total = Latency { histogram: vec![(1000, count)], ..Latency::default() };
        DirectionTotals { ios: count, total, ..DirectionTotals::default() }
    };
    let mix = |reads, writes| JobOutcome { read: of(reads), write: of(writes), ..JobOutcome::default() };
    let bound = LatencyBound { percent: 99.0, within: Duration::from_micros(1) };
    assert_eq!(bound.verdict(&mix(990, 10)), BoundVerdict::TooFew);
    assert_eq!(bound.verdict(&mix(900, 100)), BoundVerdict::Kept);
}

#[test]
fn rate_far_below_full_speed_is_found_in_few_trials() {
    for capacity in [1e6, 0.9e6, 3e5, 2e4, 700.0, 30.0] {
        let (mut range, mut tries) = (RateRange::new(1e6, 10.0), 0);
        while let Some(rate) = range.next() {
            range.record_trial(rate, rate <= capacity);
            tries += 1;
        }
        let found = range.low.expect("a rate");
        assert!(found <= capacity && found > capacity * 0.97, "{found} of {capacity}");
        assert!(tries <= 15, "{tries} tries for {capacity}");
    }
    let (mut never, mut tried) = (RateRange::new(1e6, 10.0), Vec::new());
    while let Some(rate) = never.next() {
        never.record_trial(rate, false);
        tried.push(rate);
    }
    assert_eq!(tried, [1e6, 5e5, 2.5e5, 62_500.0, 3906.25, 1e6 / 65536.0, 10.0]);
}

#[test]
fn trials_with_too_few_commands_find_no_rate() {
    // In sixty milliseconds, a disk with two hundred reads per second serves too few for the percentile. They suffice
    // for a lower percentile.
    let search = |ms, percent, depth| {
        let job = Job { depth, time: Some(Duration::from_millis(ms)), ..Job::default() };
        let bound = LatencyBound { percent, within: Duration::from_secs(10) };
        highest_rate(&taking(|_| 5), &job, bound, &RunHandle::default()).expect("runs")
    };
    let (runs, few) = search(60, 99.0, 1);
    assert_eq!((runs.len(), few.rate), (2, None), "{few}");
    let text = few.to_string();
    assert!(text.ends_with("too few commands (required: 100): use a longer --runtime"), "{text}");
    let (_, enough) = search(1000, 90.0, 8);
    assert!(enough.rate.is_some(), "{enough}");
}

#[test]
fn impossible_bound_is_met_at_no_rate() {
    let search = |within| {
        let bound = LatencyBound { percent: 50.0, within };
        highest_rate(&opened(), &Job { depth: 4, ..short() }, bound, &RunHandle::default()).expect("runs").1
    };
    let never = search(Duration::from_nanos(1));
    assert!(never.rate.is_none() && never.tries.len() > 4, "{never}");
    assert!(never.to_string().contains("no tried rate meets the target"), "{never}");
    let paced = Job { pace: ArrivalProcess::Even(1.0), ..short() };
    let bound = LatencyBound { percent: 99.0, within: Duration::from_millis(1) };
    assert_eq!(
        highest_rate(&opened(), &paced, bound, &RunHandle::default()).unwrap_err().kind,
        ErrorKind::Invalid
    );
}

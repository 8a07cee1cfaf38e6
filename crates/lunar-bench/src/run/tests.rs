use super::*;
use crate::job::{ArrivalProcess, Fill, IoDirection};
use crate::offsets::OffsetGenerator;
use crate::{TargetOptions, TargetSpec, cpu};
use compio::time::sleep;
use lunar_block::{Backend, BackendInfo, BackendQueue, BufResult, LocalBoxFuture};
use lunar_runtime::Buf;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

mod queues;

const HOUR: Duration = Duration::from_secs(3600);

fn opened(targets: &[&str], sessions: usize) -> OpenTargets {
    let targets: Vec<TargetSpec> = targets.iter().map(|t| TargetSpec::parse(t).expect("a target")).collect();
    let opening = TargetOptions { sessions, write: true, ..TargetOptions::default() };
    OpenTargets::open(&targets, &opening).expect("a rig")
}

fn run(opened: &OpenTargets, job: &Job) -> JobOutcome {
    opened.run(job, &RunHandle::default()).expect("a valid job")
}

/// A job that ends with its amount.
fn amount(bytes: u64) -> Job {
    Job { time: None, amount: Some(bytes), ..Job::default() }
}

fn short(ms: u64) -> Job {
    Job { time: Some(Duration::from_millis(ms)), ..Job::default() }
}

/// A disk that runs a hook at each read, and may leave the buffers unchanged.
struct MisbehavingDisk<F>(Arc<dyn Backend>, F, bool);

impl<F: Fn(u64) -> LocalBoxFuture<'static, io::Result<()>> + Send + Sync> Backend for MisbehavingDisk<F> {
    fn info(&self) -> BackendInfo {
        self.0.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, lunar_block::BufResult> {
        Box::pin(async move {
            match self.1(offset).await {
                Ok(()) if self.2 => (Ok(()), buf),
                Ok(()) => self.0.read(offset, buf).await,
                Err(e) => (Err(e), buf),
            }
        })
    }
    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, lunar_block::BufResult> {
        self.0.write(offset, buf, fua)
    }
    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.0.flush()
    }
    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.0.unmap(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.0.write_zeroes(offset, len, unmap)
    }
    fn describe(&self) -> Vec<(String, String)> {
        self.0.describe()
    }
}

/// A disk that calls a hook with the offset before each read.
pub(crate) fn odd(
    f: impl Fn(u64) -> LocalBoxFuture<'static, io::Result<()>> + Send + Sync + Clone + 'static,
) -> OpenTargets {
    let mut opened = opened(&["memory:1M"], 1);
    opened.wrap(|_, disk| Arc::new(MisbehavingDisk(disk, f.clone(), false)));
    opened
}

#[test]
fn panicking_worker_ends_the_job_with_reason() {
    let reads = Arc::new(AtomicU64::new(0));
    let opened = odd(move |_| {
        if reads.fetch_add(1, Relaxed) == 9 {
            std::panic::resume_unwind(Box::new("as asked"));
        }
        Box::pin(async { Ok(()) })
    });
    let started_at = Instant::now();
    let outcome = run(&opened, &Job { depth: 4, ..short(60_000) });
    assert!(outcome.ended_early.is_some_and(|why| why.starts_with("a worker thread panicked")));
    assert!(started_at.elapsed() < Duration::from_secs(30), "all workers end");
}

#[test]
fn amount_is_moved_to_the_last_byte() {
    let opened = opened(&["null:1M", "null:2M"], 2);
    let job = Job { sizes: vec![(4096, 1)], depth: 3, ..amount(1_000_003) };
    let outcome = run(&opened, &job);
    assert_eq!((outcome.read.bytes, outcome.write.bytes, outcome.ended_early), (1_000_003, 0, None));
    assert_eq!(outcome.sessions.len(), 4);
    assert_eq!(outcome.sessions.iter().map(|s| s.read_bytes).sum::<u64>(), 1_000_003);
    assert!(outcome.elapsed_s > 0.0);
}

#[test]
fn command_count_is_exact_for_any_lengths_and_sessions() {
    let opened = opened(&["null:1M"], 3);
    let sizes = vec![(512, 1), (4096, 1), (65536, 1)];
    let job = Job {
        order: AccessPattern::Random,
        sizes,
        depth: 4,
        time: None,
        commands: Some(1001),
        ..Job::default()
    };
    let outcome = run(&opened, &job);
    assert_eq!((outcome.read.ios, outcome.ended_early), (1001, None));
    assert_eq!(outcome.sessions.iter().map(|s| s.read_ios).collect::<Vec<_>>(), [335, 333, 333]);
    assert_eq!(outcome.read.bytes % 512, 0);
}

#[test]
fn alternating_directions_stay_within_depth() {
    let probe = crate::testing::RecordingDisk::new(1 << 20);
    let mut opened = opened(&["memory:1M"], 1);
    opened.wrap(|_, _| probe.clone());
    let job =
        Job { direction: IoDirection::Turns, depth: 1, time: None, commands: Some(7), ..Job::default() };
    let outcome = run(&opened, &job);
    assert_eq!((outcome.write.ios, outcome.read.ios, probe.max_in_flight()), (4, 3, 1));
}

#[test]
fn measured_time_excludes_the_warm_up() {
    let opened = opened(&["null:1M"], 1);
    let job = Job { ramp: Duration::from_millis(200), interval: Duration::from_millis(100), ..short(300) };
    let (before, handle) = (Instant::now(), RunHandle::default());
    let outcome = opened.run(&job, &handle).expect("a job");
    assert_eq!(outcome.elapsed_s, 0.3);
    assert!(before.elapsed() >= Duration::from_millis(500));
    assert_eq!(outcome.series.len(), 3);
    assert_eq!(outcome.series.iter().map(|s| s.share.read_ios).sum::<u64>(), outcome.read.ios);
    assert_eq!(handle.done(), (outcome.read.ios, outcome.read.bytes));
    assert_eq!(outcome.read.total.count(), outcome.read.ios + outcome.late);
    assert!(outcome.cpu.client_s > 0.0, "{:?}", outcome.cpu);
}

#[test]
fn written_data_compares_and_wrong_byte_is_reported() {
    let opened = opened(&["memory:1M"], 1);
    let job = Job { fill: Fill::Lba, sizes: vec![(8192, 1)], depth: 4, ..amount(1 << 20) };
    assert_eq!(
        run(&opened, &Job { direction: IoDirection::Write, flush: true, ..job.clone() }).write.bytes,
        1 << 20
    );
    let read = Job { compare: true, sizes: vec![(65536, 1)], ..job.clone() };
    assert_eq!(run(&opened, &read).ended_early, None);
    run(
        &opened,
        &Job { direction: IoDirection::Write, fill: Fill::Zeros, offset: 300 << 10, ..amount(4096) },
    );
    let why = run(&opened, &read).ended_early.expect("a wrong byte");
    assert_eq!(why, "byte 307206 differs from the data written");
}

#[test]
fn both_directions_run_at_once_and_mix_is_random() {
    let opened = opened(&["memory:1M"], 2);
    let both = run(&opened, &Job { direction: IoDirection::Both, depth: 2, ..short(100) });
    assert!(both.read.ios > 0 && both.write.ios > 0);
    let mix = run(
        &opened,
        &Job { direction: IoDirection::Mix(50), order: AccessPattern::Random, ..amount(4096 * 2000) },
    );
    assert!((800..1200).contains(&mix.read.ios), "{} of 2000", mix.read.ios);
}

/// A disk whose reads take 5 ms.
fn slow() -> OpenTargets {
    odd(|_| {
        Box::pin(async {
            sleep(Duration::from_millis(5)).await;
            Ok(())
        })
    })
}

/// Runs a job that is ended after 100 ms.
fn ended(opened: &OpenTargets, job: &Job) -> JobOutcome {
    let handle = RunHandle::default();
    let ender = handle.clone();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        ender.end();
    });
    let outcome = opened.run(job, &handle).expect("an outcome");
    thread.join().expect("the thread ends");
    outcome
}

#[test]
fn given_rate_is_kept_and_latency_starts_when_due() {
    // One command at a time: 200 per second, where 1000 are due.
    let slow = slow();
    let outcome = run(&slow, &Job { pace: ArrivalProcess::Even(1000.0), ..short(400) });
    assert!(outcome.read.ios <= 80, "{}", outcome.read.ios);
    assert!(outcome.backlog >= 300, "{}", outcome.backlog);
    let (service, total) = (&outcome.read.service, &outcome.read.total);
    assert!(
        total.quantile(0.5).unwrap() > 2 * service.quantile(0.5).unwrap(),
        "most commands waited: {service:?} {total:?}"
    );
    let quick = opened(&["null:1M"], 2);
    let outcome = run(&quick, &Job { pace: ArrivalProcess::Poisson(500.0), depth: 4, ..amount(4096 * 300) });
    assert!(outcome.elapsed_s > 0.4, "300 at 500 a second came in {} s", outcome.elapsed_s);
}

#[test]
fn ended_job_is_measured_until_its_end() {
    let (opened, hour) = (opened(&["null:1M"], 1), short(3_600_000));
    let outcome = ended(&opened, &hour);
    assert!(outcome.read.ios > 0 && outcome.ended_early.is_none());
    assert!(outcome.elapsed_s > 0.05 && outcome.elapsed_s < 60.0, "{}", outcome.elapsed_s);
    assert_eq!(outcome.series.last().map(|step| step.until_s), Some(outcome.elapsed_s));
    let paced = ended(&opened, &Job { pace: ArrivalProcess::Even(1000.0), ..hour });
    assert!(paced.elapsed_s < 60.0 && paced.backlog < 60_000, "{} {}", paced.elapsed_s, paced.backlog);
}

#[test]
fn reached_amount_leaves_no_backlog() {
    let hundred = Job { pace: ArrivalProcess::Even(1000.0), amount: Some(4096 * 100), ..short(60_000) };
    for opened in [opened(&["null:1M"], 1), slow()] {
        let outcome = run(&opened, &hundred);
        assert_eq!((outcome.read.ios, outcome.backlog), (100, 0));
    }
}

#[test]
fn warm_up_is_not_charged_to_the_amount() {
    let opened = opened(&["null:64M"], 2);
    let job = Job { ramp: Duration::from_millis(300), depth: 4, ..amount(64 << 20) };
    let (outcome, handle) = (run(&opened, &job), RunHandle::default());
    assert_eq!((outcome.read.bytes, outcome.ended_early), (64 << 20, None));
    let paced =
        opened.run(&Job { pace: ArrivalProcess::Even(2000.0), amount: Some(4096 * 100), ..job }, &handle);
    assert_eq!(paced.expect("a job").read.ios, 100);
}

#[test]
fn stall_in_the_warm_up_does_not_exceed_the_amount() {
    let stalls = Arc::new(AtomicU64::new(1));
    let opened = odd(move |_| {
        if stalls.swap(0, Relaxed) == 1 {
            std::thread::sleep(Duration::from_millis(300));
        }
        Box::pin(async { Ok(()) })
    });
    // The other lanes wait for the time of their commands meanwhile. All commands are due after the stall.
    let job = Job { ramp: Duration::from_millis(100), depth: 4, ..amount(4096 * 100) };
    let outcome = run(&opened, &Job { pace: ArrivalProcess::Even(2000.0), ..job });
    assert_eq!((outcome.read.ios, outcome.ended_early), (100, None));
}

#[test]
fn zero_interval_and_too_many_intervals_are_rejected() {
    let opened = opened(&["null:1M"], 1);
    let refused = |job: Job| opened.run(&job, &RunHandle::default()).unwrap_err().to_string();
    let none = refused(Job { interval: Duration::ZERO, ..short(10) });
    assert!(none.contains("the interval of the time series is 0\nhint: use an interval"), "{none}");
    let many = refused(Job { interval: Duration::from_nanos(1), ..short(10) });
    assert!(many.contains("10000000 intervals, the maximum is 1000000\nhint: use a longer"), "{many}");
    let job = Job { interval: Duration::from_nanos(1), ..amount(1 << 20) };
    let series = run(&opened, &job).series;
    assert!(series.len() <= crate::time_series::MAX, "{}", series.len());
    assert_eq!(series.iter().map(|step| step.share.read_bytes).sum::<u64>(), 1 << 20);
}

#[test]
fn mix_does_not_write_back_read_data() {
    let opened = opened(&["memory:1M"], 1);
    let job = Job { direction: IoDirection::Mix(50), order: AccessPattern::Random, ..amount(4096 * 1000) };
    run(&opened, &job);
    // The same offsets once more, without a disk.
    let mut again = OffsetGenerator::new(&job, 0, 1 << 20, 0, (0, 1));
    let written: std::collections::HashSet<u64> = (0..1000)
        .map(|_| again.next(true, u64::MAX))
        .filter(|next| !next.read)
        .map(|next| next.offset)
        .collect();
    assert!(written.len() > 100, "{}", written.len());
    for offset in written {
        let zeros = Job { fill: Fill::Zeros, compare: true, offset, ..amount(4096) };
        assert!(run(&opened, &zeros).ended_early.is_some(), "zeros at {offset}");
    }
}

#[test]
fn commands_without_response_are_in_latency() {
    let hangs = |offset| -> LocalBoxFuture<'static, io::Result<()>> {
        Box::pin(async move { if offset < 40960 { Ok(()) } else { std::future::pending().await } })
    };
    let (opened, handle) = (odd(hangs), RunHandle::default());
    let job = Job { depth: 3, time: Some(HOUR), ..Job::default() };
    let outcome = std::thread::scope(|scope| {
        let run = scope.spawn(|| opened.run(&job, &handle).expect("a valid job"));
        std::thread::sleep(Duration::from_millis(100));
        handle.end();
        run.join().expect("no panic")
    });
    assert_eq!((outcome.read.ios, outcome.late), (10, 3));
    assert!(outcome.read.total.max_ns >= 1_000_000_000, "{} ns", outcome.read.total.max_ns);
    assert!(outcome.ended_early.expect("an early end").contains("without a response"));
}

#[test]
fn failure_of_one_session_ends_all() {
    let mut opened = opened(&["memory:1M"], 3);
    opened.wrap(|index, disk| {
        let fails = move |_| -> LocalBoxFuture<'static, io::Result<()>> {
            Box::pin(async move {
                sleep(Duration::from_millis(5)).await;
                if index == 1 { Err(io::Error::other("gone")) } else { Ok(()) }
            })
        };
        Arc::new(MisbehavingDisk(disk, fails, false))
    });
    let outcome = run(&opened, &Job { time: Some(HOUR), ..Job::default() });
    assert!(outcome.ended_early.expect("a failure").contains("gone"));
    assert!(outcome.elapsed_s < 20.0, "the failure ends the measured time");
}

#[test]
fn failure_ends_the_job_and_keeps_results() {
    let broken = |offset| -> LocalBoxFuture<'static, io::Result<()>> {
        Box::pin(async move { if offset == 40960 { Err(io::Error::other("a scratch")) } else { Ok(()) } })
    };
    let outcome = run(&odd(broken), &amount(1 << 20));
    assert_eq!((outcome.read.ios, outcome.errors), (10, 1));
    assert_eq!(outcome.ended_early.as_deref(), Some("read of 4096 bytes at offset 40960 failed: a scratch"));
    let outcome = run(&odd(broken), &Job { continue_on_error: true, ..amount(1 << 20) });
    assert_eq!((outcome.read.ios, outcome.errors, outcome.ended_early), (255, 1, None));
}

#[test]
fn ended_job_does_not_wait_for_unresponsive_target() {
    let silent = odd(|_| Box::pin(std::future::pending()));
    let outcome = ended(&silent, &amount(1 << 20));
    assert_eq!(
        outcome.ended_early.as_deref(),
        Some("1 command without a response 2 s after the end of the run")
    );
    let outcome = ended(&silent, &Job { depth: 3, interval: Duration::from_millis(10), ..short(60) });
    assert_eq!(
        outcome.ended_early.as_deref(),
        Some("3 commands without a response 2 s after the end of the run")
    );
    assert_eq!(
        (outcome.elapsed_s, outcome.series.len()),
        (0.06, 6),
        "the measured time ends at the deadline"
    );
}

/// A disk whose reads from an offset on take this long.
fn slow_from(place: u64, ms: u64) -> OpenTargets {
    odd(move |offset| {
        Box::pin(async move {
            if offset >= place {
                sleep(Duration::from_millis(ms)).await;
            }
            Ok(())
        })
    })
}

#[test]
fn commands_in_flight_at_end_count_only_in_latency() {
    let stalled = slow_from(0, 500);
    for pace in [ArrivalProcess::Closed, ArrivalProcess::Even(1000.0)] {
        let job = Job { depth: 3, pace, interval: Duration::from_millis(50), ..short(200) };
        let outcome = run(&stalled, &job);
        assert_eq!((outcome.read.ios, outcome.late, &outcome.ended_early), (0, 3, &None), "{pace:?}");
        assert_eq!(outcome.read.service.count(), 3, "{pace:?}");
        assert_eq!(outcome.read.total.count(), 3 + outcome.backlog, "{pace:?}");
        assert!(outcome.read.service.quantile(0.01) > Some(490_000_000), "{:?}", outcome.read.service);
        assert_eq!((outcome.elapsed_s, outcome.series.len()), (0.2, 4));
        assert!(outcome.series.iter().all(|step| step.share.read_ios == 0));
    }
}

#[test]
fn slow_last_commands_do_not_shorten_measured_time() {
    let tail = slow_from(9 * 4096, 500);
    let job = Job { amount: Some(10 * 4096), interval: Duration::from_millis(50), ..short(200) };
    let outcome = run(&tail, &job);
    assert_eq!((outcome.read.ios, outcome.late, outcome.elapsed_s, outcome.series.len()), (9, 1, 0.2, 4));
    let in_time = run(&tail, &Job { amount: Some(9 * 4096), ..short(60_000) });
    assert!(in_time.elapsed_s < 30.0, "the amount ends it: {}", in_time.elapsed_s);
    let failing = odd(|offset| {
        Box::pin(async move {
            if offset < 4096 {
                return Ok(());
            }
            sleep(Duration::from_millis(150)).await;
            Err(io::Error::other("a scratch"))
        })
    });
    let outcome = run(&failing, &amount(1 << 20));
    assert!(outcome.read.ios == 1 && outcome.elapsed_s >= 0.15, "{} s", outcome.elapsed_s);
}

#[test]
fn buffers_are_created_before_the_clock_starts() {
    let mut opened = opened(&["null:1G"], 1);
    opened.wrap(|_, disk| {
        let five_ms = || -> LocalBoxFuture<'static, io::Result<()>> {
            Box::pin(async {
                sleep(Duration::from_millis(5)).await;
                Ok(())
            })
        };
        Arc::new(MisbehavingDisk(disk, move |_| five_ms(), true))
    });
    let outcome = run(&opened, &Job { sizes: vec![(32 << 20, 1)], depth: 8, ..short(60) });
    assert!(outcome.read.ios >= 8, "several rounds of 8 commands fit in the time: {}", outcome.read.ios);
}

#[test]
fn sleeping_worker_ends_at_once_on_end_or_deadline() {
    let (opened, begun) = (opened(&["null:1M"], 2), Instant::now());
    let hour = short(3_600_000);
    let thinking = ended(&opened, &Job { think: HOUR, ..hour.clone() });
    assert_eq!((thinking.read.ios, &thinking.ended_early), (2, &None), "one command of each session");
    assert!(thinking.elapsed_s >= 0.1, "{}", thinking.elapsed_s);
    let waiting = ended(&opened, &Job { pace: ArrivalProcess::Even(1e-3), ..hour.clone() });
    assert_eq!((waiting.read.ios, waiting.backlog, waiting.ended_early), (0, 0, None));
    let in_ramp = ended(&opened, &Job { ramp: HOUR, think: HOUR, ..hour });
    assert_eq!((in_ramp.read.ios, in_ramp.elapsed_s, in_ramp.ended_early), (0, 0.0, None));
    let over = run(&opened, &Job { think: HOUR, ..short(100) });
    assert_eq!((over.read.ios, over.elapsed_s, over.ended_early), (2, 0.1, None));
    assert!(begun.elapsed() < Duration::from_secs(60), "sleepers did not wake");
}

/// Requests that a disk received.
#[derive(Default)]
struct QueueRequests {
    /// The FUA flag of each write.
    writes: Mutex<Vec<bool>>,
    flushes: AtomicU64,
}

/// A disk that records FUA flags and flushes, with configurable latency; with a queue or without.
struct QueueRecorder {
    disk: Arc<dyn Backend>,
    requested: Arc<QueueRequests>,
    write: Duration,
    flush: Duration,
    has_queue: bool,
    /// The number of runs until it ends.
    left: AtomicU64,
}

impl Backend for QueueRecorder {
    fn info(&self) -> BackendInfo {
        self.disk.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        self.disk.read(offset, buf)
    }
    fn write(&self, _: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        self.requested.writes.lock().expect("no panic").push(fua);
        Box::pin(async move {
            sleep(self.write).await;
            (Ok(()), buf)
        })
    }
    fn queue(self: Arc<Self>) -> Option<Box<dyn BackendQueue>> {
        if self.left.fetch_sub(1, Relaxed) == 0 {
            std::panic::resume_unwind(Box::new("as asked"));
        }
        let queue = RecordingQueue { requested: self.requested.clone(), ended: Vec::new() };
        self.has_queue.then(|| Box::new(queue) as _)
    }
    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.requested.flushes.fetch_add(1, Relaxed);
        Box::pin(async move {
            sleep(self.flush).await;
            Ok(())
        })
    }
    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.disk.unmap(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.disk.write_zeroes(offset, len, unmap)
    }
    fn describe(&self) -> Vec<(String, String)> {
        self.disk.describe()
    }
}

struct RecordingQueue {
    requested: Arc<QueueRequests>,
    ended: Vec<(usize, Buf)>,
}

impl BackendQueue for RecordingQueue {
    fn read(&mut self, lane: usize, _: u64, buf: Buf) {
        self.ended.push((lane, buf));
    }
    fn write(&mut self, lane: usize, _: u64, buf: Buf, fua: bool) {
        self.requested.writes.lock().expect("no panic").push(fua);
        self.ended.push((lane, buf));
    }
    fn poll_ended(&mut self, _: &mut Context<'_>) -> Poll<(usize, BufResult)> {
        let Some((lane, buf)) = self.ended.pop() else { return Poll::Pending };
        Poll::Ready((lane, (Ok(()), buf)))
    }
}

/// A recording disk with these latencies, which completes this many runs.
fn noting(write_ms: u64, flush_ms: u64, has_queue: bool, runs: u64) -> (OpenTargets, Arc<QueueRequests>) {
    let (mut opened, requested) = (opened(&["null:1M"], 1), Arc::new(QueueRequests::default()));
    let [write, flush] = [write_ms, flush_ms].map(Duration::from_millis);
    opened.wrap(|_, disk| {
        let left = AtomicU64::new(runs);
        Arc::new(QueueRecorder { disk, requested: requested.clone(), write, flush, has_queue, left })
    });
    (opened, requested)
}

/// Open targets with a disk that completes this many runs.
pub(crate) fn lasting(runs: u64) -> OpenTargets {
    noting(0, 0, true, runs).0
}

#[test]
fn writes_use_fua_only_on_request() {
    for (has_queue, fua) in [(false, false), (false, true), (true, false), (true, true)] {
        let (opened, requested) = noting(0, 0, has_queue, 1);
        run(&opened, &Job { direction: IoDirection::Write, fua, depth: 2, ..amount(4096 * 8) });
        assert_eq!(*requested.writes.lock().expect("no panic"), [fua; 8], "queue: {has_queue}");
        assert_eq!(requested.flushes.load(Relaxed), 0);
    }
}

#[test]
fn flush_at_end_and_commands_before_it_count() {
    let two = |flush| {
        let (opened, requested) = noting(200, 300, false, 1);
        let job = Job { direction: IoDirection::Write, flush, depth: 2, ..short(300) };
        (run(&opened, &job), requested.flushes.load(Relaxed))
    };
    // Two writes end in time, and two are in flight at the end.
    let (without, flushes) = two(false);
    assert_eq!((without.write.ios, without.late, without.elapsed_s, flushes), (2, 2, 0.3, 0));
    let (with, flushes) = two(true);
    assert_eq!((with.write.ios, with.write.bytes, with.late, flushes), (4, 4 * 4096, 0, 1));
    assert!(with.elapsed_s >= 0.7, "the time includes the flush: {} s", with.elapsed_s);
    assert_eq!(with.series.iter().map(|step| step.share.write_ios).sum::<u64>(), 4);
}

#[test]
fn concurrent_runs_have_cpu_time_of_their_own_loops() {
    let (idle, busy) = (opened(&["null:1M"], 1), opened(&["null:1M"], 1));
    let handle = RunHandle::default();
    let [idle, busy] = std::thread::scope(|scope| {
        let idle = scope.spawn(|| idle.run(&Job { think: HOUR, ..short(400) }, &handle));
        let busy = busy.run(&Job { depth: 8, ..short(400) }, &handle);
        [idle.join().expect("the idle run ends"), busy].map(|outcome| outcome.expect("a job"))
    });
    let (idle, busy) = (idle.cpu.client_s, busy.cpu.client_s);
    assert!(busy > 0.0 && idle < busy / 4.0, "idle {idle} s, busy {busy} s");
}

#[test]
fn targets_open_on_selected_cores() {
    let core = lunar_runtime::CoreSelection::All.usable().expect("cores")[0];
    let opening = |cores| TargetOptions { sessions: 3, cores, ..TargetOptions::default() };
    let target = [TargetSpec::parse("null:1M").expect("a target")];
    for cores in [lunar_runtime::CoreSelection::Count(1), lunar_runtime::CoreSelection::List(vec![core])] {
        let opened = OpenTargets::open(&target, &opening(cores)).expect("a rig");
        let name = opened.cores.wait(0, || async { std::thread::current().name().map(str::to_owned) });
        assert_eq!(name.expect("the core runs"), Some(format!("core {core}")));
        assert_eq!((opened.cores.count(), opened.sessions()), (1, 3));
        assert!(opened.target_sessions.iter().all(|place| place.core == 0));
    }
}

#[test]
fn cpu_time_excludes_work_after_the_deadline() {
    let busy_later = odd(|_| {
        Box::pin(async {
            sleep(Duration::from_millis(120)).await;
            let before = cpu::own();
            while cpu::own() < before + 2.0 {}
            Ok(())
        })
    });
    let outcome = run(&busy_later, &short(50));
    assert_eq!(outcome.late, 1);
    assert!(outcome.cpu.client_s < 2.0, "{:?}", outcome.cpu);
}

#[test]
fn read_that_returns_no_data_is_a_mismatch() {
    for fill in [Fill::Zeros, Fill::Counting, Fill::Lba, Fill::Bytes(*b"12345678")] {
        let mut opened = opened(&["memory:1M"], 1);
        let job = Job { fill, ..amount(64 << 10) };
        run(&opened, &Job { direction: IoDirection::Write, ..job.clone() });
        let read = Job { compare: true, ..job };
        assert_eq!(run(&opened, &read).ended_early, None, "{fill:?}");
        mute(&mut opened);
        let why = run(&opened, &read).ended_early;
        assert_eq!(why.as_deref(), Some("byte 0 differs from the data written"), "{fill:?}");
    }
}

/// Makes reads leave the buffer unchanged.
pub(crate) fn mute(opened: &mut OpenTargets) {
    let nothing = |_| -> LocalBoxFuture<'static, io::Result<()>> { Box::pin(async { Ok(()) }) };
    opened.wrap(|_, disk| Arc::new(MisbehavingDisk(disk, nothing, true)));
}

#[test]
fn invalid_job_is_rejected() {
    let opened = opened(&["null:1M"], 1);
    let refused = |job: Job| opened.run(&job, &RunHandle::default()).unwrap_err().what;
    assert_eq!(
        refused(Job { time: None, ..Job::default() }),
        "the job has neither a time limit nor an amount"
    );
    assert!(
        refused(Job { sizes: vec![(2 << 20, 1)], ..Job::default() })
            .contains("exceed the range of 1048576 bytes")
    );
    assert!(refused(Job { span: Some(1 << 20), offset: 1, ..Job::default() }).contains("exceed"));
    assert!(refused(Job { depth: 0, ..Job::default() }).contains("depth is 0"));
    assert!(refused(Job { compare: true, ..Job::default() }).contains("cannot be compared"));
}

#[test]
fn lengths_and_offsets_must_be_whole_blocks() {
    let checked = |sizes: &[u32], offset, block_size| {
        let sizes = sizes.iter().map(|bytes| (*bytes, 1)).collect();
        check_blocks(&Job { sizes, offset, ..Job::default() }, block_size).map_err(|e| e.what)
    };
    assert!(checked(&[512, 4096], 512, 512).is_ok());
    assert!(checked(&[1000], 3, 1).is_ok());
    assert_eq!(
        checked(&[3000, 1000], 0, 512).unwrap_err(),
        "a length, offset or stride of 1000 bytes is not a multiple of the block size 512"
    );
    assert_eq!(
        checked(&[4096], 512, 4096).unwrap_err(),
        "a length, offset or stride of 512 bytes is not a multiple of the block size 4096"
    );
    let strided =
        |stride| check_blocks(&Job { order: AccessPattern::Strided(stride), ..Job::default() }, 512);
    assert!(strided(8192).is_ok());
    assert_eq!(
        strided(1000).unwrap_err().what,
        "a length, offset or stride of 1000 bytes is not a multiple of the block size 512"
    );
}

#[test]
fn existing_data_is_overwritten_only_on_request() {
    let dir = std::env::temp_dir().join(format!("lunar-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let path = dir.join("disk");
    let target = [TargetSpec::parse(path.to_str().expect("text")).expect("a path")];
    let opening = TargetOptions { write: true, create: Some(4 << 20), ..TargetOptions::default() };
    let open = |opening: &TargetOptions| OpenTargets::open(&target, opening).map(OpenTargets::close);
    open(&opening).expect("a new file holds no data");
    let mut bytes = vec![0; 4 << 20];
    bytes[(4 << 20) - 512] = 1;
    std::fs::write(&path, &bytes).expect("written");
    let refused = open(&opening).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::HoldsData);
    assert!(refused.what.ends_with("holds data: byte 4193792 is not zero"), "{}", refused.what);
    open(&TargetOptions { destroy: true, ..opening.clone() }).expect("--destroy permits it");
    open(&TargetOptions::default()).expect("a read-only job needs no permission");
    std::fs::remove_dir_all(&dir).expect("removed");
}

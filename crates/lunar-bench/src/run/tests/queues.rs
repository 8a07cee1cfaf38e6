//! Lanes on disks with a queue, and with futures only.

use super::*;
use std::collections::HashMap;

/// A disk whose queue is made by a hook.
struct QueuedDisk<F>(Arc<dyn Backend>, F);

impl<F: Fn() -> Box<dyn BackendQueue> + Send + Sync> Backend for QueuedDisk<F> {
    fn info(&self) -> BackendInfo {
        self.0.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        self.0.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        self.0.write(offset, buf, fua)
    }
    fn queue(self: Arc<Self>) -> Option<Box<dyn BackendQueue>> {
        Some(self.1())
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

/// Completes the latest command first. It begins when it has a number of commands, in the pass after.
#[derive(Default)]
struct BackwardsQueue {
    begun: Vec<(usize, Buf)>,
    /// The address of the buffer of each lane.
    buffers: HashMap<usize, usize>,
    batch: usize,
    /// The time that each completion takes.
    pause: Duration,
    is_ending: bool,
}

impl BackendQueue for BackwardsQueue {
    fn read(&mut self, lane: usize, _: u64, buf: Buf) {
        assert!(self.begun.iter().all(|(other, _)| *other != lane), "one command per lane");
        let address = buf.as_ptr() as usize;
        assert_eq!(*self.buffers.entry(lane).or_insert(address), address, "the buffer of this lane");
        self.begun.push((lane, buf));
    }

    fn write(&mut self, lane: usize, offset: u64, buf: Buf, _: bool) {
        self.read(lane, offset, buf);
    }

    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<(usize, BufResult)> {
        if !self.is_ending {
            self.is_ending = self.begun.len() >= self.batch;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let Some((lane, buf)) = self.begun.pop() else { return Poll::Pending };
        std::thread::sleep(self.pause);
        Poll::Ready((lane, (Ok(()), buf)))
    }
}

fn with_queue(make: impl Fn() -> Box<dyn BackendQueue> + Clone + Send + Sync + 'static) -> OpenTargets {
    let mut opened = opened(&["null:1M"], 1);
    opened.wrap(|_, disk| Arc::new(QueuedDisk(disk, make.clone())));
    opened
}

#[test]
fn lanes_get_their_own_results_and_may_also_sleep() {
    for think in [Duration::ZERO, Duration::from_millis(1)] {
        let opened = with_queue(|| Box::<BackwardsQueue>::default());
        let job = Job { depth: 3, think, time: None, commands: Some(300), ..Job::default() };
        let outcome = run(&opened, &job);
        assert_eq!((outcome.read.ios, outcome.ended_early), (300, None));
        assert!(outcome.read.service.min_ns > 0, "a completion is later than its submission");
    }
}

#[test]
fn completions_of_a_batch_share_a_clock_reading() {
    let pause = Duration::from_millis(20);
    let opened =
        with_queue(move || Box::new(BackwardsQueue { batch: 4, pause, ..BackwardsQueue::default() }));
    let outcome = run(&opened, &Job { depth: 4, time: None, commands: Some(4), ..Job::default() });
    let service = &outcome.read.service;
    assert!(service.max_ns - service.min_ns < 20_000_000, "{service:?}");
}

#[test]
fn panicking_queue_ends_the_job_with_reason() {
    struct Panicking;
    impl BackendQueue for Panicking {
        fn read(&mut self, _: usize, _: u64, _: Buf) {}
        fn write(&mut self, _: usize, _: u64, _: Buf, _: bool) {}
        fn poll_ended(&mut self, _: &mut Context<'_>) -> Poll<(usize, BufResult)> {
            std::panic::resume_unwind(Box::new("as asked"))
        }
    }
    let outcome = run(&with_queue(|| Box::new(Panicking)), &short(60_000));
    assert!(outcome.ended_early.is_some_and(|why| why.starts_with("a worker thread panicked")));
}

#[test]
fn commands_of_one_pass_have_their_own_times_without_queue() {
    let opened = odd(|_| {
        Box::pin(async {
            sleep(Duration::from_millis(5)).await;
            std::thread::sleep(Duration::from_millis(20));
            Ok(())
        })
    });
    let outcome = run(&opened, &Job { depth: 4, time: None, commands: Some(4), ..Job::default() });
    // The last of the four ends after the pauses of all.
    assert!(outcome.read.service.max_ns >= 85_000_000, "{:?}", outcome.read.service);
    assert!(outcome.read.service.min_ns < 65_000_000, "{:?}", outcome.read.service);
}

#[test]
fn operation_that_yields_lets_others_run() {
    let opened = odd(|_| {
        Box::pin(async {
            let (sender, receiver) = flume::bounded(1);
            compio::runtime::spawn(async move { sender.send(()) }).detach();
            for _ in 0..1000 {
                if receiver.try_recv().is_ok() {
                    return Ok(());
                }
                lunar_runtime::yield_now().await;
            }
            Err(io::Error::other("the other task did not run"))
        })
    });
    let outcome = run(&opened, &Job { depth: 2, time: None, commands: Some(4), ..Job::default() });
    assert_eq!((outcome.read.ios, outcome.ended_early), (4, None));
}

#[test]
fn operation_may_be_woken_by_another_thread() {
    let opened = odd(|_| {
        Box::pin(async {
            let (sender, receiver) = flume::bounded(1);
            std::thread::spawn(move || sender.send(()));
            receiver.recv_async().await.map_err(io::Error::other)
        })
    });
    let outcome = run(&opened, &Job { depth: 3, time: None, commands: Some(100), ..Job::default() });
    assert_eq!((outcome.read.ios, outcome.ended_early), (100, None));
}

#[test]
fn flush_without_response_is_given_up() {
    let (opened, _) = noting(0, 3_600_000, false, 1);
    let outcome = ended(&opened, &Job { direction: IoDirection::Write, flush: true, ..amount(4096) });
    let why = outcome.ended_early.expect("an early end");
    assert_eq!(why, "1 command without a response 2 s after the end of the run");
}

//! Failing and returning paths, over a medium in memory.

mod checks;

use super::*;
use crate::slow_path::SlowPath;
use crate::{Event, Timeouts};
use lunar_block::range_lock::RangeAccess;
use lunar_block::{Backend, BackendInfo, BackendQueue, BufResult, PipedResult};
use lunar_runtime::PipedBytes;
use std::future::{pending, poll_fn};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};

/// A path to a medium that all paths share. The test takes it up and down.
struct Wire {
    medium: Arc<dyn Backend>,
    up: AtomicBool,
    given_up: AtomicBool,
    identity: Vec<u8>,
    events: flume::Receiver<Event>,
    sender: flume::Sender<Event>,
    /// The event channel while the path is down: it carries no events.
    silence: (flume::Sender<Event>, flume::Receiver<Event>),
    /// Whether the path executes operations but loses their responses.
    mute: AtomicBool,
    /// Whether the path reports a deferred error.
    lost: AtomicBool,
    /// Whether the path leaves path checks unanswered.
    silent: AtomicBool,
    ranges: OnceLock<Arc<RangeLocks>>,
}

impl Wire {
    fn new(medium: &Arc<dyn Backend>, identity: &[u8]) -> Arc<Wire> {
        let (sender, events) = flume::unbounded();
        Arc::new(Wire {
            medium: medium.clone(),
            up: AtomicBool::new(true),
            given_up: AtomicBool::new(false),
            identity: identity.to_vec(),
            events,
            sender,
            silence: flume::bounded(1),
            mute: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            ranges: OnceLock::new(),
        })
    }

    fn set(&self, up: bool) {
        self.up.store(up, Relaxed);
        self.sender.send(Event::Connected).expect("the event channel is open");
    }

    fn state(&self) -> io::Result<()> {
        if self.up.load(Relaxed) { Ok(()) } else { Err(Error::new(ErrorCode::ConnectionLost, "cut").into()) }
    }
}

impl LunPath for Wire {
    fn name(&self) -> String {
        "wire".into()
    }
    fn identity(&self) -> Vec<u8> {
        self.identity.clone()
    }
    fn share(&self, ranges: &Arc<RangeLocks>) {
        _ = self.ranges.set(ranges.clone());
    }
    fn lun(&self) -> Option<&crate::Lun> {
        None
    }
    fn check(&self) -> LocalBoxFuture<'_, PathState> {
        let state = if self.state().is_ok() { PathState::Optimized } else { PathState::Down };
        let silent = self.silent.load(Relaxed);
        Box::pin(async move { if silent { pending().await } else { state } })
    }
    fn reset_abandoned(&self) -> LocalBoxFuture<'_, ()> {
        self.given_up.store(true, Relaxed);
        Box::pin(async {})
    }
    fn take_deferred_error(&self) -> Option<Error> {
        self.lost.swap(false, Relaxed).then(|| Error::new(ErrorCode::ScsiError, "lost"))
    }
    fn events(&self) -> flume::Receiver<Event> {
        if self.up.load(Relaxed) { self.events.clone() } else { self.silence.1.clone() }
    }
    fn compare_and_write(&self, offset: u64, data: Buf) -> LocalBoxFuture<'_, (Result<bool, Error>, Buf)> {
        Box::pin(async move {
            if !self.up.load(Relaxed) {
                return (Err(Error::new(ErrorCode::Unreachable, "it is not open")), data);
            }
            let (old, new) = data.split_at(data.len() / 2);
            let (result, now) = self.medium.read(offset, Buf::zeroed(old.len())).await;
            result.expect("a read of memory");
            let equal = now[..] == *old;
            if equal {
                let mut changed = now;
                changed.copy_from_slice(new);
                self.medium.write(offset, changed, true).await.0.expect("a write to memory");
            }
            let lost = self.mute.load(Relaxed).then(|| Error::new(ErrorCode::ConnectionLost, "no answer"));
            (lost.map_or(Ok(equal), Err), data)
        })
    }
}

impl Backend for Wire {
    fn info(&self) -> BackendInfo {
        self.medium.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            match self.state() {
                Ok(()) => self.medium.read(offset, buf).await,
                Err(e) => (Err(e), buf),
            }
        })
    }
    fn read_piped(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, PipedResult> {
        Box::pin(async move {
            let (result, data) = self.read(offset, Buf::zeroed(buf.len())).await;
            let mut piped = PipedBytes::empty().expect("a pipe");
            piped.push(&data);
            (result.map(|()| Some(piped)), buf)
        })
    }
    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            match self.state() {
                Ok(()) => {
                    let bytes = offset..offset + buf.len() as u64;
                    let (bytes, share) = RangeLocks::covering_blocks(&bytes, 512);
                    let _hold = self.ranges.get().expect("the range locks are set").lock(bytes, share).await;
                    self.medium.write(offset, buf, fua).await
                }
                Err(e) => (Err(e), buf),
            }
        })
    }
    fn queue(self: Arc<Self>) -> Option<Box<dyn BackendQueue>> {
        self.up
            .load(Relaxed)
            .then(|| Box::new(Current { wire: self, slow: SlowPath::default() }) as Box<dyn BackendQueue>)
    }
    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move { self.state() })
    }
    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.state()?;
            self.medium.unmap(offset, len).await
        })
    }
    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.state()?;
            self.medium.write_zeroes(offset, len, unmap).await
        })
    }
    fn describe(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

/// The queue of a path. The path may go down after an operation has started.
struct Current {
    wire: Arc<Wire>,
    slow: SlowPath,
}

impl BackendQueue for Current {
    fn read(&mut self, lane: usize, offset: u64, buf: Buf) {
        let wire = self.wire.clone();
        self.slow.begin(lane, async move { wire.read(offset, buf).await });
    }
    fn write(&mut self, lane: usize, offset: u64, buf: Buf, fua: bool) {
        let wire = self.wire.clone();
        self.slow.begin(lane, async move { wire.write(offset, buf, fua).await });
    }
    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<(usize, BufResult)> {
        self.slow.poll(cx)
    }
}

fn inside<T: 'static>(test: impl std::future::Future<Output = T>) -> T {
    compio::runtime::Runtime::new().expect("an event loop").block_on(test)
}

fn medium() -> Arc<dyn Backend> {
    lunar_block::open(&lunar_block::BackendSpec::sized(lunar_block::BackendKind::Memory, 1 << 20))
        .expect("memory")
}

fn two() -> [Arc<Wire>; 2] {
    let medium = medium();
    [Wire::new(&medium, b"unit"), Wire::new(&medium, b"unit")]
}

async fn join(wires: &[Arc<Wire>; 2], queue: Duration) -> Arc<Multipath> {
    let lun_paths: Vec<Arc<dyn LunPath>> = vec![wires[0].clone(), wires[1].clone()];
    let settings =
        MultipathOptions { queue, check: Duration::from_millis(10), ..MultipathOptions::default() };
    Multipath::join(lun_paths, settings).await.expect("two paths to one logical unit")
}

async fn write(on: &Multipath, byte: u8) -> io::Result<()> {
    let mut buf = Buf::zeroed(4096);
    buf.fill(byte);
    on.write(0, buf, false).await.0
}

#[test]
fn writing_goes_on_while_one_path_lives() {
    inside(async {
        let wires = two();
        let joined = join(&wires, Duration::ZERO).await;
        for (byte, cut) in [(1, 0), (2, 1), (3, 0), (4, 1)] {
            wires[cut].set(false);
            write(&joined, byte).await.expect("the other path works");
            let (result, buf) = joined.read(0, Buf::zeroed(4096)).await;
            assert!(result.is_ok() && buf.iter().all(|b| *b == byte));
            wires[cut].set(true);
            while joined.paths().iter().any(|p| !p.1.is_usable()) {
                compio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
}

#[test]
fn piped_read_goes_on_another_path() {
    inside(async {
        let wires = two();
        let joined = join(&wires, Duration::ZERO).await;
        write(&joined, 7).await.expect("both paths work");
        for cut in [0, 1] {
            wires[cut].up.store(false, Relaxed);
            let (result, buf) = joined.read_piped(0, Buf::zeroed(4096)).await;
            let piped = result.expect("the other path works");
            assert!(piped.is_some_and(|piped| piped.len() == 4096) && buf[..] == [0; 4096]);
            wires[cut].set(true);
            while joined.paths().iter().any(|p| !p.1.is_usable()) {
                compio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
}

#[test]
fn zeros_and_space_given_back_go_on_another_path_too() {
    inside(async {
        let wires = two();
        let joined = join(&wires, Duration::ZERO).await;
        for cut in [0, 1] {
            write(&joined, 7).await.expect("both paths work");
            // The path checker has not found the failure yet when these operations start.
            wires[cut].up.store(false, Relaxed);
            joined.write_zeroes(0, 1024, false).await.expect("the other path works");
            joined.unmap(1024, 1024).await.expect("the other path works");
            joined.extent(0, 4096).await.expect("the other path works");
            let (result, buf) = joined.read(0, Buf::zeroed(4096)).await;
            assert!(result.is_ok() && buf[..2048] == [0; 2048] && buf[2048..] == [7; 2048]);
            wires[cut].set(true);
            while joined.paths().iter().any(|p| !p.1.is_usable()) {
                compio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
}

#[test]
fn failed_operation_is_given_up_before_the_next_path() {
    inside(async {
        let wires = two();
        let joined = join(&wires, Duration::ZERO).await;
        // The path checker has not found the failure yet when the write starts.
        wires[0].up.store(false, Relaxed);
        write(&joined, 1).await.expect("the other path works");
        assert!(wires[0].given_up.load(Relaxed) && !wires[1].given_up.load(Relaxed));
    });
}

#[test]
fn without_a_path_operations_wait_for_one_or_fail_in_time() {
    inside(async {
        let wires = two();
        let patient = join(&wires, Duration::from_secs(60)).await;
        let hasty = join(&wires, Duration::from_millis(20)).await;
        wires.iter().for_each(|w| w.set(false));
        let error = write(&hasty, 1).await.expect_err("no path is left");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let waiting = compio::runtime::spawn(async move { write(&patient, 7).await });
        compio::time::sleep(Duration::from_millis(30)).await;
        wires[1].set(true);
        assert!(waiting.await.expect("the task panicked").is_ok());
    });
}

/// The first events of a path that was down must trigger a check before the interval ends.
#[test]
fn path_that_was_missing_is_heard_once_it_is_there() {
    inside(async {
        let wires = two();
        wires[1].up.store(false, Relaxed);
        let lun_paths: Vec<Arc<dyn LunPath>> = vec![wires[0].clone(), wires[1].clone()];
        let settings = MultipathOptions { check: Duration::from_secs(3), ..MultipathOptions::default() };
        let joined = Multipath::join(lun_paths, settings).await.expect("two paths to one logical unit");
        // The checker of this path starts while the path is down.
        compio::time::sleep(Duration::from_millis(10)).await;
        wires[1].up.store(true, Relaxed);
        while !joined.paths()[1].1.is_usable() {
            joined.state_change().await;
        }
        // Lets the checker run.
        compio::time::sleep(Duration::from_millis(10)).await;
        let changed = joined.state_change();
        wires[1].set(false);
        compio::time::timeout(Duration::from_secs(1), changed).await.expect("an event triggers a check");
        assert!(!joined.paths()[1].1.is_usable());
    });
}

#[test]
fn compare_and_write_changes_path_only_if_not_carried_out() {
    inside(async {
        let wires = two();
        let lun_paths: Vec<Arc<dyn LunPath>> = vec![wires[0].clone(), wires[1].clone()];
        let settings = MultipathOptions {
            policy: PathPolicy::Failover,
            check: Duration::from_secs(60),
            ..MultipathOptions::default()
        };
        let joined = Multipath::join(lun_paths, settings).await.expect("two paths to one logical unit");
        let swap = |old: u8, new: u8| {
            let mut data = Buf::zeroed(1024);
            data[..512].fill(old);
            data[512..].fill(new);
            joined.compare_and_write(0, data)
        };
        assert_eq!((swap(0, 1).await, swap(0, 2).await), (Ok(true), Ok(false)));
        // The path checker has not found the failure yet when the command starts.
        wires[0].up.store(false, Relaxed);
        assert_eq!(swap(1, 2).await, Ok(true), "the command runs on the other path");
        wires[0].up.store(true, Relaxed);
        joined.set(0, PathState::Optimized);
        wires[0].mute.store(true, Relaxed);
        assert_eq!(
            swap(2, 3).await.map_err(|e| e.code),
            Err(ErrorCode::ConnectionLost),
            "the target may have executed the command"
        );
        assert_eq!(swap(3, 4).await, Ok(true), "the first command was executed");
    });
}

#[test]
fn deferred_error_of_any_path_fails_one_flush() {
    inside(async {
        let wires = two();
        let disk = join(&wires, Duration::ZERO).await;
        for wire in &wires {
            wire.lost.store(true, Relaxed);
            assert_eq!(disk.flush().await.unwrap_err().to_string(), "lost");
            disk.flush().await.expect("a deferred error is reported once");
        }
    });
}

#[test]
fn paths_to_different_units_are_refused() {
    inside(async {
        let medium = medium();
        for (a, b) in [(&b"one"[..], &b"two"[..]), (b"", b"")] {
            let lun_paths: Vec<Arc<dyn LunPath>> = vec![Wire::new(&medium, a), Wire::new(&medium, b)];
            let error = Multipath::join(lun_paths, MultipathOptions::default()).await.expect_err("an error");
            assert_eq!(error.code, ErrorCode::IdentityMismatch);
        }
        assert!(Multipath::join(Vec::new(), MultipathOptions::default()).await.is_err());
    });
}

#[test]
fn outage_past_its_time_fails_operations_until_a_path_is_back() {
    inside(async {
        let wires = two();
        let joined = join(&wires, Duration::from_millis(50)).await;
        assert!(joined.outage().is_none());
        wires.iter().for_each(|w| w.set(false));
        write(&joined, 1).await.expect_err("no path came back");
        let started_at = joined.outage().expect("an outage");
        assert!(started_at.elapsed() >= Duration::from_millis(50));
        let at_once = async { Some(write(&joined, 1).await) };
        let ended = lunar_runtime::either(at_once, async {
            for _ in 0..100 {
                lunar_runtime::yield_now().await;
            }
            None
        });
        ended.await.expect("the operation does not wait again").expect_err("no path came back");
        assert!(joined.times().queue.max_ns >= 50_000_000);
        let changed = joined.state_change();
        wires[0].set(true);
        changed.await;
        write(&joined, 2).await.expect("the path is back");
        assert!(joined.outage().is_none() && joined.times().service.count == 1);
    });
}

#[test]
fn paths_that_all_lead_elsewhere_are_not_waited_for() {
    inside(async {
        let wires = two();
        let joined = join(&wires, Duration::from_secs(60)).await;
        (0..2).for_each(|at| joined.set(at, PathState::Changed));
        assert!(joined.is_changed());
        let error = write(&joined, 1).await.expect_err("the logical unit has changed");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        // The next check finds the original logical unit.
        while joined.is_changed() || joined.outage().is_some() {
            joined.state_change().await;
        }
        write(&joined, 1).await.expect("the paths lead to the original logical unit");
    });
}

/// A path that passes every check and fails every operation.
#[test]
fn operation_that_fails_on_every_path_again_and_again_ends() {
    assert_eq!(
        MultipathOptions::default().operation,
        Timeouts::default().operation,
        "the same limit as for a single path"
    );
    inside(async {
        let wires = two();
        let lun_paths: Vec<Arc<dyn LunPath>> = vec![wires[0].clone(), wires[1].clone()];
        let operation = Duration::from_millis(50);
        let joined =
            Multipath::join(lun_paths, MultipathOptions { operation, ..MultipathOptions::default() });
        let joined = joined.await.expect("two paths to one logical unit");
        wires.iter().for_each(|w| w.up.store(false, Relaxed));
        let (me, over) = (joined.clone(), Arc::new(AtomicBool::new(false)));
        let end = over.clone();
        let flatters = compio::runtime::spawn(async move {
            while !end.load(Relaxed) {
                (0..2).for_each(|at| me.set(at, PathState::Optimized));
                compio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let written = compio::time::timeout(Duration::from_secs(20), write(&joined, 1)).await;
        over.store(true, Relaxed);
        flatters.await.expect("the task panicked");
        written.expect("the operation hangs").expect_err("no path works");
    });
}

fn filled(byte: u8) -> Buf {
    let mut buf = Buf::zeroed(4096);
    buf.fill(byte);
    buf
}

/// The results of `count` operations, by lane.
async fn ends(queue: &mut Box<dyn BackendQueue>, count: usize) -> Vec<BufResult> {
    let mut ends: Vec<(usize, BufResult)> = Vec::new();
    while ends.len() < count {
        ends.push(poll_fn(|cx| queue.poll_ended(cx)).await);
    }
    ends.sort_by_key(|(lane, _)| *lane);
    assert!(ends.iter().map(|(lane, _)| *lane).eq(0..count), "each lane must complete once");
    ends.into_iter().map(|(_, finished)| finished).collect()
}

#[test]
fn queue_operation_on_a_failed_path_ends_on_the_other() {
    inside(async {
        let wires = two();
        let joined = join(&wires, Duration::ZERO).await;
        let mut queue = joined.clone().queue().expect("a queue");
        for (byte, cut) in [(1, 0), (2, 1), (3, 0)] {
            (0..8).for_each(|lane| queue.write(lane, 4096 * lane as u64, filled(byte), false));
            assert_eq!(
                joined.paths().iter().map(|path| path.2).collect::<Vec<_>>(),
                [4, 4],
                "both paths must be used"
            );
            wires[cut].set(false);
            assert!(ends(&mut queue, 8).await.iter().all(|(result, _)| result.is_ok()));
            assert!(wires[cut].given_up.load(Relaxed));
            (0..8).for_each(|lane| queue.read(lane, 4096 * lane as u64, Buf::zeroed(4096)));
            let read = ends(&mut queue, 8).await;
            assert!(read.iter().all(|(result, buf)| result.is_ok() && buf[..] == filled(byte)[..]));
            wires[cut].set(true);
            while joined.paths().iter().any(|p| !p.1.is_usable()) {
                compio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        assert!(joined.paths().iter().all(|path| path.2 == 0), "no operation is in flight");
        queue.read(3, 0, Buf::zeroed(4096));
        drop(queue);
        let times = joined.times();
        assert_eq!((times.service.count, times.queue.count), (48, 48), "each operation is counted once");
        assert!(joined.paths().iter().all(|path| path.2 == 0), "a dropped queue leaves no load");
    });
}

#[test]
fn each_path_counts_its_own_operations() {
    inside(async {
        let wires = two();
        let joined = join(&wires, Duration::ZERO).await;
        let mut queue = joined.clone().queue().expect("a queue");
        (0..8).for_each(|lane| queue.write(lane, 4096 * lane as u64, filled(1), false));
        wires[0].set(false);
        assert!(ends(&mut queue, 8).await.iter().all(|(result, _)| result.is_ok()));
        let [failed, other] = joined.totals()[..] else { panic!("two paths") };
        assert_eq!((failed.writes, failed.written_bytes, failed.errors), (0, 0, 4));
        assert_eq!((other.writes, other.written_bytes, other.errors), (8, 8 * 4096, 0));
        assert_eq!(other.latency.count, 8);
        assert!(joined.read(0, Buf::zeroed(512)).await.0.is_ok());
        joined.flush().await.expect("the other path works");
        let other = joined.totals()[1];
        assert_eq!((other.reads, other.read_bytes, other.latency.count), (1, 512, 9));
        assert_eq!((other.writes, other.errors), (8, 0), "a flush is neither");
    });
}

#[test]
fn without_a_path_a_queue_waits_for_one_or_fails_in_time() {
    inside(async {
        let wires = two();
        let patient = join(&wires, Duration::from_secs(60)).await;
        let hasty = join(&wires, Duration::from_millis(20)).await;
        let [mut patient, mut hasty] = [patient, hasty].map(|joined| joined.queue().expect("a queue"));
        wires.iter().for_each(|w| w.set(false));
        for queue in [&mut patient, &mut hasty] {
            queue.write(0, 0, filled(7), false);
            queue.read(1, 4096, Buf::zeroed(4096));
        }
        let failed = ends(&mut hasty, 2).await;
        assert!(
            failed
                .iter()
                .all(|(result, _)| result.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::TimedOut))
        );
        let waits = compio::time::timeout(Duration::from_millis(10), ends(&mut patient, 2));
        assert!(waits.await.is_err(), "the operations must wait while no path is usable");
        wires[1].set(true);
        assert!(ends(&mut patient, 2).await.iter().all(|(result, _)| result.is_ok()));
    });
}

#[test]
fn queue_writes_of_parts_of_one_block_run_one_by_one() {
    inside(async {
        let wires = two();
        let joined = join(&wires, Duration::ZERO).await;
        let mut queue = joined.clone().queue().expect("a queue");
        let [mut one, mut other] = [(); 2].map(|()| Buf::zeroed(256));
        one.fill(1);
        other.fill(2);
        let held = joined.ranges.try_lock(&(0..512), RangeAccess::Shared).expect("the range is unlocked");
        queue.write(0, 0, one, false);
        queue.write(1, 256, other, false);
        let early = compio::time::timeout(Duration::from_millis(10), ends(&mut queue, 1)).await;
        assert!(early.is_err(), "the write must wait for the lock");
        drop(held);
        assert!(ends(&mut queue, 2).await.iter().all(|(result, _)| result.is_ok()));
        let (_, block) = joined.read(0, Buf::zeroed(512)).await;
        assert!(block[..256] == [1; 256] && block[256..] == [2; 256]);
        assert!(joined.ranges.try_lock(&(0..512), RangeAccess::Shared).is_some());
    });
}

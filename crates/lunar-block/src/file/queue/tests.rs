//! The queue on a file system without RWF_NOWAIT.

use super::batch::Transfer;
use super::*;
use crate::{BackendKind, BackendSpec};
use lunar_runtime::Cores;
use std::future::poll_fn;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Mutex;

const BLOCK: usize = 512;
const BLOCKS: usize = 3 * MAX_BATCH;

/// A file on a file system without RWF_NOWAIT.
fn waiting_file(name: &str) -> (Arc<FileBackend>, PathBuf) {
    let (file, path) = new_file(name);
    (Arc::new(file), path)
}

/// The same, with a hook that threads call with the offset of an operation before they execute it.
fn file_with(name: &str, hook: impl Fn(u64) + Send + Sync + 'static) -> (Arc<FileBackend>, PathBuf) {
    let (mut file, path) = new_file(name);
    file.before_transfer = Some(Box::new(hook));
    (Arc::new(file), path)
}

fn new_file(name: &str) -> (FileBackend, PathBuf) {
    let path = std::env::temp_dir().join(format!("lunar-queue-{name}-{}", std::process::id()));
    let size = Some((BLOCKS * BLOCK) as u64);
    let spec = BackendSpec { kind: BackendKind::File, size, create: true, ..BackendSpec::path(&path) };
    let file = FileBackend::open(&spec).expect("a file");
    file.can.try_read.store(false, Relaxed);
    file.can.try_write.store(false, Relaxed);
    (file, path)
}

fn block_of(byte: usize) -> Buf {
    let mut buf = Buf::zeroed(BLOCK);
    buf.fill(byte as u8);
    buf
}

async fn ends(queue: &mut FileQueue, count: usize) -> Vec<(usize, BufResult)> {
    let mut ended = Vec::new();
    while ended.len() < count {
        ended.push(poll_fn(|cx| queue.poll_ended(cx)).await);
    }
    ended.sort_by_key(|(lane, _)| *lane);
    ended
}

/// Writes each block, then reads it. `is_slow`: without batches.
async fn write_then_read(file: &Arc<FileBackend>, is_slow: bool) {
    let mut queue = FileQueue::new(file.clone());
    queue.slow_until = is_slow.then(|| Instant::now() + Duration::from_secs(3600));
    for lane in 0..BLOCKS {
        queue.write(lane, (lane * BLOCK) as u64, block_of(lane + 1), lane % 7 == 0);
    }
    for (_, (result, _)) in ends(&mut queue, BLOCKS).await {
        result.expect("written");
    }
    for lane in 0..BLOCKS {
        queue.read(lane, (lane * BLOCK) as u64, Buf::zeroed(BLOCK));
    }
    for (lane, (result, buf)) in ends(&mut queue, BLOCKS).await {
        result.expect("read");
        assert_eq!(buf[..], block_of(lane + 1)[..], "block {lane}");
    }
}

fn run(test: impl Future<Output = ()>) {
    compio::runtime::Runtime::new().expect("a runtime").block_on(test);
}

#[test]
fn only_media_that_wait_need_a_queue() {
    let (file, path) = waiting_file("need");
    assert!(file.needs_queue());
    drop(file);
    let read_only = BackendSpec { read_only: true, ..BackendSpec::path(&path) };
    let file = FileBackend::open(&read_only).expect("a file");
    assert!(!file.needs_queue(), "nothing is written");
    file.can.try_read.store(false, Relaxed);
    assert!(file.needs_queue());
    std::fs::remove_file(path).expect("a file");
}

#[test]
fn batches_and_single_operations_reach_their_blocks() {
    for is_slow in [false, true] {
        let (file, path) = waiting_file(if is_slow { "slow" } else { "fast" });
        run(write_then_read(&file, is_slow));
        std::fs::remove_file(path).expect("a file");
    }
}

/// Begins a batch of which the thread has executed this operation.
fn push_ended(queue: &FileQueue, op: QueuedOp, met_write_at: Option<u64>, is_slow: bool) {
    let batch = Arc::new(Batch::new(VecDeque::from([op]), Instant::now()));
    let Transfer { buf, .. } = batch.next(&queue.file, None).expect("an operation");
    assert!(batch.next(&queue.file, Some(((Ok(()), buf), met_write_at))).is_none());
    queue.running.push(Box::pin(std::future::ready(Ended::Batch(batch, Ok(is_slow)))));
}

#[test]
fn read_that_meets_a_write_is_repeated() {
    let (file, path) = waiting_file("mixed");
    run(async {
        let mut queue = FileQueue::new(file.clone());
        push_ended(&queue, QueuedOp { lane: 3, offset: 0, buf: block_of(9), mark: None }, Some(0), false);
        let (lane, (result, buf)) = ends(&mut queue, 1).await.remove(0);
        assert!(lane == 3 && result.is_ok() && buf[..] == block_of(0)[..], "the block was read again");
        let regions = RegionIndices::of(0, BLOCK as u64);
        let write = InFlightWrites::try_write(&*file.in_flight, regions).expect("no reader blocks it");
        let read = || file.transfer(&mut Transfer { is_write: false, offset: 0, buf: block_of(1) });
        assert_eq!(read().1, Some(0), "a write is in flight");
        drop(write);
        assert_eq!(read().1, None, "no write is in flight");
    });
    std::fs::remove_file(path).expect("a file");
}

#[test]
fn write_in_a_batch_never_extends_a_truncated_file() {
    let (file, path) = waiting_file("truncated");
    run(async {
        let mut queue = FileQueue::new(file.clone());
        for lane in 0..4 {
            queue.write(lane, (lane * BLOCK) as u64, block_of(1), false);
        }
        let other = std::fs::OpenOptions::new().write(true).open(&path).expect("a file");
        other.set_len(2 * BLOCK as u64).expect("truncated");
        let ok: Vec<bool> = ends(&mut queue, 4).await.iter().map(|(_, (end, _))| end.is_ok()).collect();
        assert_eq!(ok, [true, true, false, false]);
        assert_eq!(other.metadata().expect("a file").len(), 2 * BLOCK as u64);
    });
    std::fs::remove_file(path).expect("a file");
}

#[test]
fn dropped_queue_leaves_no_write_marked_as_in_flight() {
    let (go, gate) = std::sync::mpsc::channel();
    let gate = Mutex::new(gate);
    let (file, path) = file_with("dropped", move |offset| {
        if offset == 0 {
            _ = gate.lock().expect("no panic").recv();
        }
    });
    run(async {
        let mut queue = FileQueue::new(file.clone());
        for lane in 0..8 {
            queue.write(lane, (lane * BLOCK) as u64, block_of(1), false);
        }
        let is_running = poll_fn(|cx| Poll::Ready(queue.poll_ended(cx).is_pending())).await;
        assert!(is_running, "the thread waits");
        drop(queue);
        go.send(()).expect("the thread waits");
        let all = RegionIndices::of(0, (BLOCKS * BLOCK) as u64);
        while file.in_flight.before(all).is_none() {
            compio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    std::fs::remove_file(path).expect("a file");
}

#[test]
fn slow_batch_ends_batches_for_a_while() {
    let (file, path) = waiting_file("pace");
    run(async {
        let mut queue = FileQueue::new(file.clone());
        push_ended(&queue, QueuedOp { lane: 0, offset: 0, buf: block_of(0), mark: None }, None, true);
        assert!(ends(&mut queue, 1).await[0].1.0.is_ok() && queue.is_slow());
        queue.slow_until = Some(Instant::now());
        assert!(!queue.is_slow(), "the period is over");
    });
    std::fs::remove_file(path).expect("a file");
}

#[test]
fn write_under_a_record_joins_no_batch() {
    let (file, path) = waiting_file("record");
    let mut queue = FileQueue::new(file.clone());
    file.open.fail(0, block_of(0));
    queue.write(0, 0, block_of(1), false);
    assert!(queue.collected.is_empty());
    let all = RegionIndices::of(0, (BLOCKS * BLOCK) as u64);
    assert!(file.in_flight.before(all).is_some(), "no write is marked");
    std::fs::remove_file(path).expect("a file");
}

/// Begins a read or a write of the block of each of these lanes.
fn begin(queue: &mut FileQueue, lanes: std::ops::Range<usize>, is_write: impl Fn(usize) -> bool) {
    for lane in lanes {
        match is_write(lane) {
            true => queue.write(lane, (lane * BLOCK) as u64, block_of(lane + 1), false),
            false => queue.read(lane, (lane * BLOCK) as u64, Buf::zeroed(BLOCK)),
        }
    }
}

/// The lanes of operations that have succeeded.
fn lanes(ended: Vec<(usize, BufResult)>) -> Vec<usize> {
    let succeeded = |(lane, (result, _)): (usize, BufResult)| {
        result.expect("it succeeds");
        lane
    };
    ended.into_iter().map(succeeded).collect()
}

/// Nothing is in flight any more.
async fn expect_idle(queue: &mut FileQueue) {
    let is_idle = poll_fn(|cx| Poll::Ready(queue.poll_ended(cx).is_pending())).await;
    assert!(is_idle, "each operation ends once");
    let all = RegionIndices::of(0, (BLOCKS * BLOCK) as u64);
    assert!(queue.file.in_flight.before(all).is_some(), "no write is marked");
}

#[test]
fn operation_that_hangs_holds_no_other_one() {
    for is_write in [|_| true, |lane| lane % 2 == 0] {
        let (go_on, held) = std::sync::mpsc::channel::<()>();
        let held = Mutex::new(held);
        let hook = move |offset| {
            if offset == 3 * BLOCK as u64 {
                _ = held.lock().expect("a channel").recv();
            }
        };
        let (file, path) = file_with("hangs", hook);
        let cores = Cores::one().expect("an event loop");
        let test = move || async move {
            let mut queue = FileQueue::new(file.clone());
            begin(&mut queue, 0..8, is_write);
            assert_eq!(lanes(ends(&mut queue, 7).await), [0, 1, 2, 4, 5, 6, 7]);
            // Another batch could lose one more thread, also that of another session.
            lunar_runtime::sleep_until(Instant::now() + 2 * SLOW_PERIOD).await;
            assert!(queue.is_slow() && FileQueue::new(file).is_slow());
            begin(&mut queue, 8..12, is_write);
            assert_eq!(lanes(ends(&mut queue, 4).await), [8, 9, 10, 11], "the thread still hangs");
            drop(go_on);
            assert_eq!(lanes(ends(&mut queue, 1).await), [3]);
            assert_eq!(queue.file.late_operations.load(SeqCst), 0);
            expect_idle(&mut queue).await;
        };
        cores.wait(0, test).expect("the test passes");
        cores.stop();
        let content = std::fs::read(&path).expect("a file");
        for lane in (0..12).filter(|lane| is_write(*lane)) {
            assert_eq!(content[lane * BLOCK], lane as u8 + 1, "block {lane}");
        }
        std::fs::remove_file(path).expect("a file");
    }
}

#[test]
fn operation_that_panics_fails_alone() {
    let hook = |offset| {
        if offset == 2 * BLOCK as u64 {
            resume_unwind(Box::new("as it may happen, without the noise"));
        }
    };
    let (file, path) = file_with("panics", hook);
    run(async {
        let mut queue = FileQueue::new(file.clone());
        begin(&mut queue, 0..4, |_| true);
        let mut ended = ends(&mut queue, 4).await;
        let (lane, (result, buf)) = ended.remove(2);
        assert!(lane == 2 && result.is_err() && buf.len() == BLOCK);
        assert_eq!(lanes(ended), [0, 1, 3]);
        expect_idle(&mut queue).await;
    });
    std::fs::remove_file(path).expect("a file");
}

#[test]
fn failed_thread_fails_only_what_it_executes() {
    let (file, path) = waiting_file("fails");
    run(async {
        let mut queue = FileQueue::new(file.clone());
        begin(&mut queue, 0..2, |_| true);
        let batch = Arc::new(Batch::new(queue.collected.drain(..).collect(), Instant::now()));
        batch.next(&file, None).expect("the thread executes the first operation");
        let failed = Ended::Batch(batch, Err(io::Error::other("no thread")));
        queue.running.push(Box::pin(std::future::ready(failed)));
        let mut ended = ends(&mut queue, 2).await;
        assert!(ended.remove(0).1.0.is_err());
        assert_eq!(lanes(ended), [1]);
        expect_idle(&mut queue).await;
    });
    std::fs::remove_file(path).expect("a file");
}

#[test]
fn batch_without_a_thread_is_taken_back() {
    let (file, path) = waiting_file("no-thread");
    run(async {
        let mut queue = FileQueue::new(file.clone());
        begin(&mut queue, 0..2, |_| true);
        let batch = Arc::new(Batch::new(queue.collected.drain(..).collect(), Instant::now()));
        queue.batches.push(batch.clone());
        std::thread::sleep(BATCH_TIMEOUT);
        queue.running.push(Box::pin(std::future::ready(Ended::Timer)));
        assert_eq!(lanes(ends(&mut queue, 2).await), [0, 1]);
        assert!(!batch.execute(&file) && !queue.is_slow(), "the thread finds nothing to execute");
        expect_idle(&mut queue).await;
    });
    std::fs::remove_file(path).expect("a file");
}

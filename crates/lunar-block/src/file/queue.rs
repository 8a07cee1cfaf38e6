//! Reads and writes of files whose file system cannot do them without waiting (RWF_NOWAIT): ext4 for writes; NFS,
//! FUSE and overlayfs for both.
//!
//! io_uring passes each of these operations to a kernel thread, which costs more than a small cached write itself. So
//! the queue passes all operations of one receive to one thread, as long as the medium completes them quickly. The
//! operations of a slow medium must run at the same time, and go through io_uring.

use super::FileBackend;
use super::in_flight::{InFlightWrite, InFlightWrites, RegionIndices};
use super::ops;
use super::watch::invalidate_size;
use crate::{Backend, BackendQueue, BufResult, LocalBoxFuture};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lunar_runtime::Buf;
use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Maximum number of operations that a thread executes one after the other.
const MAX_BATCH: usize = 32;
/// Maximum length in bytes of an operation in a batch. Longer ones take so much time that they gain from more threads.
const MAX_BATCHED_LEN: usize = 64 << 10;
/// Mean time of the operations of a batch above which the medium counts as slow.
const SLOW_OPERATION: Duration = Duration::from_micros(50);
/// How long a medium counts as slow.
const SLOW_PERIOD: Duration = Duration::from_millis(100);

/// An operation that has not begun.
struct QueuedOp {
    lane: usize,
    offset: u64,
    buf: Buf,
    /// For a write: its mark, which lasts until it has ended.
    mark: Option<InFlightWrite<Arc<InFlightWrites>>>,
}

/// An operation that a thread has executed.
struct ExecutedOp {
    lane: usize,
    finished: BufResult,
    /// The offset of a read that met a write: its data can be a mix of old and new.
    met_write_at: Option<u64>,
    _mark: Option<InFlightWrite<Arc<InFlightWrites>>>,
}

/// The end of one operation, or of a batch with the time that it took.
enum Ended {
    One(usize, BufResult),
    Batch(Vec<ExecutedOp>, Duration),
    Failed(Vec<usize>, io::Error),
}

/// The queued operations of one owner.
pub(super) struct FileQueue {
    file: Arc<FileBackend>,
    batch: Vec<QueuedOp>,
    running: FuturesUnordered<LocalBoxFuture<'static, Ended>>,
    ended: VecDeque<(usize, BufResult)>,
    slow_until: Option<Instant>,
}

impl FileQueue {
    pub(super) fn new(file: Arc<FileBackend>) -> FileQueue {
        let (batch, running, ended) = Default::default();
        FileQueue { file, batch, running, ended, slow_until: None }
    }

    /// Begins an operation that has a future of its own.
    fn begin_one(&self, lane: usize, operation: impl AsyncFnOnce(&FileBackend) -> BufResult + 'static) {
        let file = self.file.clone();
        self.running.push(Box::pin(async move { Ended::One(lane, operation(&file).await) }));
    }

    fn is_slow(&mut self) -> bool {
        self.slow_until = self.slow_until.filter(|until| Instant::now() < *until);
        self.slow_until.is_some()
    }

    /// Begins the collected operations.
    fn begin_batch(&mut self) {
        if self.batch.len() == 1 || self.is_slow() {
            for QueuedOp { lane, offset, buf, mark } in std::mem::take(&mut self.batch) {
                match mark {
                    Some(_) => self.begin_one(lane, async move |file| file.write(offset, buf, false).await),
                    None => self.begin_one(lane, async move |file| file.read(offset, buf).await),
                }
            }
        }
        while !self.batch.is_empty() {
            let batch: Vec<_> = self.batch.drain(..self.batch.len().min(MAX_BATCH)).collect();
            self.running.push(Box::pin(hand_off(self.file.clone(), batch)));
        }
    }
}

impl FileQueue {
    fn end_batch(&mut self, executed: Vec<ExecutedOp>, time: Duration) {
        if time > SLOW_OPERATION * executed.len() as u32 {
            self.slow_until = Some(Instant::now() + SLOW_PERIOD);
        }
        for ExecutedOp { lane, finished, met_write_at, .. } in executed {
            match met_write_at {
                Some(offset) => self.begin_one(lane, async move |file| file.read(offset, finished.1).await),
                None => self.ended.push_back((lane, finished)),
            }
        }
    }
}

/// Executes a batch on a thread.
async fn hand_off(file: Arc<FileBackend>, batch: Vec<QueuedOp>) -> Ended {
    let lanes: Vec<usize> = batch.iter().map(|op| op.lane).collect();
    let on_thread = move || {
        let started_at = Instant::now();
        invalidate_size();
        let executed: Vec<_> = batch.into_iter().map(|op| file.execute(op)).collect();
        Ok((executed, started_at.elapsed()))
    };
    match lunar_runtime::blocking(on_thread).await {
        // The marks end on this core: they wake tasks, which a thread must not do.
        Ok((executed, time)) => Ended::Batch(executed, time),
        Err(e) => Ended::Failed(lanes, e),
    }
}

impl FileBackend {
    /// Whether reads and writes need [`FileQueue`].
    pub(super) fn needs_queue(&self) -> bool {
        let writes_at_once = self.medium.read_only || self.can.try_write.load(Relaxed);
        !(self.medium.direct() || self.can.try_read.load(Relaxed) && writes_at_once)
    }

    /// Executes an operation on the calling thread.
    fn execute(&self, op: QueuedOp) -> ExecutedOp {
        let QueuedOp { lane, offset, mut buf, mark } = op;
        if mark.is_some() {
            let result = self.write_on_thread(offset, &buf);
            return ExecutedOp { lane, finished: (result, buf), met_write_at: None, _mark: mark };
        }
        let regions = RegionIndices::of(offset, buf.len() as u64);
        let before = self.in_flight.before_soon(regions);
        let result = self.read_on_thread(offset, &mut buf);
        let is_whole = before.is_some_and(|before| self.in_flight.is_as_before(regions, before));
        let met_write_at = (result.is_ok() && !is_whole).then_some(offset);
        ExecutedOp { lane, finished: (result, buf), met_write_at, _mark: None }
    }

    fn read_on_thread(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check(offset, buf.len() as u64)?;
        self.medium.files.plain.read_exact_at(buf, offset)
    }

    /// Checks the size before each step, because the file may have shrunk.
    fn write_on_thread(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut at = 0;
        while at < data.len() {
            if at > 0 {
                invalidate_size();
            }
            self.still_there(offset, data.len() as u64)?;
            let written = self.medium.files.plain.write_at(&data[at..], offset + at as u64);
            at += ops::step(written, io::ErrorKind::WriteZero)?;
        }
        Ok(())
    }
}

impl BackendQueue for FileQueue {
    fn read(&mut self, lane: usize, offset: u64, buf: Buf) {
        if self.file.can.try_read.load(Relaxed) || buf.len() > MAX_BATCHED_LEN {
            // Without a file system that waits, the data are not in the page cache, and the device is slow.
            return self.begin_one(lane, async move |file| file.read(offset, buf).await);
        }
        self.batch.push(QueuedOp { lane, offset, buf, mark: None });
    }

    fn write(&mut self, lane: usize, offset: u64, buf: Buf, fua: bool) {
        let file = &self.file;
        let len = buf.len() as u64;
        if !fua
            && buf.len() <= MAX_BATCHED_LEN
            && !file.can.try_write.load(Relaxed)
            && !file.open.is_open()
            && file.check_write(offset, len).is_ok()
            && let Some(mark) =
                InFlightWrites::try_write(file.in_flight.clone(), RegionIndices::of(offset, len))
        {
            return self.batch.push(QueuedOp { lane, offset, buf, mark: Some(mark) });
        }
        self.begin_one(lane, async move |file| file.write(offset, buf, fua).await);
    }

    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<(usize, BufResult)> {
        if !self.batch.is_empty() {
            self.begin_batch();
        }
        while self.ended.is_empty() {
            match self.running.poll_next_unpin(cx) {
                Poll::Ready(Some(Ended::One(lane, finished))) => return Poll::Ready((lane, finished)),
                Poll::Ready(Some(Ended::Batch(executed, time))) => self.end_batch(executed, time),
                Poll::Ready(Some(Ended::Failed(lanes, e))) => {
                    let failed = || (Err(io::Error::new(e.kind(), e.to_string())), Buf::zeroed(0));
                    self.ended.extend(lanes.into_iter().map(|lane| (lane, failed())));
                }
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
        self.ended.pop_front().map_or(Poll::Pending, Poll::Ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BackendKind, BackendSpec};
    use std::future::poll_fn;

    const BLOCK: usize = 512;
    const BLOCKS: usize = 3 * MAX_BATCH;

    /// A file on a file system without RWF_NOWAIT.
    fn waiting_file(name: &str) -> (Arc<FileBackend>, std::path::PathBuf) {
        let path = std::env::temp_dir().join(format!("lunar-queue-{name}-{}", std::process::id()));
        let size = Some((BLOCKS * BLOCK) as u64);
        let spec = BackendSpec { kind: BackendKind::File, size, create: true, ..BackendSpec::path(&path) };
        let file = FileBackend::open(&spec).expect("a file");
        file.can.try_read.store(false, Relaxed);
        file.can.try_write.store(false, Relaxed);
        (Arc::new(file), path)
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

    #[test]
    fn read_that_meets_a_write_is_repeated() {
        let (file, path) = waiting_file("mixed");
        run(async {
            let mut queue = FileQueue::new(file.clone());
            let executed =
                ExecutedOp { lane: 3, finished: (Ok(()), block_of(9)), met_write_at: Some(0), _mark: None };
            queue.running.push(Box::pin(std::future::ready(Ended::Batch(vec![executed], Duration::ZERO))));
            let (lane, (result, buf)) = ends(&mut queue, 1).await.remove(0);
            assert!(lane == 3 && result.is_ok() && buf[..] == block_of(0)[..], "the block was read again");
            let regions = RegionIndices::of(0, BLOCK as u64);
            let write = InFlightWrites::try_write(&*file.in_flight, regions).expect("no reader blocks it");
            let read = || file.execute(QueuedOp { lane: 0, offset: 0, buf: block_of(1), mark: None });
            assert_eq!(read().met_write_at, Some(0), "a write is in flight");
            drop(write);
            assert_eq!(read().met_write_at, None, "no write is in flight");
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
        let (file, path) = waiting_file("dropped");
        run(async {
            let mut queue = FileQueue::new(file.clone());
            for lane in 0..8 {
                queue.write(lane, (lane * BLOCK) as u64, block_of(1), false);
            }
            let is_running = poll_fn(|cx| Poll::Ready(queue.poll_ended(cx).is_pending())).await;
            assert!(is_running, "the thread has not answered yet");
            drop(queue);
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
            let executed =
                ExecutedOp { lane: 0, finished: (Ok(()), Buf::zeroed(0)), met_write_at: None, _mark: None };
            let slow = Ended::Batch(vec![executed], 2 * SLOW_OPERATION);
            queue.running.push(Box::pin(std::future::ready(slow)));
            assert!(ends(&mut queue, 1).await[0].1.0.is_ok() && queue.is_slow());
            queue.slow_until = Some(Instant::now());
            assert!(!queue.is_slow(), "the period is over");
        });
        std::fs::remove_file(path).expect("a file");
    }
}

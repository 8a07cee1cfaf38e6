//! Reads and writes of files whose file system cannot do them without waiting (RWF_NOWAIT): ext4 for writes; NFS,
//! FUSE and overlayfs for both.
//!
//! io_uring passes each of these operations to a kernel thread, which costs more than a small cached write itself. So
//! the queue passes all operations of one receive to one thread, as long as the medium completes them quickly. The
//! operations of a slow medium must run at the same time, and go through io_uring.
//!
//! A medium that was quick may become slow, or hang. A batch that has not ended in time is taken back from its
//! thread, except for the operation that the thread executes: the others go through io_uring.

mod batch;

use super::FileBackend;
use super::in_flight::{InFlightWrites, RegionIndices};
use crate::{Backend, BackendQueue, BufResult, LocalBoxFuture};
use batch::{Batch, BatchLists, ExecutedOp, QueuedOp};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lunar_runtime::Buf;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Maximum number of operations that a thread executes one after the other.
const MAX_BATCH: usize = 32;
/// Maximum length in bytes of an operation in a batch. Longer ones take so much time that they gain from more threads.
const MAX_BATCHED_LEN: usize = 64 << 10;
/// Time after which a batch is taken back. A thread that is ready may wait for its CPU almost as long.
const BATCH_TIMEOUT: Duration = Duration::from_millis(4);
/// Maximum pause between two checks of the batches by a timer. On a busy core, a check costs as much as some
/// operations.
const MAX_CHECK_PAUSE: Duration = Duration::from_millis(16);
/// How long a medium counts as slow.
const SLOW_PERIOD: Duration = Duration::from_millis(100);

/// The end of an operation, of a batch, or of the timer of the batches.
enum Ended {
    One(usize, BufResult),
    /// Whether the medium was slow.
    Batch(Arc<Batch>, io::Result<bool>),
    Timer,
}

/// The queued operations of one owner.
pub(super) struct FileQueue {
    file: Arc<FileBackend>,
    collected: Vec<QueuedOp>,
    /// The batches that have not ended and were not taken back.
    batches: Vec<Arc<Batch>>,
    /// Whether a timer runs that checks the batches. One timer serves them all.
    has_timer: bool,
    /// Time until the next timer ends. It is doubled after each check that finds nothing.
    check_pause: Duration,
    running: FuturesUnordered<LocalBoxFuture<'static, Ended>>,
    ended: VecDeque<(usize, BufResult)>,
    slow_until: Option<Instant>,
}

impl FileQueue {
    pub(super) fn new(file: Arc<FileBackend>) -> FileQueue {
        let (collected, batches, running, ended) = Default::default();
        let (has_timer, check_pause) = (false, BATCH_TIMEOUT);
        FileQueue { file, collected, batches, has_timer, check_pause, running, ended, slow_until: None }
    }

    /// Begins an operation that has a future of its own.
    fn begin_one(&self, lane: usize, operation: impl AsyncFnOnce(&FileBackend) -> BufResult + 'static) {
        let file = self.file.clone();
        self.running.push(Box::pin(async move { Ended::One(lane, operation(&file).await) }));
    }

    fn begin_alone(&self, QueuedOp { lane, offset, buf, mark }: QueuedOp) {
        match mark {
            Some(_) => self.begin_one(lane, async move |file| file.write(offset, buf, false).await),
            None => self.begin_one(lane, async move |file| file.read(offset, buf).await),
        }
    }

    /// An operation that hangs keeps a thread. As long as it does, no further batch may lose one: flushes of other media
    /// need the threads of the core too.
    fn is_slow(&mut self) -> bool {
        if self.file.late_operations.load(SeqCst) > 0 {
            return true;
        }
        self.slow_until = self.slow_until.filter(|until| Instant::now() < *until);
        self.slow_until.is_some()
    }

    fn set_slow(&mut self) {
        self.slow_until = Some(Instant::now() + SLOW_PERIOD);
        self.check_pause = BATCH_TIMEOUT;
    }

    /// Begins the collected operations.
    fn begin_collected(&mut self) {
        let now = Instant::now();
        self.take_back_late(now);
        let mut collected = std::mem::take(&mut self.collected);
        if collected.len() == 1 || self.is_slow() {
            collected.drain(..).for_each(|op| self.begin_alone(op));
        }
        while !collected.is_empty() {
            let queued = collected.drain(..collected.len().min(MAX_BATCH)).collect();
            let batch = Arc::new(Batch::new(queued, now));
            self.batches.push(batch.clone());
            self.running.push(Box::pin(hand_off(self.file.clone(), batch)));
        }
        self.collected = collected;
        self.start_timer(now);
    }

    fn start_timer(&mut self, now: Instant) {
        if self.has_timer || self.batches.is_empty() {
            return;
        }
        let deadline = now + self.check_pause;
        self.has_timer = true;
        self.running.push(Box::pin(async move {
            lunar_runtime::sleep_until(deadline).await;
            Ended::Timer
        }));
    }

    fn end_timer(&mut self) {
        let now = Instant::now();
        self.has_timer = false;
        self.check_pause = (2 * self.check_pause).min(MAX_CHECK_PAUSE);
        self.take_back_late(now);
        self.start_timer(now);
    }

    /// Takes back the batches that have not ended in time.
    fn take_back_late(&mut self, now: Instant) {
        while self.batches.first().is_some_and(|oldest| now >= oldest.begun_at + BATCH_TIMEOUT) {
            let (lists, is_executing) = self.batches.remove(0).take_back(&self.file);
            if is_executing {
                self.set_slow();
            }
            self.end_operations(lists, None);
        }
    }

    fn end_batch(&mut self, batch: &Arc<Batch>, is_slow: io::Result<bool>) {
        self.batches.retain(|running| !Arc::ptr_eq(running, batch));
        if matches!(is_slow, Ok(true)) {
            self.set_slow();
        }
        self.end_operations(batch.take_all(), is_slow.err());
    }

    /// Ends the executed operations of a batch, and begins those that it left over. `failure`: of the one that its
    /// thread was executing.
    fn end_operations(&mut self, lists: BatchLists, failure: Option<io::Error>) {
        let BatchLists { queued, executing, executed, .. } = lists;
        for ExecutedOp { lane, finished, met_write_at, .. } in executed {
            match met_write_at {
                Some(offset) => self.begin_one(lane, async move |file| file.read(offset, finished.1).await),
                None => self.ended.push_back((lane, finished)),
            }
        }
        queued.into_iter().for_each(|op| self.begin_alone(op));
        if let (Some((lane, _)), Some(failure)) = (executing, failure) {
            self.ended.push_back((lane, (Err(failure), Buf::zeroed(0))));
        }
    }
}

/// Executes a batch on a thread.
async fn hand_off(file: Arc<FileBackend>, batch: Arc<Batch>) -> Ended {
    let on_thread = {
        let batch = batch.clone();
        // The thread returns its reference to the batch, whose marks must end on this core.
        move || Ok((batch.execute(&file), batch))
    };
    let is_slow = lunar_runtime::blocking(on_thread).await.map(|(is_slow, _)| is_slow);
    Ended::Batch(batch, is_slow)
}

impl FileBackend {
    /// Whether reads and writes need [`FileQueue`].
    pub(super) fn needs_queue(&self) -> bool {
        let writes_at_once = self.medium.read_only || self.can.try_write.load(Relaxed);
        !(self.medium.direct() || self.can.try_read.load(Relaxed) && writes_at_once)
    }
}

impl BackendQueue for FileQueue {
    fn read(&mut self, lane: usize, offset: u64, buf: Buf) {
        if self.file.can.try_read.load(Relaxed) || buf.len() > MAX_BATCHED_LEN {
            // Without a file system that waits, the data are not in the page cache, and the device is slow.
            return self.begin_one(lane, async move |file| file.read(offset, buf).await);
        }
        self.collected.push(QueuedOp { lane, offset, buf, mark: None });
    }

    fn write(&mut self, lane: usize, offset: u64, buf: Buf, fua: bool) {
        let file = &self.file;
        let len = buf.len() as u64;
        if !fua
            && buf.len() <= MAX_BATCHED_LEN
            && !file.can.try_write.load(Relaxed)
            && let Some(mark) =
                InFlightWrites::try_write(file.in_flight.clone(), RegionIndices::of(offset, len))
            && !file.open.is_open()
            && file.check_write(offset, len).is_ok()
        {
            return self.collected.push(QueuedOp { lane, offset, buf, mark: Some(mark) });
        }
        self.begin_one(lane, async move |file| file.write(offset, buf, fua).await);
    }

    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<(usize, BufResult)> {
        if !self.collected.is_empty() {
            self.begin_collected();
        }
        while self.ended.is_empty() {
            match self.running.poll_next_unpin(cx) {
                Poll::Ready(Some(Ended::One(lane, finished))) => return Poll::Ready((lane, finished)),
                Poll::Ready(Some(Ended::Batch(batch, is_slow))) => self.end_batch(&batch, is_slow),
                Poll::Ready(Some(Ended::Timer)) => self.end_timer(),
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
        self.ended.pop_front().map_or(Poll::Pending, Poll::Ready)
    }
}

#[cfg(test)]
mod tests;

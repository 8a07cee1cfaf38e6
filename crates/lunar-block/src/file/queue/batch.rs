//! A batch of reads and writes, which one thread executes one after the other.
//!
//! The batch is a list that the thread and the core share: results are available before the batch has ended, and the
//! core can take back operations that have not begun.

use super::super::in_flight::{InFlightWrite, InFlightWrites, RegionIndices};
use super::super::watch::invalidate_size;
use super::super::{FileBackend, ops};
use crate::{BufResult, locked};
use lunar_runtime::Buf;
use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Mean time of the operations of a batch above which the medium counts as slow.
pub(super) const SLOW_OPERATION: Duration = Duration::from_micros(50);

/// The mark of a write, which lasts until it has ended. It ends on the core: it wakes tasks, which a thread must not
/// do.
pub(super) type WriteMark = InFlightWrite<Arc<InFlightWrites>>;

/// An operation that has not begun.
pub(super) struct QueuedOp {
    pub(super) lane: usize,
    pub(super) offset: u64,
    pub(super) buf: Buf,
    /// For a write: its mark.
    pub(super) mark: Option<WriteMark>,
}

/// An operation that a thread has executed.
pub(super) struct ExecutedOp {
    pub(super) lane: usize,
    pub(super) finished: BufResult,
    /// The offset of a read that met a write: its data can be a mix of old and new.
    pub(super) met_write_at: Option<u64>,
    pub(super) _mark: Option<WriteMark>,
}

/// The part of an operation that its thread needs.
pub(super) struct Transfer {
    pub(super) is_write: bool,
    pub(super) offset: u64,
    pub(super) buf: Buf,
}

/// The result of an operation, and the offset of a read that met a write.
pub(super) type Transferred = (BufResult, Option<u64>);

/// The lists of a batch. An operation is in one of them.
#[derive(Default)]
pub(super) struct BatchLists {
    pub(super) queued: VecDeque<QueuedOp>,
    /// The lane and the mark of the operation that the thread executes.
    pub(super) executing: Option<(usize, Option<WriteMark>)>,
    pub(super) executed: Vec<ExecutedOp>,
    /// Whether the operation in execution counts in [`FileBackend::late_operations`].
    is_late: bool,
}

/// A batch of operations.
pub(super) struct Batch {
    pub(super) begun_at: Instant,
    lists: Mutex<BatchLists>,
}

impl Batch {
    /// A batch that begins at this time.
    pub(super) fn new(queued: VecDeque<QueuedOp>, begun_at: Instant) -> Batch {
        let executed = Vec::with_capacity(queued.len());
        let lists = BatchLists { queued, executed, ..BatchLists::default() };
        Batch { begun_at, lists: Mutex::new(lists) }
    }

    /// Takes back the results and the operations that have not begun. The thread keeps the one that it executes.
    /// Returns whether there is one: the file then counts it as late until it ends.
    pub(super) fn take_back(&self, file: &FileBackend) -> (BatchLists, bool) {
        let lists = &mut *locked(&self.lists);
        let (queued, executed) = (std::mem::take(&mut lists.queued), std::mem::take(&mut lists.executed));
        let is_executing = lists.executing.is_some();
        if is_executing && !std::mem::replace(&mut lists.is_late, true) {
            file.late_operations.fetch_add(1, SeqCst);
        }
        (BatchLists { queued, executed, ..BatchLists::default() }, is_executing)
    }

    /// Takes everything, after the thread has ended.
    pub(super) fn take_all(&self) -> BatchLists {
        std::mem::take(&mut *locked(&self.lists))
    }

    /// Executes the operations on the calling thread. Returns whether the medium is slow.
    pub(super) fn execute(&self, file: &FileBackend) -> bool {
        let (started_at, mut count) = (Instant::now(), 0);
        invalidate_size();
        let mut last = None;
        while let Some(transfer) = self.next(file, last.take()) {
            last = Some(file.transfer_or_fail(transfer));
            count += 1;
        }
        count > 0 && started_at.elapsed() > SLOW_OPERATION * count
    }

    /// Ends the operation in execution, and begins the next one.
    pub(super) fn next(&self, file: &FileBackend, ended: Option<Transferred>) -> Option<Transfer> {
        let lists = &mut *locked(&self.lists);
        if std::mem::take(&mut lists.is_late) {
            file.late_operations.fetch_sub(1, SeqCst);
        }
        if let (Some((lane, _mark)), Some((finished, met_write_at))) = (lists.executing.take(), ended) {
            lists.executed.push(ExecutedOp { lane, finished, met_write_at, _mark });
        }
        let QueuedOp { lane, offset, buf, mark } = lists.queued.pop_front()?;
        let is_write = mark.is_some();
        lists.executing = Some((lane, mark));
        Some(Transfer { is_write, offset, buf })
    }
}

impl FileBackend {
    /// Executes an operation on the calling thread. A panic fails this operation only.
    fn transfer_or_fail(&self, mut transfer: Transfer) -> Transferred {
        let done = catch_unwind(AssertUnwindSafe(|| self.transfer(&mut transfer)));
        let (result, met_write_at) =
            done.unwrap_or_else(|_| (Err(io::Error::other("a read or write of the file panicked")), None));
        ((result, transfer.buf), met_write_at)
    }

    pub(super) fn transfer(&self, transfer: &mut Transfer) -> (io::Result<()>, Option<u64>) {
        let Transfer { is_write, offset, ref mut buf } = *transfer;
        #[cfg(test)]
        self.before_transfer.iter().for_each(|hook| hook(offset));
        if is_write {
            return (self.write_on_thread(offset, buf), None);
        }
        let regions = RegionIndices::of(offset, buf.len() as u64);
        let before = self.in_flight.before_soon(regions);
        let result = self.read_on_thread(offset, buf);
        let is_whole = before.is_some_and(|before| self.in_flight.is_as_before(regions, before));
        let met_write_at = (result.is_ok() && !is_whole).then_some(offset);
        (result, met_write_at)
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

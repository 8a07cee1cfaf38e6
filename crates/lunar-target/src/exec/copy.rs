//! EXTENDED COPY from block to block (SPC-5 section 6.4), between logical units that the same initiator sees.
//!
//! A copy works in steps. For each step it takes the task set locks of source, destination and its own logical unit,
//! like a command of each, and checks reservations under them. Between two steps it holds no lock, so that a COMPARE
//! AND WRITE waits for at most one step.
//!
//! An ORDERED copy holds all of its locks from its first step to its last. A task takes several locks only through
//! [`lock_all`].

use super::medium::{
    ExecutionContext, ExecutionOutput, ExecutionResult, READ, STEP, WRITE, aborted_failure, fetch_into,
    flush, io_failure, of_step, write_buf,
};
use crate::LogicalUnit;
use crate::task_set_lock::{LockMode, TaskSetGuard, TaskSetHandle, lock_all};
use lunar_runtime::{Buf, Pool, either};
use lunar_scsi::{CommandError, CopyResult, CopySegment, NexusId};
use lunar_wire::scsi::Sense;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The source and destination of a segment.
pub struct CopyEnds {
    /// The logical unit to read.
    pub source: CopyEnd,
    /// The logical unit to write.
    pub destination: CopyEnd,
}

/// The source or destination of a segment.
pub struct CopyEnd {
    /// The LUN number that the initiator uses.
    pub lun: u16,
    /// The logical unit.
    pub unit: Arc<LogicalUnit>,
    /// The nexus of the session with it.
    pub nexus: NexusId,
    /// Its task set, on the core of the nexus.
    pub task_set: TaskSetHandle,
    /// The medium for which the command was sent.
    pub medium: u64,
}

impl CopyEnd {
    /// Checks that the medium was not replaced between two steps. `byte`: the byte of the segment descriptor that
    /// names this logical unit.
    fn check_medium(&self, number: u16, byte: u16) -> Result<(), Sense> {
        if self.unit.lu.medium() == self.medium {
            Ok(())
        } else {
            Err(Sense::COPY_ABORTED.segment(number, byte))
        }
    }
}

impl CopyEnds {
    fn locks(&self) -> impl Iterator<Item = (TaskSetHandle, LockMode)> {
        [&self.source, &self.destination].map(|end| (end.task_set.clone(), LockMode::Shared)).into_iter()
    }
}

/// A copy in progress. Dropping it records the result at the logical unit of the command, however the copy ended.
struct CopyRun<'a> {
    unit: &'a LogicalUnit,
    nexus: NexusId,
    list_id: u8,
    result: CopyResult,
}

impl Drop for CopyRun<'_> {
    fn drop(&mut self) {
        self.unit.copied_bytes.fetch_add(self.result.bytes, Relaxed);
        self.unit.lu.copy_ended(self.nexus, self.list_id, self.result);
    }
}

pub async fn run(
    unit: &Arc<LogicalUnit>,
    pool: &Pool,
    (nexus, list_id, segments): (NexusId, u8, Vec<CopySegment>),
    context: &dyn ExecutionContext,
) -> ExecutionResult {
    let result = CopyResult { failure: Some(Sense::COPY_ABORTED), ..CopyResult::default() };
    let mut running = CopyRun { unit, nexus, list_id, result };
    let ended = all(pool, &segments, context, &mut running.result).await;
    let ended = ended.map_err(of_step(running.result.bytes > 0));
    running.result.failure = match &ended {
        Ok(()) => None,
        Err(f) => Some(f.sense.unwrap_or(Sense::COPY_ABORTED)),
    };
    ended.map(|()| ExecutionOutput::Good)
}

async fn all(
    pool: &Pool,
    segments: &[CopySegment],
    context: &dyn ExecutionContext,
    result: &mut CopyResult,
) -> Result<(), CommandError> {
    let ends = (0..).zip(segments).map(|(number, segment)| context.copy_ends(number, segment));
    let ends: Vec<_> = ends.collect();
    let own = context.own_lock();
    let alone = own.as_ref().is_some_and(|(_, mode)| *mode == LockMode::Exclusive);
    let _whole = match alone {
        true => {
            let all = own.iter().cloned().chain(ends.iter().flatten().flat_map(CopyEnds::locks));
            lock_unless_aborted(all.collect(), context).await?
        }
        false => Vec::new(),
    };
    for (number, (segment, ends)) in (0..).zip(segments.iter().zip(ends)) {
        let ends = ends?;
        let locks = if alone { Vec::new() } else { own.iter().cloned().chain(ends.locks()).collect() };
        let part = SegmentCopy { number, segment, ends, locks };
        part.copy(pool, &mut result.bytes, context).await?;
        result.segments += 1;
    }
    Ok(())
}

/// Takes the locks, unless the command is aborted meanwhile: the holder of a lock may wait for the end of this command.
async fn lock_unless_aborted(
    locks: Vec<(TaskSetHandle, LockMode)>,
    context: &dyn ExecutionContext,
) -> Result<Vec<TaskSetGuard>, CommandError> {
    let aborted = async {
        context.until_aborted().await;
        Err(aborted_failure())
    };
    either(async { Ok(lock_all(locks).await) }, aborted).await
}

/// A segment during its copy.
struct SegmentCopy<'a> {
    /// Its index in the list.
    number: u16,
    segment: &'a CopySegment,
    ends: CopyEnds,
    /// The locks that each step takes.
    locks: Vec<(TaskSetHandle, LockMode)>,
}

impl SegmentCopy<'_> {
    async fn copy(
        &self,
        pool: &Pool,
        bytes: &mut u64,
        context: &dyn ExecutionContext,
    ) -> Result<(), CommandError> {
        let len = context.copy_range(self.number, self.segment, &self.ends)?.len;
        if len == 0 {
            return Ok(());
        }
        // Before the locks, because the holders of the pool's buffers may wait for them.
        let mut buf = pool.get(len.min(STEP as u64) as usize).await;
        let mut done = 0;
        while done < len {
            buf.set_visible((len - done).min(STEP as u64) as usize);
            buf = self.step(done, buf, context).await?;
            done += buf.len() as u64;
            *bytes += buf.len() as u64;
        }
        Ok(())
    }

    /// Copies one buffer, which begins `done` bytes after the start of the segment.
    async fn step(&self, done: u64, buf: Buf, context: &dyn ExecutionContext) -> Result<Buf, CommandError> {
        let _inside = lock_unless_aborted(self.locks.clone(), context).await?;
        if context.is_aborted() {
            return Err(aborted_failure());
        }
        self.ends.source.check_medium(self.number, 4)?;
        self.ends.destination.check_medium(self.number, 6)?;
        let range = context.copy_range(self.number, self.segment, &self.ends)?;
        let (source, destination) = (&self.ends.source.unit, &self.ends.destination.unit);
        let (from, to, len) = (range.source + done, range.destination + done, buf.len() as u64);
        let stable = context.copies_stably() || !destination.lu.write_cache();
        if source.lu.settings().thin && destination.lu.settings().thin && is_hole(source, from, len).await {
            let freed = free(destination, (to, len), stable).await;
            return freed.map(|()| buf).map_err(|f| third_party(f, self.number, 6));
        }
        let data = fetch_into(source, from, buf, &READ).await;
        let data = data.map_err(|f| third_party(f, self.number, 4))?;
        let written = write_buf(destination, to, data, stable).await;
        written.map_err(|f| third_party(f, self.number, 6))
    }
}

/// Whether a range has no storage. If that is unknown, a copy reads it.
async fn is_hole(unit: &LogicalUnit, offset: u64, len: u64) -> bool {
    let found = unit.backend().extents(offset, len, 1).await;
    found.is_ok_and(|extents| extents.first().is_some_and(|extent| !extent.mapped && extent.len >= len))
}

/// Makes a range read as zeros, without storage where that is possible.
async fn free(unit: &Arc<LogicalUnit>, (offset, len): (u64, u64), stable: bool) -> Result<(), CommandError> {
    let zeroed = unit.backend().write_zeroes(offset, len, true).await;
    zeroed.map_err(|e| io_failure(unit, &e, offset, &WRITE))?;
    if stable { flush(unit).await.map(drop) } else { Ok(()) }
}

/// Converts the failure of a source or destination to that of the copy. `byte`: the byte of the segment descriptor
/// that names that logical unit.
fn third_party(failure: CommandError, number: u16, byte: u16) -> CommandError {
    match failure.sense {
        Some(_) => Sense::COPY_DEVICE_FAILURE.segment(number, byte).into(),
        None => failure,
    }
}

#[cfg(test)]
mod tests;

//! Long writes in chunks: each chunk is written as soon as it has arrived, while the next one arrives. The command
//! then needs a few buffers instead of one for all of its data.
//!
//! Between two chunks the command does not hold the task set lock, so that a slow or dead initiator does not block
//! others. Each chunk therefore repeats all checks. If a chunk may not begin, the command ends.
//!
//! # Rules
//!
//! A plain WRITE of more than 2 MiB receives its data in chunks of 1 MiB. Other commands receive all of their data
//! first: up to 2 MiB, ORDERED and exclusive commands, WRITE ATOMIC, passthrough commands, commands with more than 1
//! MiB of unsolicited data, and all commands other than WRITE. A shorter WRITE that is aborted or damaged therefore
//! changes nothing.
//!
//! A task has two buffers: one is filled while the other is written. A request covers only bytes that have a buffer,
//! and crosses no chunk boundary. The task takes the second buffer if the pool has one, and keeps its buffers until
//! it ends, so it cannot run out of memory midway. With FUA, one flush follows the last chunk. Unit attentions wait
//! for the next command.
//!
//! | event | result |
//! |---|---|
//! | abort, or lost connection | the write in progress ends; nothing is written after the response of the function |
//! | data are damaged, or the medium fails | no more requests; awaited data still arrive; then the command fails |
//! | no data arrive for `data_out_timeout_s` | the session ends; while the medium is slow, no data are awaited |
//!
//! Chunks that were already written stay, as SBC-4 permits for a WRITE that fails.

use super::command::{ScsiCommand, TaskAttribute};
use super::data_out_buffers::{BUFFERS, CHUNK_LEN};
use super::data_out_transfer::DataOutTransfer;
use super::front_end::FrontEnd;
use super::nexus::{ItNexus, NexusState};
use super::stale::WaitTracker;
use super::task::Task;
use super::task_execution::{ExecutionGuards, TaskExecution};
use crate::LogicalUnit;
use crate::exec::{self, ExecutionOutput, ExecutionResult, has_begun};
use lunar_runtime::{Buf, Pool};
use lunar_scsi::{CommandError, Plan, PlanResult};
use lunar_wire::scsi::{Sense, op};
use std::rc::Rc;
use std::sync::Arc;

/// Whether a command receives its data in chunks. An ORDERED command holds the task set lock exclusively from start
/// to end, so it must not wait for data meanwhile. A passthrough command needs all of its data at once.
pub fn is_chunked(c: &ScsiCommand, unit: Option<&LogicalUnit>, plan: Option<&PlanResult>) -> bool {
    let len = c.data_out_len();
    let is_long = len > BUFFERS * CHUNK_LEN && len as usize <= Pool::MAX_BUFFER;
    let is_plain = c.attribute != TaskAttribute::Ordered && !c.reads && op::is_long_write(c.cdb());
    let fits = match plan {
        None => true,
        Some(Ok(Plan::Write { len: needed, .. })) => *needed == len,
        Some(_) => false,
    };
    is_long && is_plain && fits && unit.is_some_and(|unit| unit.passthrough().is_none())
}

/// The range of a WRITE.
pub struct WriteRange {
    /// First byte on the medium.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
    /// The data must be on stable storage when the command ends.
    pub stable: bool,
}

impl<F: FrontEnd> NexusState<F> {
    /// The Data-Out of a task that was not aborted.
    fn receiving_of(&mut self, tag: u32, serial: u64) -> Option<&mut DataOutTransfer> {
        let task = self.tasks_mut().find_mut(tag, serial).filter(|t| !t.is_aborted())?;
        task.transfer_mut()
    }

    fn discard_rest(&mut self, tag: u32, serial: u64) {
        let task = self.tasks_mut().find_mut(tag, serial);
        if let Some(receiving) = task.and_then(Task::transfer_mut) {
            receiving.discard_rest();
        }
    }

    fn take_chunk(&mut self, tag: u32, serial: u64) -> Result<Buf, CommandError> {
        self.receiving_of(tag, serial).ok_or_else(exec::aborted_failure)?.take_chunk()
    }
}

impl<F: FrontEnd> ItNexus<F> {
    /// Waits for the next chunk of a task's data.
    async fn next_chunk(&self, tag: u32, serial: u64) -> Result<Buf, CommandError> {
        self.wait_until(|s| {
            let task = s.tasks().find(tag, serial).filter(|t| !t.is_aborted());
            task.and_then(Task::transfer).is_none_or(DataOutTransfer::has_chunk)
        })
        .await;
        self.state().take_chunk(tag, serial)
    }

    /// Reuses the buffer of a written chunk, and requests data for it.
    fn chunk_written(self: &Rc<Self>, tag: u32, serial: u64, buf: Buf) {
        let mut state = self.state();
        let Some(receiving) = state.receiving_of(tag, serial) else { return };
        receiving.reuse(buf, self.pool());
        state.request_more(tag);
        drop(state);
        F::flush(self);
    }

    /// Ends the data of a chunked task that needs no more. Requested data must still arrive before the
    /// response (RFC 7143 sections 4.2.3.3 and 11.8), unless the session no longer waits for them.
    pub async fn wait_for_requested_data(&self, tag: u32, serial: u64) {
        self.state().discard_rest(tag, serial);
        self.wait_until(|s| {
            let task = s.tasks().find(tag, serial);
            task.and_then(Task::transfer).is_none_or(DataOutTransfer::may_end)
        })
        .await;
    }
}

impl<F: FrontEnd> TaskExecution<F> {
    /// Writes chunk by chunk. The first chunk has arrived, and is written under the guards that the task holds
    /// already.
    pub async fn write_in_chunks(
        &self,
        unit: &Arc<LogicalUnit>,
        mut write: WriteRange,
        guards: ExecutionGuards,
    ) -> ExecutionResult {
        let nexus = self.nexus();
        let (tag, serial) = (self.command().tag, self.serial());
        let (mut at, mut guards) = (0, guards);
        let mut chunk = nexus.next_chunk(tag, serial).await?;
        loop {
            // Data beyond the length in the CDB are not written.
            let len = chunk.len().min((write.len - at) as usize);
            chunk.set_visible(len);
            let stored = exec::write_buf(unit, write.offset + u64::from(at), chunk, false).await;
            let stored = stored.map_err(|failure| if at > 0 { has_begun(failure) } else { failure })?;
            at += len as u32;
            if at >= write.len {
                break;
            }
            drop(guards);
            nexus.chunk_written(tag, serial, stored);
            chunk = nexus.next_chunk(tag, serial).await?;
            guards = self.reacquire(unit, &mut write).await?;
        }
        if write.stable {
            exec::flush(unit).await.map_err(has_begun)?;
        }
        drop(guards);
        Ok(ExecutionOutput::Good)
    }

    /// Acquires the guards for a chunk after the first, and plans the command again: reservations, write protection,
    /// size or write cache may have changed. The command has begun, so its status must not mean that it did nothing.
    async fn reacquire(
        &self,
        unit: &Arc<LogicalUnit>,
        write: &mut WriteRange,
    ) -> Result<ExecutionGuards, CommandError> {
        let ordering = self.nexus().ordering(self.command(), unit).ok_or(Sense::LUN_NOT_SUPPORTED)?;
        let tracker = WaitTracker::for_data();
        let inside = self.acquire(&ordering.task_set, ordering.mode, &tracker).await;
        let guards = inside.ok_or_else(exec::aborted_failure)?;
        self.check_medium().map_err(has_begun)?;
        match self.nexus().go_on(self.command(), unit).map_err(has_begun)? {
            Plan::Write { offset, len, stable } if (offset, len) == (write.offset, write.len) => {
                write.stable |= stable;
                Ok(guards)
            }
            // The block size has changed.
            _ => Err(Sense::MEDIUM_CHANGED.into()),
        }
    }
}

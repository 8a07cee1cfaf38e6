//! Data-Out of a command, from its announcement to its last byte.
//!
//! A WRITE counts for its session's share of memory when it is announced, and for the pool when its first data
//! arrive.

use super::command::ScsiCommand;
use super::data_out_buffers::CHUNK_LEN;
use super::data_out_transfer::{DataOutTransfer, FirstData};
use super::front_end::FrontEnd;
use super::nexus::{NexusState, TransferParts};
use super::task::Task;
use super::transfer::{DataOutId, DataOutResult};
use lunar_proto::transfer::{DataOutSegment, DataOutSequencer};
use lunar_runtime::{Buf, Pool, ReceivedData};
use lunar_scsi::{CommandError, PlanResult};
use lunar_wire::scsi::{Sense, Status};

impl<F: FrontEnd> NexusState<F> {
    /// Prepares for the Data-Out of a command.
    pub(super) fn begin_data_out(
        &mut self,
        c: &ScsiCommand,
        plan: &mut Option<PlanResult>,
        data: ReceivedData<'_>,
        is_chunked: bool,
    ) -> DataOutTransfer {
        let needed = match plan {
            Some(Ok(plan)) => plan.data_out_len(),
            Some(Err(_)) => 0,
            None => u32::MAX,
        };
        let wanted = needed.min(c.data_out_len());
        let immediate = data.bytes().len();
        let rules = self.front().data_out_rules();
        let mut sequencer =
            DataOutSequencer::new(c.data_out_len(), wanted, immediate as u32, c.has_unsolicited, &rules);
        // Unsolicited data must fit into the first chunk.
        let is_chunked = is_chunked && sequencer.asked() <= CHUNK_LEN;
        let first = if is_chunked { CHUNK_LEN } else { wanted };
        let buf = self.buffer_for(data, first as usize).unwrap_or_else(|failure| {
            // Unsolicited data still arrive, and are dropped, before the response is sent.
            sequencer.stop();
            *plan = Some(Err(failure));
            None
        });
        let first = FirstData { wanted, buf, is_chunked };
        let TransferParts { requests, front, pool, .. } = self.transfer_parts();
        let mut receiving = DataOutTransfer::new(sequencer, first, requests);
        // The first buffer is available.
        if immediate > 0 || front.fetches_data() {
            receiving.grow(pool);
        }
        receiving
    }

    fn buffer_for(&self, data: ReceivedData<'_>, wanted: usize) -> Result<Option<Buf>, CommandError> {
        match data {
            _ if wanted == 0 => Ok(None),
            _ if wanted > Pool::MAX_BUFFER => Err(Sense::INVALID_FIELD_IN_CDB.into()),
            ReceivedData::Buf(b) if b.len() == wanted && b.is_pooled() => Ok(Some(b)),
            // Data that are only announced take no memory yet. A front end that fetches data itself needs the buffer
            // now.
            data if data.bytes().is_empty() && !self.front().fetches_data() => {
                self.pool().promise(wanted).map(Some).ok_or(Status::TaskSetFull.into())
            }
            data => {
                let mut buf = self.pool().try_get(wanted).ok_or(Status::TaskSetFull)?;
                let n = data.bytes().len().min(wanted);
                buf[..n].copy_from_slice(&data.bytes()[..n]);
                Ok(Some(buf))
            }
        }
    }

    /// Requests more data for a task, or launches the task when all data have arrived.
    pub fn progress(&mut self, tag: u32) {
        let Some(task) = self.tasks_mut().get_mut(tag) else { return };
        let is_aborted = task.is_aborted();
        let Some(receiving) = task.transfer_mut() else { return };
        if receiving.is_launched() {
            return self.notify_progress(tag);
        }
        if !is_aborted && receiving.launch() {
            self.launch(tag, None);
            return self.request_more(tag);
        }
        if !receiving.is_complete() {
            return self.request_more(tag);
        }
        let failure = receiving.failure();
        let buf = task.take_transfer().and_then(DataOutTransfer::into_buf);
        match (task.aborted(), failure) {
            (Some(how), _) => self.end_aborted(tag, how),
            (None, Some(failure)) => self.fail(tag, failure),
            (None, None) => self.launch(tag, buf),
        }
    }

    /// Handles data that arrived for a running task.
    fn notify_progress(&mut self, tag: u32) {
        self.request_more(tag);
        let receiving = self.tasks().get(tag).and_then(Task::transfer);
        if receiving.is_some_and(DataOutTransfer::has_news) {
            self.notify();
        }
    }

    /// Whether a task waits for data of this transfer. A transfer of an earlier task with the same tag does not
    /// count.
    pub fn is_awaiting(&self, tag: u32, transfer: u32) -> bool {
        let receiving = self.tasks().get(tag).and_then(Task::transfer);
        receiving.is_some_and(|r| r.has_transfer(transfer))
    }

    /// The buffer of the task, and the offset in it, where these data belong; None if no task waits for them.
    pub fn placement_buffer(&mut self, origin: DataOutId, segment: DataOutSegment) -> Option<(Buf, usize)> {
        let TransferParts { tasks, pool, .. } = self.transfer_parts();
        let (command, receiving) = tasks.get_mut(origin.task_tag)?.command_and_transfer()?;
        if command.connection != origin.connection {
            return None;
        }
        let is_of_lun = origin.lun == command.lun;
        receiving.placement(origin.transfer_tag, is_of_lun, segment, pool)
    }

    /// Processes data that have arrived. `intact`: they were not damaged on the way.
    pub fn receive_data(
        &mut self,
        origin: DataOutId,
        segment: DataOutSegment,
        data: ReceivedData<'_>,
        intact: bool,
    ) -> DataOutResult {
        let TransferParts { tasks, requests, pool, .. } = self.transfer_parts();
        let Some((command, r)) = tasks.get_mut(origin.task_tag).and_then(Task::command_and_transfer) else {
            // Data that were requested before their task was aborted may still arrive. Ignore them.
            let may_come = origin.transfer_tag.is_some_and(|transfer| requests.may_have_begun(transfer));
            return if may_come { DataOutResult::Ignored } else { DataOutResult::Invalid };
        };
        let is_foreign = command.connection != origin.connection;
        match data {
            ReceivedData::Placed(buf) => {
                if is_foreign || !r.take_placed(origin.transfer_tag, segment, buf) {
                    return DataOutResult::Ignored;
                }
            }
            data => {
                let is_of_lun = origin.lun == command.lun;
                if is_foreign || !r.take(origin.transfer_tag, is_of_lun, segment, &data, pool) {
                    return DataOutResult::Invalid;
                }
            }
        }
        if !intact {
            r.note_damage();
        }
        DataOutResult::Accepted
    }
}

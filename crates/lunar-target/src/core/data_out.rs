//! Data-Out of a command, from its announcement to its last byte, and the requests for data.
//!
//! # Timeouts
//!
//! A WRITE counts for its session's share of memory when it is announced, and for the pool when its first data
//! arrive. The session ends if data stop arriving, or arrive too slowly. Empty segments are not progress. Data
//! arrive in the order of the requests, so a write is not late while an earlier one receives its requested data.

use super::command::ScsiCommand;
use super::complete::{CommandResult, Completion};
use super::data_out_buffers::CHUNK_LEN;
use super::data_out_transfer::{CHECKS_PER_TIMEOUT, DataOutTransfer, FirstData, is_late};
use super::front_end::FrontEnd;
use super::nexus::{ItNexus, SessionPhase, State, TransferParts};
use super::task::{AbortResponse, Task};
use super::transfer::{DataOutId, DataOutResult};
use crate::end_reason::EndReason;
use lunar_proto::transfer::{DataOutSegment, DataOutSequencer};
use lunar_runtime::{Buf, Pool, ReceivedData};
use lunar_scsi::{CommandError, PlanResult};
use lunar_wire::scsi::{Sense, Status};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

impl<F: FrontEnd> State<F> {
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

    /// Requests the data that are due.
    pub(super) fn request_more(&mut self, tag: u32) {
        self.start_timer();
        let TransferParts { tasks, requests, front, .. } = self.transfer_parts();
        let Some((command, r)) = tasks.get_mut(tag).and_then(Task::command_and_transfer) else { return };
        while let Some(request) = r.next_request(requests) {
            front.request_data(command, request);
        }
    }

    /// Starts the timer for outstanding data, unless it is running.
    fn start_timer(&mut self) {
        if self.transfer_parts().requests.needs_timer()
            && let Some(nexus) = self.nexus()
        {
            let timeout = self.login_context().config.session.data_out_timeout;
            lunar_runtime::spawn(data_out_timer(Rc::downgrade(&nexus), timeout / CHECKS_PER_TIMEOUT));
        }
    }

    /// Ends a task that was not launched.
    pub(super) fn fail(&mut self, tag: u32, failure: CommandError) {
        if let Some(task) = self.remove(tag) {
            self.complete(task.command(), Completion::Responded(CommandResult::of(Err(failure))));
            self.notify();
        }
    }

    /// Ends a task that was aborted and not launched.
    pub(super) fn end_aborted(&mut self, tag: u32, how: AbortResponse) {
        if let Some(task) = self.remove(tag) {
            self.complete(task.command(), Completion::aborted(&task, how));
            self.notify();
        }
    }

    /// Checks the tasks that wait for data. None: no task waits. Some(true): data of a task are overdue.
    fn check_data_out(&mut self) -> Option<bool> {
        // Data cannot arrive while the target does not receive.
        let is_full = self.is_full();
        let mut waiting: Vec<_> = self.tasks_mut().values_mut().filter_map(Task::waits_for_data).collect();
        let missing_bytes = waiting.iter().map(|(_, receiving)| u64::from(receiving.missing_bytes())).sum();
        let mut is_slow = false;
        for (_, receiving) in &mut waiting {
            is_slow |= receiving.is_slow(missing_bytes, is_full);
        }
        (!waiting.is_empty()).then(|| is_late(waiting) | is_slow)
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
        match data {
            ReceivedData::Placed(buf) => {
                if !r.take_placed(origin.transfer_tag, segment, buf) {
                    return DataOutResult::Ignored;
                }
            }
            data => {
                if !r.take(origin.transfer_tag, origin.lun == command.lun, segment, &data, pool) {
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

/// Ends the session of an initiator that does not send the data that it announced or that were requested. The timer
/// stops when no task waits for data.
async fn data_out_timer<F: FrontEnd>(nexus: Weak<ItNexus<F>>, part: Duration) {
    loop {
        lunar_runtime::sleep_until(Instant::now() + part).await;
        let Some(nexus) = nexus.upgrade() else { return };
        let mut state = nexus.state();
        let late = state.check_data_out().filter(|_| state.phase() != SessionPhase::Ended);
        if late != Some(false) {
            state.transfer_parts().requests.stop_timer();
        }
        if late == Some(true) {
            state.set_end_reason(EndReason::DataOutTimeout);
            return state.front().close();
        }
        if late.is_none() {
            return;
        }
    }
}

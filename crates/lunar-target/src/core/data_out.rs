//! Data-Out of a command, from its announcement to its last byte, and the requests for data.
//!
//! # Timeouts
//!
//! A WRITE counts for its session's share of memory when it is announced, and for the pool when its first data
//! arrive. The session ends if data stop arriving, or arrive too slowly. Empty segments are not progress. Data
//! arrive in the order of the requests, so a write is not late while an earlier one receives its requested data.

use super::command::ScsiCommand;
use super::complete::{CommandResult, Completion};
use super::data_out_buffers::{CHUNK_LEN, DataOutBuffers};
use super::front_end::FrontEnd;
use super::nexus::{ItNexus, SessionPhase, State};
use super::task::{AbortResponse, DataOutTransfer, Task};
use super::transfer::{DataOutId, DataOutResult, DataRequest};
use crate::end_reason::EndReason;
use lunar_proto::transfer::{self, DataOutRequest, DataOutSegment, DataOutSequencer, DataOutVerdict};
use lunar_runtime::{Buf, Pool, ReceivedData};
use lunar_scsi::{CommandError, PlanResult};
use lunar_wire::scsi::{Sense, Status};
use std::rc::Weak;
use std::time::{Duration, Instant};

/// Number of checks within the timeout for data. Each check sees whether data have arrived since the previous one.
const CHECKS_PER_TIMEOUT: u32 = 6;
/// Number of timeouts for which data of a command may be missing, plus one for each [`BYTES_PER_TIMEOUT`] of data
/// that the session awaited at the first check. It bounds sessions that send a few bytes now and then.
const MAX_TIMEOUTS: u32 = 4;
const BYTES_PER_TIMEOUT: u64 = 1 << 20;

/// Bits of a transfer tag that select one of the open transfers of a task.
const INDEX_BITS: u32 = 5;
/// The upper bits of transfer tags stay below this, because a tag with all bits set is reserved.
const BASES: u32 = u32::MAX >> INDEX_BITS;

fn sense_of(failure: transfer::DataOutFailure) -> Sense {
    let (asc, ascq) = failure.additional_sense();
    Sense::new(0x0b, asc, ascq)
}

impl<F: FrontEnd> State<F> {
    /// Prepares for the Data-Out of a command.
    pub(super) fn begin_data_out(
        &mut self,
        c: &ScsiCommand,
        answer: &mut Option<PlanResult>,
        data: ReceivedData<'_>,
        is_chunked: bool,
    ) -> DataOutTransfer {
        let needed = match answer {
            Some(Ok(plan)) => plan.data_out_len(),
            Some(Err(_)) => 0,
            None => u32::MAX,
        };
        let wanted = needed.min(c.data_out_len());
        let immediate = data.bytes().len();
        let rules = self.front.data_out_rules();
        let mut sequencer =
            DataOutSequencer::new(c.data_out_len(), wanted, immediate as u32, c.has_unsolicited, &rules);
        // Unsolicited data must fit into the first chunk.
        let is_chunked = is_chunked && sequencer.asked() <= CHUNK_LEN;
        let first = if is_chunked { CHUNK_LEN } else { wanted };
        let buf = self.buffer_for(data, first as usize).unwrap_or_else(|failure| {
            // Unsolicited data still arrive, and are dropped, before the response is sent.
            sequencer.stop();
            *answer = Some(Err(failure));
            None
        });
        self.transfer_base = (self.transfer_base + 1) % BASES;
        let buffers = DataOutBuffers::first(buf);
        if is_chunked {
            sequencer.in_pieces(CHUNK_LEN);
            sequencer.allow(buffers.end());
        }
        let mut receiving = DataOutTransfer {
            sequencer,
            buffers,
            wanted,
            transfer_base: self.transfer_base,
            is_damaged: false,
            is_out_of_memory: false,
            has_progressed: true,
            idle_checks: 0,
            checks: 0,
            max_checks: 0,
            last_request: self.requests,
            is_chunked,
            is_launched: false,
            is_abandoned: false,
        };
        // The first buffer is available.
        if immediate > 0 || self.front.fetches_data() {
            receiving.grow(&self.pool);
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
            data if data.bytes().is_empty() && !self.front.fetches_data() => {
                self.pool.promise(wanted).map(Some).ok_or(Status::TaskSetFull.into())
            }
            data => {
                let mut buf = self.pool.try_get(wanted).ok_or(Status::TaskSetFull)?;
                let n = data.bytes().len().min(wanted);
                buf[..n].copy_from_slice(&data.bytes()[..n]);
                Ok(Some(buf))
            }
        }
    }

    /// Requests more data for a task, or launches the task when all data have arrived.
    pub fn progress(&mut self, tag: u32) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        let Some(receiving) = &mut task.receiving else { return };
        if receiving.is_launched {
            return self.notify_progress(tag);
        }
        if receiving.may_begin() && task.aborted.is_none() {
            receiving.is_launched = true;
            self.launch(tag, None);
            return self.request_more(tag);
        }
        if !receiving.sequencer.is_complete() {
            return self.request_more(tag);
        }
        let failure = receiving.failure();
        let buf = task.receiving.take().and_then(|mut r| r.buffers.take());
        match (task.aborted, failure) {
            (Some(how), _) => self.end_aborted(tag, how),
            (None, Some(failure)) => self.fail(tag, failure),
            (None, None) => self.launch(tag, buf),
        }
    }

    /// Handles data that arrived for a running task.
    fn notify_progress(&mut self, tag: u32) {
        self.request_more(tag);
        let receiving = self.tasks.get(tag).and_then(|task| task.receiving.as_ref());
        if receiving.is_some_and(DataOutTransfer::has_news) {
            self.notify();
        }
    }

    /// Requests the data that are due.
    pub(super) fn request_more(&mut self, tag: u32) {
        if !std::mem::replace(&mut self.is_data_timer_running, true) {
            lunar_runtime::spawn(data_out_timer(
                self.me.clone(),
                self.login_context.config.session.data_out_timeout / CHECKS_PER_TIMEOUT,
            ));
        }
        loop {
            let Some(Task { command, receiving: Some(r), .. }) = self.tasks.get_mut(tag) else { return };
            let Some(DataOutRequest { index, number, offset, len }) = r.sequencer.next_request() else {
                return;
            };
            let transfer = r.transfer_base << INDEX_BITS | u32::from(index);
            self.requests += 1;
            r.last_request = self.requests;
            self.front.request_data(command, DataRequest { tag: transfer, number, offset, len });
        }
    }

    /// Ends a task that was not launched.
    pub(super) fn fail(&mut self, tag: u32, failure: CommandError) {
        if let Some(task) = self.remove(tag) {
            self.complete(&task.command, Completion::Responded(CommandResult::of(Err(failure))));
            self.notify();
        }
    }

    /// Ends a task that was aborted and not launched.
    pub(super) fn end_aborted(&mut self, tag: u32, how: AbortResponse) {
        if let Some(task) = self.remove(tag) {
            self.complete(&task.command, Completion::aborted(&task, how));
            self.notify();
        }
    }

    /// Checks the tasks that wait for data. None: no task waits. Some(true): data of a task are overdue.
    fn check_data_out(&mut self) -> Option<bool> {
        // Data cannot arrive while the target does not receive.
        let is_full = self.is_full();
        let mut waiting: Vec<_> = self.tasks.values_mut().filter_map(Task::waits_for_data).collect();
        let missing_bytes = waiting.iter().map(|(_, receiving)| u64::from(receiving.missing_bytes())).sum();
        let mut is_slow = false;
        for (_, receiving) in &mut waiting {
            receiving.has_progressed |= is_full;
            is_slow |= receiving.is_slow(missing_bytes, is_full);
        }
        (!waiting.is_empty()).then(|| is_late(waiting) | is_slow)
    }

    /// Whether a task waits for data of this transfer. A transfer of an earlier task with the same tag does not
    /// count.
    pub fn is_awaiting(&self, tag: u32, transfer: u32) -> bool {
        let receiving = self.tasks.get(tag).and_then(|task| task.receiving.as_ref());
        receiving.is_some_and(|r| index_of(Some(transfer), r.transfer_base).is_some())
    }

    /// The buffer of the task, and the offset in it, where these data belong; None if no task waits for them.
    pub fn placement_buffer(&mut self, origin: DataOutId, segment: DataOutSegment) -> Option<(Buf, usize)> {
        let task = self.tasks.get_mut(origin.tag)?;
        let receiving = task.receiving.as_mut()?;
        let index = index_of(origin.transfer, receiving.transfer_base)?;
        if index.is_some() && origin.lun != task.command.lun {
            return None;
        }
        if !receiving.sequencer.accepts(index, segment) || !receiving.claim() {
            return None;
        }
        receiving.grow(&self.pool);
        receiving.buffers.take_range(segment.offset, segment.len)
    }

    /// Processes data that have arrived. `intact`: they were not damaged on the way.
    pub fn receive_data(
        &mut self,
        origin: DataOutId,
        segment: DataOutSegment,
        data: ReceivedData<'_>,
        intact: bool,
    ) -> DataOutResult {
        let newest = self.transfer_base;
        let Some(Task { command, receiving: Some(r), .. }) = self.tasks.get_mut(origin.tag) else {
            // Data that were requested before their task was aborted may still arrive. Ignore them.
            let may_come = origin.transfer.is_some_and(|transfer| transfer >> INDEX_BITS <= newest);
            return if may_come { DataOutResult::Ignored } else { DataOutResult::Invalid };
        };
        let index = index_of(origin.transfer, r.transfer_base);
        if let ReceivedData::Placed(buf) = data {
            // The data belong to an earlier task that ended while they were being read, and whose tag was reused.
            let Some(index) = index else { return DataOutResult::Ignored };
            r.buffers.put_back(segment.offset, buf);
            r.sequencer.take(index, segment);
            r.has_progressed |= segment.len > 0;
        } else {
            let index = index.filter(|index| index.is_none() || origin.lun == command.lun);
            let Some(index) = index else { return DataOutResult::Invalid };
            let verdict = r.sequencer.take(index, segment);
            // A segment without data is no progress: sending it costs the initiator nothing.
            r.has_progressed |= segment.len > 0 && verdict != DataOutVerdict::Invalid;
            match verdict {
                DataOutVerdict::Accept { offset } => {
                    r.claim();
                    r.grow(&self.pool);
                    r.buffers.copy(offset, data.bytes());
                }
                DataOutVerdict::Discard => {}
                DataOutVerdict::Invalid => return DataOutResult::Invalid,
            }
        }
        r.checked(intact);
        DataOutResult::Accepted
    }
}

/// Checks the transfers that wait for data, [`CHECKS_PER_TIMEOUT`] times within the timeout. Returns whether one is
/// overdue.
///
/// Data arrive in the order of the requests: a transfer that waits behind one that makes progress is not overdue. A
/// transfer with a newer request has made progress recently.
fn is_late(mut waiting: Vec<(u64, &mut DataOutTransfer)>) -> bool {
    waiting.sort_unstable_by_key(|(serial, receiving)| (receiving.last_request, *serial));
    let (mut moves, mut late) = (false, false);
    for (_, receiving) in waiting {
        moves |= std::mem::take(&mut receiving.has_progressed);
        receiving.idle_checks = if moves { 0 } else { receiving.idle_checks + 1 };
        late |= receiving.idle_checks >= CHECKS_PER_TIMEOUT;
    }
    late
}

/// Ends the session of an initiator that does not send the data that it announced or that were requested. The timer
/// stops when no task waits for data.
async fn data_out_timer<F: FrontEnd>(nexus: Weak<ItNexus<F>>, part: Duration) {
    loop {
        lunar_runtime::sleep_until(Instant::now() + part).await;
        let Some(nexus) = nexus.upgrade() else { return };
        let mut state = nexus.state();
        let late = state.check_data_out().filter(|_| state.phase() != SessionPhase::Ended);
        state.is_data_timer_running = late == Some(false);
        if late == Some(true) {
            state.set_end_reason(EndReason::DataOutTimeout);
            return state.front.close();
        }
        if late.is_none() {
            return;
        }
    }
}

/// The index of the open transfer that a tag selects. Some(None): unsolicited data. None: the transfer does not belong
/// to this task.
fn index_of(transfer: Option<u32>, base: u32) -> Option<Option<u16>> {
    let Some(tag) = transfer else { return Some(None) };
    (tag >> INDEX_BITS == base).then_some(Some((tag & ((1 << INDEX_BITS) - 1)) as u16))
}

impl DataOutTransfer {
    /// The failure that keeps the command from running or continuing.
    pub fn failure(&self) -> Option<CommandError> {
        match (self.is_damaged, self.sequencer.failure()) {
            (true, _) => Some(Sense::CRC_ERROR.into()),
            (false, Some(failure)) => Some(sense_of(failure).into()),
            (false, None) => self.is_out_of_memory.then(|| Status::TaskSetFull.into()),
        }
    }

    /// Number of bytes that have not arrived.
    fn missing_bytes(&self) -> u32 {
        self.wanted.saturating_sub(self.sequencer.arrived())
    }

    /// Whether data have been missing for too long in total. `missing_bytes`: bytes that the session awaits.
    /// `is_full`: the target does not receive at the moment.
    fn is_slow(&mut self, missing_bytes: u64, is_full: bool) -> bool {
        if self.max_checks == 0 {
            let times = u64::from(MAX_TIMEOUTS) + missing_bytes / BYTES_PER_TIMEOUT;
            self.max_checks = u32::try_from(times).unwrap_or(u32::MAX).saturating_mul(CHECKS_PER_TIMEOUT);
        }
        self.checks += u32::from(!is_full);
        self.checks >= self.max_checks
    }

    /// Counts the buffer against the pool when the first data arrive. Without room, all data of the command are
    /// dropped.
    fn claim(&mut self) -> bool {
        if !self.buffers.claim() {
            self.buffers = DataOutBuffers::default();
            self.is_out_of_memory = true;
            self.sequencer.stop();
        }
        !self.is_out_of_memory
    }

    /// Records whether data arrived intact. After damaged data no further chunk is requested.
    fn checked(&mut self, intact: bool) {
        self.is_damaged |= !intact;
        if self.is_damaged && self.is_chunked {
            self.sequencer.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_proto::transfer::DataOutRules;

    const RULES: DataOutRules = DataOutRules {
        max_immediate: 0,
        max_unsolicited: 0,
        max_request: 4096,
        max_requests: 1,
        in_order: true,
    };

    fn receiving() -> DataOutTransfer {
        let sequencer = DataOutSequencer::new(4096, 4096, 0, false, &RULES);
        DataOutTransfer {
            sequencer,
            buffers: DataOutBuffers::default(),
            wanted: 4096,
            transfer_base: 0,
            is_damaged: false,
            is_out_of_memory: false,
            has_progressed: true,
            idle_checks: 0,
            checks: 0,
            max_checks: 0,
            last_request: 0,
            is_chunked: false,
            is_launched: false,
            is_abandoned: false,
        }
    }

    /// Whether data are overdue in one of two transfers. The older one was announced first.
    fn look([older, younger]: &mut [DataOutTransfer; 2]) -> bool {
        is_late(vec![(2, younger), (1, older)])
    }

    #[test]
    fn data_out_without_progress_is_overdue() {
        let mut waiting = [receiving(), receiving()];
        for _ in 0..CHECKS_PER_TIMEOUT {
            assert!(!look(&mut waiting));
        }
        // Progress of the younger transfer does not excuse the older one.
        waiting[1].has_progressed = true;
        assert!(look(&mut waiting));
        assert_eq!([waiting[0].idle_checks, waiting[1].idle_checks], [CHECKS_PER_TIMEOUT, 0]);
    }

    /// A few bytes now and then do not excuse a transfer forever. A target that does not receive does.
    #[test]
    fn data_out_that_drips_is_overdue() {
        let mut waiting = receiving();
        for _ in 1..MAX_TIMEOUTS * CHECKS_PER_TIMEOUT {
            waiting.has_progressed = true;
            assert!(!waiting.is_slow(4096, false) && !waiting.is_slow(4096, true));
        }
        assert!(waiting.is_slow(4096, false));
        let mut much = receiving();
        let checks = (1..).find(|_| much.is_slow(3 << 20, false));
        assert_eq!(checks, Some((MAX_TIMEOUTS + 3) * CHECKS_PER_TIMEOUT));
    }

    #[test]
    fn data_out_behind_progress_is_not_overdue() {
        let mut waiting = [receiving(), receiving()];
        for _ in 0..=2 * CHECKS_PER_TIMEOUT {
            waiting[0].has_progressed = true;
            assert!(!look(&mut waiting));
        }
    }

    /// The initiator sends data in the order of the requests, across writes.
    #[test]
    fn older_write_waits_for_earlier_request() {
        let mut waiting = [receiving(), receiving()];
        (waiting[0].last_request, waiting[1].last_request) = (9, 5);
        for _ in 0..=2 * CHECKS_PER_TIMEOUT {
            waiting[1].has_progressed = true;
            assert!(!look(&mut waiting));
        }
        waiting[0].has_progressed = true;
        assert!(!look(&mut waiting));
        assert_eq!(waiting[1].idle_checks, 1);
    }

    #[test]
    fn transfer_tag_selects_open_transfer_of_task() {
        assert_eq!(index_of(None, 7), Some(None));
        assert_eq!(index_of(Some(7 << INDEX_BITS | 3), 7), Some(Some(3)));
        assert_eq!(index_of(Some(8 << INDEX_BITS | 3), 7), None);
    }
}

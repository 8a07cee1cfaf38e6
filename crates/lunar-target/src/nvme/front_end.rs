//! An I/O queue as a front end of the core: one nexus for each. Commands of the NVM command set are SCSI commands for the
//! core.

use super::dispatch::QueueDispatcher;
use super::error_log::ErrorPlace;
use super::limits::{IN_CAPSULE_LEN, MAX_TRANSFER};
use super::queue::NvmeQueue;
use crate::core::data_in::DataIn;
use crate::core::{
    CommandResponse, DataInProgress, DataRequest, FrontEnd, InFlightData, ItNexus, NexusState, ScsiCommand,
};
use crate::end_reason::EndReason;
use crate::registry::AbortScope;
use lunar_proto::nvme::of_scsi;
use lunar_proto::transfer::DataOutRules;
use lunar_runtime::{ReceiveStatus, SendPump};
use lunar_wire::nvme::NvmeStatus;
use lunar_wire::scsi::{Sense, Status};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The target requests all data that do not fit into the capsule at once.
const DATA_OUT_RULES: DataOutRules = DataOutRules {
    max_immediate: IN_CAPSULE_LEN as u32,
    max_unsolicited: 0,
    max_request: MAX_TRANSFER,
    max_requests: 1,
    in_order: true,
};
/// How long a command that the logical unit cannot take now waits for its completion. Linux repeats it without a limit, or five
/// times without native multipath. With the delays of these repetitions, that is longer than a reload takes.
const BUSY_DELAY: Duration = Duration::from_secs(1);
/// BUSY as an error of the path, which asks for a delay.
const BUSY: NvmeStatus = NvmeStatus { retry_delay: 1, ..NvmeStatus::PATH_ERROR };

impl NvmeQueue {
    /// Completes a command with the status of its SCSI command.
    #[inline]
    fn respond_status(&mut self, c: &ScsiCommand, status: NvmeStatus) {
        let (id, place) = (c.tag as u16, || ErrorPlace::of_command(c));
        match self.pairs.take_second(id) {
            // Requested data may still arrive, and the host may use the identifier again after the completion.
            None if self.transfers.abandon(id, status, place) => self.limit_transfers(),
            None => self.complete_at(id, status, place),
            Some(second) => {
                let of_second = if status.is_success() { status } else { NvmeStatus::FAILED_FUSED };
                self.complete_at(id, status, place);
                self.complete_at(second, of_second, place);
            }
        }
    }

    /// Completes a command later that the target does not take now.
    #[cold]
    pub fn respond_busy(&mut self, id: u16) {
        let nexus = self.nexus();
        let second = self.pairs.take_second(id);
        let commands = [Some(id), second];
        lunar_runtime::spawn(async move {
            lunar_runtime::sleep_until(Instant::now() + BUSY_DELAY).await;
            let Some(nexus) = nexus.upgrade() else { return };
            for id in commands.into_iter().flatten() {
                nexus.state().front_mut().complete(id, BUSY);
            }
            NvmeQueue::flush(&nexus);
        });
    }
}

impl NvmeQueue {
    /// Ends the queue of a host that does not send the data that the front end waits for. The core has a timer for those of
    /// its tasks.
    pub fn limit_transfers(&mut self) {
        if !self.transfers.take_need_of_timer() {
            return;
        }
        let nexus = self.nexus();
        let timeout = self.data_timeout();
        lunar_runtime::spawn(async move {
            let mut oldest = None;
            loop {
                lunar_runtime::sleep_until(Instant::now() + timeout).await;
                let Some(nexus) = nexus.upgrade() else { return };
                let mut state = nexus.state();
                // Data cannot arrive while the target does not receive.
                let is_receiving = !state.is_full();
                let Some(now) = state.front_mut().transfers.oldest_without_task() else { return };
                drop(state);
                if oldest == Some(now) && is_receiving {
                    return nexus.end(EndReason::DataOutTimeout);
                }
                oldest = is_receiving.then_some(now);
            }
        });
    }
}

/// The status of a SCSI command that has not succeeded.
fn failure(status: u8, sense: &[u8]) -> NvmeStatus {
    Status::decode(status).map_or(NvmeStatus::INTERNAL_ERROR, |status| of_scsi(status, Sense::decode(sense)))
}

fn is_busy(status: u8) -> bool {
    matches!(Status::decode(status), Some(Status::Busy | Status::TaskSetFull))
}

impl FrontEnd for NvmeQueue {
    #[inline]
    fn data_out_rules(&self) -> DataOutRules {
        DATA_OUT_RULES
    }

    fn fetches_data(&self) -> bool {
        false
    }

    /// The length was checked against the block size, which may have changed since.
    fn requires_exact_data(&self) -> bool {
        true
    }

    fn request_data(&mut self, c: &ScsiCommand, request: DataRequest) {
        let id = c.tag as u16;
        self.transfers.begin_of_core(id, c.lun, request);
        self.connection().request(id, request.offset, request.len);
    }

    fn data_in(&mut self, c: &ScsiCommand, data: DataIn, sent: DataInProgress) -> DataInProgress {
        let len = data.len();
        self.send_data(c.tag as u16, data, sent.bytes, false);
        DataInProgress { bytes: sent.bytes + len, parts: sent.parts + 1 }
    }

    #[inline(always)]
    fn respond(&mut self, c: &ScsiCommand, response: CommandResponse) {
        let (id, len) = (c.tag as u16, response.data.len());
        let CommandResponse { status, sense, data, sent, .. } = response;
        if status != Status::Good as u8 {
            return match is_busy(status) {
                true => self.respond_busy(id),
                false => self.respond_status(c, failure(status, &sense)),
            };
        }
        match c.reads {
            false => self.respond_status(c, NvmeStatus::SUCCESS),
            true if len > 0 && sent.bytes + len == c.expected_len as usize => {
                self.end_with_data(id, data, sent.bytes);
            }
            true if sent.bytes == c.expected_len as usize => self.complete(id, NvmeStatus::SUCCESS),
            // The size of a block has changed.
            true => self.complete_at(id, NvmeStatus::DATA_TRANSFER_ERROR, || ErrorPlace::of_command(c)),
        }
    }

    /// Nothing to do: the completion releases the place.
    fn release(&mut self, _: &ScsiCommand) {}

    #[inline]
    fn takes_pages(&self, _: u16) -> bool {
        self.connection().takes_pages()
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.connection().is_full()
    }

    #[inline]
    fn stale_reason(&self, _: u16) -> Option<EndReason> {
        self.connection().stale_reason()
    }

    fn recheck_peer(&self, _: u16) {
        self.connection().stream().recheck_peer();
    }

    fn drain_received(state: &mut NexusState<NvmeQueue>, scope: &AbortScope) -> Result<(), EndReason> {
        let connection = state.front().connection().clone();
        let take = |state: &mut NexusState<NvmeQueue>| {
            connection.receive_arrived(&mut QueueDispatcher::new(state, &connection))
        };
        match state.with_busy_scope(Some(scope.clone()), take) {
            Ok(ReceiveStatus::More | ReceiveStatus::Full) => Ok(()),
            Ok(ReceiveStatus::End) => Err(EndReason::ConnectionClosed),
            Err(_) => Err(EndReason::ConnectionLost),
        }
    }

    fn has_received(&self, _: u32) -> bool {
        true
    }

    fn in_flight_data(&self) -> Vec<Rc<dyn InFlightData>> {
        Vec::new()
    }

    /// The admin queue reports events.
    fn report_event(&mut self, _: u64, _: Sense) -> bool {
        false
    }

    fn flush(nexus: &Rc<ItNexus<NvmeQueue>>) {
        let connection = nexus.state().front().connection().clone();
        SendPump::flush(&connection);
    }

    fn flush_soon(nexus: &Rc<ItNexus<NvmeQueue>>) {
        let connection = nexus.state().front().connection().clone();
        SendPump::flush_soon(&connection);
    }

    async fn flushed(nexus: &Rc<ItNexus<NvmeQueue>>) {
        let connection = nexus.state().front().connection().clone();
        SendPump::flushed(&connection).await;
    }

    fn stop_receiving(&self) {
        self.connection().stop_receiving();
    }

    fn close(&self) {
        self.connection().close();
    }
}

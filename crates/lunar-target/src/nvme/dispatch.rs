//! Dispatch of PDUs on an I/O queue.

use super::authenticate::ExchangeStep;
use super::begin::ReceivedCommand;
use super::capsule::{entry, place_of};
use super::commands;
use super::connection::NvmeConnection;
use super::queue::NvmeQueue;
use super::reauthenticate::Reauthenticated;
use super::transfers::Received;
use crate::core::{DataOutResult, FrontEnd, NexusState, SessionPhase};
use crate::end_reason::EndReason;
use lunar_runtime::nvme::receive::{NvmePduHandler, ReceivedNvmePdu};
use lunar_runtime::{Buf, ReceivedData};
use lunar_wire::nvme::{
    DataPdu, NvmePdu, NvmePduError, NvmePduKind, NvmeStatus, Sqe, fabrics_type, fatal_error,
};
use lunar_wire::nvme::{admin_opcode, nvm_opcode};

/// The handler of the PDUs of a connection.
pub struct QueueDispatcher<'a> {
    state: &'a mut NexusState<NvmeQueue>,
    connection: &'a NvmeConnection,
}

/// Whether the command changes nothing that others see.
fn only_reads(opcode: u8) -> bool {
    matches!(
        opcode,
        nvm_opcode::READ | nvm_opcode::COMPARE | nvm_opcode::VERIFY | nvm_opcode::RESERVATION_REPORT
    )
}

impl<'a> QueueDispatcher<'a> {
    /// A handler for the connection of this queue.
    pub fn new(state: &'a mut NexusState<NvmeQueue>, connection: &'a NvmeConnection) -> QueueDispatcher<'a> {
        QueueDispatcher { state, connection }
    }

    #[inline]
    fn is_over(&self) -> bool {
        self.state.phase() == SessionPhase::Ended
    }

    #[inline(always)]
    fn capsule(&mut self, header: &[u8], data: ReceivedData<'_>, intact: bool) -> Result<(), NvmePduError> {
        let sqe = entry(header).ok_or(NvmePduError::of(fatal_error::SEQUENCE))?;
        if !only_reads(sqe.opcode())
            && let Some(why) = self.connection.stale_reason()
        {
            self.state.end_with(why);
            return Ok(());
        }
        if !self.state.front_mut().begin(sqe.id()) {
            return Err(NvmePduError::of(fatal_error::SEQUENCE));
        }
        // The host repeats on another path, or after it has connected again, what gets no completion.
        if self.state.phase() == SessionPhase::LoggingOut {
            return Ok(());
        }
        let place = place_of(&sqe, data.bytes().len());
        match place {
            Ok(place) if !intact => commands::damaged(self.state, &sqe, place),
            Ok(_) if sqe.opcode() == admin_opcode::FABRICS => self.fabrics(&sqe, data.bytes()),
            Ok(place) => commands::begin(self.state, &sqe, place, data),
            Err(status) => self.refuse(&sqe, status),
        }
        Ok(())
    }

    #[cold]
    fn refuse(&mut self, sqe: &Sqe, status: NvmeStatus) {
        commands::end_first_half(self.state);
        self.state.front_mut().complete_entry(sqe, status);
    }

    /// Fabrics commands of an I/O queue that is connected.
    #[cold]
    fn fabrics(&mut self, sqe: &Sqe, data: &[u8]) {
        match sqe.fabrics_type() {
            fabrics_type::AUTHENTICATION_SEND | fabrics_type::AUTHENTICATION_RECEIVE => {
                self.authenticate(ReceivedCommand { sqe: *sqe, data: data.to_vec(), intact: true });
            }
            fabrics_type::DISCONNECT => {
                self.refuse(sqe, NvmeStatus::SUCCESS);
                self.state.end_with(EndReason::Logout);
            }
            fabrics_type::CONNECT => self.refuse(sqe, NvmeStatus::SEQUENCE_ERROR),
            _ => self.refuse(sqe, NvmeStatus::INVALID_FIELD),
        }
    }

    /// Executes a command with which the host proves its secret again. Its completion follows.
    fn authenticate(&mut self, command: ReceivedCommand) {
        commands::end_first_half(self.state);
        let (nexus, id) = (self.state.front().nexus(), command.sqe.id());
        let reauthentication = self.state.front().reauthentication().clone();
        lunar_runtime::spawn(async move {
            let Reauthenticated { executed, has_failed } = reauthentication.execute(command).await;
            let Some(nexus) = nexus.upgrade() else { return };
            match executed {
                Ok(ExchangeStep::Sent) => nexus.state().front_mut().complete(id, NvmeStatus::SUCCESS),
                Ok(ExchangeStep::Message(data)) => nexus.state().front_mut().complete_with_data(id, data),
                Err(status) => nexus.state().front_mut().complete(id, status),
            }
            NvmeQueue::flush(&nexus);
            if has_failed {
                nexus.end(EndReason::AuthenticationFailed);
            }
        });
    }

    #[inline(never)]
    fn host_data(
        &mut self,
        pdu: &NvmePdu,
        header: &[u8],
        data: ReceivedData<'_>,
        intact: bool,
    ) -> Result<(), NvmePduError> {
        let head = data_header(header)?;
        let received = self.state.front_mut().transfers.receive(pdu, &head, data.bytes(), intact)?;
        match received {
            Received::More => {}
            Received::OfEnded(id, status, place) => {
                self.state.front_mut().complete_at(id, status, || place);
                // An Abort may wait for it.
                self.state.notify();
            }
            Received::Collected { sqe, buf, is_damaged } => {
                commands::collected(self.state, &sqe, buf, is_damaged);
            }
            Received::OfCore(id, segment) => {
                if self.state.receive_data(id, segment, data, intact) == DataOutResult::Accepted {
                    self.state.progress(id.task_tag);
                }
            }
        }
        Ok(())
    }
}

fn data_header(header: &[u8]) -> Result<DataPdu, NvmePduError> {
    header.first_chunk().map(DataPdu::decode).ok_or(NvmePduError::of(fatal_error::SEQUENCE))
}

impl NvmePduHandler for QueueDispatcher<'_> {
    fn place(&mut self, pdu: &NvmePdu, header: &[u8]) -> Option<(Buf, usize)> {
        if pdu.kind != NvmePduKind::HostData {
            return None;
        }
        let head = data_header(header).ok()?;
        let (id, segment) = self.state.front_mut().transfers.of_core(pdu, &head)?;
        self.state.placement_buffer(id, segment)
    }

    fn buffer(&mut self, len: usize) -> Buf {
        self.state.buffer(len)
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.state.is_full()
    }

    #[inline(always)]
    fn take(&mut self, received: ReceivedNvmePdu<'_>) -> Result<bool, NvmePduError> {
        if self.is_over() {
            return Ok(false);
        }
        self.state.front().controller().hear();
        let ReceivedNvmePdu { pdu, header, data, intact } = received;
        match pdu.kind {
            NvmePduKind::Command => self.capsule(header, data, intact)?,
            NvmePduKind::HostData => self.host_data(pdu, header, data, intact)?,
            NvmePduKind::HostTermRequest => {
                self.state.end_with(EndReason::TerminatedByHost);
            }
            _ => return Err(NvmePduError::of(fatal_error::SEQUENCE)),
        }
        Ok(!self.is_over())
    }
}

//! Dispatch of received PDUs: digests, session phase, CmdSN order, opcode.

use super::connection::IscsiConnection;
use super::pdu_queue::Payload;
use super::receive::{PduHandler, ReceiveStatus, ReceivedData, ReceivedPdu};
use super::request_order::OutOfOrderPdu;
use super::scsi_command;
use super::session::IscsiSession;
use super::stale;
use super::transport::ConnectionPduHandler;
use crate::core::{DataOutId, DataOutResult, NexusState, SessionPhase};
use crate::end_reason::EndReason;
use crate::registry::AbortScope;
use lunar_proto::transfer::DataOutSegment;
use lunar_proto::window::CmdSnVerdict;
use lunar_runtime::Buf;
use lunar_wire::iscsi::status::RejectReason;
use lunar_wire::iscsi::{Bhs, NONE, opcode};
use std::rc::Rc;

/// The handler of the PDUs of a connection.
pub struct PduDispatcher<'a> {
    pub(super) state: &'a mut NexusState<IscsiSession>,
    pub(super) connection: &'a IscsiConnection,
}

impl<'a> PduDispatcher<'a> {
    /// A handler for this connection of this session.
    pub fn new(
        state: &'a mut NexusState<IscsiSession>,
        connection: &'a IscsiConnection,
    ) -> PduDispatcher<'a> {
        PduDispatcher { state, connection }
    }

    pub(super) fn session(&mut self) -> &mut IscsiSession {
        self.state.front_mut()
    }

    /// Sends a PDU that carries status.
    pub(super) fn reply(&self, mut header: Bhs, payload: Payload) {
        self.state.front().reply(self.connection.cid(), &mut header, payload);
    }

    pub(super) fn reject(&self, reason: RejectReason, header: &Bhs, ahs: &[u8]) {
        self.state.front().reject(self.connection.cid(), reason, header, ahs);
    }

    /// The session has ended, or this connection logs out.
    #[inline]
    fn is_over(&self) -> bool {
        self.state.phase() == SessionPhase::Ended || self.connection.is_closing()
    }

    /// Whether a request is stale; this ends the session. `behind`: received bytes that are not parsed yet; None: the
    /// receiver has them.
    #[inline]
    fn end_if_stale(&mut self, behind: Option<&[u8]>) -> bool {
        let Some(why) = self.connection.stale_reason(behind) else { return false };
        self.state.end_with(why);
        true
    }
}

impl PduHandler for PduDispatcher<'_> {
    fn place(&mut self, header: &Bhs) -> Option<(Buf, usize)> {
        let is_data = header.opcode() == opcode::DATA_OUT;
        is_data.then(|| self.state.placement_buffer(self.origin(header), segment(header))).flatten()
    }

    fn buffer(&mut self, len: usize) -> Buf {
        self.state.buffer(len)
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.state.is_full()
    }

    #[inline]
    fn take(&mut self, pdu: ReceivedPdu<'_>) -> bool {
        if self.is_over() {
            return false;
        }
        self.connection.keepalive().heard();
        let ReceivedPdu { ref header, ahs, data, intact, behind } = pdu;
        if stale::changes(header) && self.end_if_stale(Some(behind)) {
            return false;
        }
        match header.opcode() {
            opcode::DATA_OUT => self.data_out(header, ahs, data, intact),
            _ if !intact => self.reject(RejectReason::DataDigest, header, ahs),
            opcode::SNACK => self.snack(header, ahs),
            op if !is_request(op) => self.reject(RejectReason::Unsupported, header, ahs),
            opcode::LOGIN => self.reject(RejectReason::Protocol, header, ahs),
            op if self.state.info().is_discovery() && !matches!(op, opcode::TEXT | opcode::LOGOUT) => {
                self.reject(RejectReason::Protocol, header, ahs)
            }
            _ => self.in_turn(header, ahs, data, behind),
        }
        !self.is_over()
    }
}

/// Whether the opcode is that of a request with a CmdSN. Login is one of them, because it is rejected like them.
fn is_request(op: u8) -> bool {
    matches!(
        op,
        opcode::NOP_OUT
            | opcode::SCSI_COMMAND
            | opcode::TASK_MANAGEMENT
            | opcode::LOGIN
            | opcode::TEXT
            | opcode::LOGOUT
    )
}

/// The segment of the command's data that a Data-Out contains.
fn segment(header: &Bhs) -> DataOutSegment {
    let (offset, len) = (header.buffer_offset(), header.data_len() as u32);
    DataOutSegment { number: Some(header.data_sn()), offset, len, is_final: header.is_final() }
}

impl PduDispatcher<'_> {
    /// The transfer to which a Data-Out belongs. The core rejects data that do not arrive on the connection of their
    /// command (RFC 7143 section 4.2.5.1).
    fn origin(&self, header: &Bhs) -> DataOutId {
        let transfer_tag = Some(header.ttt()).filter(|ttt| *ttt != NONE);
        let (connection, task_tag) = (self.connection.cid(), header.itt());
        DataOutId { connection, task_tag, lun: header.lun(), transfer_tag }
    }

    /// Processes a request when its CmdSN is next, and then the held requests that follow it.
    #[inline(always)]
    fn in_turn(&mut self, header: &Bhs, ahs: &[u8], data: ReceivedData<'_>, behind: &[u8]) {
        match self.session().order_mut().receive(header) {
            CmdSnVerdict::Deliver => self.request(header, ahs, data),
            CmdSnVerdict::Ignore => return,
            CmdSnVerdict::Hold => return self.hold(*header, ahs, data.bytes()),
        }
        if self.state.front().order().has_held() {
            self.release_held(Some(behind));
        }
        if self.state.front().has_pending_functions() {
            self.state.notify();
        }
    }

    /// Holds a request until its CmdSN is next, with its data in a buffer of the pool. An initiator that sends in
    /// order over a stream never needs this, so the session ends if the pool has no buffer. Messages over RDMA are
    /// short.
    fn hold(&mut self, header: Bhs, ahs: &[u8], bytes: &[u8]) {
        let room = match self.connection.datamover() {
            _ if bytes.is_empty() => Some(Buf::zeroed(0)),
            None => self.state.pool().try_get(bytes.len()),
            Some(_) => Some(self.buffer(bytes.len())),
        };
        let Some(mut data) = room else {
            return self.state.end_with(EndReason::MissingCommand);
        };
        data.copy_from_slice(bytes);
        let cid = self.connection.cid();
        let busy_scope = self.state.busy_scope().cloned();
        let pdu = OutOfOrderPdu { cid, header, ahs: ahs.to_vec(), data, busy_scope };
        self.session().order_mut().hold(pdu);
    }

    /// Processes the held requests whose CmdSN is next. `behind`: received bytes that are not parsed yet; None: the
    /// receiver has them.
    ///
    /// Each request is checked for staleness here too: it may have been held for long, and the request that releases
    /// it may be one that is not checked.
    pub(super) fn release_held(&mut self, behind: Option<&[u8]>) {
        while self.state.phase() != SessionPhase::Ended
            && let Some(pdu) = self.session().order_mut().take_next()
        {
            let OutOfOrderPdu { cid, header, ahs, data, busy_scope } = pdu;
            let Some(connection) = self.state.front().connection(cid).cloned() else {
                self.session().order_mut().finished();
                continue;
            };
            let behind = behind.filter(|_| connection.cid() == self.connection.cid());
            let take = |state: &mut NexusState<IscsiSession>| {
                let mut dispatcher = PduDispatcher::new(state, &connection);
                let is_late = stale::changes(&header) && dispatcher.end_if_stale(behind);
                if !is_late {
                    dispatcher.request(&header, &ahs, ReceivedData::Bytes(&data));
                }
            };
            self.state.with_busy_scope(busy_scope, take);
        }
    }

    #[inline]
    fn request(&mut self, header: &Bhs, ahs: &[u8], data: ReceivedData<'_>) {
        if header.opcode() == opcode::SCSI_COMMAND {
            return self.scsi_command(header, ahs, data);
        }
        // Other requests do not stay pending in the window: they are answered here, or outside the task set.
        if !header.immediate() {
            self.session().order_mut().finished();
        }
        match header.opcode() {
            opcode::NOP_OUT => self.nop_out(header, data.bytes()),
            opcode::TASK_MANAGEMENT => self.task_management(header),
            opcode::TEXT => self.text_request(header, ahs, data.bytes()),
            _ => self.logout(header, ahs),
        }
    }

    #[inline]
    fn scsi_command(&mut self, header: &Bhs, ahs: &[u8], data: ReceivedData<'_>) {
        let Some(c) = scsi_command::read(header, ahs, self.connection.cid()) else {
            tracing::debug!(?header, "invalid SCSI Command PDU");
            return self.state.end_with(EndReason::InvalidScsiCommand);
        };
        let refusal = if c.tag == NONE {
            Some(RejectReason::InvalidField)
        } else if self.state.has_task(c.tag) {
            Some(RejectReason::TaskInProgress)
        } else if self.state.phase() == SessionPhase::LoggingOut {
            Some(RejectReason::WaitingForLogout)
        } else if c.immediate && !self.session().begin_immediate() {
            Some(RejectReason::TooManyImmediate)
        } else {
            None
        };
        let Some(reason) = refusal else { return self.state.command(&c, data) };
        if !c.immediate {
            self.session().order_mut().finished();
        }
        self.reject(reason, header, ahs);
    }

    /// Processes a Data-Out (RFC 7143 section 11.7).
    fn data_out(&mut self, header: &Bhs, ahs: &[u8], data: ReceivedData<'_>, intact: bool) {
        match self.state.receive_data(self.origin(header), segment(header), data, intact) {
            DataOutResult::Accepted => {}
            DataOutResult::Ignored => return,
            DataOutResult::Invalid => return self.reject(RejectReason::InvalidField, header, ahs),
        }
        if !intact {
            self.reject(RejectReason::DataDigest, header, ahs);
        }
        self.state.progress(header.itt());
    }
}

impl ConnectionPduHandler for PduDispatcher<'_> {
    fn is_awaiting(&self, itt: u32, ttt: u32) -> bool {
        self.state.is_awaiting(itt, ttt)
    }

    fn has_task(&self, itt: u32) -> bool {
        self.state.has_task(itt)
    }

    fn is_held(&self, itt: u32) -> bool {
        self.state.front().order().is_held(itt)
    }

    fn max_tasks(&self) -> usize {
        self.state.front().max_tasks()
    }

    fn announce_unsent(&mut self) {
        self.session().announce_unsent();
    }
}

/// Processes everything received, so that it precedes a task management function of another session.
///
/// # Errors
/// The reason why the session ends.
pub fn drain_received(state: &mut NexusState<IscsiSession>, scope: &AbortScope) -> Result<(), EndReason> {
    mark_held_busy(state, scope);
    let connections: Vec<Rc<IscsiConnection>> = state.front().connections().to_vec();
    for connection in &connections {
        let take = |state: &mut NexusState<IscsiSession>| {
            connection.take_arrived(&mut PduDispatcher::new(state, connection))
        };
        match state.with_busy_scope(Some(scope.clone()), take) {
            Ok(ReceiveStatus::More | ReceiveStatus::Full) => {}
            Ok(ReceiveStatus::End) => return Err(EndReason::ConnectionClosed),
            Err(_) => return Err(EndReason::ConnectionLost),
        }
    }
    Ok(())
}

/// Marks the held commands within the function's scope, so that they end with BUSY.
fn mark_held_busy(state: &mut NexusState<IscsiSession>, scope: &AbortScope) {
    let mut luns = state.front().order().held_luns();
    luns.retain(|lun| state.is_covered(scope, *lun));
    state.front_mut().order_mut().mark_busy(&luns, scope);
}

//! A session in full feature phase: CmdSN, and the state that its connections share (RFC 7143 section 4.4).

use super::connection::{IscsiConnection, OpenedSession};
use super::pdu_queue::{Body, Payload};
use super::request_order::RequestOrder;
use super::target_directory::TargetDirectory;
use crate::core::data_in::DataIn;
use crate::core::{DataInProgress, Residual, ScsiCommand};
use crate::session_info::SessionInfo;
use lunar_proto::parameters::Parameters;
use lunar_wire::iscsi::flag::{self, OVERFLOW, STATUS, UNDERFLOW};
use lunar_wire::iscsi::status::{RejectReason, async_event};
use lunar_wire::iscsi::{Bhs, NONE, opcode, pdu, sense_segment};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

/// Maximum number of unfinished immediate commands of a session.
const MAX_IMMEDIATE: u32 = 64;

/// A session. The response to a command goes to the connection that received it.
pub struct IscsiSession {
    /// In login order.
    connections: Vec<Rc<IscsiConnection>>,
    /// Tasks that serve connections, except the first one.
    serving: u16,
    info: Arc<SessionInfo>,
    directory: TargetDirectory,
    parameters: Parameters,
    order: RequestOrder,
    /// Number of unfinished immediate commands.
    immediate: u32,
    /// Initiator Task Tags of task management functions without a response.
    pending_functions: Vec<u32>,
    /// LUN fields of terminated tasks, while the initiator has no room for the messages.
    unsent_terminations: BTreeSet<u64>,
    has_logged_no_room: bool,
}

impl IscsiSession {
    /// A session without connections. The caller adds one at once.
    pub fn new(opened: &OpenedSession) -> IscsiSession {
        let (shared, info, login_context) =
            (opened.shared.clone(), opened.info.clone(), opened.login_context.clone());
        IscsiSession {
            connections: Vec::new(),
            serving: 0,
            info: opened.info.clone(),
            directory: TargetDirectory::new(shared, info, login_context),
            parameters: opened.parameters.clone(),
            order: RequestOrder::new(opened.cmd_sn, opened.depth),
            immediate: 0,
            pending_functions: Vec::new(),
            unsent_terminations: BTreeSet::new(),
            has_logged_no_room: false,
        }
    }

    /// Adds a connection behind the others. Its CID differs from theirs.
    pub(super) fn add(&mut self, connection: Rc<IscsiConnection>) {
        self.connections.push(connection);
    }

    /// Removes the connection with this CID. Its tasks have ended.
    pub(super) fn remove(&mut self, cid: u16) {
        self.connections.retain(|connection| connection.cid() != cid);
    }

    /// Counts a task that serves a connection other than the first.
    pub(super) fn begin_serving(&mut self) {
        self.serving += 1;
    }

    /// Such a task has ended.
    pub(super) fn end_serving(&mut self) {
        self.serving -= 1;
    }

    /// Whether such tasks exist.
    pub(super) fn is_serving(&self) -> bool {
        self.serving > 0
    }

    /// The order of the requests.
    #[inline]
    pub(super) fn order(&self) -> &RequestOrder {
        &self.order
    }

    /// The same, mutably.
    #[inline]
    pub(super) fn order_mut(&mut self) -> &mut RequestOrder {
        &mut self.order
    }

    /// The answers to text requests.
    pub(super) fn directory(&self) -> &TargetDirectory {
        &self.directory
    }

    /// A task management function has begun.
    pub(super) fn begin_function(&mut self, itt: u32) {
        self.pending_functions.push(itt);
    }

    /// A task management function is about to have its response.
    pub(super) fn end_function(&mut self, itt: u32) {
        self.pending_functions.retain(|tag| *tag != itt);
    }

    /// Whether this is the tag of a task management function without a response.
    pub(super) fn is_pending_function(&self, itt: u32) -> bool {
        self.pending_functions.contains(&itt)
    }

    /// Whether a task management function has no response yet.
    #[inline]
    pub(super) fn has_pending_functions(&self) -> bool {
        !self.pending_functions.is_empty()
    }

    /// A connection remains when the one with this CID is closed.
    pub(super) fn has_others(&self, cid: u16) -> bool {
        self.connections.iter().any(|connection| connection.cid() != cid && !connection.is_closing())
    }

    /// The connections, in login order.
    pub fn connections(&self) -> &[Rc<IscsiConnection>] {
        &self.connections
    }

    /// The connection with this CID. None: it has logged out, and what is meant for it is discarded.
    #[inline]
    pub(super) fn connection(&self, cid: u16) -> Option<&Rc<IscsiConnection>> {
        self.connections.iter().find(|connection| connection.cid() == cid)
    }

    /// The negotiated parameters.
    #[inline]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Maximum number of commands in flight, immediate ones included.
    pub fn max_tasks(&self) -> usize {
        self.order.depth() as usize + MAX_IMMEDIATE as usize
    }

    /// Counts an immediate command. False: there are too many.
    pub fn begin_immediate(&mut self) -> bool {
        let has_room = self.immediate < MAX_IMMEDIATE;
        self.immediate += u32::from(has_room);
        has_room
    }

    /// An immediate command has ended.
    #[inline]
    pub(super) fn end_immediate(&mut self) {
        self.immediate -= 1;
    }

    /// Sends a PDU with status, which consumes a StatSN of the connection.
    #[inline]
    pub fn reply(&self, cid: u16, header: &mut Bhs, body: impl Into<Body>) {
        let Some(connection) = self.connection(cid) else { return };
        let (exp_cmd_sn, max_cmd_sn) = (self.order.exp_cmd_sn(), self.order.max_cmd_sn());
        pdu::stamp(header, connection.take_stat_sn(), exp_cmd_sn, max_cmd_sn);
        connection.push(header, body);
    }

    /// Sends a PDU without status, such as an R2T or a ping, which consumes no StatSN.
    pub fn notice(&self, cid: u16, mut header: Bhs) {
        let Some(connection) = self.connection(cid) else { return };
        let (exp_cmd_sn, max_cmd_sn) = (self.order.exp_cmd_sn(), self.order.max_cmd_sn());
        pdu::stamp(&mut header, connection.stat_sn(), exp_cmd_sn, max_cmd_sn);
        connection.push(&mut header, Payload::Empty);
    }

    /// Sends a Reject with the rejected header.
    pub fn reject(&self, cid: u16, reason: RejectReason, header: &Bhs, ahs: &[u8]) {
        tracing::debug!(?reason, ?header, "rejected");
        let Some(connection) = self.connection(cid) else { return };
        let mut data = [&header.as_bytes()[..], ahs].concat();
        data.truncate(connection.max_xmit());
        self.reply(cid, &mut pdu::reject(reason as u8), Payload::Bytes(data));
    }

    /// Sends an Asynchronous Message (RFC 7143 section 11.9) on the first connection. False: the initiator has no room
    /// for it until it acknowledges an earlier one.
    pub(super) fn announce(&mut self, lun: u64, event: u8, parameters: [u16; 3], data: Vec<u8>) -> bool {
        let Some(first) = self.connections.first() else { return false };
        let has_room = first.can_send_event();
        if has_room {
            let mut header = pdu::async_message(lun, event, parameters);
            self.reply(first.cid(), &mut header, Payload::Bytes(data));
        } else if !std::mem::replace(&mut self.has_logged_no_room, true) {
            let SessionInfo { initiator, address, .. } = &*self.info;
            tracing::info!(%initiator, %address, event, "no receive buffer at the initiator for an Asynchronous Message");
        }
        has_room
    }

    /// Reports the termination of tasks. An initiator with FastAbort must get this message (RFC 7143 section 4.2.3.4),
    /// so it waits for room.
    pub(super) fn announce_termination(&mut self, lun: u64) {
        if !self.announce(lun, async_event::TASK_TERMINATION, [0; 3], Vec::new()) {
            self.unsent_terminations.insert(lun);
        }
    }

    /// Reports the terminations that waited for room.
    pub(super) fn announce_unsent(&mut self) {
        while self.connections.first().is_some_and(|first| first.can_send_event())
            && let Some(lun) = self.unsent_terminations.pop_first()
        {
            self.announce_termination(lun);
        }
    }

    /// Sends Data-In PDUs after those in `sent`. F is set at the end of every burst and, unless more data follow, at
    /// the end of the data. The last PDU carries status if `last` contains one.
    pub(super) fn data_in_pdus(
        &self,
        c: &ScsiCommand,
        data: DataIn,
        mut sent: DataInProgress,
        last: FinalPdu,
    ) -> DataInProgress {
        let Some(connection) = self.connection(c.connection) else { return sent };
        let (max, burst) = (connection.longest_data_in(), self.parameters.max_burst_length as usize);
        let (len, data) = (data.len(), data.shared());
        let mut at = 0;
        while at < len {
            let to_burst = burst - sent.bytes % burst;
            let n = max.min(len - at).min(to_burst);
            let is_last = at + n == len;
            let mut header = data_in_header(c, sent);
            let is_final = n == to_burst || (is_last && last != FinalPdu::Open);
            header.set_flags(if is_final { flag::FINAL } else { 0 });
            match last {
                FinalPdu::Status(residual) if is_last => {
                    set_residual(&mut header, STATUS, residual);
                    self.reply(c.connection, &mut header, data.part(at, n));
                }
                _ => {
                    header.set_exp_cmd_sn(self.order.exp_cmd_sn());
                    header.set_max_cmd_sn(self.order.max_cmd_sn());
                    connection.push(&mut header, data.part(at, n));
                }
            }
            at += n;
            sent = DataInProgress { bytes: sent.bytes + n, parts: sent.parts + 1 };
        }
        sent
    }

    /// Sends a SCSI Response (RFC 7143 section 11.4).
    #[inline]
    pub(super) fn scsi_response(
        &self,
        c: &ScsiCommand,
        status: u8,
        sense: &[u8],
        residual: Residual,
        data_ins: u32,
    ) {
        let mut header = pdu::scsi_response(c.tag, 0, 0, status);
        set_residual(&mut header, 0, residual);
        header.set_exp_data_sn(data_ins);
        let payload =
            if sense.is_empty() { Payload::Empty } else { Payload::Bytes(sense_segment::encode(sense)) };
        self.reply(c.connection, &mut header, payload);
    }
}

/// The status in the last of several Data-In PDUs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FinalPdu {
    /// Status GOOD and the residual count.
    Status(Residual),
    /// No status: a SCSI Response follows.
    Data,
    /// More Data-In follows.
    Open,
}

/// Sets flags, and the flag and count of a residual.
#[inline]
pub(super) fn set_residual(header: &mut Bhs, flags: u8, residual: Residual) {
    let (residual_flag, count) = match residual {
        Residual::None => (0, 0),
        Residual::Overflow(count) => (OVERFLOW, count),
        Residual::Underflow(count) => (UNDERFLOW, count),
    };
    header.set_flags(header.flags() | flags | residual_flag);
    header.set_residual_count(count);
}

#[inline]
pub(super) fn data_in_header(c: &ScsiCommand, sent: DataInProgress) -> Bhs {
    let mut header = Bhs::new(opcode::DATA_IN);
    header.set_itt(c.tag);
    header.set_ttt(NONE);
    header.set_data_sn(sent.parts);
    header.set_buffer_offset(sent.bytes as u32);
    header
}

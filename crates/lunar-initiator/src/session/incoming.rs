//! Received PDUs in full feature phase, with one function per PDU type. A protocol violation ends the connection.
//! Repeatable commands are sent again on the next one.

use super::control_request::ControlKind;
use super::errors::broke;
use super::event::Event;
use super::session_state::{Online, SessionState};
use super::task::{Data, Task};
use super::transfer::Segment;
use super::transport::DatamoverEvents;
use crate::{Completion, Error, ErrorCode};
use lunar_proto::window::precedes;
use lunar_runtime::iscsi::pdu_queue::Payload;
use lunar_runtime::iscsi::receive::{PduHandler, PredictedPdu, ReceivePrediction, ReceivedData, ReceivedPdu};
use lunar_runtime::{Buf, PipedBytes};
use lunar_wire::iscsi::flag::{OVERFLOW, STATUS, UNDERFLOW};
use lunar_wire::iscsi::request;
use lunar_wire::iscsi::status::{RejectReason, async_event};
use lunar_wire::iscsi::{Bhs, NONE, opcode, sense_segment};
use lunar_wire::scsi::{Sense, Status};

/// Reject reasons as constants, for match patterns.
const DATA_DIGEST_ERROR: u8 = RejectReason::DataDigest as u8;
const WAITING_FOR_LOGOUT: u8 = RejectReason::WaitingForLogout as u8;

/// The iSCSI response code "Target Failure" of a SCSI Response (RFC 7143 section 11.4.3).
const TARGET_FAILURE: u8 = 0x01;

impl PduHandler for SessionState {
    fn place(&mut self, header: &Bhs) -> Option<(Buf, usize)> {
        if header.opcode() == opcode::DATA_IN { self.landing_place(header) } else { None }
    }

    fn buffer(&mut self, len: usize) -> Buf {
        Buf::zeroed(len)
    }

    fn take_early(&mut self, header: &Bhs, buf: &mut Buf, filled: usize) -> usize {
        self.split_first(header, buf, filled)
    }

    fn takes_pipe(&self, header: &Bhs) -> bool {
        self.permits_pipe(header)
    }

    fn pipe(&mut self, header: &Bhs, room: usize) -> Option<PipedBytes> {
        self.landing_pipe(header, room)
    }

    fn predict(&mut self, sight: &mut ReceivePrediction) {
        self.order.predict(&mut self.tasks, self.connection.parameters(), sight);
    }

    fn give_back(&mut self, answer: PredictedPdu) {
        self.take_back(answer);
    }

    fn is_full(&self) -> bool {
        false
    }

    #[inline]
    fn take(&mut self, pdu: ReceivedPdu<'_>) -> bool {
        match self.arrived(pdu) {
            Ok(()) => true,
            Err(error) => {
                self.connection.fail(error);
                false
            }
        }
    }
}

impl DatamoverEvents for SessionState {
    fn take_pdu(&mut self, pdu: ReceivedPdu<'_>) -> bool {
        self.take(pdu)
    }

    fn filled(&mut self, tag: u32, memory: Buf, short: u32) {
        self.take_back_filled(tag, memory, short);
    }

    fn fail(&mut self, error: Error) {
        self.connection.fail(error);
    }
}

impl SessionState {
    #[inline]
    fn arrived(&mut self, pdu: ReceivedPdu<'_>) -> Result<(), Error> {
        let header = &pdu.header;
        if !pdu.ahs.is_empty() {
            return Err(broke(format!(
                "the target sent a {} with an additional header segment",
                opcode::name(header.opcode())
            )));
        }
        if !pdu.intact {
            // At ErrorRecoveryLevel 0, a lost PDU ends the session.
            return Err(broke(format!(
                "the data digest of a {} does not match its data",
                opcode::name(header.opcode())
            )));
        }
        match header.opcode() {
            opcode::DATA_IN => self.take_data_in(header, pdu.data),
            opcode::SCSI_RESPONSE => self.scsi_response(header, pdu.data.bytes()),
            opcode::R2T => self.take_r2t(header),
            opcode::NOP_IN => self.nop_in(header),
            opcode::TASK_MANAGEMENT_RESPONSE => self.control_response(header, ControlKind::TaskManagement),
            opcode::TEXT_RESPONSE => self.text_response(header, pdu.data.bytes()),
            opcode::LOGOUT_RESPONSE => self.control_response(header, ControlKind::Logout),
            opcode::ASYNC => self.async_message(header, pdu.data.bytes()),
            opcode::REJECT => self.reject(header, pdu.data.bytes()),
            other => Err(broke(format!(
                "the target sent a {} (opcode {other:02x}h), which is invalid in full feature phase",
                opcode::name(other)
            ))),
        }
    }

    /// Checks and advances StatSN, and updates the command window.
    #[inline]
    pub(super) fn status(&mut self, header: &Bhs) -> Result<(), Error> {
        let expected = self.connection.exp_stat_sn();
        if !self.connection.take_stat_sn(header) {
            let (name, got) = (opcode::name(header.opcode()), header.stat_sn());
            return Err(broke(format!(
                "the target sent a {name} with StatSN {got}, expected {expected}: a response was lost"
            )));
        }
        self.window(header);
        Ok(())
    }

    #[inline]
    fn window(&mut self, header: &Bhs) {
        self.command_window.update_window(header);
    }

    #[inline]
    fn take_data_in(&mut self, header: &Bhs, data: ReceivedData<'_>) -> Result<(), Error> {
        let segment = match data {
            ReceivedData::Placed(buf) => Segment::Landed(buf),
            ReceivedData::Piped(piped) => Segment::Piped(piped),
            ref other => Segment::Bytes(other.bytes()),
        };
        if let Segment::Bytes(bytes) = &segment
            && bytes.len() != header.data_len()
        {
            return Err(broke(format!(
                "the target sent {} bytes in a Data-In whose DataSegmentLength is {}",
                bytes.len(),
                header.data_len()
            )));
        }
        self.data_in(header, segment)?;
        if header.flags() & STATUS == 0 {
            self.window(header);
            return Ok(());
        }
        if !header.is_final() {
            return Err(broke("the target sent a Data-In with a status (S bit) but without the F bit"));
        }
        self.status(header)?;
        self.complete(header, Box::default())
    }

    fn scsi_response(&mut self, header: &Bhs, data: &[u8]) -> Result<(), Error> {
        self.status(header)?;
        let Some(task) = self.tasks.sent(header.itt()) else {
            return Err(broke(format!(
                "the target sent a SCSI Response with Initiator Task Tag {:08x}, which no command has",
                header.itt()
            )));
        };
        let (counted, received) = (header.exp_data_sn(), task.data_sn);
        match header.response() {
            0 if counted > received => Err(broke(format!(
                "{received} Data-In or R2T PDUs arrived for a command, but ExpDataSN of the response is {counted}"
            ))),
            0 => self.complete(header, sense_of(data)?),
            code => {
                let what =
                    format!("the target failed to execute the command: iSCSI response code {code:02x}h");
                match code {
                    // The logical unit has not responded, so a repeatable command is sent again.
                    TARGET_FAILURE => {
                        self.failed(header.itt(), false, Error::new(ErrorCode::ConnectionLost, what))
                    }
                    _ => self.finish(header.itt(), Err(Error::new(ErrorCode::ScsiError, what))),
                }
                self.pump();
                Ok(())
            }
        }
    }

    /// Ends a command with a SCSI status. The residual gives the number of transferred bytes (RFC 7143 section 11.4.5).
    #[inline]
    fn complete(&mut self, header: &Bhs, sense: Box<[u8]>) -> Result<(), Error> {
        let Some(task) = self.tasks.sent(header.itt()) else {
            return Err(broke("the target sent a status with an Initiator Task Tag that no command has"));
        };
        let (flags, residual) = (header.flags(), header.residual_count());
        let (under, over) = match flags & (OVERFLOW | UNDERFLOW) {
            0 => (0, 0),
            UNDERFLOW if residual <= task.expected => (residual, 0),
            OVERFLOW => (0, residual),
            _ => {
                return Err(broke(format!(
                    "the target sent an invalid residual count: {residual} of {} bytes, flags {flags:02x}h",
                    task.expected
                )));
            }
        };
        let (status, queued, is_check) = (header.scsi_status(), task.queued, task.urgent);
        let transferred = moved(task, under, status)?;
        if status == Status::CheckCondition as u8 && Sense::decode(&sense).is_some_and(|s| raises_doubt(&s)) {
            self.doubt();
        }
        self.has_answered |= !is_check;
        let transferred = transferred as usize;
        let completion = Completion { status, sense, transferred, overflow: over, queued };
        self.finish(header.itt(), Ok(completion));
        self.pump();
        Ok(())
    }

    fn take_r2t(&mut self, header: &Bhs) -> Result<(), Error> {
        self.window(header);
        if self.connection.is_logging_out() {
            // The target has already ended the command.
            return Ok(());
        }
        self.r2t(header)?;
        self.pump();
        Ok(())
    }

    /// Handles a NOP-In: a ping from the target, a reply to a NOP-Out, or a window update.
    fn nop_in(&mut self, header: &Bhs) -> Result<(), Error> {
        let (itt, ttt) = (header.itt(), header.ttt());
        if itt != NONE && ttt != NONE {
            return Err(broke(
                "the target sent a NOP-In with both an Initiator Task Tag and a Target Transfer Tag",
            ));
        }
        if itt != NONE {
            self.status(header)?;
            self.pump();
            return self.take_response(itt, ControlKind::Ping, 0);
        }
        self.window(header);
        if ttt != NONE {
            if !self.connection.count_pong() {
                return Err(broke("the target sends NOP-Ins but does not read the replies of the initiator"));
            }
            self.say(request::nop_out(header.lun(), NONE, ttt), Payload::Empty);
        }
        self.pump();
        Ok(())
    }

    fn control_response(&mut self, header: &Bhs, kind: ControlKind) -> Result<(), Error> {
        self.status(header)?;
        self.take_response(header.itt(), kind, header.response())?;
        self.pump();
        Ok(())
    }

    /// Handles an Asynchronous Message (RFC 7143 section 11.9).
    fn async_message(&mut self, header: &Bhs, data: &[u8]) -> Result<(), Error> {
        self.status(header)?;
        match header.async_event() {
            async_event::SCSI => {
                if let Some(sense) = Sense::decode(&sense_of(data)?) {
                    if raises_doubt(&sense) {
                        self.doubt();
                    }
                    self.events.push(Event::UnitAttention { lun: header.lun(), sense });
                }
            }
            // A new session also renegotiates.
            async_event::LOGOUT_REQUEST | async_event::NEGOTIATION_REQUEST => {
                self.asked_to_leave(header.async_parameters()[2]);
            }
            async_event::CONNECTION_DROP | async_event::SESSION_DROP => {
                self.connection.set_time2wait_s(header.async_parameters()[1]);
                return Err(Error::new(
                    ErrorCode::ConnectionLost,
                    "the target ended the connection with an Asynchronous Message",
                ));
            }
            async_event::TASK_TERMINATION => {
                let lun = header.lun();
                let ended: Vec<u32> = self.tasks.iter().filter(|t| t.lun == lun).map(|t| t.tag).collect();
                self.ended_by_abort(
                    ended,
                    "the target terminated the command (Asynchronous Message: task termination)",
                );
            }
            code if async_event::VENDOR_SPECIFIC.contains(&code) => {}
            code => {
                return Err(broke(format!(
                    "the target sent an Asynchronous Message with the unknown AsyncEvent {code}"
                )));
            }
        }
        self.pump();
        Ok(())
    }

    /// Handles a Reject, whose data contain the header of the rejected PDU (RFC 7143 section 11.17).
    fn reject(&mut self, header: &Bhs, data: &[u8]) -> Result<(), Error> {
        self.status(header)?;
        let reason = header.reject_reason();
        let what = format!("the target rejected a request: reason {reason:02x}h");
        let Some(rejected) = data.first_chunk::<48>().map(|b| Bhs::from_bytes(*b)) else {
            return Err(broke(format!("{what}, and did not return the header of the request")));
        };
        let name = opcode::name(rejected.opcode());
        let error = broke(format!("the target rejected a {name}: reason {reason:02x}h"));
        let tag = rejected.itt();
        if rejected.opcode() == opcode::TEXT && self.text_tag() == Some(tag) {
            self.rejected_text(reason);
            return Ok(());
        }
        if reason == RejectReason::NegotiationReset as u8 {
            return Err(error);
        }
        match rejected.opcode() {
            // The response to the command follows (section 7.3), or the command is sent again.
            opcode::DATA_OUT => {}
            opcode::SCSI_COMMAND if self.tasks.sent(tag).is_some() => {
                self.rejected_command(header, tag, error)
            }
            _ if self.refused(tag, error.clone()) => {}
            _ => return Err(error),
        }
        Ok(())
    }
}

impl SessionState {
    /// Stops sending commands until it is known which logical units to check first.
    fn doubt(&mut self) {
        self.doubts += 1;
        if self.online == Online::Yes {
            self.online = Online::Checking;
            self.to_check = true;
        }
    }

    /// Handles the Reject of a command, which was not executed. After a digest error it is sent again. If the target
    /// still expects this CmdSN, it would not execute later commands, so a NOP-Out takes the CmdSN (RFC 7143 section
    /// 7.3).
    fn rejected_command(&mut self, header: &Bhs, tag: u32, error: Error) {
        let Some(cmd_sn) = self.tasks.get(tag).map(|t| t.cmd_sn) else { return };
        if !precedes(cmd_sn, header.exp_cmd_sn()) {
            self.fill(cmd_sn);
        }
        match header.reject_reason() {
            DATA_DIGEST_ERROR => self.failed(tag, false, error),
            // The command and the target's logout request have crossed.
            WAITING_FOR_LOGOUT => {
                self.connection.ask_logout();
                self.failed(tag, true, error);
            }
            _ => self.finish(tag, Err(error)),
        }
        self.pump();
    }
}

/// The number of transferred bytes, from the residual count. For a read, at most the bytes received: a failed command
/// may lack a residual count.
#[inline]
fn moved(task: &Task, under: u32, status: u8) -> Result<u32, Error> {
    let moved = task.expected - under;
    match task.data {
        Data::In(_, came) if came < moved && status == 0 => Err(broke(format!(
            "{came} bytes of {moved} arrived for the read with Initiator Task Tag {:08x}",
            task.tag
        ))),
        Data::In(_, came) => Ok(moved.min(came)),
        _ => Ok(moved),
    }
}

/// Whether this unit attention may mean another logical unit at the LUN: NOT READY TO READY CHANGE, a reset, INQUIRY
/// DATA HAS CHANGED, REPORTED LUNS DATA HAS CHANGED (SAM-5 section 5.14).
fn raises_doubt(sense: &Sense) -> bool {
    sense.is_unit_attention() && matches!((sense.asc, sense.ascq), (0x28 | 0x29, _) | (0x3f, 0x03 | 0x0e))
}

/// The sense data of a data segment.
fn sense_of(data: &[u8]) -> Result<Box<[u8]>, Error> {
    let sense = sense_segment::decode(data).map(Box::from);
    sense.map_err(|len| broke(format!("SenseLength is {len}, but the data segment has {} bytes", data.len())))
}

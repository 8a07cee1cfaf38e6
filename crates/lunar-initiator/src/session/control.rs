//! Requests other than SCSI commands, and their responses.

use super::control_request::{ControlKind, ControlRequest, ControlResponse};
use super::session_state::SessionState;
use crate::{Error, ErrorCode};
use lunar_runtime::iscsi::pdu_queue::Payload;
use lunar_wire::iscsi::request;
use lunar_wire::iscsi::{Bhs, NONE, opcode};
use lunar_wire::scsi::TaskManagementFunction;
use std::time::Instant;

impl SessionState {
    fn control(&mut self, kind: ControlKind, header: impl FnOnce(u32) -> Bhs) -> ControlResponse {
        let (reply, response) = flume::bounded(1);
        let tag = self.control_tag();
        self.say(header(tag), Payload::Empty);
        self.expect_response(tag, kind, reply);
        response
    }

    /// Registers the request that was just queued.
    fn expect_response(&mut self, tag: u32, kind: ControlKind, reply: flume::Sender<Result<u8, Error>>) {
        let (started_at, (_, end)) = (self.now, self.connection.progress());
        self.controls.push(ControlRequest { tag, kind, started_at, end, reply });
    }

    /// Sends a NOP-Out. The NOP-In shows that the target responds.
    pub fn ping(&mut self) {
        drop(self.control(ControlKind::Ping, |tag| request::nop_out(0, tag, NONE)));
    }

    /// Sends a NOP-Out with the CmdSN of a command that the target has not accepted.
    pub fn fill(&mut self, cmd_sn: u32) {
        if self.connection.is_logging_out() {
            return;
        }
        let (reply, _) = flume::bounded(1);
        let tag = self.control_tag();
        let mut header = request::nop_out(0, tag, NONE);
        header.set_opcode(opcode::NOP_OUT);
        request::stamp(&mut header, cmd_sn, self.connection.exp_stat_sn());
        self.connection.push(header, Payload::Empty);
        self.expect_response(tag, ControlKind::Ping, reply);
    }

    /// Requests a task management function. The reply is the response code (RFC 7143 section 11.6.1).
    pub fn manage(
        &mut self,
        function: TaskManagementFunction,
        lun: u64,
        task: Option<(u32, u32)>,
    ) -> ControlResponse {
        let whole = matches!(
            function,
            TaskManagementFunction::TargetWarmReset | TaskManagementFunction::TargetColdReset
        );
        // A function for the whole target has no LUN (section 11.5.3).
        let lun = if whole { 0 } else { lun };
        self.control(ControlKind::TaskManagement, |tag| request::task_management(lun, tag, function, task))
    }

    /// Requests the logout of the session. No PDU follows it.
    pub fn log_out(&mut self) -> ControlResponse {
        let response = self.control(ControlKind::Logout, request::logout);
        self.connection.send_logout();
        response
    }

    /// The time of the oldest unanswered NOP-Out.
    pub fn oldest_ping(&self) -> Option<Instant> {
        self.controls.iter().find(|c| c.kind == ControlKind::Ping).map(|c| c.started_at)
    }

    /// Handles a response with this code.
    pub(super) fn take_response(&mut self, tag: u32, kind: ControlKind, code: u8) -> Result<(), Error> {
        match self.controls.iter().position(|c| c.tag == tag && c.kind == kind) {
            Some(at) => {
                self.controls.swap_remove(at).complete(Ok(code));
                Ok(())
            }
            None => {
                let what = format!(
                    "the target sent a response with Initiator Task Tag {tag:08x}, which no request has"
                );
                Err(Error::new(ErrorCode::ProtocolError, what))
            }
        }
    }

    /// Ends a rejected request. Returns false if no request has this tag.
    pub(super) fn refused(&mut self, tag: u32, error: Error) -> bool {
        let Some(at) = self.controls.iter().position(|c| c.tag == tag) else { return false };
        self.controls.swap_remove(at).complete(Err(error));
        true
    }

    /// Ends all requests: their responses cannot arrive any more.
    pub(super) fn drop_controls(&mut self, why: &Error) {
        self.controls.drain(..).for_each(|c| c.complete(Err(why.clone())));
    }
}

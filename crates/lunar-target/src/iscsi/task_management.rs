//! Task Management Function Requests (RFC 7143 section 11.5).

use super::dispatch::PduDispatcher;
use super::pdu_queue::Payload;
use super::session::IscsiSession;
use crate::core::{Function, FunctionRefusal, FunctionRequest, ManagementResponse, NexusState, SessionPhase};
use lunar_wire::iscsi::status::RejectReason;
use lunar_wire::iscsi::status::management_response::{
    COMPLETE, NO_SUCH_LUN, NO_SUCH_TASK, REASSIGN_UNSUPPORTED, REJECTED, UNAUTHORIZED, UNSUPPORTED,
};
use lunar_wire::iscsi::{Bhs, pdu, request};

/// The requested function. None: not supported.
fn function(header: &Bhs) -> Option<Function> {
    match request::function_of(header) {
        request::function::ABORT_TASK => Some(Function::AbortTask { tag: header.referenced_task_tag() }),
        request::function::ABORT_TASK_SET => Some(Function::AbortTaskSet),
        request::function::CLEAR_ACA => Some(Function::ClearAca),
        request::function::CLEAR_TASK_SET => Some(Function::ClearTaskSet),
        request::function::LUN_RESET => Some(Function::LunReset),
        request::function::TARGET_WARM_RESET => Some(Function::TargetWarmReset),
        request::function::TARGET_COLD_RESET => Some(Function::TargetColdReset),
        _ => None,
    }
}

fn response(managed: ManagementResponse) -> u8 {
    match managed {
        ManagementResponse::Complete => COMPLETE,
        ManagementResponse::NoSuchTask => NO_SUCH_TASK,
        ManagementResponse::NoSuchLun => NO_SUCH_LUN,
        ManagementResponse::Unauthorized => UNAUTHORIZED,
        ManagementResponse::Rejected => REJECTED,
    }
}

impl PduDispatcher<'_> {
    /// Processes a task management function. A rejected one is answered at once, others when they are complete.
    pub(super) fn task_management(&mut self, header: &Bhs) {
        let begun = self.requested(header).and_then(|function| {
            let request = FunctionRequest { function, lun: header.lun(), sequence: header.cmd_sn() };
            let (header, connection) = (*header, self.connection.cid());
            let begun = self.state.begin_function(request, move |state, managed| {
                reply(state, connection, &header, managed);
            });
            begun.map_err(|refusal| match refusal {
                FunctionRefusal::Answered(refusal) => Refusal::Response(response(refusal)),
                FunctionRefusal::TooMany => Refusal::Reject(RejectReason::TooManyImmediate),
            })
        });
        match begun {
            Ok(()) => self.session().begin_function(header.itt()),
            Err(Refusal::Reject(reason)) => self.reject(reason, header, &[]),
            Err(Refusal::Response(refusal)) => {
                self.reply(pdu::task_management_response(header.itt(), refusal), Payload::Empty);
            }
        }
    }

    /// The function if it may begin, otherwise the response code.
    fn requested(&self, header: &Bhs) -> Result<Function, Refusal> {
        let Some(function) = function(header) else {
            let is_reassign = request::function_of(header) == request::function::TASK_REASSIGN;
            return Err(Refusal::Response(if is_reassign { REASSIGN_UNSUPPORTED } else { UNSUPPORTED }));
        };
        let Function::AbortTask { tag } = function else { return Ok(function) };
        // A function without a response cannot be aborted.
        let is_of_function = self.state.front().is_pending_function(tag);
        let has_lun = self.state.refuses(function, header.lun()) != Some(ManagementResponse::NoSuchLun);
        if is_of_function && has_lun { Err(Refusal::Response(REJECTED)) } else { Ok(function) }
    }
}

/// The answer to a function that does not begin.
enum Refusal {
    /// A Task Management Function Response.
    Response(u8),
    /// A Reject.
    Reject(RejectReason),
}

/// Sends the response to a function that has ended.
fn reply(
    state: &mut NexusState<IscsiSession>,
    connection: u16,
    header: &Bhs,
    mut managed: ManagementResponse,
) {
    if managed == ManagementResponse::NoSuchTask && plug(state, header) {
        managed = ManagementResponse::Complete;
    }
    state.front_mut().end_function(header.itt());
    // The commands that followed a missing one may have ended the session.
    if state.phase() != SessionPhase::Ended {
        let mut answer = pdu::task_management_response(header.itt(), response(managed));
        state.front().reply(connection, &mut answer, Payload::Empty);
    }
}

/// ABORT TASK of a command that has not arrived consumes its CmdSN (RFC 7143 section 7.11). The CmdSN must precede
/// that of the function, and no other request may use it.
fn plug(state: &mut NexusState<IscsiSession>, header: &Bhs) -> bool {
    let session = state.front_mut();
    if !session.order_mut().plug(header) {
        return false;
    }
    if let Some(connection) = session.connections().first().cloned() {
        PduDispatcher::new(state, &connection).release_held(None);
    }
    // Functions also wait for the commands that precede them.
    state.notify();
    true
}

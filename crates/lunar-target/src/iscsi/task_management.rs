//! Task Management Function Requests (RFC 7143 section 11.5).

use super::dispatch::PduDispatcher;
use super::pdu_queue::Payload;
use super::session::IscsiSession;
use crate::core::{FrontEnd, Function, ItNexus, MAX_FUNCTIONS, ManagementResponse, SessionPhase, State};
use crate::fence;
use lunar_proto::window::precedes;
use lunar_wire::iscsi::status::RejectReason;
use lunar_wire::iscsi::status::management_response::{
    COMPLETE, NO_SUCH_LUN, NO_SUCH_TASK, REASSIGN_UNSUPPORTED, REJECTED, UNAUTHORIZED, UNSUPPORTED,
};
use lunar_wire::iscsi::{Bhs, pdu};
use std::rc::Rc;

/// TASK REASSIGN.
const TASK_REASSIGN: u8 = 8;

/// The function that a request asks for; None: no such function.
fn function(header: &Bhs) -> Option<Function> {
    match header.flags() & 0x7f {
        1 => Some(Function::AbortTask { tag: header.referenced_task_tag() }),
        2 => Some(Function::AbortTaskSet),
        3 => Some(Function::ClearAca),
        4 => Some(Function::ClearTaskSet),
        5 => Some(Function::LunReset),
        6 => Some(Function::TargetWarmReset),
        7 => Some(Function::TargetColdReset),
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
    /// Processes a task management function. A rejected one is answered at once, others when they are done.
    pub(super) fn task_management(&mut self, header: &Bhs) {
        let function = match self.begins(header) {
            Ok(function) => function,
            Err(refusal) => {
                let answer = pdu::task_management_response(header.itt(), refusal);
                return self.reply(answer, Payload::Empty);
            }
        };
        if self.state.front().pending_functions.len() >= MAX_FUNCTIONS {
            return self.reject(RejectReason::TooManyImmediate, header, &[]);
        }
        let Some(nexus) = self.state.nexus() else { return };
        self.session().pending_functions.push(header.itt());
        let (header, connection) = (*header, self.connection.cid());
        let under_way = fence::enter(nexus.fence().clone());
        lunar_runtime::spawn(async move {
            if let Some(_under_way) = under_way {
                manage(nexus, connection, header, function).await;
            }
        });
    }

    /// The function, if it may begin; otherwise the response.
    fn begins(&self, header: &Bhs) -> Result<Function, u8> {
        let Some(function) = function(header) else {
            let is_reassign = header.flags() & 0x7f == TASK_REASSIGN;
            return Err(if is_reassign { REASSIGN_UNSUPPORTED } else { UNSUPPORTED });
        };
        let refusal = self.state.refuses(function, header.lun());
        // A function without a response cannot be aborted.
        let is_of_function = |tag: &u32| self.state.front().pending_functions.contains(tag);
        match (refusal, function) {
            (Some(ManagementResponse::NoSuchLun), _) => Err(NO_SUCH_LUN),
            (_, Function::AbortTask { tag }) if is_of_function(&tag) => Err(REJECTED),
            (Some(refusal), _) => Err(response(refusal)),
            (None, _) => Ok(function),
        }
    }
}

async fn manage(nexus: Rc<ItNexus<IscsiSession>>, connection: u16, header: Bhs, function: Function) {
    let mut managed = nexus.manage(function, header.lun(), header.cmd_sn()).await;
    if managed == ManagementResponse::NoSuchTask && plug(&mut nexus.state(), &header) {
        managed = ManagementResponse::Complete;
    }
    {
        let mut state = nexus.state();
        state.front_mut().pending_functions.retain(|tag| *tag != header.itt());
        if state.phase() != SessionPhase::Ended {
            let answer = pdu::task_management_response(header.itt(), response(managed));
            state.front().reply(connection, answer, Payload::Empty);
        }
    }
    IscsiSession::flush(&nexus);
    if function == Function::TargetColdReset {
        nexus.end_target_sessions().await;
    }
}

/// ABORT TASK of a command that has not arrived marks its CmdSN as received (RFC 7143 section 7.11). The CmdSN must
/// precede that of the function, and no other command may have it.
fn plug(state: &mut State<IscsiSession>, header: &Bhs) -> bool {
    let (itt, ref_cmd_sn) = (header.referenced_task_tag(), header.ref_cmd_sn());
    let session = state.front_mut();
    let is_free = session.held.get(&ref_cmd_sn).is_none_or(|pdu| pdu.itt() == itt);
    if !is_free || !precedes(ref_cmd_sn, header.cmd_sn()) || !session.window.plug(ref_cmd_sn) {
        return false;
    }
    session.held.remove(&ref_cmd_sn);
    if let Some(connection) = session.connections().first().cloned() {
        PduDispatcher::new(state, &connection).release_held(None);
    }
    // Functions also wait for the commands before them.
    state.notify();
    true
}

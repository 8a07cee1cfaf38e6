//! Task Management Function Requests (RFC 7143 section 11.5).

use super::dispatch::Ingress;
use super::out::Payload;
use super::session::Session;
use crate::core::{FrontEnd, Function, ItNexus, Life, MAX_FUNCTIONS, Managed, State};
use crate::fence;
use lunar_proto::window::precedes;
use lunar_wire::iscsi::status::RejectReason;
use lunar_wire::iscsi::{Bhs, pdu};
use std::rc::Rc;

/// Responses (RFC 7143 section 11.6.1).
const COMPLETE: u8 = 0;
const NO_SUCH_TASK: u8 = 1;
const NO_SUCH_LUN: u8 = 2;
const REASSIGN_UNSUPPORTED: u8 = 4;
const UNSUPPORTED: u8 = 5;
const UNAUTHORIZED: u8 = 6;
const REJECTED: u8 = 255;

/// TASK REASSIGN.
const TASK_REASSIGN: u8 = 8;

/// The function that a request asks for, if there is such a one.
fn function(header: &Bhs) -> Option<Function> {
    match header.flags() & 0x7f {
        1 => Some(Function::AbortTask { tag: header.word20() }),
        2 => Some(Function::AbortTaskSet),
        3 => Some(Function::ClearAca),
        4 => Some(Function::ClearTaskSet),
        5 => Some(Function::LunReset),
        6 => Some(Function::TargetWarmReset),
        7 => Some(Function::TargetColdReset),
        _ => None,
    }
}

fn response(managed: Managed) -> u8 {
    match managed {
        Managed::Complete => COMPLETE,
        Managed::NoSuchTask => NO_SUCH_TASK,
        Managed::NoSuchLun => NO_SUCH_LUN,
        Managed::Unauthorized => UNAUTHORIZED,
        Managed::Rejected => REJECTED,
    }
}

impl Ingress<'_> {
    /// Takes a task management function. All but the plain refusals are answered once they are done.
    pub(super) fn task_management(&mut self, header: &Bhs) {
        let function = match self.begins(header) {
            Ok(function) => function,
            Err(refusal) => {
                let answer = pdu::task_management_response(header.itt(), refusal);
                return self.reply(answer, Payload::Empty);
            }
        };
        if self.state.front().managing.len() >= MAX_FUNCTIONS {
            return self.reject(RejectReason::TooManyImmediate, header, &[]);
        }
        let Some(nexus) = self.state.nexus() else { return };
        self.session().managing.push(header.itt());
        let (header, connection) = (*header, self.connection.place());
        let under_way = fence::enter(nexus.fence().clone());
        lunar_runtime::spawn(async move {
            if let Some(_under_way) = under_way {
                manage(nexus, connection, header, function).await;
            }
        });
    }

    /// The function that may be begun, or the response without one.
    fn begins(&self, header: &Bhs) -> Result<Function, u8> {
        let Some(function) = function(header) else {
            let is_reassign = header.flags() & 0x7f == TASK_REASSIGN;
            return Err(if is_reassign { REASSIGN_UNSUPPORTED } else { UNSUPPORTED });
        };
        let refusal = self.state.refuses(function, header.lun());
        // A function that is not answered cannot be aborted.
        let is_of_function = |tag: &u32| self.state.front().managing.contains(tag);
        match (refusal, function) {
            (Some(Managed::NoSuchLun), _) => Err(NO_SUCH_LUN),
            (_, Function::AbortTask { tag }) if is_of_function(&tag) => Err(REJECTED),
            (Some(refusal), _) => Err(response(refusal)),
            (None, _) => Ok(function),
        }
    }
}

async fn manage(nexus: Rc<ItNexus<Session>>, connection: u16, header: Bhs, function: Function) {
    let mut managed = nexus.manage(function, header.lun(), header.cmd_sn()).await;
    if managed == Managed::NoSuchTask && plug(&mut nexus.state(), &header) {
        managed = Managed::Complete;
    }
    {
        let mut state = nexus.state();
        state.front_mut().managing.retain(|tag| *tag != header.itt());
        if state.life() != Life::Over {
            let answer = pdu::task_management_response(header.itt(), response(managed));
            state.front().reply(connection, answer, Payload::Empty);
        }
    }
    Session::flush(&nexus);
    if function == Function::TargetColdReset {
        nexus.power_on().await;
    }
}

/// ABORT TASK of a command that has not arrived takes it as received (RFC 7143 section 7.11). Its CmdSN has to lie before that
/// of the function, and no other command may hold it.
fn plug(state: &mut State<Session>, header: &Bhs) -> bool {
    let (itt, ref_cmd_sn) = (header.word20(), header.word(32));
    let session = state.front_mut();
    let is_free = session.held.get(&ref_cmd_sn).is_none_or(|pdu| pdu.itt() == itt);
    if !is_free || !precedes(ref_cmd_sn, header.cmd_sn()) || !session.window.plug(ref_cmd_sn) {
        return false;
    }
    session.held.remove(&ref_cmd_sn);
    if let Some(connection) = session.connections().first().cloned() {
        Ingress::new(state, &connection).release_held(None);
    }
    // Functions wait for what came before them, too.
    state.notify();
    true
}

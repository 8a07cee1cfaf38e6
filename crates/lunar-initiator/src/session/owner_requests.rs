//! Requests of owners: aborts and text requests.

use super::errors::closed;
use super::local_session::LocalSession;
use super::proof::Proof;
use super::request::{CommandId, CommandKey};
use super::session_state::SessionState;
use super::task::{Task, TaskState, Waiter};
use crate::{Error, ErrorCode};
use lunar_wire::iscsi::status::management_response::{COMPLETE, NO_SUCH_TASK};
use lunar_wire::scsi::TaskManagementFunction;
use std::rc::Rc;

/// Runs a text request for a caller.
pub async fn text(local: Rc<LocalSession>, question: Vec<u8>, reply: flume::Sender<Result<Vec<u8>, Error>>) {
    let limit = local.options.timeouts.login;
    let response = match local.closing.get() {
        true => Err(closed()),
        false => local.request(limit, |m| m.start_text(question)).await,
    };
    // The caller may have stopped waiting.
    let _ = reply.send(response);
}

/// Aborts one command for its owner.
pub async fn abort(local: Rc<LocalSession>, command: CommandId, reply: flume::Sender<Result<(), Error>>) {
    let ended = match local.find(command) {
        Some(tag) => local.abort(tag).await,
        None => Ok(()),
    };
    local.flush_soon();
    // The caller may have stopped waiting.
    let _ = reply.send(ended);
}

impl LocalSession {
    /// The tag of a command that has not ended.
    fn find(&self, command: CommandId) -> Option<u32> {
        let mut state = self.state.borrow_mut();
        let is_it =
            |t: &&mut Task| matches!(t.waiter, Waiter::There(_, n) if CommandKey::Number(n) == command.0);
        match command.0 {
            CommandKey::Tag(tag) => Some(tag),
            CommandKey::Number(_) => state.tasks.iter().find(is_it).map(|t| t.tag),
            CommandKey::Over => None,
        }
    }

    async fn abort(self: &Rc<Self>, tag: u32) -> Result<(), Error> {
        let aborted = || Error::new(ErrorCode::Aborted, "the caller aborted the command");
        let Some(task) = self.state.borrow_mut().abort(tag, &aborted()) else {
            return self.no_orphan(tag).await;
        };
        let limit = self.options.timeouts.abort;
        let response = self
            .request(limit, |m| {
                m.manage(TaskManagementFunction::AbortTask, task.lun, Some((tag, task.cmd_sn)))
            })
            .await;
        let state = self.state.borrow_mut().tasks.get(tag).map(|t| t.state);
        let refused = match response {
            // The command may have ended before the response to ABORT TASK.
            _ if !matches!(state, Some(TaskState::Sent | TaskState::Orphaned)) => return Ok(()),
            Ok(COMPLETE | NO_SUCH_TASK) => {
                self.end_aborted(tag, aborted());
                return Ok(());
            }
            Ok(code) => Error::new(
                ErrorCode::Refused,
                format!("the target rejected the task management function: response {code}"),
            ),
            Err(e) => e,
        };
        if self.may_come_late(tag) {
            self.give_up_connection(Error::new(
                ErrorCode::ConnectionLost,
                "the initiator dropped the connection: the target did not execute ABORT TASK",
            ));
            return self.no_orphan(tag).await;
        }
        self.state.borrow_mut().tasks.expire(tag, aborted());
        Err(refused.during("ABORT TASK"))
    }

    /// Ends a command that the target has aborted.
    fn end_aborted(self: &Rc<Self>, tag: u32, error: Error) {
        let mut state = self.state.borrow_mut();
        if state.tasks.sent(tag).is_some() {
            state.finish(tag, Err(error));
        }
        drop(state);
        self.prove(Proof::Aborted(tag));
    }
}

/// The fields that identify a command to the target, in addition to its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferencedTask {
    /// The eight bytes of the LUN.
    pub lun: u64,
    /// The CmdSN.
    pub cmd_sn: u32,
}

impl SessionState {
    /// Aborts a command. An unsent command ends. A sent one will not be resent: returns the fields for ABORT TASK.
    pub fn abort(&mut self, tag: u32, error: &Error) -> Option<ReferencedTask> {
        let task = self.tasks.get(tag)?;
        match task.state {
            TaskState::Queued => {
                self.tasks.finish(tag, Err(error.clone()));
                None
            }
            TaskState::Sent => {
                task.aborting = true;
                Some(ReferencedTask { lun: task.lun, cmd_sn: task.cmd_sn })
            }
            TaskState::Orphaned => {
                task.aborting = true;
                None
            }
            TaskState::Completed => None,
        }
    }
}

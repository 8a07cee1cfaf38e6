//! The error handler: NOP-Outs, escalation for commands without a response (ABORT TASK, resets, reconnection), and
//! operation timeouts.

use super::control_request::ControlKind;
use super::event::Event;
use super::local_session::LocalSession;
use super::proof::Proof;
use super::session_state::{Online, SessionState};
use super::task::{Data, Task, TaskState};
use crate::{Error, ErrorCode, hints, time_limit};
use lunar_proto::window::precedes;
use lunar_wire::iscsi::status::management_response::{COMPLETE, NO_SUCH_TASK};
use lunar_wire::scsi::TaskManagementFunction;
use lunar_wire::scsi::lun::shown;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The interval of the periodic checks with and without commands.
const TICK: Duration = Duration::from_millis(250);
const IDLE_TICK: Duration = Duration::from_secs(1);

/// Runs the periodic checks of a session.
pub async fn watch(local: Rc<LocalSession>) {
    while !local.over.get() {
        let busy = local.state.borrow().tasks.count() > 0;
        compio::time::sleep(if busy { TICK } else { IDLE_TICK }).await;
        let now = Instant::now();
        local.state.borrow_mut().check_send_progress(now);
        local.end_recovery(now);
        local.end_checks(now);
        local.complete_verified_recovery();
        local.state.borrow_mut().tasks.forget_abandoned();
        local.end_operations(now);
        local.say_what_waits(now);
        local.reset_overdue_orphans(now);
        local.keep_alive(now);
        if let Some(tag) = local.overdue(now)
            && !local.escalating.replace(true)
        {
            lunar_runtime::spawn(escalate(local.clone(), tag));
        }
        local.flush_soon();
    }
}

impl LocalSession {
    /// Fails queued commands after the recovery timeout. New ones then fail at once.
    pub fn end_recovery(&self, now: Instant) {
        let limit = self.options.timeouts.recovery;
        let over = self.lost.get().is_some_and(|started_at| now.duration_since(started_at) >= limit);
        if !over || self.gave_up.borrow().is_some() {
            return;
        }
        let what = gave_up(&self.name(), limit, self.last_error.borrow().as_ref());
        self.end_waiting(Error::new(ErrorCode::TimedOut, what).with_hint(hints::RECOVERY_TIMEOUT));
    }

    /// Fails the commands that wait for a connection. New ones then fail at once.
    pub(super) fn end_waiting(&self, error: Error) {
        let what = error.what.clone();
        // A local logout is not an error.
        match self.leaving.get() || self.closing.get() {
            true => {}
            false if self.asked.get() => tracing::debug!("{what}"),
            false => tracing::warn!("{what}"),
        }
        self.fail_waiting(&error);
        self.state.borrow_mut().gave_up = true;
        *self.gave_up.borrow_mut() = Some(error);
        self.listeners.notify(&Event::GaveUp(what));
    }

    /// Fails the commands of logical units whose identity check takes too long. New ones fail at once until a check
    /// succeeds.
    fn end_checks(&self, now: Instant) {
        let limit = self.options.timeouts.recovery;
        let mut state = self.state.borrow_mut();
        for (lun, found) in state.unverified.late(now, limit) {
            let time = match limit.is_zero() {
                true => String::new(),
                false => format!(" for {} s", limit.as_secs_f32()),
            };
            let what =
                format!("LUN {} of {}: the identity check failed{time}: {found}", shown(lun), self.name());
            tracing::warn!("{what}");
            let error = Error::new(ErrorCode::TimedOut, what).with_hint(hints::RECOVERY_TIMEOUT);
            state.fail_queued(&error, |t| t.lun == lun && !t.urgent);
            state.unverified.give_up(lun, error);
        }
    }

    /// Fails operations after the operation timeout. The target must not execute such a write after the owner's next
    /// commands, so the connection is dropped.
    fn end_operations(&self, now: Instant) {
        let limit = self.options.timeouts.operation;
        let mut state = self.state.borrow_mut();
        let late = |started_at: Instant| now.duration_since(started_at) >= limit;
        let overdue: Vec<u32> =
            state.tasks.iter().filter(|t| t.is_due() && late(t.started_at)).map(|t| t.tag).collect();
        // A command with a response whose data are still queued: the target does not read them.
        let is_stuck = |t: &mut Task| t.result.is_some() && t.is_leaving() && late(t.started_at);
        let mut is_stray = state.tasks.iter().any(is_stuck);
        for tag in overdue {
            is_stray |= state.tasks.sent(tag).is_some_and(|t| !matches!(t.data, Data::In(..)));
            let what = format!("the command did not end within {} s", limit.as_secs_f32());
            state.expire(tag, Error::new(ErrorCode::TimedOut, what).with_hint(hints::OPERATION_TIMEOUT));
        }
        drop(state);
        if is_stray {
            self.give_up_connection(Error::new(
                ErrorCode::ConnectionLost,
                "the initiator dropped the connection: a command exceeded operation_timeout",
            ));
        }
    }

    /// Sends a NOP-Out to a silent target. Drops the connection if there is no reply.
    fn keep_alive(&self, now: Instant) {
        let t = &self.options.timeouts;
        let mut state = self.state.borrow_mut();
        if state.online == Online::No || state.connection.is_logging_out() || t.noop_interval.is_zero() {
            return;
        }
        match state.oldest_ping() {
            Some(started_at) if now.duration_since(started_at.max(state.connection.heard())) >= t.noop => {
                drop(state);
                let what = format!("the target did not answer a NOP-Out within {} s", t.noop.as_secs_f32());
                self.give_up_connection(Error::new(ErrorCode::ConnectionLost, what));
            }
            Some(_) => {}
            None if now.duration_since(state.connection.heard()) >= t.noop_interval => state.ping(),
            None => {}
        }
    }

    /// Returns a command that has exceeded the command timeout.
    fn overdue(&self, now: Instant) -> Option<u32> {
        let limit = self.options.timeouts.command;
        let mut state = self.state.borrow_mut();
        if state.connection.is_logging_out() {
            // The logout ends the command.
            return None;
        }
        let late = |sent: Instant| now.duration_since(sent) >= limit;
        state.tasks.iter().find(|t| t.state == TaskState::Sent && late(t.sent)).map(|t| t.tag)
    }

    /// Sends a request on the current connection and waits for the response.
    pub(super) async fn request<T>(
        self: &Rc<Self>,
        limit: Duration,
        say: impl FnOnce(&mut SessionState) -> flume::Receiver<Result<T, Error>>,
    ) -> Result<T, Error> {
        if self.state.borrow().online == Online::No {
            return Err(Error::new(ErrorCode::ConnectionLost, "the session has no connection at the moment"));
        }
        if self.state.borrow().connection.is_logging_out() {
            return Err(Error::new(
                ErrorCode::ConnectionLost,
                "the connection of the session is logging out",
            ));
        }
        self.await_response(limit, say).await
    }

    /// The same without these checks. The time limit does not run while bytes before the request are being sent: on a
    /// slow link, much data may be queued before it.
    pub(super) async fn await_response<T>(
        self: &Rc<Self>,
        limit: Duration,
        say: impl FnOnce(&mut SessionState) -> flume::Receiver<Result<T, Error>>,
    ) -> Result<T, Error> {
        let (response, end) = {
            let mut state = self.state.borrow_mut();
            (say(&mut state), state.connection.progress().1)
        };
        self.flush_soon();
        let last = time_limit::deadline(self.options.timeouts.operation);
        loop {
            let (before, _) = self.state.borrow().connection.progress();
            match time_limit::within(limit, response.recv_async()).await {
                Some(Ok(response)) => return response,
                Some(Err(_)) => {
                    return Err(Error::new(
                        ErrorCode::ConnectionLost,
                        "the connection was lost before the target answered",
                    ));
                }
                None if before < end
                    && self.state.borrow().connection.progress().0 > before
                    && Instant::now() < last => {}
                None => {
                    let what =
                        format!("the target did not answer the request within {} s", limit.as_secs_f32());
                    return Err(Error::new(ErrorCode::TimedOut, what));
                }
            }
        }
    }

    /// Ends the commands that a task management function has ended: the target does not respond to them.
    fn ended(&self, error: &Error, before: u32, which: impl Fn(u64, u32) -> bool) {
        let mut state = self.state.borrow_mut();
        let sent = |t: &&mut Task| t.state == TaskState::Sent && precedes(t.cmd_sn, before);
        let tags: Vec<u32> =
            state.tasks.iter().filter(sent).filter(|t| which(t.lun, t.tag)).map(|t| t.tag).collect();
        state.ended_by(tags, error);
    }

    /// A reset also ends orphans.
    fn record_reset(self: &Rc<Self>, function: TaskManagementFunction, lun: u64, at: Instant) {
        match function {
            TaskManagementFunction::LunReset => self.prove(Proof::Reset(Some(lun), at)),
            TaskManagementFunction::TargetWarmReset | TaskManagementFunction::TargetColdReset => {
                self.prove(Proof::Reset(None, at))
            }
            _ => {}
        }
    }
}

impl SessionState {
    /// The task, if only escalation can end it: it has no response, is not being resent on another connection, and no
    /// logout ends it.
    fn unended(&mut self, tag: u32) -> Option<&mut Task> {
        self.tasks.sent(tag).filter(|_| !self.connection.is_logging_out())
    }

    /// Compares the bytes sent with the last check. While bytes before a request are being sent, the request's time
    /// limit does not run. A Datamover does not report which bytes it has moved: there, any progress only shows that
    /// the connection works.
    pub(super) fn check_send_progress(&mut self, now: Instant) {
        self.now = now;
        let moved = self.connection.out().take_moved();
        let (before, left) = self.connection.send_progress();
        let pings = self.controls.iter_mut().filter(|c| moved && c.kind == ControlKind::Ping);
        pings.for_each(|c| c.started_at = now);
        if left > before {
            self.controls.iter_mut().filter(|c| c.end > before).for_each(|c| c.started_at = now);
            let behind = |t: &&mut Task| t.state == TaskState::Sent && t.end > before;
            self.tasks.iter().filter(behind).for_each(|t| t.sent = now);
        }
    }
}

/// Whether a function ends this task.
fn reaches(function: TaskManagementFunction, lun: u64) -> impl Fn(u64, u32) -> bool {
    let whole =
        matches!(function, TaskManagementFunction::TargetWarmReset | TaskManagementFunction::TargetColdReset);
    move |task_lun, _| whole || task_lun == lun
}

/// The error of a session whose recovery timeout has expired.
fn gave_up(name: &str, limit: Duration, last: Option<&Error>) -> String {
    let last = last.map_or(String::new(), |e| format!(": {e}"));
    match limit.is_zero() {
        true => format!("the connection to {name} was lost{last}"),
        false => format!("no connection to {name} for {} s{last}", limit.as_secs_f32()),
    }
}

/// Whether LOGICAL UNIT RESET was executed. A failure is logged.
pub(crate) fn is_done(response: Result<u8, Error>, path: &str) -> bool {
    match response {
        Ok(COMPLETE) => return true,
        Ok(code) => tracing::warn!(path, "the target rejected LOGICAL UNIT RESET: response {code}"),
        Err(e) => tracing::warn!(path, "LOGICAL UNIT RESET failed: {e}"),
    }
    false
}

/// Requests a function for a caller.
pub async fn manage(
    local: Rc<LocalSession>,
    function: TaskManagementFunction,
    lun: u64,
    reply: flume::Sender<Result<u8, Error>>,
) {
    // The caller may have stopped waiting.
    let _ = reply.send(carry_out(&local, function, lun).await);
}

/// Requests a function. If the target has executed it, the commands that it affects end.
pub(super) async fn carry_out(
    local: &Rc<LocalSession>,
    function: TaskManagementFunction,
    lun: u64,
) -> Result<u8, Error> {
    let t = &local.options.timeouts;
    let whole =
        matches!(function, TaskManagementFunction::TargetWarmReset | TaskManagementFunction::TargetColdReset);
    let limit = if whole { t.target_reset } else { t.lun_reset };
    let (before, at) = (local.state.borrow().command_window.cmd_sn, Instant::now());
    let response = local.request(limit, |m| m.manage(function, lun, None)).await;
    if response == Ok(COMPLETE) {
        let error =
            Error::new(ErrorCode::TimedOut, "a task management function of the caller aborted the command");
        local.ended(&error, before, reaches(function, lun));
        local.record_reset(function, lun, at);
        local.flush_soon();
    }
    response
}

/// Ends a command by escalation: ABORT TASK, LOGICAL UNIT RESET, TARGET WARM RESET, a new connection.
async fn escalate(local: Rc<LocalSession>, tag: u32) {
    recover_task(&local, tag).await;
    local.escalating.set(false);
    local.flush_soon();
}

async fn recover_task(local: &Rc<LocalSession>, tag: u32) {
    let t = &local.options.timeouts;
    let what =
        format!("the command did not end within {} s, and the initiator aborted it", t.command.as_secs_f32());
    let error = Error::new(ErrorCode::TimedOut, what).with_hint(hints::COMMAND_TIMEOUT);
    let steps = [
        (TaskManagementFunction::AbortTask, t.abort),
        (TaskManagementFunction::LunReset, t.lun_reset),
        (TaskManagementFunction::TargetWarmReset, t.target_reset),
    ];
    for (function, limit) in steps {
        let (lun, cmd_sn, before) = {
            let mut state = local.state.borrow_mut();
            let before = state.command_window.cmd_sn;
            let Some(task) = state.unended(tag) else { return };
            (task.lun, task.cmd_sn, before)
        };
        tracing::warn!(target = %local.name(), lun = %shown(lun), ?function, "a command exceeded command_timeout");
        let (aborts, at) = (function == TaskManagementFunction::AbortTask, Instant::now());
        let task = aborts.then_some((tag, cmd_sn));
        match local.request(limit, |m| m.manage(function, lun, task)).await {
            Ok(COMPLETE | NO_SUCH_TASK) if aborts => return local.ended(&error, before, |_, t| t == tag),
            Ok(COMPLETE) => {
                local.ended(&error, before, reaches(function, lun));
                return local.record_reset(function, lun, at);
            }
            Ok(_) | Err(_) => {}
        }
    }
    let still_there = local.state.borrow_mut().unended(tag).is_some();
    if still_there {
        local.give_up_connection(Error::new(
            ErrorCode::ConnectionLost,
            "the initiator dropped the connection: a command did not end after ABORT TASK and resets",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_without_a_time_limit_names_no_time() {
        let last = Error::new(ErrorCode::ConnectionLost, "cut");
        assert_eq!(gave_up("t", Duration::ZERO, Some(&last)), "the connection to t was lost: cut");
        assert_eq!(gave_up("t", Duration::from_millis(1500), None), "no connection to t for 1.5 s");
    }
}

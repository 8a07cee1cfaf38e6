//! Logout of a connection or a session, after the commands in flight.

use super::errors::closed;
use super::local_session::LocalSession;
use super::session_state::SessionState;
use super::task::TaskState;
use super::transport::TransportHandle;
use crate::{Error, ErrorCode, time_limit};
use lunar_wire::iscsi::status::logout_response;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

/// Logs out of this connection at the request of the target. Commands in flight finish first. New ones wait for the
/// next connection. The request does not apply to the next connection if the target closes this one first.
pub async fn log_out_as_asked(local: Rc<LocalSession>, line: Weak<TransportHandle>) {
    let last = time_limit::deadline(local.options.timeouts.logout);
    let is_over =
        |m: &mut SessionState| m.is_idle() || m.connection.logout_by().is_some_and(|by| Instant::now() >= by);
    drain(&local, last, || local.is_on(&line), is_over).await;
    if !local.is_on(&line) || local.state.borrow().connection.is_logging_out() {
        return;
    }
    let heard = local.await_response(local.options.timeouts.logout, SessionState::log_out).await;
    let why = Error::new(ErrorCode::ConnectionLost, "the target requested a logout");
    if !local.is_on(&line) {
        return;
    }
    if let Ok(code) = heard {
        // After a completed logout there is no Time2Wait (section 11.15.3).
        local.state.borrow_mut().connection.set_time2wait_s(0);
        local.part_in_order(code == logout_response::CLOSED, why);
    } else {
        local.give_up_connection(why);
    }
}

/// Waits for the commands in flight until `last`, but only while there is a connection. The logout ends the remaining
/// ones.
async fn drain(
    local: &LocalSession,
    last: Instant,
    is_there: impl Fn() -> bool,
    is_over: impl Fn(&mut SessionState) -> bool,
) {
    while is_there() && Instant::now() < last && !is_over(&mut local.state.borrow_mut()) {
        compio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Closes a session gracefully. It accepts no new commands. Accepted ones finish first, within the logout timeout.
pub async fn close(local: &Rc<LocalSession>) -> Result<(), Error> {
    if !local.closing.replace(true) {
        local.bell.notify(usize::MAX);
        end(local).await;
    }
    while !local.over.get() {
        let rung = local.bell.listen();
        if !local.over.get() {
            rung.await;
        }
    }
    if let Some(error) = local.orphans() {
        return Err(error);
    }
    if local.state.borrow().connection.is_logging_out() && !local.parted.get() {
        return Err(Error::new(ErrorCode::TimedOut, "the target did not answer the Logout Request in time"));
    }
    Ok(())
}

/// Waits for the commands in flight, then ends the connection.
async fn end(local: &Rc<LocalSession>) {
    let limit = local.options.timeouts.logout;
    let is_there = || local.stream.borrow().is_some();
    let lives = || is_there() || local.has_orphans();
    drain(local, time_limit::deadline(limit), lives, SessionState::has_nothing_to_do).await;
    local.leaves_now.set(true);
    local.bell.notify(usize::MAX);
    local.state.borrow_mut().fail_queued(&closed(), |_| true);
    if local.state.borrow().connection.is_logging_out() && is_there() {
        // A logout requested by the target also ends the session.
        return;
    }
    let heard = if is_there() { local.await_response(limit, SessionState::log_out).await.ok() } else { None };
    match heard {
        Some(code) => local.part_in_order(code == logout_response::CLOSED, closed()),
        None => local.give_up_connection(closed()),
    }
}

impl SessionState {
    /// Handles a logout request of the target with a limit in seconds. Of several such requests, the earliest
    /// deadline applies.
    pub(super) fn asked_to_leave(&mut self, within_s: u16) {
        self.connection.ask_logout_within(Duration::from_secs(within_s.into()), self.now);
    }

    /// Whether no command is in flight, and no accepted one can still be sent.
    fn has_nothing_to_do(&mut self) -> bool {
        let is_idle = self.is_idle() && self.orphans(None).is_none();
        is_idle
            && (self.connection.is_logout_asked()
                || !self.tasks.iter().any(|t| t.state == TaskState::Queued && !t.urgent))
    }
}

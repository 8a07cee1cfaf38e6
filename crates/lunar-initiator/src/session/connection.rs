//! The loop of a connection: receives all available data, runs the owners of completed commands, and sends their new
//! commands in one batch.

use super::local_session::LocalSession;
use super::task::{Task, TaskState};
use super::transport::{TransportHandle, TransportReceiver};
use super::yield_heuristic::YieldHeuristic;
use super::{identity_checks, logout};
use crate::{Error, ErrorCode};
use lunar_runtime::iscsi::receive::ReceiveStatus;
use lunar_runtime::{SendPump, SendSide};
use std::fmt::Display;
use std::io;
use std::rc::{Rc, Weak};
use std::time::Instant;

/// Runs one connection until it ends. Returns the reason.
pub async fn run(local: &Rc<LocalSession>, mut receiver: TransportReceiver) -> Error {
    let mut started = receiver.has_begun();
    let mut patience = YieldHeuristic::default();
    loop {
        let Some(stream) = local.stream.borrow().clone() else {
            return Error::new(ErrorCode::ConnectionLost, "this initiator closed the connection");
        };
        // More data are available: they complete further commands, whose owners send new ones. All of these leave in
        // one send.
        let goes_on = stream.is_readable() && local.state.borrow().keeps_target_busy();
        if !goes_on {
            local.flush();
        }
        let received = if std::mem::take(&mut started) {
            receiver.resume(&mut *local.state.borrow_mut())
        } else {
            let ready = if goes_on { Ok(()) } else { stream.readable().await };
            match ready {
                Ok(()) => {
                    let mut state = local.state.borrow_mut();
                    if std::mem::take(&mut state.has_first_part) {
                        patience.after_first_part();
                    }
                    patience.before_receive(state.in_flight());
                    state.now = Instant::now();
                    let now = state.now;
                    state.connection.hear(now);
                    let before = state.connection.exp_stat_sn();
                    let received = receiver.receive(&stream, &mut *state);
                    patience.after_receive(state.connection.exp_stat_sn().wrapping_sub(before));
                    received
                }
                Err(e) => Err(e.into()),
            }
        };
        local.notify_listeners();
        match received {
            Ok(ReceiveStatus::More | ReceiveStatus::Full) => {}
            Ok(ReceiveStatus::End) => return local.why_it_ended(),
            Err(e) => return local.why_it_ended_by(&e),
        }
        local.pump.gather().await;
    }
}

impl LocalSession {
    /// The current connection, as a weak reference, so that the socket of a lost connection is closed at once.
    pub fn line(&self) -> Option<Weak<TransportHandle>> {
        self.stream.borrow().as_ref().map(Rc::downgrade)
    }

    /// Whether this connection is the current one.
    pub(super) fn is_on(&self, line: &Weak<TransportHandle>) -> bool {
        self.stream.borrow().as_ref().is_some_and(|s| Rc::as_ptr(s) == line.as_ptr())
    }

    /// See [`SendPump::flush`].
    pub fn flush(self: &Rc<Self>) {
        SendPump::flush(self);
    }

    /// See [`SendPump::flush_soon`].
    #[inline]
    pub fn flush_soon(self: &Rc<Self>) {
        SendPump::flush_soon(self);
    }

    /// Resets the connection: the receive loop finds it closed. The kernel discards unsent data, which could
    /// otherwise arrive after newer writes of another connection.
    pub fn give_up_connection(&self, why: Error) {
        self.state.borrow_mut().connection.fail(why);
        if let Some(stream) = &*self.stream.borrow() {
            stream.reset();
        }
    }

    /// Closes a connection after the Logout Response, when no data are pending. `in_order`: the target has ended all
    /// tasks.
    pub fn part_in_order(&self, in_order: bool, why: Error) {
        self.state.borrow_mut().connection.fail(why);
        if let Some(stream) = &*self.stream.borrow() {
            // On failure, the target sees a reset after its response.
            _ = stream.reset_on_close(false);
            self.parted.set(true);
            self.state.borrow_mut().connection.end_logout(in_order);
            stream.close();
        }
    }

    /// Drops the connection if the target has commands whose owners no longer wait. The target must not execute them
    /// after the owners' next commands.
    pub fn reset_abandoned(&self) {
        let stray = |t: &mut Task| t.state == TaskState::Sent && t.is_abandoned();
        let are_there = self.state.borrow_mut().tasks.iter().any(stray);
        if are_there {
            self.give_up_connection(Error::new(
                ErrorCode::ConnectionLost,
                "the initiator dropped the connection: an abandoned command was still in flight",
            ));
        }
    }

    /// The reason for the end: the local fault, or else the socket error.
    fn why_it_ended_by(&self, e: &impl Display) -> Error {
        let broken = self.state.borrow_mut().connection.take_fault();
        broken.unwrap_or_else(|| Error::new(ErrorCode::ConnectionLost, e.to_string()))
    }

    fn why_it_ended(&self) -> Error {
        let broken = self.state.borrow_mut().connection.take_fault();
        broken.unwrap_or_else(|| Error::new(ErrorCode::ConnectionLost, "the target closed the connection"))
    }

    /// Notifies the listeners, and starts what the received PDUs require: a logout or identity checks.
    pub fn notify_listeners(self: &Rc<Self>) {
        let mut state = self.state.borrow_mut();
        if state.connection.is_logout_asked()
            && let Some(line) = self.line()
            && !self.leaving.replace(true)
        {
            lunar_runtime::spawn(logout::log_out_as_asked(self.clone(), line));
        }
        let to_check = std::mem::take(&mut state.to_check);
        let events = std::mem::take(&mut state.events);
        drop(state);
        if to_check {
            identity_checks::admit(self);
        }
        events.iter().for_each(|event| self.listeners.notify(event));
    }
}

impl SendSide for LocalSession {
    fn pump(&self) -> &SendPump {
        &self.pump
    }

    fn try_flush(&self) -> io::Result<bool> {
        let Some(stream) = self.stream.borrow().clone() else { return Ok(true) };
        let mut state = self.state.borrow_mut();
        let sent = state.connection.out().flush(&stream);
        state.settle();
        sent
    }

    async fn writable(&self) -> io::Result<()> {
        let Some(stream) = self.stream.borrow().clone() else { return Ok(()) };
        let ready = stream.writable().await;
        let is_current = self.stream.borrow().as_ref().is_some_and(|s| Rc::ptr_eq(s, &stream));
        // An earlier connection has ended, not the current one.
        if is_current { ready } else { Ok(()) }
    }

    fn lost(&self, why: io::Error) {
        self.give_up_connection(Error::new(ErrorCode::ConnectionLost, why.to_string()));
    }
}

//! The initiator's side of a session in full feature phase, without I/O. Received PDUs are input, a [`TransportSender`]
//! queues the output, and the owner supplies the time.

use super::command_window::CommandWindow;
use super::connection_state::ConnectionState;
use super::control_request::ControlRequest;
use super::event::Event;
use super::proof::Proof;
use super::send_order::SendOrder;
use super::task::{CONTROL, TRIES, Task, TaskState, Tasks, Waiter};
use super::text_exchange::TextExchange;
use super::transport::TransportSender;
use super::unverified_luns::UnverifiedLuns;
use crate::nexus::TargetPort;
use crate::options::LateWrites;
use crate::{Command, Completion, Error, ErrorCode};
use lunar_proto::parameters::Parameters;
use lunar_runtime::iscsi::pdu_queue::Payload;
use lunar_wire::iscsi::{Bhs, request};
use std::collections::VecDeque;
use std::task::Waker;
use std::time::Instant;

/// The state of a session: its commands, its command window, and its connection.
pub struct SessionState {
    /// The current connection, or the last one if there is none.
    pub connection: ConnectionState,
    /// CmdSN and the command window.
    pub command_window: CommandWindow,
    /// The commands.
    pub tasks: Tasks,
    /// The commands that wait for the command window.
    queue: VecDeque<u32>,
    /// Commands that were answered while parts of their data were still being sent.
    leaving: Vec<u32>,
    /// The pending requests other than SCSI commands.
    pub controls: Vec<ControlRequest>,
    last_control: u32,
    /// The text requests. The first one is in flight.
    pub(super) text_exchanges: VecDeque<TextExchange>,
    /// Whether the last text request on this connection was rejected.
    pub(super) text_rejected: bool,
    /// The number of commands that were sent or queued in the send queue.
    sent: usize,
    /// The number of these that were queued since the last flush.
    unflushed: usize,
    /// Whether the target waits for queued bytes.
    pub(super) is_urgent: bool,
    pub(super) order: SendOrder,
    /// The maximum number of commands in flight.
    limit: usize,
    /// Whether there is a connection, and which commands may be sent on it.
    pub online: Online,
    /// Logical units whose identity must be checked before commands are sent to them.
    pub unverified: UnverifiedLuns,
    /// The treatment of commands that change the medium when their connection is lost.
    pub late_writes: LateWrites,
    /// The target port of the current or last connection. None if it is unknown.
    pub port: Option<TargetPort>,
    /// Whether the recovery timeout has expired, so that commands fail.
    pub gave_up: bool,
    /// The number of unit attentions that may have announced another logical unit.
    pub doubts: u64,
    /// Whether identity checks are due but have not started.
    pub to_check: bool,
    /// Whether a command other than an identity check has been answered.
    pub has_answered: bool,
    /// Whether the first part of a long read is ready for its owner.
    pub has_first_part: bool,
    /// Events for the listeners.
    pub events: Vec<Event>,
    /// The approximate time.
    pub now: Instant,
    /// The clock, where `now` is not precise enough.
    pub(super) clock: fn() -> Instant,
}

/// The commands that may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Online {
    /// No command: there is no connection.
    No,
    /// Only identity checks.
    Checking,
    /// All.
    Yes,
}

impl SessionState {
    /// A session without a connection. `limit` is the maximum number of commands in flight.
    pub fn new(limit: u16, clock: fn() -> Instant) -> SessionState {
        let now = clock();
        SessionState {
            connection: ConnectionState::none(now),
            command_window: CommandWindow::default(),
            tasks: Tasks::default(),
            queue: VecDeque::new(),
            leaving: Vec::new(),
            controls: Vec::new(),
            last_control: 0,
            text_exchanges: VecDeque::new(),
            text_rejected: false,
            sent: 0,
            unflushed: 0,
            is_urgent: false,
            order: SendOrder::default(),
            limit: limit.clamp(1, 4096).into(),
            online: Online::No,
            unverified: UnverifiedLuns::default(),
            late_writes: LateWrites::default(),
            port: None,
            gave_up: false,
            doubts: 0,
            to_check: false,
            has_answered: false,
            has_first_part: false,
            events: Vec::new(),
            now,
            clock,
        }
    }

    /// Starts the full feature phase after a login at the target port `self.port`.
    pub fn connect(
        &mut self,
        parameters: Parameters,
        command_window: CommandWindow,
        exp_stat_sn: u32,
        out: TransportSender,
    ) {
        if let Some(port) = self.port {
            self.prove(Proof::Login(port));
        }
        self.connection = ConnectionState::new(parameters, exp_stat_sn, out, self.now);
        self.command_window = command_window;
        self.text_rejected = false;
        self.online = Online::Checking;
    }

    /// Handles the loss of the connection. Commands that may change the medium become orphans. Of the others,
    /// repeatable ones wait for the next connection, and the rest end.
    pub fn disconnect(&mut self, why: &Error) {
        self.online = Online::No;
        self.to_check = false;
        self.unverified.end_checks();
        // An identity check is valid on one connection only.
        self.fail_queued(why, |t| t.urgent);
        let sent = self.tasks.iter().filter(|t| t.state == TaskState::Sent).map(|t| t.tag);
        sent.for_each(|tag| self.connection.out().ended(tag));
        self.connection.end();
        self.sent = 0;
        self.order.clear();
        self.drop_controls(why);
        self.fail_texts(why);
        let now = (self.clock)();
        self.settle();
        let mut back: Vec<(u32, u32)> = Vec::new();
        let (mut over, mut orphans) = (Vec::new(), Vec::new());
        let waits = !self.connection.is_logged_out() && self.late_writes == LateWrites::Wait;
        for task in self.tasks.iter().filter(|t| t.state == TaskState::Sent) {
            if waits && task.changes && !task.urgent {
                orphans.push(task.tag);
            } else if task.may_be_sent_again() {
                task.rewind(now);
                back.push((task.cmd_sn, task.tag));
            } else {
                over.push(task.tag);
            }
        }
        self.orphan(&orphans);
        self.queue_again(back);
        for tag in over {
            let what = format!("{why}; the target may have executed the command");
            let is_aborting = self.tasks.get(tag).is_some_and(|t| t.aborting);
            let kind = if is_aborting { ErrorCode::Aborted } else { ErrorCode::ConnectionLost };
            if self.tasks.get(tag).is_some_and(|t| t.is_leaving()) {
                self.leaving.push(tag);
            }
            self.tasks.finish(tag, Err(Error::new(kind, what)));
        }
    }

    /// Queues commands (CmdSN, tag) for a resend, before unsent ones and in the order of CmdSN, which wraps at 2^32.
    pub(super) fn queue_again(&mut self, mut back: Vec<(u32, u32)>) {
        self.bring_back(|_| true);
        let next = self.command_window.cmd_sn;
        self.queue.retain(|waits| back.iter().all(|(_, tag)| tag != waits));
        back.sort_by_key(|(cmd_sn, _)| std::cmp::Reverse(next.wrapping_sub(*cmd_sn)));
        back.into_iter().rev().for_each(|(_, tag)| self.queue_first(tag));
    }

    /// Queues a command before all others, except identity checks.
    pub(super) fn queue_first(&mut self, tag: u32) {
        // Before the identity checks it would block the check that it waits for.
        let mut is_first = |tag: &u32| self.tasks.get(*tag).is_none_or(|t| t.urgent);
        let at = if is_first(&tag) { 0 } else { self.queue.iter().take_while(|t| is_first(t)).count() };
        self.queue.insert(at, tag);
    }

    /// Accepts a command. Sends or queues it.
    #[inline]
    pub fn submit(&mut self, command: Command, waiter: Waiter) -> Result<u32, Box<Command>> {
        if command.data.expected() > u32::MAX as usize || self.tasks.is_full() {
            return Err(Box::new(command));
        }
        let tag = self.tasks.insert(command, waiter, self.now);
        if self.queue.is_empty() && self.unverified.is_empty() && self.may_send(tag) {
            self.send(tag);
        } else {
            self.enqueue(tag);
            self.pump();
        }
        Ok(tag)
    }

    /// Queues a command. Its waiting time starts now.
    fn enqueue(&mut self, tag: u32) {
        let now = (self.clock)();
        if let Some(task) = self.tasks.get(tag) {
            task.sent = now;
        }
        self.queue.push_back(tag);
    }

    /// The same for an identity check, which precedes all other commands.
    pub fn submit_urgently(&mut self, command: Command, waiter: Waiter) -> Result<u32, Box<Command>> {
        if self.tasks.is_full() {
            return Err(Box::new(command));
        }
        let tag = self.tasks.insert(command, waiter, self.now);
        let task = self.tasks.get(tag).expect("the task was inserted");
        (task.urgent, task.sent) = (true, (self.clock)());
        self.queue.push_front(tag);
        self.pump();
        Ok(tag)
    }

    #[inline]
    fn may_send(&mut self, tag: u32) -> bool {
        let allowed = match self.online {
            Online::Yes => true,
            Online::No => false,
            Online::Checking => self.tasks.get(tag).is_some_and(|t| t.urgent),
        };
        let connection = &self.connection;
        let takes_commands = !connection.is_logout_asked() && !connection.is_logging_out();
        allowed && takes_commands && self.sent < self.limit && self.command_window.window_is_open()
    }

    /// Sends queued commands, as far as the command window and the limit allow.
    #[inline]
    pub fn pump(&mut self) {
        while let Some(&tag) = self.queue.front() {
            let waits = self.tasks.get(tag).filter(|t| t.state == TaskState::Queued);
            let Some(is_abandoned) = waits.map(|t| t.is_abandoned()) else {
                // The command has ended while queued.
                self.queue.pop_front();
                continue;
            };
            if is_abandoned {
                self.queue.pop_front();
                self.tasks.forget(tag);
                continue;
            }
            if !self.may_send(tag) {
                return;
            }
            self.queue.pop_front();
            if self.set_apart_unverified(tag) {
                continue;
            }
            self.end_wait(tag);
            self.send(tag);
        }
    }

    fn end_wait(&mut self, tag: u32) {
        let now = (self.clock)();
        if let Some(task) = self.tasks.get(tag) {
            task.queued += now.saturating_duration_since(task.sent);
        }
    }

    fn send(&mut self, tag: u32) {
        let (cmd_sn, exp_stat_sn) = (self.command_window.next_cmd_sn(), self.connection.exp_stat_sn());
        let Some(task) = self.tasks.get(tag) else { return };
        task.state = TaskState::Sent;
        task.tries += 1;
        task.cmd_sn = cmd_sn;
        task.sent = self.now;
        self.sent += 1;
        self.unflushed += 1;
        let mut header = request::scsi_command(task.lun, tag, task.attribute, &task.cdb);
        request::stamp(&mut header, cmd_sn, exp_stat_sn);
        let (out, parameters, digests) = self.connection.out_with_parameters();
        let begun = super::data_out::begin(out, header, task, parameters, digests);
        task.end = out.end();
        if let Err(e) = begun {
            // Nothing was sent, and the target expects this CmdSN: the next command uses it.
            self.command_window.cmd_sn = cmd_sn;
            self.finish(tag, Err(e));
            return;
        }
        self.order.push(tag, &mut self.tasks, self.sent);
    }

    /// Completes a command. Its tag is free once the owner has taken the result.
    #[inline]
    pub fn finish(&mut self, tag: u32, result: Result<Completion, Error>) {
        let Some(task) = self.tasks.get(tag) else { return };
        if task.state == TaskState::Sent {
            self.sent -= 1;
            self.connection.out().ended(tag);
        }
        if task.is_leaving() {
            self.leaving.push(tag);
        }
        self.tasks.finish(tag, result);
        self.order.settle(&mut self.tasks);
    }

    /// After a flush, delivers the results of commands that were answered before all their data were sent.
    pub fn settle(&mut self) {
        (self.unflushed, self.is_urgent) = (0, false);
        if self.leaving.is_empty() {
            return;
        }
        let (gone, leaving): (Vec<u32>, Vec<u32>) = std::mem::take(&mut self.leaving)
            .into_iter()
            .partition(|tag| self.tasks.get(*tag).is_none_or(|t| !t.is_leaving()));
        self.leaving = leaving;
        gone.into_iter().for_each(|tag| self.tasks.hand_over(tag));
    }

    /// Resends commands that an abort or a reset has ended, in order, or fails them.
    pub fn ended_by_abort(&mut self, tags: impl IntoIterator<Item = u32>, what: &str) {
        self.ended_by(tags, &Error::new(ErrorCode::TimedOut, what));
    }

    /// The same, with the error for commands that are not resent.
    pub fn ended_by(&mut self, tags: impl IntoIterator<Item = u32>, error: &Error) {
        let back: Vec<_> = tags.into_iter().filter_map(|tag| self.end_or_rewind(tag, false, error)).collect();
        self.queue_again(back);
        // Also needed if nothing is resent: other commands may be sent now.
        self.pump();
    }

    /// The same for a command without a valid response. `undone`: the target has certainly not executed it.
    pub fn failed(&mut self, tag: u32, undone: bool, error: Error) {
        let back = self.end_or_rewind(tag, undone, &error);
        self.queue_again(back.into_iter().collect());
        self.pump();
    }

    /// Returns CmdSN and tag if the command is to be resent, and ends it otherwise.
    fn end_or_rewind(&mut self, tag: u32, undone: bool, error: &Error) -> Option<(u32, u32)> {
        let now = (self.clock)();
        let task = self.tasks.sent(tag)?;
        // Revokes registered memory. A buffer that is then still missing is being sent.
        self.connection.out().ended(tag);
        let again = (undone || task.repeatable) && task.tries < TRIES && !task.is_abandoned();
        if again && !task.aborting && task.expired.is_none() && task.overdue.is_none() {
            task.rewind(now);
            self.sent -= 1;
            return Some((task.cmd_sn, tag));
        }
        let ended = || match task.aborting {
            true => Error::new(ErrorCode::Aborted, &error.what),
            false => error.clone(),
        };
        let error = task.overdue.take().unwrap_or_else(ended);
        self.finish(tag, Err(error));
        None
    }

    /// Fails queued commands, which the target has not received. Returns how many of them would have changed the
    /// medium.
    pub fn fail_queued(&mut self, error: &Error, which: impl Fn(&Task) -> bool) -> usize {
        let chosen = self.tasks.iter().filter(|t| t.state == TaskState::Queued && which(t));
        let chosen: Vec<(u32, bool)> = chosen.map(|t| (t.tag, t.changes)).collect();
        let writes = chosen.iter().filter(|(_, changes)| *changes).count();
        chosen.into_iter().for_each(|(tag, _)| self.tasks.finish(tag, Err(error.clone())));
        writes
    }

    /// Returns the result of a command, or registers the waker.
    #[inline]
    pub fn poll(&mut self, tag: u32, waker: &Waker) -> Option<crate::CommandResult> {
        let finished = self.tasks.take(tag);
        if finished.is_none()
            && let Some(task) = self.tasks.get(tag)
        {
            match &mut task.waiter {
                Waiter::Here(old) => old.clone_from(waker),
                other => *other = Waiter::Here(waker.clone()),
            }
        }
        finished
    }

    /// Allocates a tag for a request other than a SCSI command.
    pub fn control_tag(&mut self) -> u32 {
        loop {
            self.last_control = (self.last_control + 1) & 0xffff;
            let tag = CONTROL | self.last_control;
            if self.controls.iter().all(|c| c.tag != tag) && self.text_tag() != Some(tag) {
                return tag;
            }
        }
    }

    /// Queues an immediate request, which does not advance CmdSN.
    pub fn say(&mut self, mut header: Bhs, payload: Payload) {
        if self.connection.is_logging_out() {
            return;
        }
        request::stamp(&mut header, self.command_window.cmd_sn, self.connection.exp_stat_sn());
        self.connection.push(header, payload);
        self.is_urgent = true;
    }

    /// The number of commands in flight.
    pub fn in_flight(&self) -> u32 {
        self.sent as u32
    }

    /// Whether most commands in flight have been flushed, so that the target has work.
    pub fn keeps_target_busy(&self) -> bool {
        !self.is_urgent && 2 * self.unflushed < self.sent
    }

    /// Whether nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.sent == 0 && self.controls.is_empty()
    }
}

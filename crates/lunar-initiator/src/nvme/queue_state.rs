//! A queue pair without I/O: identifiers, the order of commands, and the transfer of their data.
//!
//! The queue outlives its connections. When one is lost, repeatable commands that were in flight go back to the front of the
//! queue in their order, and the next connection sends them before newer ones. Until a write has ended, its range lock
//! excludes newer writes whose owner could not know its outcome.

use super::command::{NvmeCommand, NvmeResult, is_fabrics};
use super::initialize::NvmeLink;
use super::pdu_queue::HostPduQueue;
use super::queue_load::QueueLoad;
use super::queue_tasks::{CompletionWaiter, QueueTask, QueueTaskData, QueueTasks};
use super::status::{ABORTED_BY_HOST, of_unsent};
use crate::{Error, ErrorCode};
use lunar_block::range_lock::RangeLock;
use lunar_runtime::send_queue::Payload;
use lunar_wire::nvme::{Cqe, DataPdu, Fuse, NvmeStatus, SglDescriptor, pdu_flag};
use std::collections::VecDeque;
use std::mem::{replace, take};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

/// Bytes of data in the capsule of an admin or fabrics command that every controller takes.
pub const ADMIN_CAPSULE_DATA: usize = 8192;

/// How often a command is sent at most, as in Linux. A command that makes each connection end must fail in the end.
const MAX_SENDS: u32 = 6;
/// The most commands that go first: Connect and authentication.
const FIRST: usize = 1;

/// The protocol state of a queue pair.
pub struct QueueState {
    tasks: QueueTasks,
    /// The keys of commands in flight, by identifier.
    in_flight: Vec<Option<u64>>,
    /// Free identifiers. The one that has been free longest is used first, so that a late answer meets no newer command.
    free: VecDeque<u16>,
    /// Commands that have not been sent on this connection, in order.
    waiting: VecDeque<u64>,
    /// Commands that have ended before all of their data was sent.
    leaving: Vec<u64>,
    /// The send queue.
    pub out: HostPduQueue,
    /// The parameters of the connection; None without one.
    link: Option<NvmeLink>,
    /// Bytes of data that a capsule has room for.
    pub capsule_data: usize,
    /// The most data of a command, in bytes. A command with more was made for an earlier connection.
    pub max_transfer: usize,
    /// Whether the connection is ready for any command.
    admits: bool,
    /// Whether no other connection follows the first, so that no command may wait for one.
    pub ends_with_connection: bool,
    /// Why no command is accepted.
    refusal: Option<Error>,
    /// The reason for the end of the connection.
    fault: Option<Error>,
    sequence: u64,
    /// Commands that the controller has answered. Other cores read it.
    pub answered: Arc<AtomicU64>,
    /// The time of the last event.
    pub now: Instant,
    /// When the socket last took no more.
    blocked_at: Option<Instant>,
}

impl QueueState {
    /// A queue with room for `entries` entries. At most one less are in use.
    pub fn new(entries: u32, capsule_data: usize) -> QueueState {
        let mut state = QueueState {
            tasks: QueueTasks::default(),
            in_flight: Vec::new(),
            free: VecDeque::new(),
            waiting: VecDeque::new(),
            leaving: Vec::new(),
            out: HostPduQueue::default(),
            link: None,
            capsule_data,
            max_transfer: usize::MAX,
            admits: false,
            ends_with_connection: false,
            refusal: None,
            fault: None,
            sequence: 0,
            answered: Arc::default(),
            now: Instant::now(),
            blocked_at: None,
        };
        state.resize(entries);
        state
    }

    /// Sets the number of entries, while no command is in flight.
    pub fn resize(&mut self, entries: u32) {
        let commands = entries.saturating_sub(1).clamp(FIRST as u32, u16::MAX.into()) as u16;
        self.in_flight = vec![None; commands.into()];
        self.free = (0..commands).collect();
    }

    /// Starts a connection. Only the first commands are sent until [`QueueState::admit`].
    pub fn connect(&mut self, link: NvmeLink) {
        self.out = HostPduQueue::new(link.digests);
        (self.link, self.admits, self.fault) = (Some(link), false, None);
    }

    /// Sends commands from now on, if the connection has not ended.
    pub fn admit(&mut self) {
        if self.link.is_none() {
            return;
        }
        self.admits = true;
        self.refusal = None;
        self.pump();
    }

    /// Queues a command.
    ///
    /// # Errors
    /// Its result, when no command is accepted.
    #[inline(always)]
    pub fn submit(&mut self, command: NvmeCommand, waiter: CompletionWaiter) -> Result<u64, Box<NvmeResult>> {
        if let Some(error) = &self.refusal {
            return Err(Box::new(refused(error, command)));
        }
        let key = self.add(command, waiter);
        self.waiting.push_back(key);
        self.pump();
        Ok(key)
    }

    /// Queues a fused pair, whose commands follow each other. Both fail on a queue without room for two commands.
    ///
    /// # Errors
    /// The results of both, when no command is accepted.
    pub fn submit_pair(
        &mut self,
        commands: [NvmeCommand; 2],
        waiters: [CompletionWaiter; 2],
    ) -> Result<[u64; 2], Box<[NvmeResult; 2]>> {
        if let Some(error) = &self.refusal {
            return Err(Box::new(commands.map(|command| refused(error, command))));
        }
        let ([first, second], [one, other]) = (commands, waiters);
        let keys = [self.add(first, one), self.add(second, other)];
        self.waiting.extend(keys);
        self.pump();
        Ok(keys)
    }

    /// Sends a command of the start of a connection, before all that wait. None: there is no connection.
    pub fn submit_first(&mut self, command: NvmeCommand) -> Option<u64> {
        self.link.is_some().then_some(())?;
        let id = self.free.pop_front()?;
        let key = self.add(command.once(), CompletionWaiter::Unknown);
        self.send(key, id);
        Some(key)
    }

    #[inline(always)]
    fn add(&mut self, command: NvmeCommand, waiter: CompletionWaiter) -> u64 {
        self.sequence += 1;
        self.tasks.add(QueueTask::new(command, self.sequence, waiter))
    }

    /// Sends waiting commands while identifiers are free.
    pub fn pump(&mut self) {
        while self.admits
            && let Some(key) = self.waiting.front().copied()
        {
            let Some(task) = self.tasks.get(key) else {
                self.waiting.pop_front();
                continue;
            };
            let fuse = task.sqe.fuse();
            if task.is_abandoned() && task.sends == 0 && fuse == Fuse::None {
                self.waiting.pop_front();
                self.tasks.remove(key);
                continue;
            }
            // Nothing may come between the halves of a fused pair.
            let needed = if fuse == Fuse::First { 2 } else { 1 };
            let len = task.len;
            if let Some(end) = self.obstacle(len, needed) {
                for key in (0..needed).filter_map(|_| self.waiting.pop_front()).collect::<Vec<_>>() {
                    self.end(key, end.clone());
                }
                continue;
            }
            if self.free.len() < needed {
                return;
            }
            self.waiting.pop_front();
            let id = self.free.pop_front().expect("an identifier is free");
            self.send(key, id);
        }
    }

    /// The result of a command, or of both halves of a pair, that this connection can never send. The owner of a command with
    /// too much data splits it.
    fn obstacle(&self, len: usize, needed: usize) -> Option<Result<Cqe, Error>> {
        if self.in_flight.len() < needed {
            return Some(Err(no_room()));
        }
        (len > self.max_transfer).then_some(Ok(Cqe { status: ABORTED_BY_HOST, result: 0, head: 0, id: 0 }))
    }

    fn send(&mut self, key: u64, id: u16) {
        self.in_flight[usize::from(id)] = Some(key);
        let task = self.tasks.get(key).expect("a command that was added");
        let mut sqe = task.sqe;
        lunar_wire::le::put16(&mut sqe.0[2..], id);
        let room = if is_fabrics(&sqe) { ADMIN_CAPSULE_DATA } else { self.capsule_data };
        task.in_capsule = matches!(&task.data, QueueTaskData::Out(_)) && task.len <= room;
        let payload = match &task.data {
            QueueTaskData::Out(buf) if task.in_capsule => Payload::Part(buf.clone(), 0, task.len),
            _ => Payload::Empty,
        };
        let sqe = sqe.with_data(match task.in_capsule {
            true => SglDescriptor::in_capsule(task.len as u32),
            false => SglDescriptor::transport(task.len as u32),
        });
        (task.id, task.active_at) = (Some(id), Some(self.now));
        task.sends += 1;
        self.out.push_command(&sqe, payload);
    }

    /// The command in flight with this identifier, and its key.
    pub(super) fn by_id(&mut self, id: u16) -> Option<(u64, &mut QueueTask)> {
        let key = (*self.in_flight.get(usize::from(id))?)?;
        self.tasks.get(key).map(|task| (key, task))
    }

    /// Queues the data that the controller has asked for.
    pub(super) fn send_data(&mut self, request: DataPdu) {
        let max = self.link.as_ref().map_or(1, |link| link.max_data as usize);
        let now = self.now;
        let Some((_, task)) = self.by_id(request.command) else { return };
        let QueueTaskData::Out(buf) = &task.data else { return };
        let buf = buf.clone();
        task.active_at = Some(now);
        let end = request.offset as usize + request.len as usize;
        task.moved = end;
        let mut at = request.offset as usize;
        while at < end {
            let len = (end - at).min(max);
            let part = DataPdu { offset: at as u32, len: len as u32, ..request };
            let flags = if at + len == end { pdu_flag::LAST } else { 0 };
            self.out.push_data(part, flags, Payload::Part(buf.clone(), at, len));
            at += len;
        }
    }

    /// Ends the command in flight with this identifier.
    pub(super) fn complete(&mut self, id: u16, mut cqe: Cqe) {
        let Some(key) = self.in_flight.get_mut(usize::from(id)).and_then(Option::take) else { return };
        self.free.push_back(id);
        self.answered.fetch_add(1, Ordering::Relaxed);
        if let Some(task) = self.tasks.get(key) {
            task.id = None;
            if task.damaged && cqe.status.is_success() {
                cqe.status = NvmeStatus::TRANSIENT_TRANSPORT_ERROR;
            }
        }
        self.end(key, Ok(cqe));
        self.pump();
    }

    fn end(&mut self, key: u64, result: Result<Cqe, Error>) {
        let Some(task) = self.tasks.get(key) else { return };
        task.result.get_or_insert(result);
        (task.hold, task.load) = (None, QueueLoad::default());
        match task.is_leaving() {
            true => self.leaving.push(key),
            false => self.hand_over(key),
        }
    }

    fn hand_over(&mut self, key: u64) {
        let Some(task) = self.tasks.get(key) else { return };
        match replace(&mut task.waiter, CompletionWaiter::Unknown) {
            CompletionWaiter::Unknown => {}
            CompletionWaiter::Here(waker) => waker.wake(),
            CompletionWaiter::Among(ends, name) => ends.add(name, key),
            CompletionWaiter::There(reply) => {
                if let Some(ended) = self.tasks.take_ended(key) {
                    // The waiter may no longer exist.
                    let _ = reply.send(ended);
                }
            }
            CompletionWaiter::Gone => drop(self.tasks.remove(key)),
        }
    }

    /// Called after a send: hands over ended commands whose data has been sent.
    pub fn settle(&mut self) {
        for key in take(&mut self.leaving) {
            match self.tasks.get(key).is_some_and(|task| task.is_leaving()) {
                true => self.leaving.push(key),
                false => self.hand_over(key),
            }
        }
    }

    /// Polls for the result of a command.
    pub fn poll(&mut self, key: u64, cx: &mut Context<'_>) -> Poll<NvmeResult> {
        if let Some(ended) = self.tasks.take_ended(key) {
            return Poll::Ready(ended);
        }
        if let Some(task) = self.tasks.get(key) {
            task.waiter = CompletionWaiter::Here(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Takes the result of a command that has ended.
    pub fn take_ended(&mut self, key: u64) -> Option<NvmeResult> {
        self.tasks.take_ended(key)
    }

    /// The waiter of a command is gone. Its buffer and its range lock stay until it ends.
    pub fn abandon(&mut self, key: u64) {
        let Some(task) = self.tasks.get(key) else { return };
        task.waiter = CompletionWaiter::Gone;
        if let Some(hold) = &task.hold {
            RangeLock::make_exclusive(hold);
        }
        if task.result.is_some() && !task.is_leaving() {
            self.tasks.remove(key);
        }
    }

    /// Records why the connection must end. An earlier reason is kept.
    pub fn fail(&mut self, why: Error) {
        self.fault.get_or_insert(why);
    }

    /// Takes the reason that [`QueueState::fail`] recorded.
    pub fn take_fault(&mut self) -> Option<Error> {
        self.fault.take()
    }

    /// Ends the connection. Repeatable commands wait for the next one, if there is one; the others fail, and those that were
    /// sent too often.
    pub fn disconnect(&mut self, why: &Error) {
        self.out = HostPduQueue::default();
        (self.link, self.admits) = (None, false);
        let sent: Vec<u64> = self.in_flight.iter_mut().filter_map(Option::take).collect();
        self.resize(self.in_flight.len() as u32 + 1);
        let mut again = Vec::new();
        for key in sent {
            let Some(task) = self.tasks.get(key) else { continue };
            if task.repeatable && task.sends < MAX_SENDS {
                task.rewind();
                again.push((task.sequence, key));
            } else {
                task.id = None;
                self.end(key, Err(why.clone()));
            }
        }
        again.sort_unstable();
        again.into_iter().rev().for_each(|(_, key)| self.waiting.push_front(key));
        // Without patience, the refusal may come before the end of the connection.
        let refusal = if self.ends_with_connection { Some(why.clone()) } else { self.refusal.clone() };
        if let Some(error) = refusal {
            self.refuse(&error);
        }
        self.settle();
    }

    /// Fails the commands that wait, and from now on those that are submitted, until the next connection.
    pub fn refuse(&mut self, error: &Error) {
        self.refusal = Some(error.clone());
        for key in take(&mut self.waiting) {
            let sends = self.tasks.get(key).map_or(0, |task| task.sends);
            self.end(key, Err(of_sends(error, sends)));
        }
    }

    /// Takes the commands that wait, in order, with their waiters.
    pub fn take_waiting(&mut self) -> Vec<(NvmeCommand, CompletionWaiter)> {
        let keys = take(&mut self.waiting);
        keys.into_iter().filter_map(|key| self.tasks.remove(key)).map(QueueTask::into_command).collect()
    }

    /// Refuses commands that are submitted from now on. Those that wait are sent.
    pub fn refuse_new(&mut self, error: Error) {
        self.refusal = Some(error);
    }

    /// Records that the socket takes no more now. A slow network does not count against the time limits of commands.
    pub fn record_blocked(&mut self) {
        self.blocked_at = Some(Instant::now());
    }

    /// Since when the controller owes something for a command in flight that has a time limit, and its opcode: the oldest.
    pub fn oldest(&mut self) -> Option<(Instant, u8)> {
        let keys: Vec<u64> = self.in_flight.iter().flatten().copied().collect();
        let blocked_at = self.blocked_at;
        let sent = keys.into_iter().filter_map(|key| {
            let task = self.tasks.get(key).filter(|task| !task.is_open_ended)?;
            task.active_at.map(|at| (at.max(blocked_at.unwrap_or(at)), task.sqe.opcode()))
        });
        sent.min()
    }

    /// Whether a command is in flight or waits.
    pub fn is_busy(&self) -> bool {
        self.in_flight.iter().any(Option::is_some) || !self.waiting.is_empty() || !self.leaving.is_empty()
    }

    /// Puts the buffer of a read back.
    pub(super) fn take_back(&mut self, id: u16, buf: lunar_runtime::Buf) {
        if let Some((_, task)) = self.by_id(id) {
            task.data = QueueTaskData::In(buf);
        }
    }
}

/// The error of a command that is not sent any more. A command that was sent before may have been executed.
fn of_sends(error: &Error, sends: u32) -> Error {
    if sends > 0 { error.clone() } else { of_unsent(error) }
}

/// The result of a command that is not accepted. Another queue may have sent it before.
fn refused(error: &Error, command: NvmeCommand) -> NvmeResult {
    (Err(of_sends(error, command.sends)), command.data.into_buf())
}

/// The error of a fused pair on a queue that has room for one command.
fn no_room() -> Error {
    Error::new(ErrorCode::InvalidArgument, "a fused pair needs 3 entries, but the queue has 2")
        .with_hint("add queue_len=3 or more to the URL, or check the limit of the controller (CAP.MQES)")
}

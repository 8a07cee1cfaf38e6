//! READs and WRITEs of one LUN at a medium that executes many at once. A single async task completes all of them, as
//! long as there are any. It passes a command to the medium when it has checked that the command is not stale.

use super::lanes::Lanes;
use crate::LogicalUnit;
use crate::exec::{self, ExecutionResult};
use crate::fence::{InFlightGuard, SessionFence};
use crate::task_set_lock::SharedGuard;
use lunar_block::{BackendQueue, BufResult};
use lunar_runtime::Buf;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// The commands of a LUN that the medium executes, or is about to.
pub struct IoQueue(RefCell<IoQueueState>);

struct IoQueueState {
    queue: Box<dyn BackendQueue>,
    /// The commands, by lane of the queue.
    begun: Lanes<(DirectIoCommand, IoKind)>,
    /// The operations that the medium does not have yet, each with its lane.
    unchecked: VecDeque<(usize, DirectIo)>,
    /// The waker of the async task that completes the commands. A new command must wake it, because the task passes
    /// the command to the medium.
    waits: Option<Waker>,
}

/// An operation on the medium.
pub enum DirectIo {
    /// Fills the buffer.
    Read { offset: u64, buf: Buf },
    /// Writes the buffer.
    Write { offset: u64, buf: Buf, stable: bool },
}

/// A command that holds the task set lock.
pub struct DirectIoCommand {
    /// Its tag.
    pub tag: u32,
    /// Index of the connection that received it.
    pub connection: u16,
    /// The serial of its task.
    pub serial: u64,
    /// The logical unit.
    pub unit: Arc<LogicalUnit>,
    /// Its guard of the task set lock.
    pub inside: SharedGuard,
    /// The session does not end before it.
    pub _in_flight: InFlightGuard<Arc<SessionFence>>,
    /// Bytes of Data-Out.
    pub written: u32,
    /// When the medium got it.
    pub began: Option<Instant>,
}

enum IoKind {
    Read { offset: u64 },
    Write { offset: u64 },
}

impl IoKind {
    fn end(self, unit: &LogicalUnit, finished: BufResult) -> ExecutionResult {
        match self {
            IoKind::Read { offset } => exec::finish_read(unit, offset, finished),
            IoKind::Write { offset } => exec::finish_write(unit, offset, finished),
        }
    }
}

impl IoQueue {
    /// An empty queue.
    pub fn new(queue: Box<dyn BackendQueue>) -> IoQueue {
        let (begun, unchecked, waits) = Default::default();
        IoQueue(RefCell::new(IoQueueState { queue, begun, unchecked, waits }))
    }

    /// Adds a command. True: the queue was empty, and the caller must start a task that executes
    /// [`IoQueue::take_ends`].
    pub fn begin(&self, begun: DirectIoCommand, work: DirectIo) -> bool {
        let inner = &mut *self.0.borrow_mut();
        let (is_first, lane) = (inner.begun.is_empty(), inner.begun.next());
        let kind = match work {
            DirectIo::Read { offset, .. } => IoKind::Read { offset },
            DirectIo::Write { offset, .. } => IoKind::Write { offset },
        };
        inner.begun.add((begun, kind));
        inner.unchecked.push_back((lane, work));
        inner.waits.take().into_iter().for_each(Waker::wake);
        is_first
    }

    /// Passes new commands to the medium and completed ones to `end` with the time, until the queue is empty. `is_stale`: whether
    /// the commands of a connection are stale; they end without the medium.
    pub async fn take_ends(
        &self,
        is_stale: impl Fn(u16) -> bool,
        mut end: impl FnMut(DirectIoCommand, ExecutionResult, Instant),
    ) {
        poll_fn(|cx| {
            // One look at the clock for all commands.
            let (mut checked, now) = (None, Instant::now());
            loop {
                while let Some(stale) = self.submit(&is_stale, &mut checked, now) {
                    end(stale, Err(exec::aborted_failure()), now);
                }
                let Poll::Ready(((begun, kind), finished)) = self.poll_ended(cx) else { break };
                let ended = kind.end(&begun.unit, finished);
                end(begun, ended, now);
            }
            if self.0.borrow().begun.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Passes new commands to the medium up to a stale one, which it returns. `checked`: the latest answer of
    /// `is_stale`, with its connection.
    fn submit(
        &self,
        is_stale: &impl Fn(u16) -> bool,
        checked: &mut Option<(u16, bool)>,
        now: Instant,
    ) -> Option<DirectIoCommand> {
        let inner = &mut *self.0.borrow_mut();
        while let Some((lane, work)) = inner.unchecked.pop_front() {
            let command = &mut inner.begun.get_mut(lane)?.0;
            command.began = Some(now);
            let connection = command.connection;
            let known = checked.filter(|(of, _)| *of == connection);
            let (_, is_stale) = *checked.insert(known.unwrap_or_else(|| (connection, is_stale(connection))));
            match work {
                _ if is_stale => return inner.begun.take(lane).map(|(command, _)| command),
                DirectIo::Read { offset, buf } => inner.queue.read(lane, offset, buf),
                DirectIo::Write { offset, buf, stable } => inner.queue.write(lane, offset, buf, stable),
            }
        }
        None
    }

    fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<((DirectIoCommand, IoKind), BufResult)> {
        let inner = &mut *self.0.borrow_mut();
        let Poll::Ready((lane, finished)) = inner.queue.poll_ended(cx) else {
            inner.waits = Some(cx.waker().clone());
            return Poll::Pending;
        };
        Poll::Ready((inner.begun.take(lane).expect("a completion has a command"), finished))
    }
}

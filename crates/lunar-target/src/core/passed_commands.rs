//! Commands that a remote logical unit executes, without an async task for each. A single async task completes those
//! of a nexus, as long as there are any.

use super::lanes::Lanes;
use crate::fence::{InFlightGuard, SessionFence};
use crate::passthrough::{PassthroughCommand, PassthroughQueue, PassthroughResponse};
use crate::task_set_lock::SharedGuard;
use crate::{CommandFate, PassthroughNexus};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The commands of one nexus.
pub struct PassedCommands {
    nexus: Rc<dyn PassthroughNexus>,
    state: RefCell<PassedState>,
    order: PassOrder,
    /// Whether an async task completes the commands.
    is_served: Cell<bool>,
}

/// Held by a task that is ready but not forwarded yet. Later commands must not be forwarded before it.
pub type PassOrder = Rc<()>;

/// The place of a command.
#[derive(Clone)]
pub struct PassedLane {
    /// The commands of its nexus.
    pub commands: Rc<PassedCommands>,
    /// Its index.
    pub lane: usize,
}

/// A command that the remote logical unit executes.
pub struct PassedCommand {
    /// Its tag.
    pub tag: u32,
    /// The serial of its task, by which it is aborted.
    pub serial: u64,
    /// Its guard of the task set lock.
    pub inside: SharedGuard,
    /// The session does not end before it.
    pub in_flight: InFlightGuard<Arc<SessionFence>>,
}

struct Lane {
    command: PassedCommand,
    /// Whether its abort has not ended.
    is_aborting: bool,
    /// The result of its abort.
    fate: CommandFate,
    /// Its response, which waits for the end of its abort.
    response: Option<PassthroughResponse>,
}

/// A command that has ended, with its response.
type PassedEnd = (PassedCommand, PassthroughResponse);

#[derive(Default)]
struct PassedState {
    lanes: Lanes<Lane>,
    /// The waker of the async task.
    waker: Option<Waker>,
}

impl PassedState {
    fn take(&mut self, lane: usize, response: PassthroughResponse) -> Option<PassedEnd> {
        let Lane { command, fate, .. } = self.lanes.take(lane)?;
        Some((command, PassthroughResponse { fate: fate.max(response.fate), ..response }))
    }
}

impl PassedCommands {
    /// None if the nexus has no queue.
    pub fn of(nexus: Rc<dyn PassthroughNexus>) -> Option<Rc<PassedCommands>> {
        nexus.queue()?;
        let (state, order, is_served) = (RefCell::default(), PassOrder::default(), Cell::new(false));
        Some(Rc::new(PassedCommands { nexus, state, order, is_served }))
    }

    /// For a task that is ready to be forwarded.
    pub fn order(&self) -> PassOrder {
        self.order.clone()
    }

    /// Whether no older task is ready but not forwarded yet.
    pub fn is_in_order(&self) -> bool {
        Rc::strong_count(&self.order) == 1
    }

    fn queue(&self) -> &dyn PassthroughQueue {
        self.nexus.queue().expect("the nexus has a queue")
    }

    /// Forwards a command. Returns its lane, for which the caller must call [`PassedCommands::add`]. None: it has to
    /// wait.
    pub fn begin(&self, command: PassthroughCommand) -> Option<usize> {
        let lane = self.state.borrow().lanes.next();
        self.queue().begin(lane, command).ok().map(|()| lane)
    }

    /// Adds the command that was forwarded. True: no async task completes the commands, and the caller must start one.
    pub fn add(&self, command: PassedCommand) -> bool {
        let (fate, response) = (CommandFate::Ended, None);
        self.state.borrow_mut().lanes.add(Lane { command, is_aborting: false, fate, response });
        !self.is_served.replace(true)
    }

    /// Aborts the remote command.
    pub async fn abort(&self, lane: usize) -> CommandFate {
        let serial = self.state.borrow().lanes.get(lane).map(|lane| lane.command.serial);
        match serial {
            Some(serial) => self.nexus.abort(serial).await,
            None => CommandFate::Ended,
        }
    }

    /// Keeps a command until [`PassedCommands::abort_ended`].
    pub fn abort_begins(&self, lane: usize) {
        if let Some(lane) = self.state.borrow_mut().lanes.get_mut(lane) {
            lane.is_aborting = true;
        }
    }

    /// The abort of a command has ended. Returns the command if it has a response.
    pub fn abort_ended(&self, lane: usize, fate: CommandFate) -> Option<PassedEnd> {
        let state = &mut *self.state.borrow_mut();
        let aborted = state.lanes.get_mut(lane)?;
        (aborted.is_aborting, aborted.fate) = (false, fate);
        let response = aborted.response.take()?;
        // The async task may wait for this command alone.
        state.waker.take().into_iter().for_each(Waker::wake);
        state.take(lane, response)
    }

    /// The command of a response, unless it waits for the end of its abort.
    fn answered(&self, lane: usize, response: PassthroughResponse) -> Option<PassedEnd> {
        let state = &mut *self.state.borrow_mut();
        if let Some(aborted) = state.lanes.get_mut(lane).filter(|lane| lane.is_aborting) {
            aborted.response = Some(response);
            return None;
        }
        state.take(lane, response)
    }

    fn poll_idle(&self, cx: &mut Context<'_>) -> Poll<()> {
        let state = &mut *self.state.borrow_mut();
        if state.lanes.is_empty() {
            state.waker = None;
            self.is_served.set(false);
            return Poll::Ready(());
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Passes completed commands to `end` until there are none.
    pub async fn take_ends(&self, end: impl Fn(PassedCommand, PassthroughResponse)) {
        poll_fn(|cx| {
            while let Poll::Ready((lane, response)) = self.queue().poll_ended(cx) {
                if let Some((command, response)) = self.answered(lane, response) {
                    end(command, response);
                }
            }
            self.poll_idle(cx)
        })
        .await;
    }
}

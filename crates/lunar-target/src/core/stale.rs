//! Stale commands. The kernel keeps received bytes after the end of a connection. A core that was stalled may find
//! commands of an initiator that has failed over, repeated them on another path, and written newer data since.
//!
//! No command begins after its initiator has reset the connection, closed it without a logout, or logged in again. No
//! command that arrived before a task management function of another session begins after that function was executed.
//!
//! # Checks before a command begins
//!
//! Commands that may change something are checked before they begin: the first of each receive, each task that has
//! waited, and any command after a tick of the kernel's coarse clock. A check is not repeated within 100
//! microseconds, so its result is used for at most one tick (1 to 10 ms) and 100 microseconds. To do harm within that
//! time, an initiator must reset a connection, repeat its writes elsewhere, and receive the status of newer ones.
//!
//! | the connection | commands that have not started |
//! |---|---|
//! | was reset, or the kernel has given it up | are dropped |
//! | is closed, and its last message is a logout | run |
//! | is closed otherwise | are dropped |
//! | has ended, over RDMA | are dropped |
//! | is replaced by another login | are dropped; the login waits for commands that have begun |
//!
//! A medium that executes many commands at once has a queue. An async task passes commands to it, and checks each
//! connection of theirs first. The check is not part of the receive: the core may stall between the receive and that
//! async task.
//!
//! READs that complete at once change nothing, and are not checked. A READ that becomes a task is checked. READ(6) and
//! READ(16) move a tape, but a command that is forwarded to a tape always becomes a task that is checked.
//!
//! Before a session aborts tasks for another session of the same initiator, or for a PREEMPT AND ABORT of its
//! nexuses, it parses everything that has arrived. These commands were in no task set yet, so they end with BUSY,
//! whatever TAS is. An initiator that has given them up ignores the status; a live one repeats them. An SRP command
//! whose descriptor table is being read counts as one of them. SRP ports do not identify a host, so a reset by any
//! session drains an SRP session. Sessions of other initiators lose only tasks, because their commands were not
//! repeated elsewhere.
//!
//! Four gaps remain. A core may stall between the check and the system call, for at most one tick. An operation that
//! the kernel has started, or the queue of a medium has, runs to its end. A connection that was cut without a packet
//! looks open, as does one whose owner is gone while the peer's kernel still sends its data. Over TLS, commands that are
//! still in the relay when a session aborts those of others begin later, if their connection is open.

use super::command::ScsiCommand;
use super::front_end::FrontEnd;
use super::lun_map::LunLookup;
use super::nexus::{ItNexus, NexusState, SessionPhase};
use super::task::AbortResponse;
use crate::end_reason::EndReason;
use crate::fence::{self, InFlightGuard, SessionFence};
use crate::registry::AbortScope;
use crate::session_info::SessionInfo;
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

/// Records whether a task had to wait before it began.
#[derive(Default)]
pub struct WaitTracker(Cell<bool>);

impl WaitTracker {
    /// The tracker of a task that has waited for data.
    pub fn for_data() -> WaitTracker {
        WaitTracker(Cell::new(true))
    }

    /// Runs `work`, and records whether it had to wait.
    pub async fn track<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|cx| {
            let polled = work.as_mut().poll(cx);
            self.0.set(self.0.get() || polled.is_pending());
            polled
        })
        .await
    }
}

impl<F: FrontEnd> NexusState<F> {
    /// Whether received commands of this session must be processed before a task management function of another
    /// session. Commands of other initiators need not, because they were not repeated on another path. The host of a
    /// session of another server is unknown.
    fn must_drain(&mut self, scope: &AbortScope, from: Option<&SessionInfo>) -> bool {
        match scope {
            AbortScope::LogicalUnits(_) => from.is_none_or(|from| self.info().may_be_of_host(from)),
            AbortScope::Nexuses(list) => self.luns_mut().used().any(|h| list.contains(&h.nexus().id())),
        }
    }

    /// Whether a function with this scope aborts commands that have this LUN field.
    pub fn is_covered(&mut self, scope: &AbortScope, lun: u64) -> bool {
        match self.luns_mut().find(lun) {
            LunLookup::LogicalUnit(handle) => scope.covers(handle.unit(), handle.nexus().id()),
            LunLookup::WellKnown | LunLookup::Absent => false,
        }
    }
}

impl<F: FrontEnd> ItNexus<F> {
    /// Begins a task, which counts as in flight while the guard exists. None: the command is stale, and the session
    /// is over.
    pub(super) fn begin_task(
        &self,
        c: &ScsiCommand,
        serial: u64,
        tracker: &WaitTracker,
    ) -> Option<InFlightGuard<Arc<SessionFence>>> {
        let mut state = self.state();
        if tracker.0.get() {
            state.front().recheck_peer(c.connection);
        }
        let late = match state.phase() {
            SessionPhase::Ended => state.end_reason().or(Some(EndReason::ConnectionClosed)),
            SessionPhase::Running | SessionPhase::LoggingOut => state.front().stale_reason(c.connection),
        };
        // This is the last check: from now on the end of the session waits for this task.
        let in_flight = fence::enter(self.fence().clone());
        let why = match (late, in_flight) {
            (None, Some(in_flight)) => return Some(in_flight),
            (Some(why), _) => why,
            (None, None) => EndReason::Reinstated,
        };
        state.end_with(why);
        state.abort(|task| task.serial() == serial, AbortResponse::None, false);
        state.front().stop_receiving();
        None
    }

    /// Parses the commands that arrived before a task management function of another session, so that they do not
    /// begin after it. They were in no task set, so they end with BUSY instead of being aborted. A live initiator
    /// repeats them.
    pub(super) fn drain_received(self: &Rc<Self>, scope: &AbortScope, from: Option<&SessionInfo>) {
        let mut state = self.state();
        if state.phase() == SessionPhase::Ended || !state.must_drain(scope, from) {
            return;
        }
        let Err(why) = F::drain_received(&mut state, scope) else { return };
        drop(state);
        self.end(why);
    }
}

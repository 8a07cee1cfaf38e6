//! The core-local part of a session.

use super::errors::{changed, closed};
use super::event::Listeners;
use super::info::SessionInfo;
use super::pinned_luns::PinnedLuns;
use super::session_state::SessionState;
use super::task::Waiter;
use super::transport::TransportHandle;
use super::violations::Violations;
use crate::nexus::LoginTarget;
use crate::{Command, CommandResult, Error, ErrorCode, Options};
use event_listener::Event;
use lunar_runtime::SendPump;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A session on its core.
pub struct LocalSession {
    /// The protocol state.
    pub state: RefCell<SessionState>,
    /// The current connection, if any.
    pub stream: RefCell<Option<Rc<TransportHandle>>>,
    /// The target and its portal.
    pub login_target: RefCell<LoginTarget>,
    /// The options of the session.
    pub options: Options,
    /// The information about the session, shared with handles on other cores.
    pub info: Arc<Mutex<SessionInfo>>,
    /// The listeners of the session's events.
    pub listeners: Arc<Listeners>,
    /// Logical units whose identity must not change.
    pub pinned: RefCell<PinnedLuns>,
    /// LUNs that lead to another logical unit. They accept no commands.
    pub changed: RefCell<Vec<u64>>,
    /// The time when the connection was lost, and the error once the recovery timeout has expired.
    pub lost: Cell<Option<Instant>>,
    pub gave_up: RefCell<Option<Error>>,
    /// The reason why there is no connection.
    pub last_error: RefCell<Option<Error>>,
    /// Detects protocol violations that the target repeats.
    pub violations: RefCell<Violations>,
    /// Whether the connection was lost over a text request: its caller gets the error, and no warning is logged.
    pub asked: Cell<bool>,
    /// Whether the session must end.
    pub closing: Cell<bool>,
    /// Whether the session must end now, without waiting for orphans.
    pub leaves_now: Cell<bool>,
    /// The number of orphans at the end of the session.
    pub orphans: Cell<usize>,
    /// The time of the last reset of logical units for orphans of another portal group.
    pub reset: Cell<Option<Instant>>,
    /// Whether the warning about waiting orphans was logged.
    pub said_waits: Cell<bool>,
    /// Whether no new connection may be made.
    pub gives_up: Cell<bool>,
    /// Whether the session has ended.
    pub over: Cell<bool>,
    /// Whether the logout on this connection was answered.
    pub parted: Cell<bool>,
    /// Whether a logout requested by the target is in progress.
    pub leaving: Cell<bool>,
    /// Notified when a command ends, the connection changes, or the session must end.
    pub bell: Event,
    /// The send pump.
    pub pump: SendPump,
    /// Whether the error handler is escalating for a command.
    pub escalating: Cell<bool>,
}

impl LocalSession {
    /// A session that is not connected yet.
    pub fn new(
        login_target: LoginTarget,
        options: Options,
        info: Arc<Mutex<SessionInfo>>,
        listeners: Arc<Listeners>,
    ) -> Rc<LocalSession> {
        let mut state = SessionState::new(options.commands, Instant::now);
        state.late_writes = options.late_writes;
        Rc::new(LocalSession {
            state: RefCell::new(state),
            stream: RefCell::default(),
            login_target: RefCell::new(login_target),
            options,
            info,
            listeners,
            pinned: RefCell::default(),
            changed: RefCell::default(),
            lost: Cell::new(None),
            gave_up: RefCell::default(),
            last_error: RefCell::default(),
            violations: RefCell::default(),
            asked: Cell::new(false),
            closing: Cell::new(false),
            leaves_now: Cell::new(false),
            orphans: Cell::new(0),
            reset: Cell::new(None),
            said_waits: Cell::new(false),
            gives_up: Cell::new(false),
            over: Cell::new(false),
            parted: Cell::new(false),
            leaving: Cell::new(false),
            bell: Event::new(),
            pump: SendPump::default(),
            escalating: Cell::new(false),
        })
    }

    /// Accepts a command. A command that cannot be sent ends at once.
    #[inline]
    pub fn accept(self: &Rc<Self>, command: Command, waiter: Waiter) -> Result<u32, Box<CommandResult>> {
        let ended = |error, command: Command| Box::new((Err(error), command.data.into_buf()));
        if let Some(error) = self.obstacle(&command) {
            return Err(ended(error, command));
        }
        let taken = self.state.borrow_mut().submit(command, waiter);
        let many = "the command exceeds the limit on commands in flight or on the length of a transfer";
        let tag = taken.map_err(|command| ended(Error::new(ErrorCode::InvalidArgument, many), *command))?;
        self.flush_soon();
        Ok(tag)
    }

    /// The name of the target, for logs.
    pub fn name(&self) -> String {
        self.login_target.borrow().target.clone().unwrap_or_default()
    }

    #[inline]
    fn obstacle(&self, command: &Command) -> Option<Error> {
        if self.closing.get() {
            return Some(closed());
        }
        if self.lost.get().is_some()
            && let Some(error) = &*self.gave_up.borrow()
        {
            return Some(error.clone());
        }
        let others = self.changed.borrow();
        if !others.is_empty() && others.contains(&command.lun) {
            return Some(changed());
        }
        self.state.borrow().unverified.obstacle(command.lun)
    }
}

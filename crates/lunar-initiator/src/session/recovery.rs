//! The lifetime of a session: its successive connections, the recovery between them, and the end.

use super::command_window::CommandWindow;
use super::errors::closed;
use super::event::{Event, lock};
use super::hooks::SessionLogin;
use super::local_session::LocalSession;
use super::session_state::Online;
use super::transport::TransportReceiver;
use super::violations::Violations;
use super::{connection, identity_checks};
use crate::connect::{self, Connected};
use crate::{Error, LateWrites, time_limit};
use lunar_runtime::{Registration, either};
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The first pause between attempts to connect. It doubles each time, up to the limit in the options.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// A connection that ends within this time counts as short-lived. From the second one in a row, each is followed by a
/// pause. Otherwise two initiators with the same port name would reinstate each other's session in a tight loop.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// The maximum Time2Wait in seconds (RFC 7143 section 13.15).
const LONGEST_WAIT_S: u16 = 3600;

/// Runs a session from its first connection to its end.
pub async fn live(registration: Registration<LocalSession>, connected: Connected) {
    let local = registration.value();
    let (mut next, mut short_lives) = (Some(connected), 0);
    while let Some(connected) = next {
        let started_at = Instant::now();
        let why = match accepted(local, &connected).await {
            Err(why) => why,
            Ok(()) => run(local, connected).await,
        };
        short_lives = if started_at.elapsed() < SHORT_LIFE { short_lives + 1 } else { 0 };
        next = reconnect(local, why, short_lives).await;
    }
    // Reject further requests.
    local.closing.set(true);
    local.fail_waiting(&closed());
    local.leave_orphans();
    if let Some(hooks) = &local.options.hooks {
        hooks.ended(local.is_settled());
    }
    local.over.set(true);
    local.bell.notify(usize::MAX);
    *local.stream.borrow_mut() = None;
}

/// Runs the login hook, except for the first login: [`super::Session::open`] ran it.
async fn accepted(local: &Rc<LocalSession>, connected: &Connected) -> Result<(), Error> {
    if local.lost.get().is_none() {
        return Ok(());
    }
    // A session that must end logs out on the new connection.
    or_closing(local, local.accept_login(connected)).await.unwrap_or(Ok(()))
}

/// Runs a connection. Returns the reason for its end.
async fn run(local: &Rc<LocalSession>, connected: Connected) -> Error {
    let receiver = local.install(connected);
    if local.is_to_end() {
        // The request to end came before this connection existed.
        local.give_up_connection(closed());
    }
    identity_checks::admit(local);
    local.complete_verified_recovery();
    let why = connection::run(local, receiver).await;
    local.remove_connection(&why);
    why
}

impl LocalSession {
    /// Whether the target executes no more commands of the ended session.
    fn is_settled(&self) -> bool {
        let waits = self.options.late_writes == LateWrites::Wait;
        // With `late_writes=risk`, commands of lost connections are not tracked.
        let is_first = lock(&self.info).recoveries == 0 && self.state.borrow().connection.is_logged_out();
        self.orphans.get() == 0 && (waits || is_first)
    }

    /// Runs the hook after a login that replaces a lost connection.
    async fn accept_login(self: &Rc<Self>, connected: &Connected) -> Result<(), Error> {
        let Some(hooks) = &self.options.hooks else { return Ok(()) };
        let info = connected.info(&self.login_target.borrow(), &self.options);
        hooks.logged_in(SessionLogin::again(&info, self.has_orphans())).await
    }

    fn install(&self, connected: Connected) -> TransportReceiver {
        let port = connected.target_port(&self.login_target.borrow());
        let user = connected.user(&self.options);
        let Connected { wire, portal, login } = connected;
        let transport = wire.transport();
        let (line, begun) = wire.into_line();
        let command_window = CommandWindow {
            cmd_sn: login.cmd_sn,
            exp_cmd_sn: login.exp_cmd_sn,
            max_cmd_sn: login.max_cmd_sn,
        };
        let mut info = lock(&self.info);
        (info.portal, info.tsih) = (portal, login.tsih);
        (info.alias, info.portal_group_tag) = (login.target_alias, login.portal_group_tag);
        (info.port, info.user) = (port, user);
        (info.transport, info.parameters) = (transport, login.parameters.clone());
        let mut state = self.state.borrow_mut();
        state.now = Instant::now();
        state.port = port;
        state.connect(login.parameters, command_window, login.exp_stat_sn, line.out());
        // A failure is harmless: the connection is reset explicitly at its end.
        _ = line.reset_on_close(true);
        self.parted.set(false);
        self.leaving.set(false);
        let max = state.connection.parameters().max_recv_data_segment_length as usize;
        let incoming = line.incoming(state.connection.digests(), max, begun);
        *self.stream.borrow_mut() = Some(Rc::new(line));
        incoming
    }

    fn remove_connection(&self, why: &Error) {
        if let Some(stream) = self.stream.borrow_mut().take()
            && !self.parted.get()
        {
            stream.reset();
        }
        let mut state = self.state.borrow_mut();
        state.now = Instant::now();
        self.asked.set(state.is_text_only());
        state.disconnect(why);
        {
            let mut info = lock(&self.info);
            (info.connected, info.lost_by) = (false, Some(why.to_string()));
        }
        self.lost.set(self.lost.get().or(Some(state.now)));
        *self.last_error.borrow_mut() = Some(why.clone());
        drop(state);
        self.note_violation(why);
        self.end_recovery(Instant::now());
    }

    /// Completes the recovery if no identity checks are due.
    pub(super) fn complete_verified_recovery(&self) {
        let state = self.state.borrow();
        let is_enough = state.online == Online::Yes && state.unverified.is_empty();
        drop(state);
        if is_enough {
            self.complete_recovery();
        }
    }

    /// Completes the recovery once a command has been answered on the new connection. A target that only accepts
    /// logins has not recovered.
    pub(super) fn complete_recovery(&self) {
        if lock(&self.info).connected {
            return;
        }
        let again = self.lost.take().is_some();
        *self.gave_up.borrow_mut() = None;
        self.state.borrow_mut().gave_up = false;
        let mut info = lock(&self.info);
        info.connected = true;
        info.recoveries += u32::from(again);
        drop(info);
        if again {
            tracing::info!(name: "path.reconnected", target = %self.name(), "the session has reconnected");
            self.listeners.notify(&Event::Connected);
        }
        self.bell.notify(usize::MAX);
    }
}

impl LocalSession {
    /// Records the reason for the loss. If the target repeats a protocol violation, fails the queued commands now.
    /// Orphans still wait for a proof.
    pub(super) fn note_violation(&self, why: &Error) {
        if self.asked.get() || std::mem::take(&mut self.state.borrow_mut().has_answered) {
            *self.violations.borrow_mut() = Violations::default();
        }
        let repeats = self.violations.borrow_mut().note(why);
        if repeats && !self.asked.get() && self.gave_up.borrow().is_none() {
            self.end_waiting(
                why.clone().during(format!("target {} repeats a protocol violation", self.name())),
            );
        }
    }
}

/// Reconnects, however long it takes. None if the session must end.
async fn reconnect(local: &Rc<LocalSession>, why: Error, short_lives: u32) -> Option<Connected> {
    if local.is_to_end() {
        return None;
    }
    match local.asked.get() {
        true => tracing::debug!(target = %local.name(), "the session was lost during a Text Request: {why}"),
        false => tracing::warn!(name: "path.lost", target = %local.name(), "the session was lost: {why}"),
    }
    local.listeners.notify(&Event::Lost(why.to_string()));
    let wait_s = local.state.borrow().connection.time2wait_s().min(LONGEST_WAIT_S);
    let wait = Duration::from_secs(wait_s.into()).max(pause_after(short_lives, local.options.timeouts.pause));
    or_closing(local, time_limit::sleep(wait)).await?;
    let mut pause = FIRST_PAUSE;
    loop {
        let (login_target, options) = (local.login_target.borrow().clone(), &local.options);
        let tried = or_closing(local, connect::connect_once(&login_target, options)).await?;
        match tried {
            Ok(connected) => return Some(connected),
            Err(e) => {
                tracing::debug!(target = %local.name(), "cannot reconnect the session yet: {e}");
                local.note_violation(&e);
                lock(&local.info).lost_by = Some(e.to_string());
                *local.last_error.borrow_mut() = Some(e);
            }
        }
        or_closing(local, time_limit::sleep(pause + jitter(pause))).await?;
        pause = (pause * 2).min(options.timeouts.pause);
    }
}

/// The pause after `short_lives` short-lived connections in a row, at most `max`.
fn pause_after(short_lives: u32, max: Duration) -> Duration {
    match short_lives {
        0 | 1 => Duration::ZERO,
        _ => {
            let pause = FIRST_PAUSE.saturating_mul(1 << (short_lives - 2).min(16)).min(max);
            pause + jitter(pause)
        }
    }
}

/// A random time of up to an eighth of the pause, so that sessions of one target do not reconnect simultaneously.
fn jitter(pause: Duration) -> Duration {
    let mut random = [0];
    // On failure there is no jitter, which is harmless.
    let _ = getrandom::fill(&mut random);
    pause * random[0].into() / 2048
}

/// Awaits a future, unless the session must end first.
async fn or_closing<T>(local: &Rc<LocalSession>, work: impl Future<Output = T>) -> Option<T> {
    let work = async { Some(work.await) };
    let closing = async {
        loop {
            let rung = local.bell.listen();
            if local.is_to_end() {
                return None;
            }
            rung.await;
        }
    };
    either(work, closing).await
}

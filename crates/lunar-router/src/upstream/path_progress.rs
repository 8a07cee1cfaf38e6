//! The state of a path that is opened as soon as possible, whatever its protocol.

use super::context::LuContext;
use super::{PAUSE, PathState};
use lunar_initiator::{Error, ErrorCode, Event};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The pause after the first failed attempt to open a path. It grows.
pub const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The pause after the next failed attempt.
pub fn longer(pause: Duration) -> Duration {
    (pause * 2).min(PAUSE)
}

/// The attempts to open a path, and its events.
pub struct PathProgress {
    /// The name in messages of the unit at its end.
    unit: &'static str,
    /// The reason why it is not open.
    obstacle: Mutex<Option<Error>>,
    /// Whether it leads to another logical unit.
    is_changed: AtomicBool,
    /// Whether the properties of the logical unit are not reported yet.
    is_new: AtomicBool,
    sender: flume::Sender<Event>,
    events: flume::Receiver<Event>,
}

impl PathProgress {
    /// A closed path to `unit`, as messages name it, that holds this many events.
    pub fn new(unit: &'static str, events: usize) -> PathProgress {
        let (sender, events) = flume::bounded(events);
        PathProgress {
            unit,
            obstacle: Mutex::default(),
            is_changed: AtomicBool::new(false),
            is_new: AtomicBool::new(false),
            sender,
            events,
        }
    }

    /// The reason why it is not open.
    pub fn obstacle(&self) -> Option<Error> {
        self.obstacle.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The events of the path.
    pub fn events(&self) -> flume::Receiver<Event> {
        self.events.clone()
    }

    /// The state of the closed path.
    pub fn closed_state(&self) -> PathState {
        if self.is_changed.load(Relaxed) { PathState::Changed } else { PathState::Down }
    }

    /// The error of an operation on the closed path.
    pub fn closed(&self) -> Error {
        let code = match self.closed_state() {
            PathState::Changed => ErrorCode::IdentityMismatch,
            _ => ErrorCode::Unreachable,
        };
        Error::new(code, format!("the path to the upstream {} is not open", self.unit))
    }

    /// Records that it leads to another logical unit, and logs that once.
    pub fn change(&self, context: &LuContext, location: &str, now: &str) {
        if !self.is_changed.swap(true, Relaxed) {
            context.log_change(location, now);
        }
    }

    /// Records that it leads to the same logical unit as before.
    pub fn recognise(&self) {
        self.is_changed.store(false, Relaxed);
    }

    /// Records a failed attempt.
    pub fn fail(&self, context: &LuContext, location: &str, e: Error) {
        let is_other = e.code == ErrorCode::IdentityMismatch;
        match is_other {
            true => self.change(context, location, &e.what),
            false => self.recognise(),
        }
        let mut obstacle = self.obstacle.lock().unwrap_or_else(PoisonError::into_inner);
        if obstacle.as_ref() != Some(&e) && !is_other {
            tracing::warn!(name: "path.unusable", path = location, "cannot open the path to the upstream {} yet: {e}", self.unit);
        }
        *obstacle = Some(e);
        drop(obstacle);
        self.stir(Event::Connected);
    }

    /// Records that the path is open. `set` makes the logical unit known.
    pub fn succeed(&self, set: impl FnOnce()) {
        self.recognise();
        self.is_new.store(true, Relaxed);
        *self.obstacle.lock().unwrap_or_else(PoisonError::into_inner) = None;
        set();
        self.stir(Event::Connected);
    }

    /// Whether the path was opened since the last call.
    pub fn take_new(&self) -> bool {
        self.is_new.swap(false, Relaxed)
    }

    /// Requests a check of the path.
    pub fn stir(&self, event: Event) {
        // Full: a check is already requested.
        _ = self.sender.try_send(event);
    }
}

/// The next event of a session or controller. None: the probe has found a change, so that the path is to be checked again.
///
/// # Errors
/// There are no more events.
pub async fn event_or_recheck(
    recheck: event_listener::EventListener,
    events: &flume::Receiver<Event>,
) -> Result<Option<Event>, flume::RecvError> {
    let event = async { events.recv_async().await.map(Some) };
    lunar_runtime::either(event, async {
        recheck.await;
        Ok(None)
    })
    .await
}

//! Events of a session, and their listeners.

use lunar_wire::scsi::Sense;
use std::sync::{Mutex, MutexGuard};

/// An event of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A logical unit has reported a unit attention.
    UnitAttention {
        /// The eight bytes of the LUN.
        lun: u64,
        /// The unit attention.
        sense: Sense,
    },
    /// The connection was lost for this reason. The session recovers.
    Lost(String),
    /// The session has recovered.
    Connected,
    /// A LUN leads to another logical unit than the pinned one. It accepts no commands until the pinned one is back.
    Changed {
        /// The eight bytes of the LUN.
        lun: u64,
        /// The designators of the new logical unit (VPD page 83h).
        identity: Vec<u8>,
    },
    /// A logical unit that was missing is back, with the same identity.
    Seen {
        /// The eight bytes of the LUN.
        lun: u64,
    },
    /// The recovery timeout has expired. Commands fail until the session is connected again.
    GaveUp(String),
    /// An NVMe controller reports that namespaces or their access states may have changed.
    NamespacesChanged,
}

/// The listeners of a session or a controller.
#[derive(Default)]
pub struct Listeners(Mutex<Vec<flume::Sender<Event>>>);

/// The maximum number of events queued for one listener. Further events are dropped.
const EVENTS: usize = 256;

/// Locks a mutex, even if it is poisoned.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Listeners {
    /// Adds a listener.
    pub fn add(&self) -> flume::Receiver<Event> {
        let (sender, events) = flume::bounded(EVENTS);
        let mut listeners = lock(&self.0);
        // Dropped listeners are also removed here, in case no event is ever sent.
        listeners.retain(|listener| !listener.is_disconnected());
        listeners.push(sender);
        events
    }

    /// Sends an event to each listener.
    pub fn notify(&self, event: &Event) {
        let is_there = |listener: &flume::Sender<Event>| {
            !matches!(listener.try_send(event.clone()), Err(flume::TrySendError::Disconnected(_)))
        };
        lock(&self.0).retain(is_there);
    }
}

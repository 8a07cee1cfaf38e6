//! The gate of a logical unit: it admits commands only while this router holds the reservation.

use super::fence::{self, KIND, ReservationState};
use super::term::Term;
use event_listener::{Event, EventListener};
use lunar_initiator::{Error, ErrorCode, Session};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The interval of checks for admitted commands.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The gate of one logical unit. It is shut until this router holds the reservation. The first conflict shuts it.
pub struct IoGate {
    key: u64,
    /// The term of this router at NVMe storage, if it has one.
    term: Mutex<Option<Term>>,
    open: AtomicBool,
    /// Whether admitted writes may not be stable and this router can no longer flush them.
    owes: AtomicBool,
    inside: AtomicUsize,
    shut: Event,
}

/// The permit of an admitted command, which leaves the gate when this is dropped.
pub struct IoPermit(Arc<IoGate>);

impl Drop for IoPermit {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, SeqCst);
    }
}

impl IoGate {
    /// Creates a gate that is shut. `key` is the reservation key of this router.
    pub fn new(key: u64) -> IoGate {
        IoGate {
            key,
            term: Mutex::default(),
            open: AtomicBool::new(false),
            owes: AtomicBool::new(false),
            inside: AtomicUsize::new(0),
            shut: Event::new(),
        }
    }

    /// The current term at NVMe storage. Hosts with data register for it.
    pub(super) fn term(&self) -> Option<Term> {
        *self.term.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a term, or ends it.
    pub(super) fn set_term(&self, term: Option<Term>) {
        *self.term.lock().unwrap_or_else(PoisonError::into_inner) = term;
    }

    /// Admits a command, unless the gate is shut.
    pub fn enter(self: &Arc<Self>) -> Option<IoPermit> {
        // Counted first, so that a wait for an empty gate includes every command.
        self.inside.fetch_add(1, SeqCst);
        let inside = IoPermit(self.clone());
        self.is_open().then_some(inside)
    }

    /// Whether the gate admits commands.
    pub fn is_open(&self) -> bool {
        self.open.load(SeqCst)
    }

    /// Whether admitted writes may be lost, or are the responsibility of the other router.
    pub fn owes(&self) -> bool {
        self.owes.load(SeqCst)
    }

    /// Opens the gate.
    pub fn open(&self) {
        self.owes.store(true, SeqCst);
        self.open.store(true, SeqCst);
    }

    /// Shuts the gate. Returns true if it was open: only then listeners are notified.
    pub fn shut(&self) -> bool {
        let was_open = self.open.swap(false, SeqCst);
        if was_open {
            self.shut.notify(usize::MAX);
        }
        was_open
    }

    /// Records that all admitted writes are stable.
    pub fn settled(&self) {
        self.owes.store(false, SeqCst);
    }

    /// A listener for the next time the gate is shut.
    pub fn listen(&self) -> EventListener {
        self.shut.listen()
    }

    /// Waits until no admitted command is running. Returns false after `limit`.
    pub async fn empty(&self, limit: Duration) -> bool {
        let started_at = Instant::now();
        while self.inside.load(SeqCst) > 0 {
            if started_at.elapsed() >= limit {
                return false;
            }
            compio::time::sleep(POLL_INTERVAL).await;
        }
        true
    }

    /// Whether no admitted command is running.
    pub fn is_empty(&self) -> bool {
        self.inside.load(SeqCst) == 0
    }

    /// Registers a nexus that will carry data, and then reads the reservation, so that a takeover either removes this
    /// registration or is seen here. If another initiator holds the reservation, nothing is registered. The changed
    /// generation would look like a heartbeat of the peer, and LIO admits all sessions of a name while one is
    /// registered.
    ///
    /// # Errors
    /// [`ErrorCode::ReservationConflict`] when the reservation is not ours. The nexus is then not registered.
    pub async fn admit(&self, session: &Session, lun: u64) -> Result<(), Error> {
        let is_ours =
            |seen: &ReservationState| seen.held.is_some_and(|held| (held.key, held.kind) == (self.key, KIND));
        let not_ours = || {
            Error::new(
                ErrorCode::ReservationConflict,
                "this router is not the active router of its failover pair",
            )
        };
        // Other logical units wait for this read, so it has a time limit: a read can be abandoned. A registration
        // cannot, because it could be executed after a takeover.
        if !is_ours(&fence::soon(fence::reservation(session, lun)).await?) {
            return Err(not_ours());
        }
        fence::register(session, lun, self.key).await?;
        let seen = fence::reservation(session, lun).await;
        if seen.as_ref().is_ok_and(is_ours) {
            return Ok(());
        }
        fence::unregister(session, lun, self.key).await?;
        Err(seen.err().unwrap_or_else(not_ours))
    }

    /// Unregisters a nexus whose admission failed.
    pub async fn dismiss(&self, session: &Session, lun: u64) {
        // If this fails, the next takeover removes the registration.
        _ = fence::unregister(session, lun, self.key).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use event_listener::Listener;

    #[test]
    fn closed_gate_admits_nothing_and_counts_commands_inside() {
        let gate = Arc::new(IoGate::new(1));
        assert!(gate.enter().is_none() && gate.is_empty() && !gate.owes());
        gate.open();
        let inside = gate.enter();
        assert!(inside.is_some() && !gate.is_empty() && gate.owes());
        assert!(gate.shut() && !gate.shut());
        assert!(gate.enter().is_none() && !gate.is_empty());
        drop(inside);
        assert!(gate.is_empty());
        gate.settled();
        assert!(!gate.owes());
    }

    /// Otherwise each failed takeover would start the next one at once.
    #[test]
    fn shut_gate_notifies_no_listener() {
        let gate = IoGate::new(1);
        let is_notified = || {
            let listener = gate.listen();
            gate.shut();
            listener.wait_timeout(Duration::from_millis(1)).is_some()
        };
        assert!(!is_notified());
        gate.open();
        assert!(is_notified() && !is_notified());
    }
}

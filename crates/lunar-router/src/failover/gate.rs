//! The gate of a logical unit: it admits commands only while this router holds the reservation.

use super::fence::{self, KIND, ReservationState};
use event_listener::{Event as Notifier, EventListener};
use lunar_initiator::{Error, ErrorCode, Session};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How long one waits between two looks at what is still inside.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The gate of one logical unit. It is shut until this router holds its reservation, and shuts at the first conflict.
pub struct IoGate {
    key: u64,
    open: AtomicBool,
    /// Admitted writes may not be stable, and this router can no longer flush them.
    owes: AtomicBool,
    inside: AtomicUsize,
    shut: Notifier,
}

/// An admitted command. It leaves the gate when this is dropped.
pub struct IoPermit(Arc<IoGate>);

impl Drop for IoPermit {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, SeqCst);
    }
}

impl IoGate {
    /// Shut. The reservation key is that of this router.
    pub fn new(key: u64) -> IoGate {
        IoGate {
            key,
            open: AtomicBool::new(false),
            owes: AtomicBool::new(false),
            inside: AtomicUsize::new(0),
            shut: Notifier::new(),
        }
    }

    /// Admits a command, unless the gate is shut.
    pub fn enter(self: &Arc<Self>) -> Option<IoPermit> {
        // Counted first, so that a wait for an empty gate misses no command.
        self.inside.fetch_add(1, SeqCst);
        let inside = IoPermit(self.clone());
        self.is_open().then_some(inside)
    }

    /// The gate admits commands.
    pub fn is_open(&self) -> bool {
        self.open.load(SeqCst)
    }

    /// Admitted writes may be lost, or are the responsibility of the other router.
    pub fn owes(&self) -> bool {
        self.owes.load(SeqCst)
    }

    /// Opens the gate.
    pub fn open(&self) {
        self.owes.store(true, SeqCst);
        self.open.store(true, SeqCst);
    }

    /// Shuts the gate. True if it was open.
    pub fn shut(&self) -> bool {
        self.shut.notify(usize::MAX);
        self.open.swap(false, SeqCst)
    }

    /// All admitted writes are stable.
    pub fn settled(&self) {
        self.owes.store(false, SeqCst);
    }

    /// Resolves when the gate is shut after this call.
    pub fn listen(&self) -> EventListener {
        self.shut.listen()
    }

    /// Waits until no command is inside; false if it takes too long.
    pub async fn empty(&self, limit: Duration) -> bool {
        let begun = Instant::now();
        while self.inside.load(SeqCst) > 0 {
            if begun.elapsed() >= limit {
                return false;
            }
            compio::time::sleep(POLL_INTERVAL).await;
        }
        true
    }

    /// No command is inside.
    pub fn is_empty(&self) -> bool {
        self.inside.load(SeqCst) == 0
    }

    /// Allows a nexus to carry data: registers it, and then reads the reservation. So a takeover either removes this
    /// registration or is seen here. If another initiator holds the reservation, nothing is registered: the change of the
    /// generation would look like a sign of life of the peer, and LIO admits all sessions of a name while one is registered.
    ///
    /// # Errors
    /// [`ErrorCode::ReservationConflict`] when the reservation is not ours: the nexus is not registered then.
    pub async fn admit(&self, session: &Session, lun: u64) -> Result<(), Error> {
        let is_ours =
            |seen: &ReservationState| seen.held.is_some_and(|held| (held.key, held.kind) == (self.key, KIND));
        let not_ours =
            || Error::new(ErrorCode::ReservationConflict, "this router is not the active one of its pair");
        // Other logical units wait for this read, so it has a time limit: it changes nothing and can be abandoned. A
        // registration in progress cannot: it might be executed after a takeover.
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
}

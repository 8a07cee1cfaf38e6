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
    /// What went through it may not be stable yet, and is not ours to make so.
    owes: AtomicBool,
    inside: AtomicUsize,
    shut: Notifier,
}

/// A command that was let in; it is out when this is dropped.
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

    /// Lets a command in, unless it is shut.
    pub fn enter(self: &Arc<Self>) -> Option<IoPermit> {
        // Counted first, so that a wait for an empty gate misses no command.
        self.inside.fetch_add(1, SeqCst);
        let inside = IoPermit(self.clone());
        self.is_open().then_some(inside)
    }

    /// Commands are let through.
    pub fn is_open(&self) -> bool {
        self.open.load(SeqCst)
    }

    /// Something that went through it may be lost, or is for the other router to keep.
    pub fn owes(&self) -> bool {
        self.owes.load(SeqCst)
    }

    /// Commands are let through from here on.
    pub fn open(&self) {
        self.owes.store(true, SeqCst);
        self.open.store(true, SeqCst);
    }

    /// No command is let through from here on. True if it was open.
    pub fn shut(&self) -> bool {
        self.shut.notify(usize::MAX);
        self.open.swap(false, SeqCst)
    }

    /// All that went through it is stable.
    pub fn settled(&self) {
        self.owes.store(false, SeqCst);
    }

    /// Ends when it is shut after this call.
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

    /// Nobody is inside.
    pub fn is_empty(&self) -> bool {
        self.inside.load(SeqCst) == 0
    }

    /// Makes a nexus one that may carry data: it is registered, and reads the reservation afterwards, so that a take-over
    /// either takes its registration away or is seen here. Where somebody else has it already nothing is registered: that
    /// would look like a sign of life of theirs, and LIO lets all sessions of a name pass while one is registered.
    ///
    /// # Errors
    /// [`ErrorCode::ReservationConflict`] when the reservation is not ours: the nexus is not registered then.
    pub async fn admit(&self, session: &Session, lun: u64) -> Result<(), Error> {
        let is_ours =
            |seen: &ReservationState| seen.held.is_some_and(|held| (held.key, held.kind) == (self.key, KIND));
        let not_ours =
            || Error::new(ErrorCode::ReservationConflict, "this router is not the active one of its pair");
        // The others wait for one that does not answer. Nothing was changed by it yet, so that it can be left; a
        // registration that is on its way cannot, or it might come after a take-over.
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

    /// Takes back that a nexus may carry data, which came to nothing.
    pub async fn dismiss(&self, session: &Session, lun: u64) {
        // Where that fails the next take-over does it.
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

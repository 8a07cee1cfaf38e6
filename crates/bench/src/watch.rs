//! Looking at a job while it runs, and ending it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A handle on running jobs: how far they are, and the wish that they end. Clones are the same handle.
#[derive(Clone, Debug, Default)]
pub struct Watch(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    ios: AtomicU64,
    bytes: AtomicU64,
    end: AtomicBool,
    doing: Mutex<String>,
}

impl Watch {
    /// Commands and bytes since the handle was made. Sessions add to them a few times a second.
    pub fn done(&self) -> (u64, u64) {
        (self.0.ios.load(Ordering::Relaxed), self.0.bytes.load(Ordering::Relaxed))
    }

    /// Asks what runs to end now; what was measured so far stands.
    pub fn end(&self) {
        self.0.end.store(true, Ordering::Relaxed);
    }

    /// Somebody asked for the end.
    pub fn is_ended(&self) -> bool {
        self.0.end.load(Ordering::Relaxed)
    }

    /// What it does now, for people; empty where there is but one thing to do.
    pub fn doing(&self) -> String {
        self.0.doing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn says(&self, what: impl Into<String>) {
        *self.0.doing.lock().unwrap_or_else(PoisonError::into_inner) = what.into();
    }

    pub(crate) fn add(&self, ios: u64, bytes: u64) {
        self.0.ios.fetch_add(ios, Ordering::Relaxed);
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

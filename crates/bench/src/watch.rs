//! Looking at a job while it runs, and ending it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A handle on running jobs: how far they are, and the wish that they end. Clones are the same handle.
#[derive(Clone, Debug, Default)]
pub struct Watch(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    ios: AtomicU64,
    bytes: AtomicU64,
    end: AtomicBool,
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

    pub(crate) fn add(&self, ios: u64, bytes: u64) {
        self.0.ios.fetch_add(ios, Ordering::Relaxed);
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

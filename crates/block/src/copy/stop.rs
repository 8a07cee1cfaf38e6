//! The wish to end early.

use event_listener::Event;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Tells a copy to end. What is in flight ends by itself, and what is done is made stable.
#[derive(Default)]
pub struct Stop {
    set: AtomicBool,
    told: Event,
}

impl Stop {
    /// Tells it.
    pub fn stop(&self) {
        self.set.store(true, SeqCst);
        self.told.notify(usize::MAX);
    }

    /// Whether it was told.
    pub fn is_set(&self) -> bool {
        self.set.load(SeqCst)
    }

    pub(super) async fn wait(&self) {
        loop {
            // Listen first: what is told between the look and the wait must not be missed.
            let told = self.told.listen();
            if self.is_set() {
                return;
            }
            told.await;
        }
    }
}

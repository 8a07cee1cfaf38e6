//! The wish to end early.

use event_listener::Event;
use futures_util::future::{Either, select};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Tells a copy to end. What is in flight ends by itself, and what is done is made stable.
#[derive(Default)]
pub struct StopFlag {
    set: AtomicBool,
    told: Event,
}

impl StopFlag {
    /// Tells it.
    pub fn stop(&self) {
        self.set.store(true, SeqCst);
        self.told.notify(usize::MAX);
    }

    /// Whether it was told.
    pub fn is_set(&self) -> bool {
        self.set.load(SeqCst)
    }

    /// What `work` gives; None if it was told to end before, and `work` is given up.
    pub async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        match select(pin!(self.wait()), pin!(work)).await {
            Either::Left(_) => None,
            Either::Right((got, _)) => Some(got),
        }
    }

    async fn wait(&self) {
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

//! The stop flag of a copy.

use event_listener::Event;
use futures_util::future::{Either, select};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Ends a copy early. Requests in flight finish, and finished data is flushed.
#[derive(Default)]
pub struct StopFlag {
    set: AtomicBool,
    raised: Event,
}

impl StopFlag {
    /// Sets the flag.
    pub fn stop(&self) {
        self.set.store(true, SeqCst);
        self.raised.notify(usize::MAX);
    }

    /// Whether the flag is set.
    pub fn is_set(&self) -> bool {
        self.set.load(SeqCst)
    }

    /// The output of `work`; None if the flag is set first, which drops `work`.
    pub async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        match select(pin!(self.wait()), pin!(work)).await {
            Either::Left(_) => None,
            Either::Right((got, _)) => Some(got),
        }
    }

    async fn wait(&self) {
        loop {
            // Listen first, so that a set flag between the check and the wait is not missed.
            let raised = self.raised.listen();
            if self.is_set() {
                return;
            }
            raised.await;
        }
    }
}

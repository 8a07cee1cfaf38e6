//! How long an event loop looks for work before it sleeps.

use crate::recheck::current_batch;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Decides when a loop without work may sleep.
pub(crate) struct BusyPoll {
    time_us: Arc<AtomicU64>,
    /// The batch of work that the loop saw last.
    batch: u64,
    /// The time at which the loop first found no work after that batch.
    idle_since: Instant,
}

impl BusyPoll {
    pub(crate) fn new(time_us: Arc<AtomicU64>) -> BusyPoll {
        BusyPoll { time_us, batch: current_batch(), idle_since: Instant::now() }
    }

    /// Whether the loop must look for work again instead of sleeping.
    pub(crate) fn lasts(&mut self) -> bool {
        let time_us = self.time_us.load(Relaxed);
        if time_us == 0 {
            return false;
        }
        let batch = current_batch();
        if std::mem::replace(&mut self.batch, batch) != batch {
            self.idle_since = Instant::now();
        }
        self.idle_since.elapsed() < Duration::from_micros(time_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::begin_batch;

    #[test]
    fn busy_poll_lasts_from_a_receive_until_its_time() {
        let time_us = Arc::new(AtomicU64::new(0));
        let mut poll = BusyPoll::new(time_us.clone());
        assert!(!poll.lasts(), "off");
        poll.idle_since -= Duration::from_secs(1);
        time_us.store(1_000, Relaxed);
        assert!(!poll.lasts(), "no receive for a second");
        time_us.store(3_600_000_000, Relaxed);
        begin_batch();
        assert!(
            poll.lasts() && poll.idle_since.elapsed() < Duration::from_secs(1),
            "the receive restarts it"
        );
    }
}

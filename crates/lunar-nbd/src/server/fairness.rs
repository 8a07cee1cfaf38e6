//! The order in which connections are served. If a client repeats a request on a new connection, requests of its
//! earlier connection must not undo it. So a connection is served only when no earlier connection whose client has
//! gone can still change data.

use event_listener::Event;
use lunar_runtime::Hangup;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The interval at which a waiting connection checks the earlier ones. A connection without a client that only waits
/// for room is ended after one to two intervals if later ones wait for it.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The connections of an export, in order of arrival.
#[derive(Default)]
pub(super) struct ConnectionFairness {
    all: Mutex<Vec<FairnessEntry>>,
    /// Notified when a connection ends.
    ended: Event,
}

struct FairnessEntry {
    number: u64,
    line: Hangup,
    /// Whether the connection is not served yet.
    waits: bool,
}

/// The position of a connection in the order. Dropping it lets later connections start.
pub(super) struct FairnessTicket<'a> {
    fairness: &'a ConnectionFairness,
    number: u64,
}

impl ConnectionFairness {
    fn lock(&self) -> MutexGuard<'_, Vec<FairnessEntry>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of connections whose client is still connected.
    pub(super) fn clients(&self) -> usize {
        self.lock().iter().filter(|entry| !entry.line.is_hung_up()).count()
    }

    /// Appends a connection.
    pub(super) fn join(&self, line: Hangup) -> FairnessTicket<'_> {
        let mut all = self.lock();
        let number = all.last().map_or(0, |last| last.number + 1);
        all.push(FairnessEntry { number, line, waits: true });
        FairnessTicket { fairness: self, number }
    }
}

impl FairnessTicket<'_> {
    /// Waits until the connection may be served.
    pub(super) async fn comes(&self) {
        loop {
            let ended = self.fairness.ended.listen();
            if self.begins() {
                return;
            }
            _ = compio::time::timeout(CHECK_INTERVAL, ended).await;
        }
    }

    fn begins(&self) -> bool {
        let mut all = self.fairness.lock();
        let begins =
            all.iter().filter(|other| other.number < self.number).all(|other| !other.line.is_hung_up());
        all.iter_mut().filter(|entry| entry.number == self.number).for_each(|me| me.waits = !begins);
        begins
    }

    /// Whether the client has gone and a later connection waits.
    pub(super) fn is_over(&self) -> bool {
        let all = self.fairness.lock();
        let has_gone = all.iter().any(|me| me.number == self.number && me.line.is_hung_up());
        has_gone && all.iter().any(|other| other.number > self.number && other.waits)
    }

    /// Completes when [`FairnessTicket::is_over`] has returned true at two consecutive checks.
    pub(super) async fn ends(&self) {
        let mut was_over = false;
        loop {
            compio::time::sleep(CHECK_INTERVAL).await;
            let is_over = self.is_over();
            if was_over && is_over {
                return;
            }
            was_over = is_over;
        }
    }
}

impl Drop for FairnessTicket<'_> {
    fn drop(&mut self) {
        self.fairness.lock().retain(|entry| entry.number != self.number);
        self.fairness.ended.notify(usize::MAX);
    }
}

//! The path checker.

use super::{Multipath, PathState, orphan_recovery};
use crate::{Event, time_limit};
use lunar_runtime::either;
use std::future::pending;
use std::sync::Weak;
use std::time::{Duration, Instant};

/// The shortest interval of checks, for a path that may become usable while no other is. It also limits the checks of
/// a path that passes them but fails all operations.
const SOON: Duration = Duration::from_secs(1);

/// Checks a path at intervals, after each of its events, and after each failed operation. Returns when the multipath
/// logical unit is dropped, even during a check.
pub async fn check_path(joined: Weak<Multipath>, at: usize, doubts: flume::Receiver<()>) {
    either(gone(&joined), keep_checking(&joined, at, doubts)).await;
}

/// Waits until the multipath logical unit is dropped.
async fn gone(joined: &Weak<Multipath>) {
    while let Some(changed) = joined.upgrade().map(|joined| joined.state_change()) {
        changed.await;
    }
}

async fn keep_checking(joined: &Weak<Multipath>, at: usize, doubts: flume::Receiver<()>) {
    let Some(events) = joined.upgrade().map(|joined| joined.lun_paths[at].events()) else { return };
    let (mut resets_failed, mut orphans_due) = (None, None);
    let mut reasons = Reasons { events, doubts, doubted: None };
    while let Some(pause) = joined.upgrade().map(|joined| joined.pause(at)) {
        reasons.next(orphans_due.map_or(pause, |due| pause.min(due))).await;
        // A check may take long: hold no strong reference meanwhile.
        let Some(path) = joined.upgrade().map(|joined| joined.lun_paths[at].clone()) else { return };
        let state = path.check().await;
        let Some(joined) = joined.upgrade() else { return };
        let was_usable = joined.paths.state(at).is_usable();
        joined.set(at, state);
        let others = joined.others(at);
        if !was_usable && state.is_usable() {
            // The session of a path that was down may be new: subscribe to its events again.
            reasons.events = path.events();
        }
        drop(joined);
        orphans_due = orphan_recovery::end_orphans(&*path, others, &mut resets_failed).await;
    }
}

impl Multipath {
    /// The interval of checks of this path.
    fn pause(&self, at: usize) -> Duration {
        let comes_soon = matches!(self.paths.state(at), PathState::Transitioning | PathState::Standby);
        let check = self.settings.check;
        if comes_soon && !self.paths.has_usable() { check.min(SOON) } else { check }
    }
}

/// The reasons for a check before the interval ends.
struct Reasons {
    events: flume::Receiver<Event>,
    doubts: flume::Receiver<()>,
    /// The time of the last check that a failed operation caused.
    doubted: Option<Instant>,
}

impl Reasons {
    /// Waits for a reason to check, at most for `pause`.
    async fn next(&mut self, pause: Duration) {
        let first = either(self.new_doubt(), self.some_news());
        if let Some(doubted @ Some(_)) = time_limit::within(pause, first).await {
            self.doubted = doubted;
        }
    }

    /// Waits for the next report of a failed operation.
    async fn new_doubt(&self) -> Option<Instant> {
        if let Some(last) = self.doubted {
            compio::time::sleep(SOON.saturating_sub(last.elapsed())).await;
        }
        match self.doubts.recv_async().await {
            Ok(()) => Some(Instant::now()),
            Err(_) => pending().await,
        }
    }

    async fn some_news(&self) -> Option<Instant> {
        match self.events.recv_async().await {
            Ok(_) => None,
            Err(_) => pending().await,
        }
    }
}

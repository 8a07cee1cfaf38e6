//! The path checker.

use super::{Multipath, State, orphan_recovery};
use crate::Event;
use lunar_runtime::either;
use std::future::pending;
use std::sync::Weak;
use std::time::{Duration, Instant};

/// A path that may soon take I/O is looked at so often while no other one does. One that answers when it is asked and
/// fails all that is done on it is looked at no more often for that.
const SOON: Duration = Duration::from_secs(1);

/// Checks a path at intervals, at each of its events, and when an operation failed on it. It ends when nothing
/// has the paths any more, also in the middle of a look.
pub async fn check_path(joined: Weak<Multipath>, at: usize, doubts: flume::Receiver<()>) {
    either(gone(&joined), keep_checking(&joined, at, doubts)).await;
}

/// Waits until nothing has the paths any more.
async fn gone(joined: &Weak<Multipath>) {
    while let Some(turn) = joined.upgrade().map(|joined| joined.state_change()) {
        turn.await;
    }
}

async fn keep_checking(joined: &Weak<Multipath>, at: usize, doubts: flume::Receiver<()>) {
    let Some(news) = joined.upgrade().map(|joined| joined.ways[at].news()) else { return };
    let (mut resets_failed, mut orphans_due) = (None, None);
    let mut reasons = Reasons { news, doubts, doubted: None };
    while let Some(pause) = joined.upgrade().map(|joined| joined.pause(at)) {
        reasons.next(orphans_due.map_or(pause, |due| pause.min(due))).await;
        // A check may take long: the paths may be dropped meanwhile.
        let Some(way) = joined.upgrade().map(|joined| joined.ways[at].clone()) else { return };
        let state = way.check().await;
        let Some(joined) = joined.upgrade() else { return };
        let was_usable = joined.paths.state(at).is_usable();
        joined.set(at, state);
        let others = joined.others(at);
        if !was_usable && state.is_usable() {
            // One that was missing has had no news until now.
            reasons.news = way.news();
        }
        drop(joined);
        orphans_due = orphan_recovery::end_orphans(&*way, others, &mut resets_failed).await;
    }
}

impl Multipath {
    /// After this a path is looked at in any case.
    fn pause(&self, at: usize) -> Duration {
        let comes_soon = matches!(self.paths.state(at), State::Transitioning | State::Standby);
        let check = self.settings.check;
        if comes_soon && !self.paths.has_usable() { check.min(SOON) } else { check }
    }
}

/// Why a path is looked at before its time.
struct Reasons {
    news: flume::Receiver<Event>,
    doubts: flume::Receiver<()>,
    /// When doubts were the reason last.
    doubted: Option<Instant>,
}

impl Reasons {
    /// Waits for one, or for this time.
    async fn next(&mut self, pause: Duration) {
        let first = either(self.new_doubt(), self.some_news());
        if let Ok(doubted @ Some(_)) = compio::time::timeout(pause, first).await {
            self.doubted = doubted;
        }
    }

    /// When there is a doubt.
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
        match self.news.recv_async().await {
            Ok(_) => None,
            Err(_) => pending().await,
        }
    }
}

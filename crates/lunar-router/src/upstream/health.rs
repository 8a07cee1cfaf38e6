//! The health of an upstream logical unit, over all cores and paths.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The maximum number of changes queued for one listener. Further ones are dropped.
const CHANGES: usize = 64;

/// The health of a logical unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// A path works, or none was tried yet.
    #[default]
    Up,
    /// No path has worked since this time: commands wait for one.
    Holding(Instant),
    /// No path has worked since this time, for longer than the time limit: commands fail at once.
    Lost(Instant),
    /// The paths lead to another logical unit: commands fail at once.
    Changed,
}

/// The health on one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreHealth {
    /// The time since which there is no path.
    pub outage: Option<Instant>,
    /// Whether every path leads to another logical unit.
    pub is_changed: bool,
    /// Whether there was a path before.
    pub was_up: bool,
}

/// The combined health of all cores: the best one. A core without a completed attempt does not count.
pub fn combined(all: &[CoreHealth], path_loss_timeout: Duration, now: Instant) -> Health {
    let is_over = |since: Instant| now.saturating_duration_since(since) >= path_loss_timeout;
    let says = |c: &&CoreHealth| c.is_changed || c.was_up || c.outage.is_some_and(is_over);
    let all: Vec<&CoreHealth> = all.iter().filter(says).collect();
    if all.iter().any(|c| c.outage.is_none()) {
        return Health::Up;
    }
    if all.iter().any(|c| c.is_changed) {
        return Health::Changed;
    }
    match all.iter().filter_map(|c| c.outage).max() {
        None => Health::Up,
        Some(since) if is_over(since) => Health::Lost(since),
        Some(since) => Health::Holding(since),
    }
}

/// The last published health, and its listeners.
#[derive(Default)]
pub struct HealthMonitor {
    now: Mutex<Health>,
    listeners: Mutex<Vec<flume::Sender<Health>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HealthMonitor {
    /// The current health.
    pub fn now(&self) -> Health {
        *lock(&self.now)
    }

    /// Subscribes to changes.
    pub fn watch(&self) -> flume::Receiver<Health> {
        let (sender, changes) = flume::bounded(CHANGES);
        lock(&self.listeners).push(sender);
        changes
    }

    /// Evaluates the health again. If it changed, notifies the listeners and returns it.
    pub fn update(&self, probe: impl FnOnce() -> Health) -> Option<Health> {
        // The lock is held so that all listeners get changes in the same order.
        let mut now = lock(&self.now);
        let health = probe();
        if *now == health {
            return None;
        }
        *now = health;
        let heard = |l: &flume::Sender<Health>| {
            !matches!(l.try_send(health), Err(flume::TrySendError::Disconnected(_)))
        };
        lock(&self.listeners).retain(heard);
        Some(health)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH_LOSS_TIMEOUT: Duration = Duration::from_secs(8);

    fn ago(now: Instant, s: u64) -> CoreHealth {
        let outage = now.checked_sub(Duration::from_secs(s));
        CoreHealth { outage, is_changed: false, was_up: true }
    }

    #[test]
    fn best_core_counts_and_one_that_begins_says_nothing() {
        let now = Instant::now() + Duration::from_secs(3600);
        let up = CoreHealth { outage: None, is_changed: false, was_up: true };
        let begins = |s| CoreHealth { was_up: false, ..ago(now, s) };
        let changed = |s| CoreHealth { is_changed: true, ..begins(s) };
        let since = |s| now - Duration::from_secs(s);
        for (all, health) in [
            (vec![], Health::Up),
            (vec![begins(1)], Health::Up),
            (vec![begins(9)], Health::Lost(since(9))),
            (vec![begins(1), ago(now, 3)], Health::Holding(since(3))),
            (vec![ago(now, 3), ago(now, 9)], Health::Holding(since(3))),
            (vec![ago(now, 10), ago(now, 9)], Health::Lost(since(9))),
            (vec![ago(now, 9), up], Health::Up),
            (vec![ago(now, 9), changed(1)], Health::Changed),
            (vec![changed(1), up], Health::Up),
        ] {
            assert_eq!(combined(&all, PATH_LOSS_TIMEOUT, now), health, "{all:?}");
        }
    }

    #[test]
    fn listeners_hear_of_changes_and_of_nothing_else() {
        let monitor = HealthMonitor::default();
        let changes = monitor.watch();
        drop(monitor.watch());
        assert_eq!(monitor.update(|| Health::Up), None);
        assert_eq!(monitor.update(|| Health::Changed), Some(Health::Changed));
        assert_eq!(monitor.update(|| Health::Changed), None);
        monitor.update(|| Health::Up);
        assert_eq!(changes.try_iter().collect::<Vec<_>>(), [Health::Changed, Health::Up]);
        assert_eq!((monitor.now(), lock(&monitor.listeners).len()), (Health::Up, 1));
    }
}

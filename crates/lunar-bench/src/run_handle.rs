//! Progress of running jobs, and cancellation.

use crate::outcome::IoCounts;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A handle on running jobs: shows their progress and can end them. Clones share the same state.
#[derive(Clone, Debug, Default)]
pub struct RunHandle(Arc<RunState>);

#[derive(Debug, Default)]
struct RunState {
    /// Commands and bytes, by direction.
    read: [AtomicU64; 2],
    write: [AtomicU64; 2],
    end: AtomicBool,
    measured_from: Mutex<Option<Instant>>,
    /// The time of the last update of the counts.
    updated: Mutex<Option<Instant>>,
    activity: Mutex<String>,
    /// The handle that also receives these counts.
    parent: Option<RunHandle>,
}

impl RunHandle {
    /// Commands and bytes since the handle was created. Sessions update them a few times per second.
    pub fn done(&self) -> (u64, u64) {
        let IoCounts { read_ios, read_bytes, write_ios, write_bytes } = self.counts();
        (read_ios + write_ios, read_bytes + write_bytes)
    }

    /// A handle for a part of this work. It can be ended separately, and its counts are added here, too.
    pub fn child(&self) -> RunHandle {
        RunHandle(Arc::new(RunState { parent: Some(self.clone()), ..RunState::default() }))
    }

    /// The counts by direction.
    pub fn counts(&self) -> IoCounts {
        let load = |counts: &[AtomicU64; 2], n: usize| counts[n].load(Ordering::Relaxed);
        let RunState { read, write, .. } = &*self.0;
        IoCounts {
            read_ios: load(read, 0),
            read_bytes: load(read, 1),
            write_ios: load(write, 0),
            write_bytes: load(write, 1),
        }
    }

    /// The counts, and the time of their last update, which is exact for a single session; None before the
    /// first update.
    pub fn counts_at_update(&self) -> (Option<Instant>, IoCounts) {
        // An update between the two reads makes the counts newer than the time, by less than can be measured.
        (*self.0.updated.lock().unwrap_or_else(PoisonError::into_inner), self.counts())
    }

    /// Ends the running jobs; the results up to now remain valid.
    pub fn end(&self) {
        self.0.end.store(true, Ordering::Relaxed);
    }

    /// Whether the jobs are to end.
    pub fn is_ended(&self) -> bool {
        self.0.end.load(Ordering::Relaxed)
    }

    /// A description of the current activity; empty if there is only one.
    pub fn activity(&self) -> String {
        self.0.activity.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The start of the measured time of the latest job.
    pub fn measured_from(&self) -> Option<Instant> {
        *self.0.measured_from.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_measured_from(&self, at: Instant) {
        *self.0.measured_from.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
    }

    /// Sets the current activity, for progress reports.
    pub fn set_activity(&self, what: impl Into<String>) {
        *self.0.activity.lock().unwrap_or_else(PoisonError::into_inner) = what.into();
    }

    /// Adds the difference of two counts.
    pub(crate) fn add(&self, before: &IoCounts, now: &IoCounts) {
        let add = |count: &AtomicU64, before: u64, now: u64| count.fetch_add(now - before, Ordering::Relaxed);
        let RunState { read, write, .. } = &*self.0;
        add(&read[0], before.read_ios, now.read_ios);
        add(&read[1], before.read_bytes, now.read_bytes);
        add(&write[0], before.write_ios, now.write_ios);
        add(&write[1], before.write_bytes, now.write_bytes);
        *self.0.updated.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        if let Some(parent) = &self.0.parent {
            parent.add(before, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn counts_have_the_time_of_their_update() {
        let (handle, none) = (RunHandle::default(), IoCounts::default());
        assert_eq!(handle.counts_at_update(), (None, none));
        let (begin, share) = (Instant::now(), IoCounts { read_ios: 3, ..none });
        handle.add(&none, &share);
        let end = Instant::now();
        std::thread::sleep(Duration::from_millis(10));
        let (updated, counts) = handle.counts_at_update();
        assert_eq!(counts, share);
        assert!(updated.is_some_and(|updated| (begin..=end).contains(&updated)), "time of the update");
    }

    #[test]
    fn child_adds_to_parent_counts_and_ends_separately() {
        let all = RunHandle::default();
        let [one, other] = [all.child(), all.child()];
        let did = IoCounts { read_ios: 2, read_bytes: 8192, ..IoCounts::default() };
        one.add(&IoCounts::default(), &did);
        other.add(&did, &IoCounts { read_ios: 3, read_bytes: 12288, ..IoCounts::default() });
        assert_eq!((one.done(), other.done(), all.done()), ((2, 8192), (1, 4096), (3, 12288)));
        one.end();
        assert!(one.is_ended() && !other.is_ended() && !all.is_ended());
    }
}

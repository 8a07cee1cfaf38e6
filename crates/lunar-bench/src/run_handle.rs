//! Looking at a job while it runs, and ending it.

use crate::outcome::IoCounts;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A handle on running jobs: how far they are, and the wish that they end. Clones are the same handle.
#[derive(Clone, Debug, Default)]
pub struct RunHandle(Arc<Progress>);

#[derive(Debug, Default)]
struct Progress {
    /// Commands and bytes that were read, and that were written.
    read: [AtomicU64; 2],
    write: [AtomicU64; 2],
    end: AtomicBool,
    measurement_begin: Mutex<Option<Instant>>,
    /// When somebody added to the counts last.
    updated: Mutex<Option<Instant>>,
    activity: Mutex<String>,
    /// What this one counts is counted there too.
    parent: Option<RunHandle>,
}

impl RunHandle {
    /// Commands and bytes since the handle was made. Sessions add to them a few times a second.
    pub fn done(&self) -> (u64, u64) {
        let IoCounts { read_ios, read_bytes, write_ios, write_bytes } = self.counts();
        (read_ios + write_ios, read_bytes + write_bytes)
    }

    /// A handle of its own for a part of what this one is about: it ends by itself, and what is done under it counts
    /// here too.
    pub fn child(&self) -> RunHandle {
        RunHandle(Arc::new(Progress { parent: Some(self.clone()), ..Progress::default() }))
    }

    /// The same by direction.
    pub fn counts(&self) -> IoCounts {
        let load = |counts: &[AtomicU64; 2], n: usize| counts[n].load(Ordering::Relaxed);
        let Progress { read, write, .. } = &*self.0;
        IoCounts {
            read_ios: load(read, 0),
            read_bytes: load(read, 1),
            write_ios: load(write, 0),
            write_bytes: load(write, 1),
        }
    }

    /// The same, and the moment of which it is true where one session runs: none if it has not told anything yet.
    pub fn counts_at_update(&self) -> (Option<Instant>, IoCounts) {
        // What comes between is in the counts too early, by less than can be measured.
        (*self.0.updated.lock().unwrap_or_else(PoisonError::into_inner), self.counts())
    }

    /// Asks what runs to end now; what was measured so far stands.
    pub fn end(&self) {
        self.0.end.store(true, Ordering::Relaxed);
    }

    /// Somebody asked for the end.
    pub fn is_ended(&self) -> bool {
        self.0.end.load(Ordering::Relaxed)
    }

    /// What it does now, for people; empty where there is but one thing to do.
    pub fn activity(&self) -> String {
        self.0.activity.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// When the measured time of the job begins, or began, that was begun last.
    pub fn measurement_begin(&self) -> Option<Instant> {
        *self.0.measurement_begin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_measurement_begin(&self, at: Instant) {
        *self.0.measurement_begin.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
    }

    /// Notes what runs now, for progress reports.
    pub fn set_activity(&self, what: impl Into<String>) {
        *self.0.activity.lock().unwrap_or_else(PoisonError::into_inner) = what.into();
    }

    /// What was done between two moments.
    pub(crate) fn add(&self, before: &IoCounts, now: &IoCounts) {
        let add = |count: &AtomicU64, before: u64, now: u64| count.fetch_add(now - before, Ordering::Relaxed);
        let Progress { read, write, .. } = &*self.0;
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
    fn counts_have_the_time_at_which_they_were_told() {
        let (handle, none) = (RunHandle::default(), IoCounts::default());
        assert_eq!(handle.counts_at_update(), (None, none));
        let (begin, share) = (Instant::now(), IoCounts { read_ios: 3, ..none });
        handle.add(&none, &share);
        let end = Instant::now();
        std::thread::sleep(Duration::from_millis(10));
        let (updated, counts) = handle.counts_at_update();
        assert_eq!(counts, share);
        assert!(updated.is_some_and(|updated| (begin..=end).contains(&updated)), "not when it is asked");
    }

    #[test]
    fn what_a_part_does_counts_for_the_whole_and_its_end_is_its_own() {
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

//! What each core keeps of a logical unit for itself, so that its commands touch one cache line, and none
//! that another core writes to.

use crate::log::{LOG_COUNTERS, LogCounter};
use std::array;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

/// At most so many slots, however many cores there are.
const MAX_SLOTS: usize = 16;

/// One core's part of a logical unit.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct PerCore {
    /// A word for whoever orders the commands of the logical unit; 0 at the beginning.
    pub lock_word: AtomicUsize,
    /// The same on all cores, but while a change ends.
    epoch: AtomicU64,
    counts: [AtomicU64; LOG_COUNTERS],
}

impl PerCore {
    fn new() -> PerCore {
        let counts = array::from_fn(|_| AtomicU64::new(0));
        PerCore { lock_word: AtomicUsize::new(0), epoch: AtomicU64::new(1), counts }
    }

    /// Grows with every change that nexuses must see.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Adds to a log counter.
    #[inline]
    pub fn count(&self, count: LogCounter, by: u64) {
        self.counts[count as usize].fetch_add(by, Ordering::Relaxed);
    }
}

/// The slots of all cores. Close to those of other logical units, and apart from what is seldom looked at.
#[derive(Clone, Debug)]
pub(crate) struct PerCoreSlots(Arc<[PerCore]>);

impl PerCoreSlots {
    pub(crate) fn new() -> PerCoreSlots {
        PerCoreSlots((0..count()).map(|_| PerCore::new()).collect())
    }

    pub(crate) fn all(&self) -> &[PerCore] {
        &self.0
    }

    #[inline]
    pub(crate) fn at(&self, core: CoreIndex) -> &PerCore {
        &self.0[core.0 as usize]
    }

    pub(crate) fn total(&self, count: LogCounter) -> u64 {
        self.0.iter().map(|c| c.counts[count as usize].load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }

    /// Publishes a change to all cores; the caller holds the lock of the state.
    pub(crate) fn next_epoch(&self) {
        self.0.iter().for_each(|c| _ = c.epoch.fetch_add(1, Ordering::SeqCst));
    }
}

/// How many slots a logical unit has: one for each core that the process may run on.
fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(MAX_SLOTS, |n| MAX_SLOTS.min(n.get())))
}

/// Names the part of a core in every logical unit.
#[derive(Clone, Copy, Debug)]
pub struct CoreIndex(u8);

impl CoreIndex {
    /// That of the core which runs this.
    pub fn current() -> CoreIndex {
        thread_local! {
            static CURRENT: Cell<Option<CoreIndex>> = const { Cell::new(None) };
        }
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        CURRENT.with(|current| {
            let core = current
                .get()
                .unwrap_or_else(|| CoreIndex((NEXT.fetch_add(1, Ordering::Relaxed) % count()) as u8));
            current.set(Some(core));
            core
        })
    }
}

//! The part of a logical unit that belongs to one core. A command touches one cache line, which no other core writes.

use crate::log::{LOG_COUNTERS, LogCounter};
use std::array;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

/// Maximum number of slots. With more cores, several share a slot.
const MAX_SLOTS: usize = 16;

/// One core's part of a logical unit.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct PerCore {
    /// A word for the lock that orders the commands of the logical unit; initially 0.
    pub lock_word: AtomicUsize,
    /// The same on all cores, except while a change is published.
    epoch: AtomicU64,
    counts: [AtomicU64; LOG_COUNTERS],
}

impl PerCore {
    fn new() -> PerCore {
        let counts = array::from_fn(|_| AtomicU64::new(0));
        PerCore { lock_word: AtomicUsize::new(0), epoch: AtomicU64::new(1), counts }
    }

    /// A number that increases with every change that nexuses must see.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Adds `by` to a log counter.
    #[inline]
    pub fn count(&self, count: LogCounter, by: u64) {
        self.counts[count as usize].fetch_add(by, Ordering::Relaxed);
    }
}

/// The slots of all cores, in memory apart from rarely used state.
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

    /// Publishes a change to all cores. The caller holds the lock of the state.
    pub(crate) fn next_epoch(&self) {
        self.0.iter().for_each(|c| _ = c.epoch.fetch_add(1, Ordering::SeqCst));
    }
}

/// The number of slots of a logical unit: one for each core on which the process may run, at most [`MAX_SLOTS`].
fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(MAX_SLOTS, |n| MAX_SLOTS.min(n.get())))
}

/// The slot of a core, the same in all logical units.
#[derive(Clone, Copy, Debug)]
pub struct CoreIndex(u8);

impl CoreIndex {
    /// The index of the current core. Each thread counts as a core.
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

//! Writes in flight, so that a read returns each block as it was before or after a write, never a mix.
//!
//! The kernel copies a cached read and a cached write of the same block concurrently, and the read then has a part of
//! each. Blocks belong to regions. A writer counts in each of its regions before and after its system call. A reader
//! checks the counts before and after its own: if a write was in flight or has started, it reads again. After too
//! many attempts, the reader blocks writers in its regions, and then waits only for the kernel.
//!
//! No lock is taken and nothing is allocated while no reader blocks writers.
//!
//! All readers and writers of a medium share one table of counts: cached and direct I/O, zeros and unmap. After two
//! failed tries, a read takes the asynchronous path and blocks writers for 256 KiB at a time. The memory backend
//! locks 64 KiB at a time instead. A router and an NBD client add nothing to the guarantee of their upstream.

use crate::locked;
use event_listener::Event;
use std::ops::Deref;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, fence};
use std::sync::{Arc, Mutex};

/// Bytes of a region.
const REGION: u64 = 16 * 1024;
/// The number of counters; regions this far apart share one.
const COUNTS: u64 = 8192;
/// Checks of a write in flight before a reader gives up spinning: about the time of a small write in memory.
const SPINS: u32 = 32;
/// Neighbouring regions have their counters in different cache lines.
const SPREAD: u64 = 9;

/// Writes of a region, modulo 2^32.
#[derive(Default)]
struct WriteCount {
    begun: AtomicU32,
    ended: AtomicU32,
}

/// The writes in flight of one medium, on all cores.
pub(super) struct InFlightWrites {
    counts: Box<[WriteCount]>,
    /// Readers that block writers, or are about to.
    readers: AtomicU32,
    kept: Mutex<Vec<RegionIndices>>,
    /// Notified when a write or a blocking reader ends.
    moved: Event,
}

/// The regions of a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionIndices {
    first: u64,
    /// At most the number of counters.
    number: u64,
}

impl RegionIndices {
    pub(super) fn of(offset: u64, len: u64) -> RegionIndices {
        let first = offset / REGION;
        let end = offset.saturating_add(len).div_ceil(REGION);
        RegionIndices { first, number: end.saturating_sub(first).min(COUNTS) }
    }

    fn indices(self) -> impl Iterator<Item = usize> {
        (self.first..self.first + self.number).map(|region| (region.wrapping_mul(SPREAD) % COUNTS) as usize)
    }

    /// Whether they share a counter.
    fn meet(self, other: RegionIndices) -> bool {
        let behind = |a: RegionIndices, b: RegionIndices| b.first.wrapping_sub(a.first) % COUNTS < a.number;
        self.number > 0 && other.number > 0 && (behind(self, other) || behind(other, self))
    }
}

/// A write in flight, ended on drop.
pub(super) struct InFlightWrite<W: Deref<Target = InFlightWrites>> {
    in_flight: W,
    regions: RegionIndices,
}

/// Blocks writes in these regions until it is dropped.
pub(super) struct WriteBarrier<'a> {
    in_flight: &'a InFlightWrites,
    regions: RegionIndices,
}

impl Default for InFlightWrites {
    fn default() -> Self {
        InFlightWrites {
            counts: (0..COUNTS).map(|_| WriteCount::default()).collect(),
            readers: AtomicU32::new(0),
            kept: Mutex::default(),
            moved: Event::new(),
        }
    }
}

impl InFlightWrites {
    fn counts(&self, regions: RegionIndices) -> impl Iterator<Item = &WriteCount> {
        regions.indices().map(|at| &self.counts[at])
    }

    /// Starts a write, unless a reader blocks it.
    #[inline]
    pub(super) fn try_write<W: Deref<Target = InFlightWrites>>(
        in_flight: W,
        regions: RegionIndices,
    ) -> Option<InFlightWrite<W>> {
        // Checked before counting, because readers would see the count as a write.
        if in_flight.keeps_out(regions) {
            return None;
        }
        in_flight.counts(regions).for_each(|count| _ = count.begun.fetch_add(1, SeqCst));
        // The written bytes become visible after the count.
        fence(Release);
        let mark = InFlightWrite { in_flight, regions };
        if mark.in_flight.keeps_out(regions) { None } else { Some(mark) }
    }

    /// Starts a write as soon as no reader blocks it.
    pub(super) async fn write(
        in_flight: &Arc<InFlightWrites>,
        regions: RegionIndices,
    ) -> InFlightWrite<Arc<InFlightWrites>> {
        loop {
            if let Some(mark) = InFlightWrites::try_write(in_flight.clone(), regions) {
                return mark;
            }
            let moved = in_flight.moved.listen();
            if let Some(mark) = InFlightWrites::try_write(in_flight.clone(), regions) {
                return mark;
            }
            moved.await;
        }
    }

    #[inline]
    fn keeps_out(&self, regions: RegionIndices) -> bool {
        self.readers.load(SeqCst) != 0 && locked(&self.kept).iter().any(|kept| kept.meet(regions))
    }

    /// The counts before a read; None while a write is in flight.
    #[inline]
    pub(super) fn before(&self, regions: RegionIndices) -> Option<u64> {
        let mut sum = 0;
        for count in self.counts(regions) {
            let ended = count.ended.load(Acquire);
            let begun = count.begun.load(Acquire);
            if begun != ended {
                return None;
            }
            sum += u64::from(begun);
        }
        Some(sum)
    }

    /// As `before`, spinning for a short write on another core.
    #[inline]
    pub(super) fn before_soon(&self, regions: RegionIndices) -> Option<u64> {
        self.before(regions).or_else(|| {
            (0..SPINS).find_map(|_| {
                std::hint::spin_loop();
                self.before(regions)
            })
        })
    }

    /// Whether no write has started since.
    #[inline]
    pub(super) fn is_as_before(&self, regions: RegionIndices, before: u64) -> bool {
        fence(Acquire);
        self.counts(regions).map(|count| u64::from(count.begun.load(Relaxed))).sum::<u64>() == before
    }

    /// Blocks writers, and waits until those in flight have ended.
    pub(super) async fn still(&self, regions: RegionIndices) -> WriteBarrier<'_> {
        locked(&self.kept).push(regions);
        self.readers.fetch_add(1, SeqCst);
        let still = WriteBarrier { in_flight: self, regions };
        loop {
            let moved = self.moved.listen();
            let is_over = |count: &WriteCount| count.begun.load(SeqCst) == count.ended.load(SeqCst);
            if self.counts(regions).all(is_over) {
                return still;
            }
            moved.await;
        }
    }
}

impl<W: Deref<Target = InFlightWrites>> Drop for InFlightWrite<W> {
    #[inline]
    fn drop(&mut self) {
        let in_flight = &*self.in_flight;
        in_flight.counts(self.regions).for_each(|count| _ = count.ended.fetch_add(1, SeqCst));
        if in_flight.readers.load(SeqCst) != 0 {
            in_flight.moved.notify(usize::MAX);
        }
    }
}

impl Drop for WriteBarrier<'_> {
    fn drop(&mut self) {
        let mut kept = locked(&self.in_flight.kept);
        if let Some(at) = kept.iter().position(|kept| *kept == self.regions) {
            kept.swap_remove(at);
        }
        drop(kept);
        self.in_flight.readers.fetch_sub(1, SeqCst);
        self.in_flight.moved.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    const ONE: RegionIndices = RegionIndices { first: 3, number: 1 };

    fn poll<F: Future>(f: Pin<&mut F>) -> Poll<F::Output> {
        f.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn range_has_the_regions_it_touches() {
        for (offset, len, first, number) in [
            (0, REGION, 0, 1),
            (0, 0, 0, 0),
            (REGION - 1, 2, 0, 2),
            (REGION, 512, 1, 1),
            (0, 1 << 60, 0, COUNTS),
            (u64::MAX - 5, 100, u64::MAX / REGION, 1),
        ] {
            assert_eq!(RegionIndices::of(offset, len), RegionIndices { first, number }, "{offset} {len}");
        }
        let all: std::collections::HashSet<_> =
            RegionIndices { first: 5, number: COUNTS }.indices().collect();
        assert_eq!(all.len() as u64, COUNTS, "consecutive regions have separate counts");
    }

    #[test]
    fn regions_meet_where_they_share_a_count() {
        for (a, b, meets) in [
            ((0, 1), (0, 1), true),
            ((0, 2), (1, 1), true),
            ((1, 1), (0, 2), true),
            ((0, 1), (1, 1), false),
            ((0, 1), (COUNTS, 1), true),
            ((COUNTS - 1, 2), (0, 1), true),
            ((0, 0), (0, 1), false),
            ((7, COUNTS), (1 << 40, 1), true),
        ] {
            let [a, b] = [a, b].map(|(first, number)| RegionIndices { first, number });
            let shared = |a: RegionIndices, b: RegionIndices| {
                a.indices().any(|at| b.indices().any(|other| at == other))
            };
            assert_eq!((a.meet(b), shared(a, b)), (meets, meets), "{a:?} {b:?}");
        }
    }

    #[test]
    fn read_during_a_write_is_repeated() {
        let table = InFlightWrites::default();
        let before = table.before(ONE).expect("no write is in flight");
        assert!(table.is_as_before(ONE, before), "no write has started");
        let mark = InFlightWrites::try_write(&table, ONE).expect("no reader blocks it");
        assert!(table.before(ONE).is_none(), "a write is in flight");
        assert!(!table.is_as_before(ONE, before), "a write has started");
        drop(mark);
        assert!(!table.is_as_before(ONE, before), "a write has started and ended");
        let before = table.before(ONE).expect("the write has ended");
        let elsewhere = InFlightWrites::try_write(&table, RegionIndices { first: 4, number: 9 });
        assert!(
            elsewhere.is_some() && table.is_as_before(ONE, before),
            "a write in other regions does not count"
        );
    }

    #[test]
    fn reader_that_blocks_writers_ends_and_unblocks_them() {
        let table = Arc::new(InFlightWrites::default());
        let begun = InFlightWrites::try_write(&*table, ONE).expect("no reader blocks it");
        let mut still = pin!(table.still(ONE));
        assert!(poll(still.as_mut()).is_pending(), "a write is in flight");
        assert!(InFlightWrites::try_write(&*table, ONE).is_none(), "the reader blocks new writes");
        assert!(
            InFlightWrites::try_write(&*table, RegionIndices { first: 4, number: 1 }).is_some(),
            "other regions are not blocked"
        );
        let mut writer = pin!(InFlightWrites::write(&table, ONE));
        assert!(poll(writer.as_mut()).is_pending());
        drop(begun);
        let Poll::Ready(still) = poll(still.as_mut()) else { panic!("the write has ended") };
        assert!(poll(writer.as_mut()).is_pending());
        drop(still);
        assert!(poll(writer.as_mut()).is_ready());
        assert!(table.before(ONE).is_some() && table.readers.load(SeqCst) == 0);
    }

    #[test]
    fn abandoned_reader_blocks_no_writer() {
        let table = InFlightWrites::default();
        let begun = InFlightWrites::try_write(&table, ONE).expect("no reader blocks it");
        {
            let mut still = pin!(table.still(ONE));
            assert!(poll(still.as_mut()).is_pending());
        }
        drop(begun);
        assert!(InFlightWrites::try_write(&table, ONE).is_some());
    }
}

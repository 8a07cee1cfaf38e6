//! Range locks for writes that would undo one another.
//!
//! With O_DIRECT, a write of part of a block reads the block and writes all of it back. A concurrent write of that
//! block would be undone. Writes of whole blocks therefore share a range; a read-modify-write excludes them.

use crate::locked;
use event_listener::Event;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// The locked ranges, about as many as there are writes in flight.
#[derive(Default)]
pub struct RangeLocks {
    held: Mutex<RangeLockTable>,
    freed: Event,
}

#[derive(Default)]
struct RangeLockTable {
    next: u64,
    spans: Vec<LockedRange>,
}

struct LockedRange {
    id: u64,
    bytes: Range<u64>,
    share: RangeAccess,
    holders: u32,
}

/// The access mode of a lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RangeAccess {
    /// Writes of whole blocks, which may overlap.
    Shared,
    /// A read-modify-write, which excludes all other writes.
    Exclusive,
}

/// A locked range. It is unlocked when this and all locks from [`RangeLock::add_holder`] are dropped.
pub struct RangeLock {
    ranges: Arc<RangeLocks>,
    id: u64,
}

impl std::fmt::Debug for RangeLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Hold").field(&self.id).finish()
    }
}

impl RangeLock {
    /// Excludes later writes from the range.
    pub fn make_exclusive(&self) {
        locked(&self.ranges.held).span(self.id).share = RangeAccess::Exclusive;
    }

    /// Adds a holder; the range stays locked until the last holder is dropped.
    #[must_use]
    pub fn add_holder(&self) -> RangeLock {
        locked(&self.ranges.held).span(self.id).holders += 1;
        RangeLock { ranges: self.ranges.clone(), id: self.id }
    }
}

impl RangeLocks {
    /// Waits until no other lock excludes this one.
    pub async fn lock(self: &Arc<Self>, bytes: Range<u64>, share: RangeAccess) -> RangeLock {
        loop {
            if let Some(hold) = self.try_lock(&bytes, share) {
                return hold;
            }
            // Again after listening, so that no release in between is missed.
            let freed = self.freed.listen();
            if let Some(hold) = self.try_lock(&bytes, share) {
                return hold;
            }
            freed.await;
        }
    }

    /// As [`RangeLocks::lock`] without waiting; None while another lock excludes it.
    pub fn try_lock(self: &Arc<Self>, bytes: &Range<u64>, share: RangeAccess) -> Option<RangeLock> {
        let id = locked(&self.held).take(bytes, share)?;
        Some(RangeLock { ranges: self.clone(), id })
    }

    /// The range and mode that a write of these bytes must lock, for blocks of `block_size` bytes: all blocks that it
    /// touches, exclusively if it touches one partly.
    pub fn covering_blocks(bytes: &Range<u64>, block_size: u64) -> (Range<u64>, RangeAccess) {
        let size = block_size.max(1);
        let whole = bytes.start / size * size..bytes.end.div_ceil(size).saturating_mul(size);
        let share = if whole == *bytes { RangeAccess::Shared } else { RangeAccess::Exclusive };
        (whole, share)
    }
}

impl RangeLockTable {
    fn take(&mut self, bytes: &Range<u64>, share: RangeAccess) -> Option<u64> {
        let overlaps = |span: &LockedRange| span.bytes.start < bytes.end && bytes.start < span.bytes.end;
        if self.spans.iter().any(|span| {
            overlaps(span) && (share == RangeAccess::Exclusive || span.share == RangeAccess::Exclusive)
        }) {
            return None;
        }
        self.next += 1;
        self.spans.push(LockedRange { id: self.next, bytes: bytes.clone(), share, holders: 1 });
        Some(self.next)
    }

    fn span(&mut self, id: u64) -> &mut LockedRange {
        self.spans.iter_mut().find(|span| span.id == id).expect("it is held")
    }

    /// Removes a holder; true if it was the last.
    fn release(&mut self, id: u64) -> bool {
        let span = self.span(id);
        span.holders -= 1;
        let is_free = span.holders == 0;
        if is_free {
            self.spans.retain(|span| span.id != id);
        }
        is_free
    }
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        if locked(&self.ranges.held).release(self.id) {
            self.ranges.freed.notify(usize::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_of_partial_blocks_locks_them_exclusively() {
        let held = |bytes, share| (bytes, share);
        assert!(RangeLocks::covering_blocks(&(512..1536), 512) == held(512..1536, RangeAccess::Shared));
        assert!(RangeLocks::covering_blocks(&(513..1536), 512) == held(512..1536, RangeAccess::Exclusive));
        assert!(RangeLocks::covering_blocks(&(512..1535), 512) == held(512..1536, RangeAccess::Exclusive));
        assert!(RangeLocks::covering_blocks(&(7..8), 4096) == held(0..4096, RangeAccess::Exclusive));
    }

    #[test]
    fn whole_blocks_share_and_partial_writes_exclude() {
        let mut held = RangeLockTable::default();
        let first = held.take(&(0..8192), RangeAccess::Shared).expect("free");
        assert!(held.take(&(4096..8192), RangeAccess::Shared).is_some());
        assert!(held.take(&(4096..8192), RangeAccess::Exclusive).is_none());
        assert!(held.take(&(8192..12288), RangeAccess::Exclusive).is_some());
        assert!(held.take(&(8192..12288), RangeAccess::Shared).is_none());
        assert!(held.release(first));
        assert!(held.take(&(0..4096), RangeAccess::Exclusive).is_some());
    }

    #[test]
    fn exclusive_range_blocks_later_writers() {
        let ranges = Arc::new(RangeLocks::default());
        let [one, other] =
            [(); 2].map(|()| ranges.try_lock(&(0..512), RangeAccess::Shared).expect("it is shared"));
        one.make_exclusive();
        drop(other);
        assert!(ranges.try_lock(&(0..512), RangeAccess::Shared).is_none());
        assert!(ranges.try_lock(&(512..1024), RangeAccess::Shared).is_some());
        drop(one);
        assert!(ranges.try_lock(&(0..512), RangeAccess::Shared).is_some());
    }

    #[test]
    fn range_is_free_when_its_last_holder_has_gone() {
        let ranges = Arc::new(RangeLocks::default());
        let one = ranges.try_lock(&(0..512), RangeAccess::Exclusive).expect("free");
        let other = one.add_holder();
        drop(one);
        assert!(ranges.try_lock(&(0..512), RangeAccess::Shared).is_none());
        drop(other);
        assert!(ranges.try_lock(&(0..512), RangeAccess::Shared).is_some());
    }
}

//! Who may change which bytes, where writes would undo one another.
//!
//! Past the page cache, a write narrower than a block reads the block and writes it back whole. Nobody else
//! may write that block in between, or their bytes would be undone. Writes of whole blocks share; one that
//! reads and writes back is alone.

use crate::locked;
use event_listener::Event;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// The ranges that are held now, about as many as there are writes in flight.
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

/// What a holder lets others hold of its range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RangeAccess {
    /// What it writes are whole blocks: others may write whole blocks too.
    Blocks,
    /// It writes back what it has read: nobody else may write.
    Nothing,
}

/// A range that is held until this is dropped, and all that [`RangeLock::again`] gave.
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
    /// From now on nobody else may begin to write here.
    pub fn bar(&self) {
        locked(&self.ranges.held).span(self.id).share = RangeAccess::Nothing;
    }

    /// One more holder of the same range: it stays held until the last of them has gone.
    #[must_use]
    pub fn again(&self) -> RangeLock {
        locked(&self.ranges.held).span(self.id).holders += 1;
        RangeLock { ranges: self.ranges.clone(), id: self.id }
    }
}

impl RangeLocks {
    /// Waits until no other holder of these bytes forbids it.
    pub async fn hold(self: &Arc<Self>, bytes: Range<u64>, share: RangeAccess) -> RangeLock {
        loop {
            if let Some(hold) = self.try_hold(&bytes, share) {
                return hold;
            }
            // Once more after listening: a release between the look and the wait must not be missed.
            let freed = self.freed.listen();
            if let Some(hold) = self.try_hold(&bytes, share) {
                return hold;
            }
            freed.await;
        }
    }

    /// The same at once; None while another holder forbids it.
    pub fn try_hold(self: &Arc<Self>, bytes: &Range<u64>, share: RangeAccess) -> Option<RangeLock> {
        let id = locked(&self.held).take(bytes, share)?;
        Some(RangeLock { ranges: self.clone(), id })
    }

    /// The range that a write of these bytes has to hold on a medium with blocks of `block_size` bytes: all blocks
    /// that it touches, alone if it touches some of them in part.
    pub fn around(bytes: &Range<u64>, block_size: u64) -> (Range<u64>, RangeAccess) {
        let size = block_size.max(1);
        let whole = bytes.start / size * size..bytes.end.div_ceil(size).saturating_mul(size);
        let share = if whole == *bytes { RangeAccess::Blocks } else { RangeAccess::Nothing };
        (whole, share)
    }
}

impl RangeLockTable {
    fn take(&mut self, bytes: &Range<u64>, share: RangeAccess) -> Option<u64> {
        let overlaps = |span: &LockedRange| span.bytes.start < bytes.end && bytes.start < span.bytes.end;
        if self.spans.iter().any(|span| {
            overlaps(span) && (share == RangeAccess::Nothing || span.share == RangeAccess::Nothing)
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

    /// True if that was the last holder.
    fn let_go(&mut self, id: u64) -> bool {
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
        if locked(&self.ranges.held).let_go(self.id) {
            self.ranges.freed.notify(usize::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_of_parts_holds_their_blocks_alone() {
        let held = |bytes, share| (bytes, share);
        assert!(RangeLocks::around(&(512..1536), 512) == held(512..1536, RangeAccess::Blocks));
        assert!(RangeLocks::around(&(513..1536), 512) == held(512..1536, RangeAccess::Nothing));
        assert!(RangeLocks::around(&(512..1535), 512) == held(512..1536, RangeAccess::Nothing));
        assert!(RangeLocks::around(&(7..8), 4096) == held(0..4096, RangeAccess::Nothing));
    }

    #[test]
    fn whole_blocks_share_and_narrow_writes_are_alone() {
        let mut held = RangeLockTable::default();
        let first = held.take(&(0..8192), RangeAccess::Blocks).expect("free");
        assert!(held.take(&(4096..8192), RangeAccess::Blocks).is_some());
        assert!(held.take(&(4096..8192), RangeAccess::Nothing).is_none());
        assert!(held.take(&(8192..12288), RangeAccess::Nothing).is_some());
        assert!(held.take(&(8192..12288), RangeAccess::Blocks).is_none());
        assert!(held.let_go(first));
        assert!(held.take(&(0..4096), RangeAccess::Nothing).is_some());
    }

    #[test]
    fn who_bars_a_range_keeps_later_writers_off() {
        let ranges = Arc::new(RangeLocks::default());
        let [one, other] =
            [(); 2].map(|()| ranges.try_hold(&(0..512), RangeAccess::Blocks).expect("it is shared"));
        one.bar();
        drop(other);
        assert!(ranges.try_hold(&(0..512), RangeAccess::Blocks).is_none());
        assert!(ranges.try_hold(&(512..1024), RangeAccess::Blocks).is_some());
        drop(one);
        assert!(ranges.try_hold(&(0..512), RangeAccess::Blocks).is_some());
    }

    #[test]
    fn a_range_is_free_when_its_last_holder_has_gone() {
        let ranges = Arc::new(RangeLocks::default());
        let one = ranges.try_hold(&(0..512), RangeAccess::Nothing).expect("free");
        let other = one.again();
        drop(one);
        assert!(ranges.try_hold(&(0..512), RangeAccess::Blocks).is_none());
        drop(other);
        assert!(ranges.try_hold(&(0..512), RangeAccess::Blocks).is_some());
    }
}

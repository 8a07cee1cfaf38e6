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
pub struct Ranges {
    held: Mutex<Held>,
    freed: Event,
}

#[derive(Default)]
struct Held {
    next: u64,
    spans: Vec<Span>,
}

struct Span {
    id: u64,
    bytes: Range<u64>,
    share: Share,
    holders: u32,
}

/// What a holder lets others hold of its range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// What it writes are whole blocks: others may write whole blocks too.
    Blocks,
    /// It writes back what it has read: nobody else may write.
    Nothing,
}

/// A range that is held until this is dropped, and all that [`Hold::again`] gave.
pub struct Hold {
    ranges: Arc<Ranges>,
    id: u64,
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Hold").field(&self.id).finish()
    }
}

impl Hold {
    /// From now on nobody else may begin to write here.
    pub fn bar(&self) {
        locked(&self.ranges.held).span(self.id).share = Share::Nothing;
    }

    /// One more holder of the same range: it stays held until the last of them has gone.
    #[must_use]
    pub fn again(&self) -> Hold {
        locked(&self.ranges.held).span(self.id).holders += 1;
        Hold { ranges: self.ranges.clone(), id: self.id }
    }
}

impl Ranges {
    /// Waits until no other holder of these bytes forbids it.
    pub async fn hold(self: &Arc<Self>, bytes: Range<u64>, share: Share) -> Hold {
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
    pub fn try_hold(self: &Arc<Self>, bytes: &Range<u64>, share: Share) -> Option<Hold> {
        let id = locked(&self.held).take(bytes, share)?;
        Some(Hold { ranges: self.clone(), id })
    }

    /// The range that a write of these bytes has to hold on a medium with blocks of `block_size` bytes: all blocks
    /// that it touches, alone if it touches some of them in part.
    pub fn around(bytes: &Range<u64>, block_size: u64) -> (Range<u64>, Share) {
        let size = block_size.max(1);
        let whole = bytes.start / size * size..bytes.end.div_ceil(size).saturating_mul(size);
        let share = if whole == *bytes { Share::Blocks } else { Share::Nothing };
        (whole, share)
    }
}

impl Held {
    fn take(&mut self, bytes: &Range<u64>, share: Share) -> Option<u64> {
        let overlaps = |span: &Span| span.bytes.start < bytes.end && bytes.start < span.bytes.end;
        if self
            .spans
            .iter()
            .any(|span| overlaps(span) && (share == Share::Nothing || span.share == Share::Nothing))
        {
            return None;
        }
        self.next += 1;
        self.spans.push(Span { id: self.next, bytes: bytes.clone(), share, holders: 1 });
        Some(self.next)
    }

    fn span(&mut self, id: u64) -> &mut Span {
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

impl Drop for Hold {
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
        assert!(Ranges::around(&(512..1536), 512) == held(512..1536, Share::Blocks));
        assert!(Ranges::around(&(513..1536), 512) == held(512..1536, Share::Nothing));
        assert!(Ranges::around(&(512..1535), 512) == held(512..1536, Share::Nothing));
        assert!(Ranges::around(&(7..8), 4096) == held(0..4096, Share::Nothing));
    }

    #[test]
    fn whole_blocks_share_and_narrow_writes_are_alone() {
        let mut held = Held::default();
        let first = held.take(&(0..8192), Share::Blocks).expect("free");
        assert!(held.take(&(4096..8192), Share::Blocks).is_some());
        assert!(held.take(&(4096..8192), Share::Nothing).is_none());
        assert!(held.take(&(8192..12288), Share::Nothing).is_some());
        assert!(held.take(&(8192..12288), Share::Blocks).is_none());
        assert!(held.let_go(first));
        assert!(held.take(&(0..4096), Share::Nothing).is_some());
    }

    #[test]
    fn who_bars_a_range_keeps_later_writers_off() {
        let ranges = Arc::new(Ranges::default());
        let [one, other] = [(); 2].map(|()| ranges.try_hold(&(0..512), Share::Blocks).expect("it is shared"));
        one.bar();
        drop(other);
        assert!(ranges.try_hold(&(0..512), Share::Blocks).is_none());
        assert!(ranges.try_hold(&(512..1024), Share::Blocks).is_some());
        drop(one);
        assert!(ranges.try_hold(&(0..512), Share::Blocks).is_some());
    }

    #[test]
    fn a_range_is_free_when_its_last_holder_has_gone() {
        let ranges = Arc::new(Ranges::default());
        let one = ranges.try_hold(&(0..512), Share::Nothing).expect("free");
        let other = one.again();
        drop(one);
        assert!(ranges.try_hold(&(0..512), Share::Blocks).is_none());
        drop(other);
        assert!(ranges.try_hold(&(0..512), Share::Blocks).is_some());
    }
}

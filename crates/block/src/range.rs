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
}

/// What a holder lets others hold of its range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// What it writes are whole blocks: others may write whole blocks too.
    Blocks,
    /// It writes back what it has read: nobody else may write.
    Nothing,
}

/// A range that is held until this is dropped.
pub struct Hold {
    ranges: Arc<Ranges>,
    id: u64,
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
        self.spans.push(Span { id: self.next, bytes: bytes.clone(), share });
        Some(self.next)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        locked(&self.ranges.held).spans.retain(|span| span.id != self.id);
        self.ranges.freed.notify(usize::MAX);
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
        held.spans.retain(|span| span.id != first);
        assert!(held.take(&(0..4096), Share::Nothing).is_some());
    }
}

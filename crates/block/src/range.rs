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
pub(crate) struct Ranges {
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
pub(crate) enum Share {
    /// What it writes are whole blocks: others may write whole blocks too.
    Blocks,
    /// It writes back what it has read: nobody else may write.
    Nothing,
}

/// A range that is held until this is dropped.
pub(crate) struct Hold {
    ranges: Arc<Ranges>,
    id: u64,
}

impl Ranges {
    /// Waits until no other holder of these bytes forbids it.
    pub(crate) async fn hold(self: &Arc<Self>, bytes: Range<u64>, share: Share) -> Hold {
        loop {
            // Listen first: a release between the look and the wait must not be missed.
            let freed = self.freed.listen();
            if let Some(id) = locked(&self.held).take(&bytes, share) {
                return Hold { ranges: self.clone(), id };
            }
            freed.await;
        }
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

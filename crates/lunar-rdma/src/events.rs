//! Events of a connection, in batches.

use lunar_runtime::Buf;
use std::io;
use std::ops::Range;

/// The number of bytes whose memory an empty batch keeps.
const KEEP: usize = 16 << 10;

/// An event of a connection.
#[derive(Debug)]
pub enum EndpointEvent {
    /// A message: its range in [`EndpointEvents::bytes`], and the local steering tag that it invalidated.
    Message(Range<usize>, Option<u32>),
    /// A completed RDMA Read: its id, its buffer, and its result.
    Read(u64, Buf, io::Result<()>),
    /// The connection has ended. A graceful end has no reason.
    End(Option<io::Error>),
}

/// A batch of events, in order. The consumer clears it to reuse its memory.
#[derive(Debug, Default)]
pub struct EndpointEvents {
    /// The events.
    pub list: Vec<EndpointEvent>,
    /// The bytes of the messages, consecutively.
    pub bytes: Vec<u8>,
}

impl EndpointEvents {
    /// Adds a message.
    pub fn message(&mut self, message: &[u8], invalidated: Option<u32>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(message);
        self.list.push(EndpointEvent::Message(start..self.bytes.len(), invalidated));
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Clears the batch. Large memory is freed when a later batch does not need it.
    pub fn clear(&mut self) {
        let used = self.bytes.len();
        self.list.clear();
        self.bytes.clear();
        if used < self.bytes.capacity() / 4 {
            self.bytes.shrink_to(KEEP);
            self.list.shrink_to(KEEP / size_of::<EndpointEvent>());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_is_forgotten_when_little_comes() {
        let mut events = EndpointEvents::default();
        for _ in 0..2 {
            events.message(&[1; 100_000], None);
            events.clear();
            assert!(events.bytes.capacity() >= 100_000, "the next batch may need it");
        }
        (0..1000).for_each(|_| events.list.push(EndpointEvent::End(None)));
        events.clear();
        assert!(events.is_empty() && events.bytes.capacity() <= KEEP);
        let kept = events.list.capacity();
        assert!((1..1000).contains(&kept), "{kept}");
        events.message(&[1; 48], None);
        events.list.drain(..);
        events.clear();
        assert_eq!(events.list.capacity(), kept, "the memory is kept for the next batch");
    }
}

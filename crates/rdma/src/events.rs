//! What comes out of a connection, in batches.

use net::Buf;
use std::io;
use std::ops::Range;

/// Something has come.
#[derive(Debug)]
pub enum Event {
    /// A message: where it lies in [`Events::bytes`], and the steering tag of ours that it ended.
    Message(Range<usize>, Option<u32>),
    /// An RDMA Read has ended: its number, its buffer, and whether the data is there.
    Read(u64, Buf, io::Result<()>),
    /// The connection is over. An orderly end has no reason.
    End(Option<io::Error>),
}

/// What has come, in order. It is emptied by who takes it, and its memory used again.
#[derive(Debug, Default)]
pub struct Events {
    /// What has come.
    pub list: Vec<Event>,
    /// The messages, one behind the other.
    pub bytes: Vec<u8>,
}

impl Events {
    /// Adds a message.
    pub fn message(&mut self, message: &[u8], invalidated: Option<u32>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(message);
        self.list.push(Event::Message(start..self.bytes.len(), invalidated));
    }

    /// Nothing has come.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Forgets what was taken.
    pub fn clear(&mut self) {
        self.list.clear();
        self.bytes.clear();
    }
}

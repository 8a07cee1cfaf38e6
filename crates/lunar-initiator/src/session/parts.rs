//! The parts of a read whose owner takes data while the rest arrives.

use lunar_runtime::Buf;
use std::collections::VecDeque;

/// The least bytes of the first part, and of the others. The first one is short, so that the owner gets it early.
const FIRST: usize = 32 << 10;
const OTHER: usize = 256 << 10;

/// The parts of a read.
#[derive(Debug, Default)]
pub struct Parts {
    /// The number of bytes that were split off the front of the buffer. If the command is sent again, these bytes are
    /// ignored.
    split: usize,
    /// The parts that the owner has not taken yet.
    ready: VecDeque<Buf>,
}

impl Parts {
    /// The number of bytes that were split off.
    pub fn split(&self) -> usize {
        self.split
    }

    /// Takes the next part.
    pub fn take(&mut self) -> Option<Buf> {
        self.ready.pop_front()
    }

    /// The number of filled bytes of which the next part is split off.
    pub fn least(&self) -> usize {
        if self.split == 0 { FIRST } else { OTHER }
    }

    /// Splits off a part of a buffer of which `filled` bytes have arrived. At least one byte stays, so that the
    /// response has data even if no more arrive: the last Data-In is final.
    pub fn split_off(&mut self, buf: &mut Buf, filled: usize) {
        let part = buf.split_front(filled - 1);
        self.split += part.len();
        self.ready.push_back(part);
    }
}

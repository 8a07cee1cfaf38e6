//! What waits to be sent on a connection, and its way into one vectored send.

use crate::{Buf, Stream};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;

/// The longest payload of zeros in bytes.
pub const MAX_ZEROS: usize = 1 << 20;
static ZEROS: [u8; MAX_ZEROS] = [0; MAX_ZEROS];

/// The longest head and tail of a message in bytes.
const MAX_HEAD: usize = 52;
const MAX_TAIL: usize = 8;

/// Up to so many messages are sent without an allocation.
const FEW: usize = 4;

/// Slices in one send: the kernel's limit.
const MAX_SLICES: usize = 1024;

/// The data of a message to send.
pub enum Payload {
    /// None.
    Empty,
    /// So many zeros, at most [`MAX_ZEROS`].
    Zeros(usize),
    /// Bytes of ours.
    Bytes(Vec<u8>),
    /// A buffer of which the first bytes count.
    Buf(Buf, usize),
    /// A part of a buffer that several messages share: start and length.
    Part(Rc<Buf>, usize, usize),
}

impl Payload {
    /// The bytes that are to be sent.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Payload::Empty => &[],
            Payload::Zeros(n) => &ZEROS[..*n],
            Payload::Bytes(b) => b,
            Payload::Buf(b, n) => &b[..*n],
            Payload::Part(b, at, n) => &b[*at..at + n],
        }
    }
}

struct Entry {
    head: [u8; MAX_HEAD],
    head_len: u8,
    tail_len: u8,
    tail: [u8; MAX_TAIL],
    payload: Payload,
}

impl Entry {
    fn len(&self) -> usize {
        self.head_len as usize + self.payload.bytes().len() + self.tail_len as usize
    }
}

/// The queue of messages to send.
#[derive(Default)]
pub struct Out {
    queue: VecDeque<Entry>,
    /// Bytes of the first entry that have left.
    sent: usize,
    /// Bytes that wait, payload included.
    waiting: usize,
    /// Bytes have left since this was looked at last.
    moved: bool,
}

impl Out {
    /// Appends a message: its head, its payload, and what follows the payload.
    ///
    /// # Panics
    /// When the head has more than 52 bytes, or the tail more than 8.
    #[inline]
    pub fn push(&mut self, head: &[u8], payload: Payload, tail: &[u8]) {
        let mut entry = Entry {
            head: [0; MAX_HEAD],
            head_len: head.len() as u8,
            tail_len: tail.len() as u8,
            tail: [0; MAX_TAIL],
            payload,
        };
        entry.head[..head.len()].copy_from_slice(head);
        entry.tail[..tail.len()].copy_from_slice(tail);
        self.waiting += entry.len();
        self.queue.push_back(entry);
    }

    /// Bytes that wait, and what holds them.
    pub fn waiting(&self) -> usize {
        self.waiting + self.queue.len() * size_of::<Entry>()
    }

    /// Sends until all has left (true) or the socket takes no more (false).
    pub fn flush(&mut self, stream: &Stream) -> io::Result<bool> {
        while !self.queue.is_empty() {
            let sent = match self.single() {
                Some(bytes) => stream.send_bytes(bytes)?,
                None if self.queue.len() <= FEW => self.send_few(stream)?,
                None => stream.send(&self.slices())?,
            };
            let Some(sent) = sent else { return Ok(false) };
            self.advance(sent);
        }
        Ok(true)
    }

    /// The head that waits alone: the answer of a write at depth 1 needs no vector.
    fn single(&self) -> Option<&[u8]> {
        match (self.queue.len(), self.queue.front()?) {
            (1, e) if e.payload.bytes().is_empty() => Some(&e.head[self.sent..e.head_len as usize]),
            _ => None,
        }
    }

    /// The same as `slices`, without an allocation.
    fn send_few(&self, stream: &Stream) -> io::Result<Option<usize>> {
        let mut slices = [IoSlice::new(&[]); 3 * FEW];
        let mut n = 0;
        self.each_part(|part| {
            slices[n] = IoSlice::new(part);
            n += 1;
            n < 3 * FEW
        });
        stream.send(&slices[..n])
    }

    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity((self.queue.len() * 2 + 2).min(MAX_SLICES));
        self.each_part(|part| {
            slices.push(IoSlice::new(part));
            slices.len() < MAX_SLICES
        });
        slices
    }

    /// Shows what waits, piece by piece, until `take` says that it is enough.
    #[inline]
    fn each_part<'a>(&'a self, mut take: impl FnMut(&'a [u8]) -> bool) {
        let mut skip = self.sent;
        for e in &self.queue {
            for part in [&e.head[..e.head_len as usize], e.payload.bytes(), &e.tail[..e.tail_len as usize]] {
                let cut = skip.min(part.len());
                skip -= cut;
                if cut < part.len() && !take(&part[cut..]) {
                    return;
                }
            }
        }
    }

    /// All that waits.
    fn bytes(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.waiting);
        self.each_part(|part| {
            all.extend_from_slice(part);
            true
        });
        all
    }

    /// Whether bytes have left since the last call: the peer takes what it gets.
    pub fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// Takes all that waits, as it would have been sent. For tests and fuzzers.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        let all = self.bytes();
        self.advance(all.len());
        all
    }

    fn advance(&mut self, sent: usize) {
        self.moved |= sent > 0;
        self.waiting -= sent;
        let mut rest = self.sent + sent;
        while let Some(first) = self.queue.front() {
            let len = first.len();
            if rest < len {
                break;
            }
            rest -= len;
            self.queue.pop_front();
        }
        self.sent = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_may_stop_at_any_byte() {
        let mut whole = Out::default();
        let fill = |out: &mut Out| {
            out.push(&[1; 48], Payload::Zeros(6), &[0; 2]);
            out.push(&[2; 52], Payload::Empty, &[]);
            out.push(&[3; 16], Payload::Bytes(vec![9; 9]), &[4; 7]);
        };
        fill(&mut whole);
        let all = whole.bytes();
        for cut in 0..=all.len() {
            let mut out = Out::default();
            fill(&mut out);
            out.advance(cut);
            assert_eq!(out.bytes(), all[cut..], "after {cut} bytes");
            assert_eq!(out.waiting, all.len() - cut);
        }
    }
}

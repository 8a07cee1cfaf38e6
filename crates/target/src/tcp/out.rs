//! What waits to be sent on a connection, and its way into one vectored send.

use super::digest::crc32c;
use net::{Buf, Stream};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;
use wire::iscsi::{Bhs, padded};

/// The longest payload of zeros, and so the longest Data-In segment.
pub const MAX_SEGMENT: usize = 1 << 20;
static ZEROS: [u8; MAX_SEGMENT] = [0; MAX_SEGMENT];

/// Up to so many PDUs are sent without an allocation.
const FEW: usize = 4;

/// Slices in one send: the kernel's limit.
const MAX_SLICES: usize = 1024;

/// Bytes of frames whose memory a connection keeps when nothing waits.
const KEEP: usize = 64 << 10;

/// The data segment of a PDU to send.
pub enum Payload {
    /// None.
    Empty,
    /// So many zeros, at most [`MAX_SEGMENT`].
    Zeros(usize),
    /// Bytes of ours.
    Bytes(Vec<u8>),
    /// A buffer of which the first bytes count.
    Buf(Buf, usize),
    /// A part of a buffer that several PDUs share: start and length.
    Part(Rc<Buf>, usize, usize),
}

impl Payload {
    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Payload::Empty => &[],
            Payload::Zeros(n) => &ZEROS[..*n],
            Payload::Bytes(b) => b,
            Payload::Buf(b, n) => &b[..*n],
            Payload::Part(b, at, n) => &b[*at..at + n],
        }
    }
}

/// Which digests a connection uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// After the header.
    pub header: bool,
    /// After the data.
    pub data: bool,
}

impl Digests {
    /// Bytes after the header.
    pub fn header_len(self) -> usize {
        if self.header { 4 } else { 0 }
    }

    /// Bytes after a data segment of `len` bytes and its padding.
    pub fn data_len(self, len: usize) -> usize {
        if self.data && len > 0 { 4 } else { 0 }
    }
}

struct Entry {
    /// Bytes before and after the payload.
    head_len: u8,
    tail_len: u8,
    payload: Payload,
}

impl Entry {
    fn frame_len(&self) -> usize {
        self.head_len as usize + self.tail_len as usize
    }

    fn len(&self) -> usize {
        self.frame_len() + self.payload.bytes().len()
    }
}

/// The queue of PDUs to send.
#[derive(Default)]
pub struct Out {
    queue: VecDeque<Entry>,
    /// What stands around the payloads: header and its digest, padding and digest of the data, PDU after PDU.
    /// In one piece, so that answers without data leave as one.
    frames: Vec<u8>,
    /// Bytes of the first entry that have left.
    sent: usize,
    /// Bytes that wait, payload included.
    waiting: usize,
    /// Bytes have left since this was looked at last.
    moved: bool,
}

impl Out {
    /// Appends a PDU; its DataSegmentLength, padding and digests are added here.
    #[inline]
    pub fn push(&mut self, mut header: Bhs, payload: Payload, digests: Digests) {
        let data = payload.bytes();
        header.set_data_len(data.len());
        let begin = self.frames.len();
        self.frames.extend_from_slice(&header.0);
        if digests.header {
            self.frames.extend_from_slice(&crc32c(&[&header.0]).to_le_bytes());
        }
        let middle = self.frames.len();
        let padding = &[0; 3][..padded(data.len()) - data.len()];
        self.frames.extend_from_slice(padding);
        if digests.data && !data.is_empty() {
            self.frames.extend_from_slice(&crc32c(&[data, padding]).to_le_bytes());
        }
        self.waiting += self.frames.len() - begin + data.len();
        let (head_len, tail_len) = ((middle - begin) as u8, (self.frames.len() - middle) as u8);
        self.queue.push_back(Entry { head_len, tail_len, payload });
    }

    /// Bytes that wait, and what holds them.
    pub fn waiting(&self) -> usize {
        self.waiting + self.queue.len() * size_of::<Entry>()
    }

    /// Sends until all has left (true) or the socket takes no more (false).
    pub fn flush(&mut self, stream: &Stream) -> io::Result<bool> {
        while !self.queue.is_empty() {
            let sent = match self.queue.len() <= FEW {
                true => self.send_few(stream)?,
                false => stream.send(&self.slices())?,
            };
            let Some(sent) = sent else { return Ok(false) };
            self.advance(sent);
        }
        Ok(true)
    }

    /// The same as `slices`, without an allocation.
    fn send_few(&self, stream: &Stream) -> io::Result<Option<usize>> {
        let mut slices = [IoSlice::new(&[]); 2 * FEW + 1];
        let mut n = 0;
        self.each_part(|part| {
            slices[n] = IoSlice::new(part);
            n += 1;
            n < 2 * FEW + 1
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
        let mut show = |part: &'a [u8]| {
            let cut = skip.min(part.len());
            skip -= cut;
            cut == part.len() || take(&part[cut..])
        };
        // Of the frames: what is shown, and what goes with it.
        let (mut shown, mut end) = (0, 0);
        for e in &self.queue {
            end += e.head_len as usize;
            let data = e.payload.bytes();
            if !data.is_empty() {
                if !show(&self.frames[shown..end]) || !show(data) {
                    return;
                }
                shown = end;
            }
            end += e.tail_len as usize;
        }
        show(&self.frames[shown..end]);
    }

    /// Whether bytes have left since the last call: the peer takes what it gets.
    pub fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    fn advance(&mut self, sent: usize) {
        self.moved |= sent > 0;
        if sent == self.waiting {
            return self.emptied();
        }
        self.waiting -= sent;
        let (mut rest, mut gone) = (self.sent + sent, 0);
        while let Some(first) = self.queue.front()
            && first.len() <= rest
        {
            rest -= first.len();
            gone += first.frame_len();
            self.queue.pop_front();
        }
        self.frames.drain(..gone);
        self.sent = rest;
    }

    /// All has left. Much memory is given back: this connection may be idle from now on.
    fn emptied(&mut self) {
        if self.frames.capacity() > KEEP {
            *self = Out { moved: self.moved, ..Out::default() };
        }
        self.queue.clear();
        self.frames.clear();
        (self.sent, self.waiting) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(out: &Out) -> Vec<u8> {
        out.slices().iter().flat_map(|s| s.to_vec()).collect()
    }

    #[test]
    fn padding_and_digests_follow_the_data() {
        let mut out = Out::default();
        let both = Digests { header: true, data: true };
        out.push(Bhs::new(0x20), Payload::Bytes(vec![1, 2, 3, 4, 5]), both);
        let b = bytes(&out);
        assert_eq!(b.len(), 48 + 4 + 8 + 4);
        assert_eq!((b[7], &b[52..60]), (5, &[1, 2, 3, 4, 5, 0, 0, 0][..]));
        assert_eq!(b[48..52], crc32c(&[&b[..48]]).to_le_bytes());
        assert_eq!(b[60..], crc32c(&[&b[52..60]]).to_le_bytes());
    }

    #[test]
    fn a_send_may_stop_at_any_byte() {
        let mut whole = Out::default();
        let fill = |out: &mut Out| {
            out.push(Bhs::new(0x25), Payload::Zeros(6), Digests::default());
            out.push(Bhs::new(0x21), Payload::Empty, Digests::default());
            out.push(Bhs::new(0x25), Payload::Bytes(vec![9; 9]), Digests { header: false, data: true });
        };
        fill(&mut whole);
        let all = bytes(&whole);
        for (first, second) in (0..=all.len()).flat_map(|a| (a..=all.len()).map(move |b| (a, b))) {
            let mut out = Out::default();
            fill(&mut out);
            out.advance(first);
            out.advance(second - first);
            assert_eq!(bytes(&out), all[second..], "after {first} and {second} bytes");
            assert_eq!(out.waiting, all.len() - second);
            fill(&mut out);
            assert_eq!(bytes(&out), [&all[second..], &all].concat(), "and as much again");
        }
    }

    #[test]
    fn answers_without_data_leave_in_one_piece() {
        let mut out = Out::default();
        for _ in 0..3 {
            out.push(Bhs::new(0x21), Payload::Empty, Digests { header: true, data: true });
        }
        assert_eq!(out.slices().len(), 1);
        out.push(Bhs::new(0x25), Payload::Bytes(vec![7; 5]), Digests::default());
        out.push(Bhs::new(0x21), Payload::Empty, Digests::default());
        assert_eq!(out.slices().iter().map(|s| s.len()).collect::<Vec<_>>(), [4 * 48 + 12, 5, 3 + 48]);
    }
}

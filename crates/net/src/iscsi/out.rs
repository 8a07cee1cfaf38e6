//! What waits to be sent on a connection, and its way into one vectored send.

use super::digest::crc32c;
use crate::{Buf, Stream};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;
use wire::iscsi::{BHS_LEN, Bhs, padded};

/// The longest payload of zeros, and so the longest Data-In segment.
pub const MAX_SEGMENT: usize = 1 << 20;
static ZEROS: [u8; MAX_SEGMENT] = [0; MAX_SEGMENT];

/// Up to so many PDUs are sent without an allocation.
const FEW: usize = 4;

/// Slices in one send: the kernel's limit.
const MAX_SLICES: usize = 1024;

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
    head: [u8; BHS_LEN + 4],
    head_len: u8,
    tail_len: u8,
    tail: [u8; 8],
    payload: Payload,
}

impl Entry {
    fn len(&self) -> usize {
        self.head_len as usize + self.payload.bytes().len() + self.tail_len as usize
    }
}

/// The queue of PDUs to send.
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
    /// Appends a PDU; its DataSegmentLength, padding and digests are added here.
    #[inline]
    pub fn push(&mut self, mut header: Bhs, payload: Payload, digests: Digests) {
        let len = payload.bytes().len();
        header.set_data_len(len);
        let mut head = [0; BHS_LEN + 4];
        head[..BHS_LEN].copy_from_slice(&header.0);
        if digests.header {
            head[BHS_LEN..].copy_from_slice(&crc32c(&[&header.0]).to_le_bytes());
        }
        let pad = padded(len) - len;
        let mut tail = [0; 8];
        if digests.data && len > 0 {
            let crc = crc32c(&[payload.bytes(), &tail[..pad]]);
            tail[pad..pad + 4].copy_from_slice(&crc.to_le_bytes());
        }
        let (head_len, tail_len) =
            ((BHS_LEN + digests.header_len()) as u8, (pad + digests.data_len(len)) as u8);
        let entry = Entry { head, head_len, tail_len, tail, payload };
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

    /// The header that waits alone: the answer of a write at depth 1 needs no vector.
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

    /// Whether bytes have left since the last call: the peer takes what it gets.
    pub fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
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
        for cut in 0..=all.len() {
            let mut out = Out::default();
            fill(&mut out);
            out.advance(cut);
            assert_eq!(bytes(&out), all[cut..], "after {cut} bytes");
            assert_eq!(out.waiting, all.len() - cut);
        }
    }
}

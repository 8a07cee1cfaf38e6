//! The send queue of PDUs, which adds padding and digests.

use super::digest::crc32c;
use crate::piped_bytes::PipedPart;
use crate::{Stream, send_queue};
use lunar_wire::iscsi::{BHS_LEN, Bhs, padded};
use std::io;

pub use crate::send_queue::{Body, MAX_ZEROS as MAX_SEGMENT, Payload};

/// The digests that a connection uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// HeaderDigest.
    pub header: bool,
    /// DataDigest.
    pub data: bool,
}

impl Digests {
    /// Bytes after the header.
    #[inline]
    pub fn header_len(self) -> usize {
        if self.header { 4 } else { 0 }
    }

    /// Bytes after a data segment of `len` bytes and its padding.
    #[inline]
    pub fn data_len(self, len: usize) -> usize {
        if self.data && len > 0 { 4 } else { 0 }
    }

    /// Bytes after a data segment of `len` bytes: padding and digest.
    #[inline]
    pub fn tail_len(self, len: usize) -> usize {
        padded(len) - len + self.data_len(len)
    }
}

/// The queue of PDUs to send.
#[derive(Default)]
pub struct PduQueue(send_queue::SendQueue);

impl PduQueue {
    /// Appends a PDU and fills in its DataSegmentLength, padding and digests. The header is a reference, because a copy of
    /// fields that were just written stalls until all of them are in the cache.
    #[inline]
    pub fn push(&mut self, header: &mut Bhs, payload: Payload, digests: Digests) {
        header.set_data_len(payload.len());
        let (tail, tail_len) = tail(&payload, digests);
        self.push_body(header, payload, &tail[..tail_len], digests);
    }

    /// As [`PduQueue::push`] with bytes in a pipe. There must be no data digest, which needs the data in memory.
    pub fn push_pages(&mut self, header: &mut Bhs, part: PipedPart, digests: Digests) {
        header.set_data_len(part.len);
        let pad = padded(part.len) - part.len;
        self.push_body(header, Body::Piped(part), &[0; 3][..pad], digests);
    }

    #[inline]
    fn push_body(&mut self, header: &Bhs, body: impl Into<Body>, tail: &[u8], digests: Digests) {
        if !digests.header {
            return self.0.push(header.as_bytes(), body, tail);
        }
        let mut head = [0; BHS_LEN + 4];
        head[..BHS_LEN].copy_from_slice(header.as_bytes());
        head[BHS_LEN..].copy_from_slice(&crc32c(&[header.as_bytes()]).to_le_bytes());
        self.0.push(&head, body, tail);
    }

    /// As [`PduQueue::push`] with additional header segments, padded to whole words, at most 1020 bytes. Fills in
    /// TotalAHSLength (RFC 7143 section 11.2.2).
    pub fn push_extended(&mut self, mut header: Bhs, ahs: &[u8], payload: Payload, digests: Digests) {
        header.set_data_len(payload.len());
        header.set_ahs_len(ahs.len());
        let mut head = [header.as_bytes(), ahs].concat();
        if digests.header {
            head.extend(crc32c(&[&head]).to_le_bytes());
        }
        let (tail, tail_len) = tail(&payload, digests);
        self.0.push(&head, payload, &tail[..tail_len]);
    }

    /// Queued bytes, with the overhead of the queue.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.0.waiting()
    }

    /// Queued bytes of payloads outside any pool.
    #[inline]
    pub fn own(&self) -> usize {
        self.0.own()
    }

    /// Sends until the queue is empty (true) or the socket takes no more (false).
    pub fn flush(&mut self, stream: &Stream) -> io::Result<bool> {
        self.0.flush(stream)
    }

    /// As [`SendQueue::flush_part`](send_queue::SendQueue::flush_part).
    ///
    /// # Errors
    /// The connection has failed.
    pub fn flush_part(&mut self, stream: &Stream, part: usize) -> io::Result<bool> {
        self.0.flush_part(stream, part)
    }

    /// Takes all queued bytes. For tests and fuzzers.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        self.0.take_bytes()
    }

    /// Bytes sent since the queue was created.
    pub fn left(&self) -> u64 {
        self.0.left()
    }

    /// The value of [`PduQueue::left`] once everything queued now is sent.
    #[inline]
    pub fn end(&self) -> u64 {
        self.0.end()
    }

    /// Whether bytes were sent since the last call, which shows that the peer receives.
    pub fn take_moved(&mut self) -> bool {
        self.0.take_moved()
    }
}

/// Padding and digest after the data, and their length.
#[inline]
fn tail(payload: &Payload, digests: Digests) -> ([u8; 8], usize) {
    let len = payload.len();
    let pad = padded(len) - len;
    let mut tail = [0; 8];
    if digests.data && len > 0 {
        let crc = crc32c(&[payload.bytes(), &tail[..pad]]);
        tail[pad..pad + 4].copy_from_slice(&crc.to_le_bytes());
    }
    (tail, pad + digests.data_len(len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iscsi::receive::encode;

    #[test]
    fn padding_and_digests_follow_the_data() {
        let mut out = PduQueue::default();
        let both = Digests { header: true, data: true };
        out.push(&mut Bhs::new(0x20), Payload::Bytes(vec![1, 2, 3, 4, 5]), both);
        let b = out.take_bytes();
        assert_eq!(b.len(), 48 + 4 + 8 + 4);
        assert_eq!((b[7], &b[52..60]), (5, &[1, 2, 3, 4, 5, 0, 0, 0][..]));
        assert_eq!(b[48..52], crc32c(&[&b[..48]]).to_le_bytes());
        assert_eq!(b[60..], crc32c(&[&b[52..60]]).to_le_bytes());
    }

    /// FRM-015: the header digest covers the additional header segments.
    #[test]
    fn additional_headers_stand_before_the_digest() {
        let ahs = [0, 5, 1, 0, 7, 7, 7, 7];
        for digests in [Digests::default(), Digests { header: true, data: true }] {
            let mut out = PduQueue::default();
            out.push_extended(Bhs::new(0x01), &ahs, Payload::Bytes(vec![9; 3]), digests);
            let mut header = Bhs::new(0x01);
            assert_eq!(out.take_bytes(), encode(digests, header, &ahs, &[9; 3]));
            out.push_extended(header, &[], Payload::Bytes(vec![9; 3]), digests);
            let extended = out.take_bytes();
            header.set_data_len(3);
            out.push(&mut header, Payload::Bytes(vec![9; 3]), digests);
            assert_eq!(out.take_bytes(), extended, "no AHS encodes as a plain PDU");
        }
    }
}

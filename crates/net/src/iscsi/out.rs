//! PDUs on their way out: padding and digests are added here.

use super::digest::crc32c;
use crate::{Stream, out};
use std::io;
use wire::iscsi::{BHS_LEN, Bhs, padded};

pub use crate::out::{MAX_ZEROS as MAX_SEGMENT, Payload};

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

/// The queue of PDUs to send.
#[derive(Default)]
pub struct Out(out::Out);

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
        let (head_len, tail_len) = (BHS_LEN + digests.header_len(), pad + digests.data_len(len));
        self.0.push(&head[..head_len], payload, &tail[..tail_len]);
    }

    /// Bytes that wait, and what holds them.
    pub fn waiting(&self) -> usize {
        self.0.waiting()
    }

    /// Bytes of payloads that wait and that no pool counts.
    pub fn own(&self) -> usize {
        self.0.own()
    }

    /// Sends until all has left (true) or the socket takes no more (false).
    pub fn flush(&mut self, stream: &Stream) -> io::Result<bool> {
        self.0.flush(stream)
    }

    /// Takes all that waits, as it would have been sent. For tests and fuzzers.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        self.0.take_bytes()
    }

    /// Whether bytes have left since the last call: the peer takes what it gets.
    pub fn has_moved(&mut self) -> bool {
        self.0.has_moved()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_and_digests_follow_the_data() {
        let mut out = Out::default();
        let both = Digests { header: true, data: true };
        out.push(Bhs::new(0x20), Payload::Bytes(vec![1, 2, 3, 4, 5]), both);
        let b = out.take_bytes();
        assert_eq!(b.len(), 48 + 4 + 8 + 4);
        assert_eq!((b[7], &b[52..60]), (5, &[1, 2, 3, 4, 5, 0, 0, 0][..]));
        assert_eq!(b[48..52], crc32c(&[&b[..48]]).to_le_bytes());
        assert_eq!(b[60..], crc32c(&[&b[52..60]]).to_le_bytes());
    }
}

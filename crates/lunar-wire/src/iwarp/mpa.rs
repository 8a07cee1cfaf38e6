//! MPA: the request and the reply that a connection begins with (RFC 5044 section 7.1.1, RFC 6581 section 6), and
//! the sizes around each DDP segment (RFC 5044 section 4).

use crate::be;
use std::fmt;

/// The first bytes of a request.
pub const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
/// The first bytes of a reply.
pub const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";
/// Bytes of a request or a reply without what follows.
pub const FRAME_LEN: usize = 20;
/// Bytes of the enhanced data, which stand before the private data and count as such.
pub const ENHANCED_LEN: usize = 4;
/// The most private data in bytes, without the enhanced data.
pub const MAX_PRIVATE: usize = 512;
/// The newest revision.
pub const REVISION: u8 = 2;
/// A number of reads that is not negotiated here.
pub const UNKNOWN: u16 = 0x3fff;

/// Bytes of the length before each DDP segment.
pub const LENGTH_LEN: usize = 2;
/// Bytes of the CRC behind it, which is there even when it is not used.
pub const CRC_LEN: usize = 4;

const MARKERS: u16 = 0x8000;
const CRC: u16 = 0x4000;
const REJECTED: u16 = 0x2000;
const ENHANCED: u16 = 0x1000;
const FIRST: u16 = 0x8000;
const SECOND: u16 = 0x4000;

/// Whether a stream that begins so is one of MPA. Some bytes are enough; none are not.
pub fn is_request(first: &[u8]) -> bool {
    let len = first.len().min(REQUEST_KEY.len());
    len > 0 && first[..len] == REQUEST_KEY[..len]
}

/// Bytes of padding behind so many bytes of length and DDP segment.
pub fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// Bytes of the whole FPDU around a DDP segment of so many bytes.
pub fn fpdu_len(segment: usize) -> usize {
    let covered = LENGTH_LEN + segment;
    covered + padding(covered) + CRC_LEN
}

/// What is wrong with a request or a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MalformedFrame {
    /// It does not begin with its key.
    Key,
    /// A revision that there is not.
    Revision(u8),
    /// More private data than is allowed: so many bytes.
    Private(usize),
    /// Enhanced data are announced, and there is no room for them, or the revision has none.
    Enhanced,
}

impl fmt::Display for MalformedFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MalformedFrame::Key => write!(f, "not an MPA frame"),
            MalformedFrame::Revision(n) => write!(f, "MPA revision {n}"),
            MalformedFrame::Private(n) => write!(f, "{n} bytes of private data in an MPA frame"),
            MalformedFrame::Enhanced => {
                write!(f, "an MPA frame announces enhanced data that it has no room for")
            }
        }
    }
}

/// The enhanced data of revision 2 (RFC 6581 section 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnhancedData {
    /// Peer to peer: the responder waits for a first message without content (A).
    pub peer_to_peer: bool,
    /// That may be a Send (B), a Write (C) or a Read (D), of length zero.
    pub send: bool,
    pub write: bool,
    pub read: bool,
    /// RDMA Reads that the sender of this takes at a time, 14 bits; [`UNKNOWN`]: not negotiated.
    pub ird: u16,
    /// RDMA Reads that it wants to have under way, 14 bits; [`UNKNOWN`]: not negotiated.
    pub ord: u16,
}

impl EnhancedData {
    fn decode(b: &[u8]) -> EnhancedData {
        let (inbound, outbound) = (be::get16(b), be::get16(&b[2..]));
        EnhancedData {
            peer_to_peer: inbound & FIRST != 0,
            send: inbound & SECOND != 0,
            write: outbound & FIRST != 0,
            read: outbound & SECOND != 0,
            ird: inbound & UNKNOWN,
            ord: outbound & UNKNOWN,
        }
    }

    fn encode(&self) -> [u8; ENHANCED_LEN] {
        let bit = |is_set: bool, bit: u16| if is_set { bit } else { 0 };
        let inbound = self.ird.min(UNKNOWN) | bit(self.peer_to_peer, FIRST) | bit(self.send, SECOND);
        let outbound = self.ord.min(UNKNOWN) | bit(self.write, FIRST) | bit(self.read, SECOND);
        let mut b = [0; ENHANCED_LEN];
        be::put16(&mut b, inbound);
        be::put16(&mut b[2..], outbound);
        b
    }
}

/// A request or a reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MpaFrame {
    /// 1 or 2.
    pub revision: u8,
    /// Its sender wants markers in what it receives (M).
    pub markers: bool,
    /// Its sender wants CRCs, which both sides then use (C).
    pub crc: bool,
    /// The responder turns the connection down (R).
    pub rejected: bool,
    /// Revision 2 has these (S).
    pub enhanced: Option<EnhancedData>,
    /// Private data, at most [`MAX_PRIVATE`] bytes.
    pub private: Vec<u8>,
}

impl MpaFrame {
    /// Reads the frame that `bytes` begin with under its key, [`REQUEST_KEY`] or [`REPLY_KEY`]: the frame and its
    /// length in bytes, or None if it is not whole yet.
    ///
    /// # Errors
    /// When it is malformed; as soon as that can be seen.
    pub fn decode(key: &[u8; 16], bytes: &[u8]) -> Result<Option<(MpaFrame, usize)>, MalformedFrame> {
        let first = bytes.len().min(key.len());
        if bytes[..first] != key[..first] {
            return Err(MalformedFrame::Key);
        }
        if bytes.len() < FRAME_LEN {
            return Ok(None);
        }
        let (flags, len) = (be::get16(&bytes[16..]), usize::from(be::get16(&bytes[18..])));
        let (revision, has_enhanced) = (flags as u8, flags & ENHANCED != 0);
        if !(1..=REVISION).contains(&revision) {
            return Err(MalformedFrame::Revision(revision));
        }
        let enhanced_len = if has_enhanced { ENHANCED_LEN } else { 0 };
        if has_enhanced && (revision < 2 || len < ENHANCED_LEN) {
            return Err(MalformedFrame::Enhanced);
        }
        if len > MAX_PRIVATE + enhanced_len {
            return Err(MalformedFrame::Private(len - enhanced_len));
        }
        let Some(rest) = bytes.get(FRAME_LEN..FRAME_LEN + len) else { return Ok(None) };
        let frame = MpaFrame {
            revision,
            markers: flags & MARKERS != 0,
            crc: flags & CRC != 0,
            rejected: flags & REJECTED != 0,
            enhanced: has_enhanced.then(|| EnhancedData::decode(rest)),
            private: rest[enhanced_len..].to_vec(),
        };
        Ok(Some((frame, FRAME_LEN + len)))
    }

    /// The bytes of a frame under its key. Private data above [`MAX_PRIVATE`] are cut off.
    pub fn encode(&self, key: &[u8; 16]) -> Vec<u8> {
        let bit = |is_set: bool, bit: u16| if is_set { bit } else { 0 };
        let flags = bit(self.markers, MARKERS)
            | bit(self.crc, CRC)
            | bit(self.rejected, REJECTED)
            | bit(self.enhanced.is_some(), ENHANCED);
        let enhanced = self.enhanced.map(|e| e.encode());
        let enhanced = enhanced.as_ref().map_or(&[][..], |e| e);
        let private = &self.private[..self.private.len().min(MAX_PRIVATE)];
        let mut b = key.to_vec();
        b.extend((flags | u16::from(self.revision)).to_be_bytes());
        b.extend(((enhanced.len() + private.len()) as u16).to_be_bytes());
        b.extend_from_slice(enhanced);
        b.extend_from_slice(private);
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> MpaFrame {
        let enhanced = EnhancedData { ird: 128, ord: 1, ..EnhancedData::default() };
        MpaFrame {
            revision: 2,
            enhanced: Some(enhanced),
            private: vec![0x80, 0, 0, 0],
            ..MpaFrame::default()
        }
    }

    #[test]
    fn a_request_has_the_bytes_of_the_standard() {
        let golden = b"MPA ID Req Frame\x10\x02\x00\x08\x00\x80\x00\x01\x80\x00\x00\x00";
        assert_eq!(request().encode(&REQUEST_KEY), golden);
        assert_eq!(MpaFrame::decode(&REQUEST_KEY, golden), Ok(Some((request(), 28))));
    }

    #[test]
    fn every_bit_has_its_place() {
        let all = EnhancedData {
            peer_to_peer: true,
            send: true,
            write: true,
            read: true,
            ird: 0x1234,
            ord: 0x0567,
        };
        let frame = MpaFrame {
            revision: 2,
            markers: true,
            crc: true,
            rejected: true,
            enhanced: Some(all),
            private: vec![],
        };
        let golden = b"MPA ID Rep Frame\xf0\x02\x00\x04\xd2\x34\xc5\x67";
        assert_eq!(frame.encode(&REPLY_KEY), golden);
        assert_eq!(MpaFrame::decode(&REPLY_KEY, golden), Ok(Some((frame, 24))));
        for (bit, byte) in [(MARKERS, 0x80), (CRC, 0x40), (REJECTED, 0x20)] {
            let mut bytes = b"MPA ID Rep Frame\x00\x01\x00\x00".to_vec();
            bytes[16] = byte;
            let (frame, _) = MpaFrame::decode(&REPLY_KEY, &bytes).unwrap().unwrap();
            let flags = [(MARKERS, frame.markers), (CRC, frame.crc), (REJECTED, frame.rejected)];
            assert!(flags.iter().all(|(flag, is_set)| *is_set == (*flag == bit)), "{byte:#x}");
        }
    }

    #[test]
    fn private_data_of_every_length_travel_and_no_more() {
        for (revision, enhanced) in [(1, None), (2, None), (2, request().enhanced)] {
            for len in 0..=MAX_PRIVATE {
                let private = (0..len).map(|i| i as u8).collect();
                let frame = MpaFrame { revision, enhanced, private, ..MpaFrame::default() };
                let bytes = frame.encode(&REPLY_KEY);
                let whole = bytes.len();
                assert_eq!(MpaFrame::decode(&REPLY_KEY, &bytes), Ok(Some((frame, whole))));
                assert_eq!(MpaFrame::decode(&REPLY_KEY, &bytes[..whole - 1]), Ok(None));
            }
        }
        let mut long = request().encode(&REQUEST_KEY);
        be::put16(&mut long[18..], 517);
        assert_eq!(MpaFrame::decode(&REQUEST_KEY, &long), Err(MalformedFrame::Private(513)));
    }

    #[test]
    fn what_is_malformed_is_told_as_soon_as_it_is_there() {
        let decode = |bytes: &[u8]| MpaFrame::decode(&REQUEST_KEY, bytes);
        assert_eq!(decode(b"MPA ID Rep"), Err(MalformedFrame::Key));
        assert_eq!(decode(b"\x43"), Err(MalformedFrame::Key));
        assert_eq!(decode(b"MPA ID Req Frame\x00\x03\x00\x00"), Err(MalformedFrame::Revision(3)));
        assert_eq!(decode(b"MPA ID Req Frame\x00\x00\x00\x00"), Err(MalformedFrame::Revision(0)));
        assert_eq!(decode(b"MPA ID Req Frame\x10\x01\x00\x04"), Err(MalformedFrame::Enhanced));
        assert_eq!(decode(b"MPA ID Req Frame\x10\x02\x00\x03"), Err(MalformedFrame::Enhanced));
        assert_eq!(
            (decode(b""), is_request(b"M"), is_request(b"\x43"), is_request(b"")),
            (Ok(None), true, false, false)
        );
    }

    #[test]
    fn an_fpdu_is_a_multiple_of_four() {
        assert_eq!([14, 15, 16, 17, 18].map(fpdu_len), [20, 24, 24, 24, 24]);
    }
}

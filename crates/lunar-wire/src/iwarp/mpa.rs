//! MPA: request and reply frames of the connection setup (RFC 5044 section 7.1.1, RFC 6581 section 6), and framing of
//! DDP segments (RFC 5044 section 4).

use crate::be;
use std::fmt;

/// The first bytes of a request.
pub const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
/// The first bytes of a reply.
pub const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";
/// Bytes of a request or reply frame before its private data.
pub const FRAME_LEN: usize = 20;
/// Bytes of the enhanced data. They precede the private data and count toward its length.
pub const ENHANCED_LEN: usize = 4;
/// Maximum private data in bytes, enhanced data excluded.
pub const MAX_PRIVATE: usize = 512;
/// The newest MPA revision.
pub const REVISION: u8 = 2;
/// IRD or ORD that is not negotiated in the frame.
pub const UNKNOWN: u16 = 0x3fff;

/// Bytes of the length before each DDP segment.
pub const LENGTH_LEN: usize = 2;
/// Bytes of the CRC after each DDP segment. The field is present even if CRCs are not used.
pub const CRC_LEN: usize = 4;

const MARKERS: u16 = 0x8000;
const CRC: u16 = 0x4000;
const REJECTED: u16 = 0x2000;
const ENHANCED: u16 = 0x1000;
const FIRST: u16 = 0x8000;
const SECOND: u16 = 0x4000;

/// Whether the first bytes of a stream can begin an MPA request: they are the start of [`REQUEST_KEY`], and at least
/// one.
pub fn is_request(first: &[u8]) -> bool {
    let len = first.len().min(REQUEST_KEY.len());
    len > 0 && first[..len] == REQUEST_KEY[..len]
}

/// Bytes of padding after `len` bytes of MPA length and DDP segment.
pub fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// Bytes of the FPDU that carries a DDP segment of `segment` bytes.
pub fn fpdu_len(segment: usize) -> usize {
    let covered = LENGTH_LEN + segment;
    covered + padding(covered) + CRC_LEN
}

/// The reason why a request or reply frame does not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MalformedFrame {
    /// Wrong key.
    Key,
    /// Unknown revision.
    Revision(u8),
    /// Too much private data; the length in bytes.
    Private(usize),
    /// Enhanced data are announced, but the private data are too short or the revision has none.
    Enhanced,
}

impl fmt::Display for MalformedFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MalformedFrame::Key => write!(f, "an MPA frame with a wrong key"),
            MalformedFrame::Revision(n) => write!(f, "an MPA frame with the unsupported revision {n}"),
            MalformedFrame::Private(n) => {
                write!(f, "an MPA frame with {n} bytes of private data, above the limit")
            }
            MalformedFrame::Enhanced => {
                write!(f, "an MPA frame that announces enhanced data, but is too short for it")
            }
        }
    }
}

/// The enhanced data of revision 2 (RFC 6581 section 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnhancedData {
    /// A: peer-to-peer mode. The responder waits for a zero-length first message.
    pub peer_to_peer: bool,
    /// B: that message may be a Send.
    pub send: bool,
    /// C: that message may be an RDMA Write.
    pub write: bool,
    /// D: that message may be an RDMA Read.
    pub read: bool,
    /// Maximum RDMA Reads that the sender of the frame accepts at a time, 14 bits; [`UNKNOWN`] if not negotiated.
    pub ird: u16,
    /// Maximum RDMA Reads that it wants to keep outstanding, 14 bits; [`UNKNOWN`] if not negotiated.
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

/// A request or reply frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MpaFrame {
    /// MPA revision, 1 or 2.
    pub revision: u8,
    /// M: the sender wants markers in the stream that it receives.
    pub markers: bool,
    /// C: the sender wants CRCs. Both sides then use them.
    pub crc: bool,
    /// R: the responder rejects the connection.
    pub rejected: bool,
    /// S: enhanced data, in revision 2 only.
    pub enhanced: Option<EnhancedData>,
    /// Private data, at most [`MAX_PRIVATE`] bytes.
    pub private: Vec<u8>,
}

impl MpaFrame {
    /// Decodes the frame at the start of `bytes`: the frame and its length in bytes, or `None` if more bytes are needed.
    /// `key` is [`REQUEST_KEY`] or [`REPLY_KEY`].
    ///
    /// # Errors
    /// The frame is malformed. The error is returned as soon as the bytes show it.
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

    /// Encodes the frame. `key` is [`REQUEST_KEY`] or [`REPLY_KEY`]. Private data above [`MAX_PRIVATE`] are cut off.
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
    fn request_frame_matches_the_standard() {
        let golden = b"MPA ID Req Frame\x10\x02\x00\x08\x00\x80\x00\x01\x80\x00\x00\x00";
        assert_eq!(request().encode(&REQUEST_KEY), golden);
        assert_eq!(MpaFrame::decode(&REQUEST_KEY, golden), Ok(Some((request(), 28))));
    }

    #[test]
    fn each_flag_has_its_bit() {
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
    fn private_data_are_limited_to_512_bytes() {
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
    fn malformed_frame_is_rejected_early() {
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
    fn fpdu_length_is_a_multiple_of_four() {
        assert_eq!([14, 15, 16, 17, 18].map(fpdu_len), [20, 24, 24, 24, 24]);
    }
}

//! DDP segments (RFC 5041 section 4) and their RDMAP fields (RFC 5040 section 4). Sizes include the two length bytes
//! that MPA puts in front, so every header is a multiple of four bytes.

use super::mpa::LENGTH_LEN;
use super::terminate::Terminate;
use crate::be;

/// Bytes of the MPA length and a tagged header (RDMA Write, RDMA Read Response).
pub const TAGGED_LEN: usize = 16;
/// Bytes of the MPA length and an untagged header (Sends, RDMA Read Request, Terminate).
pub const UNTAGGED_LEN: usize = 20;
/// Bytes of the payload of an RDMA Read Request.
pub const READ_REQUEST_LEN: usize = 28;

/// Operations of RDMAP (RFC 5040 section 4.1).
pub mod opcode {
    /// RDMA Write.
    pub const WRITE: u8 = 0;
    /// RDMA Read Request.
    pub const READ_REQUEST: u8 = 1;
    /// RDMA Read Response.
    pub const READ_RESPONSE: u8 = 2;
    /// Send.
    pub const SEND: u8 = 3;
    /// Send with Invalidate.
    pub const SEND_INVALIDATE: u8 = 4;
    /// Send with Solicited Event.
    pub const SEND_SOLICITED: u8 = 5;
    /// Send with Solicited Event and Invalidate.
    pub const SEND_SOLICITED_INVALIDATE: u8 = 6;
    /// Terminate.
    pub const TERMINATE: u8 = 7;
}

/// Queue numbers of untagged segments (RFC 5040 section 4.2).
pub mod queue {
    /// Sends.
    pub const SEND: u32 = 0;
    /// Read Requests.
    pub const READ: u32 = 1;
    /// Terminate.
    pub const TERMINATE: u32 = 2;
}

const TAGGED: u16 = 0x8000;
const LAST: u16 = 0x4000;
const DDP_VERSION: u16 = 0x0300;
const RDMAP_VERSION: u16 = 0x00c0;
const VERSIONS: u16 = 0x0140;
const OPCODE: u16 = 0x000f;

/// The header of a tagged segment, which names its place in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaggedHeader {
    /// WRITE or READ_RESPONSE of [`opcode`].
    pub opcode: u8,
    /// The last segment of its message.
    pub last: bool,
    /// Steering tag of the memory.
    pub stag: u32,
    /// Tagged offset in bytes.
    pub offset: u64,
}

/// The header of an untagged segment, which belongs to a message of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UntaggedHeader {
    /// A value of [`opcode`] other than WRITE and READ_RESPONSE.
    pub opcode: u8,
    /// The last segment of its message.
    pub last: bool,
    /// The steering tag that a Send with Invalidate invalidates; 0 otherwise.
    pub stag: u32,
    /// One of [`queue`].
    pub queue: u32,
    /// Message sequence number in its queue; the first is 1.
    pub msn: u32,
    /// Bytes of the message before this segment.
    pub offset: u32,
}

impl UntaggedHeader {
    /// Whether it is a Send with Invalidate.
    pub fn invalidates(&self) -> bool {
        matches!(self.opcode, opcode::SEND_INVALIDATE | opcode::SEND_SOLICITED_INVALIDATE)
    }
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DdpHeader {
    /// Tagged: RDMA Write or RDMA Read Response.
    Tagged(TaggedHeader),
    /// Untagged: Send, RDMA Read Request or Terminate.
    Untagged(UntaggedHeader),
}

impl DdpHeader {
    /// Bytes of the MPA length and this header.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        match self {
            DdpHeader::Tagged(_) => TAGGED_LEN,
            DdpHeader::Untagged(_) => UNTAGGED_LEN,
        }
    }

    /// Appends the MPA length and this header. `payload` is the payload length in bytes, at most 65 515.
    pub fn put(&self, payload: usize, into: &mut Vec<u8>) {
        let mut b = [0; UNTAGGED_LEN];
        be::put16(&mut b, (self.len() - LENGTH_LEN + payload) as u16);
        let last = |last: bool| if last { LAST } else { 0 };
        match self {
            DdpHeader::Tagged(t) => {
                be::put16(&mut b[2..], TAGGED | last(t.last) | VERSIONS | u16::from(t.opcode));
                be::put32(&mut b[4..], t.stag);
                be::put64(&mut b[8..], t.offset);
            }
            DdpHeader::Untagged(u) => {
                be::put16(&mut b[2..], last(u.last) | VERSIONS | u16::from(u.opcode));
                for (at, word) in [(4, u.stag), (8, u.queue), (12, u.msn), (16, u.offset)] {
                    be::put32(&mut b[at..], word);
                }
            }
        }
        into.extend_from_slice(&b[..self.len()]);
    }

    /// Decodes the header of a segment. `b` holds the MPA length and the whole segment; the payload begins after
    /// [`DdpHeader::len`] bytes.
    ///
    /// # Errors
    /// The Terminate message to send: the segment is too short, has another version, or its operation does not match
    /// its header or queue.
    pub fn decode(b: &[u8]) -> Result<DdpHeader, Terminate> {
        let Some(control) = b.get(2..4).map(be::get16) else { return Err(Terminate::LENGTH) };
        let is_tagged = control & TAGGED != 0;
        if b.len() < if is_tagged { TAGGED_LEN } else { UNTAGGED_LEN } {
            return Err(Terminate::LENGTH);
        }
        if control & DDP_VERSION != VERSIONS & DDP_VERSION {
            return Err(if is_tagged { Terminate::TAGGED_VERSION } else { Terminate::UNTAGGED_VERSION });
        }
        if control & RDMAP_VERSION != VERSIONS & RDMAP_VERSION {
            return Err(Terminate::RDMAP_VERSION);
        }
        let (opcode, last) = ((control & OPCODE) as u8, control & LAST != 0);
        let kind_fits = match opcode {
            opcode::WRITE | opcode::READ_RESPONSE => is_tagged,
            opcode::READ_REQUEST..=opcode::TERMINATE => !is_tagged,
            _ => false,
        };
        if !kind_fits {
            return Err(Terminate::OPCODE);
        }
        let stag = be::get32(&b[4..]);
        if is_tagged {
            return Ok(DdpHeader::Tagged(TaggedHeader { opcode, last, stag, offset: be::get64(&b[8..]) }));
        }
        let [queue, msn, offset] = [8, 12, 16].map(|at| be::get32(&b[at..]));
        let expected = match opcode {
            opcode::READ_REQUEST => queue::READ,
            opcode::TERMINATE => queue::TERMINATE,
            _ => queue::SEND,
        };
        match queue == expected {
            true => Ok(DdpHeader::Untagged(UntaggedHeader { opcode, last, stag, queue, msn, offset })),
            false => Err(Terminate::QUEUE),
        }
    }
}

/// The payload of an RDMA Read Request (RFC 5040 section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Data sink: steering tag and tagged offset at the requester.
    pub sink: (u32, u64),
    /// Length in bytes.
    pub len: u32,
    /// Data source: steering tag and tagged offset at the responder.
    pub source: (u32, u64),
}

impl ReadRequest {
    /// Decodes the payload. `None` if its length is not [`READ_REQUEST_LEN`].
    pub fn decode(b: &[u8]) -> Option<ReadRequest> {
        (b.len() == READ_REQUEST_LEN).then(|| ReadRequest {
            sink: (be::get32(b), be::get64(&b[4..])),
            len: be::get32(&b[12..]),
            source: (be::get32(&b[16..]), be::get64(&b[20..])),
        })
    }

    /// Encodes the payload.
    pub fn encode(&self) -> [u8; READ_REQUEST_LEN] {
        let mut b = [0; READ_REQUEST_LEN];
        be::put32(&mut b, self.sink.0);
        be::put64(&mut b[4..], self.sink.1);
        be::put32(&mut b[12..], self.len);
        be::put32(&mut b[16..], self.source.0);
        be::put64(&mut b[20..], self.source.1);
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(header: DdpHeader, payload: &[u8]) -> Vec<u8> {
        let mut b = vec![];
        header.put(payload.len(), &mut b);
        b.extend_from_slice(payload);
        b
    }

    const WRITE: TaggedHeader =
        TaggedHeader { opcode: opcode::WRITE, last: true, stag: 0x0102_0304, offset: 0x05_0607_0809 };

    #[test]
    fn tagged_segment_matches_the_standard() {
        let golden = b"\x00\x11\xc1\x40\x01\x02\x03\x04\x00\x00\x00\x05\x06\x07\x08\x09abc";
        assert_eq!(bytes(DdpHeader::Tagged(WRITE), b"abc"), golden);
        assert_eq!(DdpHeader::decode(golden), Ok(DdpHeader::Tagged(WRITE)));
        let more = TaggedHeader { opcode: opcode::READ_RESPONSE, last: false, ..WRITE };
        assert_eq!(bytes(DdpHeader::Tagged(more), b"")[..4], *b"\x00\x0e\x81\x42");
    }

    #[test]
    fn untagged_segment_matches_the_standard() {
        let send = UntaggedHeader {
            opcode: opcode::SEND_INVALIDATE,
            last: true,
            stag: 0xaabb_ccdd,
            queue: queue::SEND,
            msn: 7,
            offset: 1428,
        };
        let golden = b"\x00\x13\x41\x44\xaa\xbb\xcc\xdd\x00\x00\x00\x00\x00\x00\x00\x07\x00\x00\x05\x94x";
        assert_eq!(bytes(DdpHeader::Untagged(send), b"x"), golden);
        assert_eq!(DdpHeader::decode(golden), Ok(DdpHeader::Untagged(send)));
    }

    #[test]
    fn read_request_matches_the_standard() {
        let request = ReadRequest { sink: (0x11, 0x2_0000_0003), len: 0x44, source: (0x55, 0x6_0000_0007) };
        let golden = b"\x00\x00\x00\x11\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\x44\
            \x00\x00\x00\x55\x00\x00\x00\x06\x00\x00\x00\x07";
        assert_eq!(request.encode(), *golden);
        assert_eq!(ReadRequest::decode(golden), Some(request));
        assert_eq!(ReadRequest::decode(&golden[1..]), None);
    }

    #[test]
    fn inconsistent_header_is_terminated() {
        let tagged = bytes(DdpHeader::Tagged(WRITE), b"");
        let untagged =
            UntaggedHeader { opcode: opcode::SEND, last: true, stag: 0, queue: 0, msn: 1, offset: 0 };
        let untagged = bytes(DdpHeader::Untagged(untagged), b"");
        let with = |b: &[u8], at: usize, value: u8| {
            let mut b = b.to_vec();
            b[at] = value;
            DdpHeader::decode(&b)
        };
        assert_eq!(with(&tagged, 2, 0xc0), Err(Terminate::TAGGED_VERSION));
        assert_eq!(with(&untagged, 2, 0x42), Err(Terminate::UNTAGGED_VERSION));
        assert_eq!(with(&tagged, 3, 0x00), Err(Terminate::RDMAP_VERSION));
        for (b, opcode) in [(&tagged, 3), (&tagged, 8), (&untagged, 0), (&untagged, 2), (&untagged, 8)] {
            assert_eq!(with(b, 3, 0x40 | opcode), Err(Terminate::OPCODE), "{opcode}");
        }
        for (opcode, queue) in [(3, 1), (3, 2), (1, 0), (7, 0), (7, 3)] {
            let mut b = untagged.clone();
            (b[3], b[11]) = (0x40 | opcode, queue);
            assert_eq!(DdpHeader::decode(&b), Err(Terminate::QUEUE), "{opcode} {queue}");
        }
        for b in [&tagged, &untagged] {
            (0..b.len()).for_each(|cut| assert_eq!(DdpHeader::decode(&b[..cut]), Err(Terminate::LENGTH)));
        }
    }
}

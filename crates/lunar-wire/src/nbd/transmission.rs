//! Requests and replies of the transmission phase.

use crate::be;

/// Begins each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins each simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins each chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Bytes of a request without its payload.
pub const REQUEST_LEN: usize = 28;
/// Bytes of a simple reply without its payload.
pub const SIMPLE_REPLY_LEN: usize = 16;
/// Bytes of the header of a chunk.
pub const CHUNK_LEN: usize = 20;

/// Types of requests.
pub mod command {
    /// Reads.
    pub const READ: u16 = 0;
    /// Writes.
    pub const WRITE: u16 = 1;
    /// Ends the session.
    pub const DISC: u16 = 2;
    /// Makes completed writes durable.
    pub const FLUSH: u16 = 3;
    /// Deallocates a range.
    pub const TRIM: u16 = 4;
    /// Hints that a range will be used soon.
    pub const CACHE: u16 = 5;
    /// Writes zeros to a range.
    pub const WRITE_ZEROES: u16 = 6;
    /// Queries which ranges are allocated.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod command_flag {
    /// The data are durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// WRITE_ZEROES keeps the range allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// The reply to READ is a single chunk.
    pub const DF: u16 = 1 << 2;
    /// The reply to BLOCK_STATUS describes one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES only if that is faster than a write.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Types of chunks.
pub mod chunk {
    /// No payload.
    pub const NONE: u16 = 0;
    /// Bytes at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeros at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// The bit that makes a type an error.
    pub const ERRORS: u16 = 1 << 15;
    /// An error with a human-readable message.
    pub const ERROR: u16 = ERRORS | 1;
    /// The flag of a reply's last chunk.
    pub const DONE: u16 = 1 << 0;
}

/// States of extents in the context `base:allocation`.
pub mod state {
    /// No space is allocated.
    pub const HOLE: u32 = 1 << 0;
    /// It reads as zeros.
    pub const ZERO: u32 = 1 << 1;
}

/// Error values of the protocol; the numbers are those of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Operation not permitted.
    Perm = 1,
    /// Input/output error.
    Io = 5,
    /// Cannot allocate memory.
    NoMem = 12,
    /// Invalid argument.
    Inval = 22,
    /// No space left on device.
    NoSpc = 28,
    /// Value too large.
    Overflow = 75,
    /// Operation not supported.
    NotSup = 95,
    /// The server is shutting down.
    Shutdown = 108,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Command flags: see [`command_flag`].
    pub flags: u16,
    /// Command type: see [`command`].
    pub command: u16,
    /// Cookie: the client's identifier of the request.
    pub cookie: u64,
    /// Offset of the first byte in the export.
    pub offset: u64,
    /// Length of the range in bytes. A WRITE has a payload of this length.
    pub len: u32,
}

impl Request {
    /// Decodes a request. `None` if its magic is wrong.
    #[inline]
    pub fn decode(b: &[u8; REQUEST_LEN]) -> Option<Request> {
        let request = Request {
            flags: be::get16(&b[4..]),
            command: be::get16(&b[6..]),
            cookie: be::get64(&b[8..]),
            offset: be::get64(&b[16..]),
            len: be::get32(&b[24..]),
        };
        (be::get32(b) == REQUEST_MAGIC).then_some(request)
    }

    /// Encodes the request without its payload.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut b = [0; REQUEST_LEN];
        be::put32(&mut b, REQUEST_MAGIC);
        be::put16(&mut b[4..], self.flags);
        be::put16(&mut b[6..], self.command);
        be::put64(&mut b[8..], self.cookie);
        be::put64(&mut b[16..], self.offset);
        be::put32(&mut b[24..], self.len);
        b
    }

    /// Bytes of payload that follow.
    #[inline]
    pub fn payload_len(&self) -> usize {
        if self.command == command::WRITE { self.len as usize } else { 0 }
    }
}

/// A simple reply; `error` 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimpleReply {
    /// 0, or the value of an [`Errno`].
    pub error: u32,
    /// Cookie of the request.
    pub cookie: u64,
}

impl SimpleReply {
    /// Decodes a reply. `None` if its magic is wrong.
    pub fn decode(b: &[u8; SIMPLE_REPLY_LEN]) -> Option<SimpleReply> {
        let reply = SimpleReply { error: be::get32(&b[4..]), cookie: be::get64(&b[8..]) };
        (be::get32(b) == SIMPLE_REPLY_MAGIC).then_some(reply)
    }

    /// Encodes the reply without its payload.
    #[inline]
    pub fn encode(&self) -> [u8; SIMPLE_REPLY_LEN] {
        let mut b = [0; SIMPLE_REPLY_LEN];
        be::put32(&mut b, SIMPLE_REPLY_MAGIC);
        be::put32(&mut b[4..], self.error);
        be::put64(&mut b[8..], self.cookie);
        b
    }
}

/// The header of a chunk of a structured reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// [`chunk::DONE`] or 0.
    pub flags: u16,
    /// Chunk type: see [`chunk`].
    pub kind: u16,
    /// Cookie of the request.
    pub cookie: u64,
    /// Bytes that follow.
    pub len: u32,
}

impl ChunkHeader {
    /// Decodes a header. `None` if its magic is wrong.
    pub fn decode(b: &[u8; CHUNK_LEN]) -> Option<ChunkHeader> {
        let header = ChunkHeader {
            flags: be::get16(&b[4..]),
            kind: be::get16(&b[6..]),
            cookie: be::get64(&b[8..]),
            len: be::get32(&b[16..]),
        };
        (be::get32(b) == CHUNK_MAGIC).then_some(header)
    }

    /// Encodes the header.
    #[inline]
    pub fn encode(&self) -> [u8; CHUNK_LEN] {
        let mut b = [0; CHUNK_LEN];
        be::put32(&mut b, CHUNK_MAGIC);
        be::put16(&mut b[4..], self.flags);
        be::put16(&mut b[6..], self.kind);
        be::put64(&mut b[8..], self.cookie);
        be::put32(&mut b[16..], self.len);
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COOKIE: u64 = 0x1112_1314_1516_1718;

    #[test]
    fn request_matches_and_round_trips() {
        let request = Request {
            flags: command_flag::FUA,
            command: command::WRITE,
            cookie: COOKIE,
            offset: 0x2122_2324_2526_2728,
            len: 0x3132_3334,
        };
        let known = b"\x25\x60\x95\x13\0\x01\0\x01\x11\x12\x13\x14\x15\x16\x17\x18\
                      \x21\x22\x23\x24\x25\x26\x27\x28\x31\x32\x33\x34";
        assert_eq!(&request.encode(), known);
        assert_eq!(Request::decode(known), Some(request));
        assert_eq!(request.payload_len(), 0x3132_3334);
        assert_eq!(Request { command: command::READ, ..request }.payload_len(), 0);
    }

    #[test]
    fn replies_match_and_round_trip() {
        let reply = SimpleReply { error: Errno::NoSpc as u32, cookie: COOKIE };
        let known = b"\x67\x44\x66\x98\0\0\0\x1c\x11\x12\x13\x14\x15\x16\x17\x18";
        assert_eq!(&reply.encode(), known);
        assert_eq!(SimpleReply::decode(known), Some(reply));
        let header = ChunkHeader { flags: chunk::DONE, kind: chunk::ERROR, cookie: COOKIE, len: 6 };
        let known = b"\x66\x8e\x33\xef\0\x01\x80\x01\x11\x12\x13\x14\x15\x16\x17\x18\0\0\0\x06";
        assert_eq!(&header.encode(), known);
        assert_eq!(ChunkHeader::decode(known), Some(header));
    }

    #[test]
    fn message_with_wrong_magic_is_none() {
        for at in 0..4 {
            let mut request = [0; REQUEST_LEN];
            be::put32(&mut request, REQUEST_MAGIC);
            assert!(Request::decode(&request).is_some());
            request[at] ^= 1;
            assert_eq!(Request::decode(&request), None);
        }
        assert_eq!(SimpleReply::decode(&[0; SIMPLE_REPLY_LEN]), None);
        assert_eq!(ChunkHeader::decode(&[0; CHUNK_LEN]), None);
    }
}

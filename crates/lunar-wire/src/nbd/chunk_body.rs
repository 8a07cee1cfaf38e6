//! Bodies of the chunks of a structured reply.

use crate::be;

/// The start of the body of OFFSET_DATA: the offset of the bytes that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetData {
    /// Offset of the first byte in the export.
    pub offset: u64,
}

impl OffsetData {
    /// Bytes of this part of the body.
    pub const LEN: usize = 8;

    /// Decodes the offset; `None` if the body ends before it.
    pub fn decode(b: &[u8]) -> Option<OffsetData> {
        b.first_chunk::<{ Self::LEN }>().map(|b| OffsetData { offset: be::get64(b) })
    }

    /// Encodes the offset.
    #[inline]
    pub fn encode(&self) -> [u8; Self::LEN] {
        self.offset.to_be_bytes()
    }
}

/// The body of OFFSET_HOLE: a range of zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetHole {
    /// Offset of the first byte in the export.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

impl OffsetHole {
    /// Bytes of the body.
    pub const LEN: usize = 12;

    /// Decodes the body; `None` if it is truncated.
    pub fn decode(b: &[u8]) -> Option<OffsetHole> {
        let b = b.first_chunk::<{ Self::LEN }>()?;
        Some(OffsetHole { offset: be::get64(b), len: be::get32(&b[8..]) })
    }

    /// Encodes the body.
    #[inline]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        be::put64(&mut b, self.offset);
        be::put32(&mut b[8..], self.len);
        b
    }
}

/// A descriptor of BLOCK_STATUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusDescriptor {
    /// Length in bytes.
    pub len: u32,
    /// Flags, whose meaning depends on the context: see [`super::state`].
    pub flags: u32,
}

impl StatusDescriptor {
    /// Bytes of a descriptor.
    pub const LEN: usize = 8;
    /// Bytes of the metadata context identifier, which precedes the descriptors.
    pub const CONTEXT_LEN: usize = 4;

    /// The metadata context identifier and the first descriptor of a body; `None` if the body ends before them.
    pub fn decode_first(body: &[u8]) -> Option<(u32, StatusDescriptor)> {
        let (context, rest) = body.split_first_chunk::<{ Self::CONTEXT_LEN }>()?;
        let b = rest.first_chunk::<{ Self::LEN }>()?;
        Some((be::get32(context), StatusDescriptor { len: be::get32(b), flags: be::get32(&b[4..]) }))
    }

    /// Encodes the descriptor.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        be::put32(&mut b, self.len);
        be::put32(&mut b[4..], self.flags);
        b
    }
}

/// The body of an error chunk. Types other than ERROR can have more bytes after the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorBody<'a> {
    /// The value of an [`super::Errno`].
    pub errno: u32,
    /// A message for people, in UTF-8.
    pub message: &'a [u8],
}

impl<'a> ErrorBody<'a> {
    /// Bytes before the message.
    pub const HEAD_LEN: usize = 6;

    /// Decodes the body; `None` if it is truncated.
    pub fn decode(b: &'a [u8]) -> Option<ErrorBody<'a>> {
        let (head, rest) = b.split_first_chunk::<{ ErrorBody::HEAD_LEN }>()?;
        let message = rest.get(..usize::from(be::get16(&head[4..])))?;
        Some(ErrorBody { errno: be::get32(head), message })
    }

    /// Encodes the part before a message of `message_len` bytes.
    pub fn encode_head(errno: u32, message_len: u16) -> [u8; ErrorBody::HEAD_LEN] {
        let mut b = [0; ErrorBody::HEAD_LEN];
        be::put32(&mut b, errno);
        be::put16(&mut b[4..], message_len);
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_match_and_round_trip() {
        let hole = OffsetHole { offset: 0x0102_0304_0506_0708, len: 0x090a_0b0c };
        assert_eq!(hole.encode(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(OffsetHole::decode(&hole.encode()), Some(hole));
        assert_eq!(OffsetHole::decode(&hole.encode()[..11]), None);
        let data = OffsetData { offset: hole.offset };
        assert_eq!(data.encode(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(OffsetData::decode(&[&data.encode()[..], b"data"].concat()), Some(data));
        assert_eq!(OffsetData::decode(&[0; 7]), None);
    }

    #[test]
    fn first_status_descriptor_follows_its_context() {
        let first = StatusDescriptor { len: 0x0102_0304, flags: 3 };
        let body = [&[0, 0, 0, 9][..], &first.encode(), &[0xff; 8]].concat();
        assert_eq!(body[4..12], [1, 2, 3, 4, 0, 0, 0, 3]);
        assert_eq!(StatusDescriptor::decode_first(&body), Some((9, first)));
        (0..12).for_each(|n| assert_eq!(StatusDescriptor::decode_first(&body[..n]), None, "{n} bytes"));
    }

    #[test]
    fn error_body_ends_with_its_message() {
        let body = [&ErrorBody::encode_head(28, 4)[..], b"full", b"more"].concat();
        assert_eq!(body[..6], [0, 0, 0, 28, 0, 4]);
        assert_eq!(ErrorBody::decode(&body), Some(ErrorBody { errno: 28, message: b"full" }));
        (0..10).for_each(|n| assert_eq!(ErrorBody::decode(&body[..n]), None, "{n} bytes"));
    }
}

//! The data of a message: bytes in memory, or in a pipe, from which they are sent without a copy.

use crate::Buf;
use crate::piped_bytes::PipedPart;
use std::io;
use std::rc::Rc;

/// The longest payload of zeros in bytes.
pub const MAX_ZEROS: usize = 1 << 20;
static ZEROS: ZeroPage = ZeroPage([0; MAX_ZEROS]);

/// Page-aligned, because the kernel copies faster from there.
#[repr(align(4096))]
struct ZeroPage([u8; MAX_ZEROS]);

/// The data of a message to send.
pub enum Payload {
    /// None.
    Empty,
    /// This many zeros, at most [`MAX_ZEROS`].
    Zeros(usize),
    /// Owned bytes.
    Bytes(Vec<u8>),
    /// The first bytes of a buffer: buffer and length.
    Buf(Buf, usize),
    /// A part of a shared buffer: buffer, start and length.
    Part(Rc<Buf>, usize, usize),
}

impl Payload {
    /// Length in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "the length of a part of a message")]
    pub fn len(&self) -> usize {
        match self {
            Payload::Empty => 0,
            Payload::Bytes(b) => b.len(),
            Payload::Zeros(n) | Payload::Buf(_, n) | Payload::Part(_, _, n) => *n,
        }
    }

    /// The bytes to send.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Payload::Empty => &[],
            Payload::Zeros(n) => &ZEROS.0[..*n],
            Payload::Bytes(b) => b,
            Payload::Buf(b, n) => &b[..*n],
            Payload::Part(b, at, n) => &b[*at..at + n],
        }
    }
}

/// The data of a message to send, in memory or in a pipe.
pub enum Body {
    /// Bytes in memory.
    Memory(Payload),
    /// Bytes in a pipe, such as pages of a file.
    Piped(PipedPart),
}

impl From<Payload> for Body {
    #[inline]
    fn from(payload: Payload) -> Body {
        Body::Memory(payload)
    }
}

impl Body {
    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Body::Memory(payload) => payload.len(),
            Body::Piped(part) => part.len,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Length of bytes outside any pool.
    #[inline]
    pub(super) fn own(&self) -> usize {
        if let Body::Memory(Payload::Bytes(bytes)) = self { bytes.len() } else { 0 }
    }

    /// Whether there is no payload.
    #[inline]
    pub(super) fn is_none(&self) -> bool {
        matches!(self, Body::Memory(Payload::Empty))
    }

    /// The bytes, if they are in memory.
    #[inline]
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        if let Body::Memory(payload) = self { Some(payload.bytes()) } else { None }
    }

    /// Moves the bytes after the first `sent` to memory, for [`SendQueue::take_bytes`](super::SendQueue::take_bytes).
    pub(super) fn load(&mut self, sent: usize) {
        if let Body::Piped(PipedPart { piped, start, len }) = self {
            let rest = PipedPart { piped: piped.clone(), start: *start + sent, len: *len - sent };
            let rest = rest.copy().expect("the bytes are sent in order");
            *self = Body::Memory(Payload::Bytes([vec![0; sent], rest].concat()));
        }
    }

    /// The same bytes in memory, for transports and digests that need them there. Those in a pipe are copied.
    ///
    /// # Errors
    /// Those of [`PipedPart::copy`].
    #[inline]
    pub fn in_memory(self) -> io::Result<Payload> {
        match self {
            Body::Memory(payload) => Ok(payload),
            Body::Piped(part) => part.copy().map(Payload::Bytes),
        }
    }
}

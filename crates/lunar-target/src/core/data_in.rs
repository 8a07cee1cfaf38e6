//! Data-In that the core passes to a front end.

use lunar_runtime::piped_bytes::PipedPart;
use lunar_runtime::send_queue::{Body, Payload};
use lunar_runtime::{Buf, PipedBytes};
use std::rc::Rc;

/// Data-In for an initiator.
pub enum DataIn {
    /// None.
    None,
    /// This many zeros.
    Zeros(usize),
    /// Parameter data.
    Bytes(Vec<u8>),
    /// The first bytes of a buffer.
    Buf(Buf, usize),
    /// Pages of a file, for front ends that take them.
    Pages(PipedBytes),
}

/// Data-In that several messages share.
pub enum SharedDataIn {
    /// Zeros.
    Zeros,
    /// Parameter data.
    Bytes(Vec<u8>),
    /// A buffer.
    Buf(Rc<Buf>),
    /// Pages of a file.
    Pages(Rc<PipedBytes>),
}

impl DataIn {
    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            DataIn::None => 0,
            DataIn::Zeros(len) | DataIn::Buf(_, len) => *len,
            DataIn::Bytes(bytes) => bytes.len(),
            DataIn::Pages(pages) => pages.len(),
        }
    }

    /// The payload of a single message. Zeros may have up to [`MAX_ZEROS`](lunar_runtime::send_queue::MAX_ZEROS)
    /// bytes.
    #[inline]
    pub fn whole(self) -> Body {
        Body::Memory(match self {
            DataIn::None => Payload::Empty,
            DataIn::Zeros(len) => Payload::Zeros(len),
            DataIn::Bytes(bytes) => Payload::Bytes(bytes),
            DataIn::Buf(buf, len) => Payload::Buf(buf, len),
            DataIn::Pages(pages) => return Body::Piped(pages.into()),
        })
    }

    /// The same data for several messages, which must be sent in order.
    pub fn shared(self) -> SharedDataIn {
        match self {
            DataIn::None | DataIn::Zeros(_) => SharedDataIn::Zeros,
            DataIn::Bytes(bytes) => SharedDataIn::Bytes(bytes),
            DataIn::Buf(buf, _) => SharedDataIn::Buf(Rc::new(buf)),
            DataIn::Pages(pages) => SharedDataIn::Pages(Rc::new(pages)),
        }
    }
}

impl SharedDataIn {
    /// The payload of one message: `len` bytes from `at` on.
    pub fn part(&self, at: usize, len: usize) -> Body {
        Body::Memory(match self {
            SharedDataIn::Zeros => Payload::Zeros(len),
            SharedDataIn::Bytes(bytes) => Payload::Bytes(bytes[at..at + len].to_vec()),
            SharedDataIn::Buf(buf) => Payload::Part(buf.clone(), at, len),
            SharedDataIn::Pages(pages) => {
                return Body::Piped(PipedPart { piped: pages.clone(), start: at, len });
            }
        })
    }
}

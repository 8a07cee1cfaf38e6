//! Data-In that the core passes to a front end.

use lunar_runtime::Buf;
use lunar_runtime::send_queue::Payload;
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
}

/// Data-In that several messages share.
pub enum SharedDataIn {
    /// Zeros.
    Zeros,
    /// Parameter data.
    Bytes(Vec<u8>),
    /// A buffer.
    Buf(Rc<Buf>),
}

impl DataIn {
    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            DataIn::None => 0,
            DataIn::Zeros(len) | DataIn::Buf(_, len) => *len,
            DataIn::Bytes(bytes) => bytes.len(),
        }
    }

    /// The payload of a single message. Zeros may have up to [`MAX_ZEROS`](lunar_runtime::send_queue::MAX_ZEROS)
    /// bytes.
    #[inline]
    pub fn whole(self) -> Payload {
        match self {
            DataIn::None => Payload::Empty,
            DataIn::Zeros(len) => Payload::Zeros(len),
            DataIn::Bytes(bytes) => Payload::Bytes(bytes),
            DataIn::Buf(buf, len) => Payload::Buf(buf, len),
        }
    }

    /// The same data for several messages.
    pub fn shared(self) -> SharedDataIn {
        match self {
            DataIn::None | DataIn::Zeros(_) => SharedDataIn::Zeros,
            DataIn::Bytes(bytes) => SharedDataIn::Bytes(bytes),
            DataIn::Buf(buf, _) => SharedDataIn::Buf(Rc::new(buf)),
        }
    }
}

impl SharedDataIn {
    /// The payload of one message: `len` bytes from `at` on.
    pub fn part(&self, at: usize, len: usize) -> Payload {
        match self {
            SharedDataIn::Zeros => Payload::Zeros(len),
            SharedDataIn::Bytes(bytes) => Payload::Bytes(bytes[at..at + len].to_vec()),
            SharedDataIn::Buf(buf) => Payload::Part(buf.clone(), at, len),
        }
    }
}

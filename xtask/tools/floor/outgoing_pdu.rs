//! An outgoing PDU.

use crate::bytes::BHS;

/// The longest supported READ, in bytes.
pub const MAX_READ: usize = 1 << 20;
static ZEROS: [u8; MAX_READ] = [0; MAX_READ];

/// A number of zeros, at most `MAX_READ`.
pub fn zeros(len: usize) -> &'static [u8] {
    &ZEROS[..len]
}

/// The data segment of a PDU.
#[derive(Debug)]
pub enum DataSegment {
    /// Own bytes, including padding
    Bytes(Vec<u8>),
    /// A number of zeros, which need no buffer
    Zeros(usize),
}

impl DataSegment {
    /// The bytes to send.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            DataSegment::Bytes(bytes) => bytes,
            DataSegment::Zeros(len) => zeros(*len),
        }
    }
}

/// A header and its data segment.
#[derive(Debug)]
pub struct OutgoingPdu {
    /// The basic header segment
    pub header: [u8; BHS],
    /// The data segment
    pub data: DataSegment,
}

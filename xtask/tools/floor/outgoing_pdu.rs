//! One PDU on its way out.

use crate::bytes::BHS;

/// The longest READ that is answered, in bytes.
pub const MAX_READ: usize = 1 << 20;
static ZEROS: [u8; MAX_READ] = [0; MAX_READ];

/// What follows a header.
#[derive(Debug)]
pub enum DataSegment {
    /// Bytes of its own, already padded
    Bytes(Vec<u8>),
    /// So many zeros, which nobody has to write
    Zeros(usize),
}

impl DataSegment {
    /// The bytes that go to the wire.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            DataSegment::Bytes(bytes) => bytes,
            DataSegment::Zeros(len) => &ZEROS[..*len],
        }
    }
}

/// A header and its payload.
#[derive(Debug)]
pub struct OutgoingPdu {
    /// The basic header segment
    pub header: [u8; BHS],
    /// The data segment
    pub data: DataSegment,
}

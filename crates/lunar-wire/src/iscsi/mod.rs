//! iSCSI on the wire: the 48 bytes of a Basic Header Segment and their fields (RFC 7143 section 11).

mod bhs;
pub mod name;
pub mod opcode;
pub mod pdu;
pub mod request;
pub mod sense_segment;
pub mod status;
pub mod text;

pub use bhs::{BHS_LEN, Bhs, NONE, flag};

/// The length of a segment with its padding to four bytes.
#[inline]
pub fn padded(len: usize) -> usize {
    (len + 3) & !3
}

//! Big-endian numbers at an offset of an iSCSI header, for `blast` and `floor`: they share no code with the
//! product that they measure.

/// Length of a basic header segment in bytes (RFC 7143 section 11.2.1).
pub const BHS: usize = 48;
/// The tag of a PDU that belongs to no request (RFC 7143 section 11.2.1.8).
pub const RESERVED_TAG: u32 = 0xffff_ffff;

/// The 24-bit number at `at`.
pub fn get24(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([0, bytes[at], bytes[at + 1], bytes[at + 2]])
}

/// The 32-bit number at `at`.
pub fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Puts the low 24 bits of `value` at `at`.
pub fn put24(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 3].copy_from_slice(&value.to_be_bytes()[1..]);
}

/// Puts `value` at `at`.
pub fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// Bytes that a data segment of `len` bytes takes on the wire without its digest: a multiple of four.
pub fn padded(len: u32) -> usize {
    (len as usize).next_multiple_of(4)
}

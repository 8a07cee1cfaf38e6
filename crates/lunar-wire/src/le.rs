//! Little-endian integers at the start of a slice. Every function panics when the slice is too short; its caller has
//! checked the length of the header.

use crate::be::first;

/// Reads 16 bits.
#[inline]
pub fn get16(p: &[u8]) -> u16 {
    u16::from_le_bytes([p[0], p[1]])
}

/// Reads 32 bits.
#[inline]
pub fn get32(p: &[u8]) -> u32 {
    u32::from_le_bytes([p[0], p[1], p[2], p[3]])
}

/// Reads 64 bits.
#[inline]
pub fn get64(p: &[u8]) -> u64 {
    get32(p) as u64 | (get32(&p[4..]) as u64) << 32
}

/// Writes 16 bits.
#[inline]
pub fn put16(p: &mut [u8], v: u16) {
    *first(p) = v.to_le_bytes();
}

/// Writes 32 bits.
#[inline]
pub fn put32(p: &mut [u8], v: u32) {
    *first(p) = v.to_le_bytes();
}

/// Writes 64 bits.
#[inline]
pub fn put64(p: &mut [u8], v: u64) {
    *first(p) = v.to_le_bytes();
}

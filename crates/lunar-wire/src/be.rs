//! Big-endian integers at the start of a slice. Every function panics when the slice is too short; its caller has
//! checked the length of the header.

/// Reads 16 bits.
#[inline]
pub fn get16(p: &[u8]) -> u16 {
    u16::from_be_bytes([p[0], p[1]])
}

/// Reads 24 bits, such as DataSegmentLength.
#[inline]
pub fn get24(p: &[u8]) -> u32 {
    u32::from_be_bytes([0, p[0], p[1], p[2]])
}

/// Reads 32 bits.
#[inline]
pub fn get32(p: &[u8]) -> u32 {
    u32::from_be_bytes([p[0], p[1], p[2], p[3]])
}

/// Reads 64 bits.
#[inline]
pub fn get64(p: &[u8]) -> u64 {
    (get32(p) as u64) << 32 | get32(&p[4..]) as u64
}

/// Writes 16 bits.
#[inline]
pub fn put16(p: &mut [u8], v: u16) {
    *first(p) = v.to_be_bytes();
}

/// Writes the low 24 bits.
#[inline]
pub fn put24(p: &mut [u8], v: u32) {
    let [_, bytes @ ..] = v.to_be_bytes();
    *first(p) = bytes;
}

/// Writes 32 bits.
#[inline]
pub fn put32(p: &mut [u8], v: u32) {
    *first(p) = v.to_be_bytes();
}

/// Writes 64 bits.
#[inline]
pub fn put64(p: &mut [u8], v: u64) {
    *first(p) = v.to_be_bytes();
}

/// The first `N` bytes. An assignment to an array is one store, and `copy_from_slice` may remain a call.
#[inline]
pub(crate) fn first<const N: usize>(p: &mut [u8]) -> &mut [u8; N] {
    p.first_chunk_mut().expect("the length was checked")
}

//! Positions of fields in CDBs, parameter lists and parameter data. One constant reads a field, writes it, and is the
//! field pointer of the sense data that rejects it.

/// The position of a field: a flag, some bits of a byte, or a big-endian number of up to 64 bits whose last bit ends a
/// byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitField {
    byte: u16,
    bit: u8,
    width: u8,
}

impl BitField {
    /// `width` bits, the most significant of which is `bit` of `byte`.
    ///
    /// # Panics
    ///
    /// If the bits are more than 64, or cross the end of a byte without ending with one.
    pub const fn bits(byte: u16, bit: u8, width: u8) -> BitField {
        assert!(bit < 8 && width > 0 && width <= 64, "the field has 1 to 64 bits");
        assert!(
            width <= bit + 1 || (width - bit - 1).is_multiple_of(8),
            "a field of several bytes ends with a byte"
        );
        BitField { byte, bit, width }
    }

    /// One bit.
    pub const fn flag(byte: u16, bit: u8) -> BitField {
        BitField::bits(byte, bit, 1)
    }

    /// A number of `count` whole bytes, at most 8.
    pub const fn bytes(byte: u16, count: u8) -> BitField {
        BitField::bits(byte, 7, count * 8)
    }

    /// The same field of a descriptor that begins `offset` bytes later.
    pub const fn after(self, offset: u16) -> BitField {
        BitField { byte: self.byte + offset, ..self }
    }

    /// The first byte of the field, counted from 0.
    pub const fn byte(self) -> u16 {
        self.byte
    }

    /// The most significant bit of the field in its first byte.
    pub const fn bit(self) -> u8 {
        self.bit
    }

    /// The first byte after the field.
    pub const fn end(self) -> u16 {
        self.byte + self.extent().0 as u16
    }

    /// The number of bytes in which the field lies, and the number of bits after it in the last of them.
    #[inline]
    const fn extent(self) -> (usize, u8) {
        match self.width > self.bit {
            true => (1 + (self.width - self.bit - 1) as usize / 8, 0),
            false => (1, self.bit + 1 - self.width),
        }
    }

    #[inline]
    const fn mask(self) -> u64 {
        u64::MAX >> (64 - self.width)
    }

    /// The value of the field. Missing bytes count as zeros.
    #[inline]
    pub fn get(self, b: &[u8]) -> u64 {
        let (len, shift) = self.extent();
        let start = self.byte as usize;
        let byte = |at: usize| u64::from(b.get(at).copied().unwrap_or(0));
        (start..start + len).fold(0, |n, at| n << 8 | byte(at)) >> shift & self.mask()
    }

    /// The value of a field of at most 8 bits.
    #[inline]
    pub fn get_u8(self, b: &[u8]) -> u8 {
        debug_assert!(self.width <= 8);
        self.get(b) as u8
    }

    /// The value of a field of at most 16 bits.
    #[inline]
    pub fn get_u16(self, b: &[u8]) -> u16 {
        debug_assert!(self.width <= 16);
        self.get(b) as u16
    }

    /// The value of a field of at most 32 bits.
    #[inline]
    pub fn get_u32(self, b: &[u8]) -> u32 {
        debug_assert!(self.width <= 32);
        self.get(b) as u32
    }

    /// Whether any bit of the field is set. Missing bytes count as zeros.
    #[inline]
    pub fn is_set(self, b: &[u8]) -> bool {
        self.get(b) != 0
    }

    /// Writes the low bits of `value` into the field, and leaves the bits beside it.
    ///
    /// # Panics
    ///
    /// If `b` ends before the field does.
    pub fn set(self, b: &mut [u8], value: u64) {
        let (len, shift) = self.extent();
        let (mask, value) = (self.mask() << shift, (value & self.mask()) << shift);
        let bytes = b[self.byte as usize..][..len].iter_mut().rev().enumerate();
        bytes.for_each(|(i, byte)| *byte = *byte & !((mask >> (8 * i)) as u8) | (value >> (8 * i)) as u8);
    }

    /// Writes the number of bytes that follow the field, as most LENGTH fields count them.
    ///
    /// # Panics
    ///
    /// If `b` ends before the field does.
    pub fn set_following_len(self, b: &mut [u8]) {
        let len = b.len() - usize::from(self.end());
        self.set(b, len as u64);
    }

    /// Sets every bit of the field.
    ///
    /// # Panics
    ///
    /// If `b` ends before the field does.
    pub fn fill(self, b: &mut [u8]) {
        self.set(b, u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 10] = [0x12, 0xa5, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 0x11];

    #[test]
    fn field_reads_and_writes_its_own_bits() {
        for (field, value) in [
            (BitField::flag(1, 7), 1),
            (BitField::flag(1, 6), 0),
            (BitField::bits(1, 5, 4), 9),
            (BitField::bits(1, 4, 21), 0x05_3456),
            (BitField::bytes(2, 2), 0x3456),
            (BitField::bytes(2, 8), 0x3456_789a_bcde_f011),
            (BitField::bytes(1, 2).after(1), 0x3456),
        ] {
            assert_eq!(field.get(&BYTES), value, "{field:?}");
            assert_eq!(field.is_set(&BYTES), value != 0, "{field:?}");
            let (mut clear, mut full) = ([0; 10], [0xff; 10]);
            field.set(&mut clear, value);
            field.set(&mut full, value);
            let (others, mut own) = (clear.map(|byte| !byte), [0; 10]);
            field.fill(&mut own);
            assert_eq!(field.get(&clear), value, "{field:?}");
            (0..10).for_each(|i| assert_eq!(full[i], clear[i] | !own[i], "{field:?}, byte {i}"));
            (0..10).for_each(|i| assert_eq!(others[i] | own[i], 0xff, "{field:?}, byte {i}"));
        }
    }

    #[test]
    fn field_ends_after_its_last_byte() {
        let ends = [BitField::flag(3, 0), BitField::bits(1, 4, 21), BitField::bytes(2, 8)].map(BitField::end);
        assert_eq!(ends, [4, 4, 10]);
    }

    #[test]
    fn missing_bytes_count_as_zeros() {
        assert_eq!(BitField::bytes(2, 4).get(&BYTES[..4]), 0x3456_0000);
        assert_eq!(BitField::bits(1, 4, 21).get(&[]), 0);
    }

    #[test]
    fn following_length_counts_bytes_after_the_field() {
        let mut b = [0; 9];
        BitField::bytes(2, 2).set_following_len(&mut b);
        assert_eq!(b, [0, 0, 0, 5, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn value_wider_than_its_field_is_cut() {
        let mut b = [0; 4];
        BitField::bits(1, 3, 4).set(&mut b, 0x1ff);
        assert_eq!(b, [0, 0x0f, 0, 0]);
    }
}

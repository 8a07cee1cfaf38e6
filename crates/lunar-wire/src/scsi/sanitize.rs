//! The parameter list of SANITIZE with the service action OVERWRITE (SBC-4 section 5.30.2.2).

use super::BitField;

/// The header of the parameter list. The initialization pattern follows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverwriteHeader {
    /// INVERT: each pass inverts the previous one.
    pub invert: bool,
    /// TEST; 0 is the normal operation.
    pub test: u8,
    /// OVERWRITE COUNT: the number of passes.
    pub overwrite_count: u8,
    /// INITIALIZATION PATTERN LENGTH in bytes.
    pub initialization_pattern_length: u16,
}

impl OverwriteHeader {
    /// Bytes of the header.
    pub const LEN: usize = 4;
    /// INVERT.
    pub const INVERT: BitField = BitField::flag(0, 7);
    /// TEST.
    pub const TEST: BitField = BitField::bits(0, 6, 2);
    /// OVERWRITE COUNT.
    pub const OVERWRITE_COUNT: BitField = BitField::bits(0, 4, 5);
    /// The reserved byte.
    pub const RESERVED: BitField = BitField::bytes(1, 1);
    /// INITIALIZATION PATTERN LENGTH.
    pub const INITIALIZATION_PATTERN_LENGTH: BitField = BitField::bytes(2, 2);

    /// Decodes the header. Missing bytes count as zeros.
    pub fn decode(b: &[u8]) -> OverwriteHeader {
        OverwriteHeader {
            invert: Self::INVERT.is_set(b),
            test: Self::TEST.get_u8(b),
            overwrite_count: Self::OVERWRITE_COUNT.get_u8(b),
            initialization_pattern_length: Self::INITIALIZATION_PATTERN_LENGTH.get_u16(b),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overwrite_header_lies_as_in_the_standard() {
        let header = OverwriteHeader {
            invert: true,
            test: 1,
            overwrite_count: 3,
            initialization_pattern_length: 0x102,
        };
        assert_eq!(OverwriteHeader::decode(&[0xa3, 0, 1, 2, 9]), header);
        let second = OverwriteHeader { invert: false, test: 2, overwrite_count: 0x1f, ..header };
        assert_eq!(OverwriteHeader::decode(&[0x5f, 0xff, 1, 2]), second);
        assert_eq!(OverwriteHeader::decode(&[]), OverwriteHeader::default());
    }
}

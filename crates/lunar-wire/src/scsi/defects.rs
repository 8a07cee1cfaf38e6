//! The header of the data of READ DEFECT DATA (SBC-4).

use super::BitField;

/// A defect list header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefectListHeader {
    /// PLISTV: the data contain the primary defect list.
    pub plistv: bool,
    /// GLISTV: the data contain the grown defect list.
    pub glistv: bool,
    /// DEFECT LIST FORMAT.
    pub defect_list_format: u8,
    /// DEFECT LIST LENGTH in bytes.
    pub defect_list_length: u32,
}

impl DefectListHeader {
    /// Bytes of the header of READ DEFECT DATA(10).
    pub const LEN_10: usize = 4;
    /// Bytes of the header of READ DEFECT DATA(12).
    pub const LEN_12: usize = 8;
    const PLISTV: BitField = BitField::flag(1, 4);
    const GLISTV: BitField = BitField::flag(1, 3);
    const DEFECT_LIST_FORMAT: BitField = BitField::bits(1, 2, 3);
    const DEFECT_LIST_LENGTH_10: BitField = BitField::bytes(2, 2);
    const DEFECT_LIST_LENGTH_12: BitField = BitField::bytes(4, 4);

    fn encode<const LEN: usize>(&self, length: BitField) -> [u8; LEN] {
        let mut b = [0; LEN];
        Self::PLISTV.set(&mut b, self.plistv.into());
        Self::GLISTV.set(&mut b, self.glistv.into());
        Self::DEFECT_LIST_FORMAT.set(&mut b, self.defect_list_format.into());
        length.set(&mut b, self.defect_list_length.into());
        b
    }

    /// Encodes the header of READ DEFECT DATA(10), whose length has 16 bits.
    pub fn encode_10(&self) -> [u8; Self::LEN_10] {
        self.encode(Self::DEFECT_LIST_LENGTH_10)
    }

    /// Encodes the header of READ DEFECT DATA(12).
    pub fn encode_12(&self) -> [u8; Self::LEN_12] {
        self.encode(Self::DEFECT_LIST_LENGTH_12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defect_list_headers_lie_as_in_the_standard() {
        let header = DefectListHeader {
            plistv: true,
            glistv: false,
            defect_list_format: 5,
            defect_list_length: 0x0102_0304,
        };
        assert_eq!(header.encode_10(), [0, 0x15, 3, 4]);
        assert_eq!(header.encode_12(), [0, 0x15, 0, 0, 1, 2, 3, 4]);
        let grown = DefectListHeader { plistv: false, glistv: true, ..header };
        assert_eq!(grown.encode_10()[1], 0x0d);
    }
}

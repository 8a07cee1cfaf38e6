//! The mode parameter header, block descriptors, and the header of a mode page: one definition for reading, writing
//! and rejecting.

use crate::scsi::BitField;

/// Positions in the mode parameter header, which depend on the length of the CDB (SPC-5 section 7.5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderLayout {
    /// Bytes of the header.
    pub len: usize,
    /// MODE DATA LENGTH: bytes after this field. Reserved in MODE SELECT.
    pub mode_data_length: BitField,
    /// MEDIUM TYPE.
    pub medium_type: BitField,
    /// WP of the DEVICE-SPECIFIC PARAMETER of a disk (SBC-4 section 6.4.1): the medium is write-protected.
    pub wp: BitField,
    /// DPOFUA of the DEVICE-SPECIFIC PARAMETER of a disk.
    pub dpofua: BitField,
    /// LONGLBA: block descriptors have the long format.
    pub longlba: Option<BitField>,
    /// BLOCK DESCRIPTOR LENGTH in bytes.
    pub block_descriptor_length: BitField,
}

impl HeaderLayout {
    /// The header of MODE SENSE(6) and MODE SELECT(6).
    pub const SIX: HeaderLayout = HeaderLayout {
        len: 4,
        mode_data_length: BitField::bytes(0, 1),
        medium_type: BitField::bytes(1, 1),
        wp: BitField::flag(2, 7),
        dpofua: BitField::flag(2, 4),
        longlba: None,
        block_descriptor_length: BitField::bytes(3, 1),
    };

    /// The header of MODE SENSE(10) and MODE SELECT(10).
    pub const TEN: HeaderLayout = HeaderLayout {
        len: 8,
        mode_data_length: BitField::bytes(0, 2),
        medium_type: BitField::bytes(2, 1),
        wp: BitField::flag(3, 7),
        dpofua: BitField::flag(3, 4),
        longlba: Some(BitField::flag(4, 0)),
        block_descriptor_length: BitField::bytes(6, 2),
    };
}

/// The mode parameter header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModeHeader {
    /// MEDIUM TYPE.
    pub medium_type: u8,
    /// WP of a disk.
    pub wp: bool,
    /// DPOFUA of a disk.
    pub dpofua: bool,
    /// LONGLBA. The short header has none.
    pub longlba: bool,
    /// BLOCK DESCRIPTOR LENGTH in bytes.
    pub block_descriptor_length: u16,
}

impl ModeHeader {
    /// Encodes the header. MODE DATA LENGTH is 0.
    pub fn encode(&self, layout: HeaderLayout) -> Vec<u8> {
        let mut b = vec![0; layout.len];
        layout.medium_type.set(&mut b, self.medium_type.into());
        layout.wp.set(&mut b, self.wp.into());
        layout.dpofua.set(&mut b, self.dpofua.into());
        layout.longlba.iter().for_each(|field| field.set(&mut b, self.longlba.into()));
        layout.block_descriptor_length.set(&mut b, self.block_descriptor_length.into());
        b
    }

    /// Decodes the header. Missing bytes count as zeros.
    pub fn decode(b: &[u8], layout: HeaderLayout) -> ModeHeader {
        ModeHeader {
            medium_type: layout.medium_type.get_u8(b),
            wp: layout.wp.is_set(b),
            dpofua: layout.dpofua.is_set(b),
            longlba: layout.longlba.is_some_and(|field| field.is_set(b)),
            block_descriptor_length: layout.block_descriptor_length.get_u16(b),
        }
    }
}

/// Positions in a block descriptor (SBC-4 sections 6.4.2 and 6.4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockDescriptorLayout {
    /// Bytes of the descriptor.
    pub len: usize,
    /// NUMBER OF LOGICAL BLOCKS; all ones if the field is too small for the number.
    pub number_of_logical_blocks: BitField,
    /// LOGICAL BLOCK LENGTH in bytes.
    pub logical_block_length: BitField,
}

impl BlockDescriptorLayout {
    /// The short LBA mode parameter block descriptor.
    pub const SHORT: BlockDescriptorLayout = BlockDescriptorLayout {
        len: 8,
        number_of_logical_blocks: BitField::bytes(0, 4),
        logical_block_length: BitField::bytes(5, 3),
    };

    /// The long LBA mode parameter block descriptor.
    pub const LONG: BlockDescriptorLayout = BlockDescriptorLayout {
        len: 16,
        number_of_logical_blocks: BitField::bytes(0, 8),
        logical_block_length: BitField::bytes(12, 4),
    };

    /// The format that LONGLBA selects.
    pub const fn of(longlba: bool) -> BlockDescriptorLayout {
        if longlba { Self::LONG } else { Self::SHORT }
    }

    /// NUMBER OF LOGICAL BLOCKS with all bits set.
    pub fn max_blocks(&self) -> u64 {
        self.number_of_logical_blocks.get(&[0xff; Self::LONG.len])
    }

    /// Encodes a descriptor.
    pub fn encode(&self, blocks: u64, block_length: u32) -> Vec<u8> {
        let mut b = vec![0; self.len];
        self.number_of_logical_blocks.set(&mut b, blocks.min(self.max_blocks()));
        self.logical_block_length.set(&mut b, block_length.into());
        b
    }
}

/// PS: the page can be saved. Reserved in MODE SELECT.
pub const PS: BitField = BitField::flag(0, 7);
/// SPF: the page has a subpage code.
pub const SPF: BitField = BitField::flag(0, 6);
/// PAGE CODE of a mode page.
pub const PAGE_CODE: BitField = BitField::bits(0, 5, 6);
/// PAGE LENGTH of a page without a subpage code: bytes after [`PAGE_HEADER_LEN`].
pub const PAGE_LENGTH: BitField = BitField::bytes(1, 1);
/// Bytes before the values of a page without a subpage code.
pub const PAGE_HEADER_LEN: usize = 2;
/// SUBPAGE CODE of a page with SPF.
pub const SUBPAGE_CODE: BitField = BitField::bytes(1, 1);
/// PAGE LENGTH of a page with SPF: bytes after [`SUBPAGE_HEADER_LEN`].
pub const SUBPAGE_LENGTH: BitField = BitField::bytes(2, 2);
/// Bytes before the values of a page with SPF.
pub const SUBPAGE_HEADER_LEN: usize = 4;

/// Encodes a mode page without a subpage code. `len` is PAGE LENGTH; bits outside of `values` are zeros.
///
/// # Panics
///
/// If a field of `values` is beyond the end of the page.
pub fn encode_page(code: u8, len: u8, values: impl IntoIterator<Item = (BitField, u64)>) -> Vec<u8> {
    let mut b = vec![0; PAGE_HEADER_LEN + usize::from(len)];
    PAGE_CODE.set(&mut b, code.into());
    PAGE_LENGTH.set(&mut b, len.into());
    values.into_iter().for_each(|(field, value)| field.set(&mut b, value));
    b
}

/// Values of the caching page (SBC-4 section 6.4.5).
pub mod caching {
    use crate::scsi::BitField;

    /// PAGE LENGTH.
    pub const LEN: u8 = 0x12;
    /// WCE: writes may be acknowledged before they are on stable storage.
    pub const WCE: BitField = BitField::flag(2, 2);
}

/// Values of the control page (SPC-5 section 7.5.9).
pub mod control {
    use crate::scsi::BitField;

    /// PAGE LENGTH.
    pub const LEN: u8 = 0x0a;
    /// D_SENSE: sense data have descriptor format.
    pub const D_SENSE: BitField = BitField::flag(2, 2);
    /// QUEUE ALGORITHM MODIFIER: 1 allows unrestricted reordering of SIMPLE tasks.
    pub const QUEUE_ALGORITHM_MODIFIER: BitField = BitField::bits(3, 7, 4);
    /// SWP: software write protect.
    pub const SWP: BitField = BitField::flag(4, 3);
    /// TAS: tasks aborted by another nexus end with TASK ABORTED.
    pub const TAS: BitField = BitField::flag(5, 6);
}

/// Values of the informational exceptions control page (SPC-5 section 7.5.13).
pub mod informational_exceptions_control {
    use crate::scsi::BitField;

    /// PAGE LENGTH.
    pub const LEN: u8 = 0x0a;
    /// DEXCPT: no exception is reported.
    pub const DEXCPT: BitField = BitField::flag(2, 3);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_headers_lie_as_in_the_standard() {
        let header = ModeHeader {
            medium_type: 9,
            wp: true,
            dpofua: false,
            longlba: true,
            block_descriptor_length: 0x0110,
        };
        assert_eq!(header.encode(HeaderLayout::TEN), [0, 0, 9, 0x80, 1, 0, 1, 0x10]);
        assert_eq!(ModeHeader::decode(&[7, 7, 9, 0x80, 1, 0, 1, 0x10], HeaderLayout::TEN), header);
        let short = ModeHeader { dpofua: true, longlba: false, block_descriptor_length: 8, ..header };
        assert_eq!(short.encode(HeaderLayout::SIX), [0, 9, 0x90, 8]);
        assert_eq!(ModeHeader::decode(&[7, 9, 0x90, 8], HeaderLayout::SIX), short);
        assert_eq!(ModeHeader::decode(&[], HeaderLayout::SIX), ModeHeader::default());
    }

    #[test]
    fn mode_data_length_counts_the_bytes_after_it() {
        let mut b = [0; 20];
        HeaderLayout::SIX.mode_data_length.set_following_len(&mut b);
        assert_eq!(b[..2], [19, 0]);
        HeaderLayout::TEN.mode_data_length.set_following_len(&mut b);
        assert_eq!(b[..3], [0, 18, 0]);
    }

    #[test]
    fn block_descriptors_lie_as_in_the_standard() {
        let (short, long) = (BlockDescriptorLayout::SHORT, BlockDescriptorLayout::LONG);
        assert_eq!(short.encode(0x0102_0304, 0x05_0607), [1, 2, 3, 4, 0, 5, 6, 7]);
        assert_eq!(short.encode(1 << 32, 512), [0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0]);
        let b = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0];
        assert_eq!(long.encode(1 << 32, 512), b);
        assert_eq!((short.max_blocks(), long.max_blocks()), (u32::MAX.into(), u64::MAX));
    }

    #[test]
    fn values_of_mode_pages_lie_as_in_the_standard() {
        let page = encode_page(0x0a, 4, [(control::QUEUE_ALGORITHM_MODIFIER, 1), (control::TAS, 1)]);
        assert_eq!(page, [0x0a, 4, 0, 0x10, 0, 0x40]);
        let page = encode_page(0x0a, 3, [(control::D_SENSE, 1), (control::SWP, 1)]);
        assert_eq!(page, [0x0a, 3, 4, 0, 8]);
        assert_eq!(encode_page(0x08, 1, [(caching::WCE, 1)]), [0x08, 1, 4]);
        let page = encode_page(0x1c, 1, [(informational_exceptions_control::DEXCPT, 1), (PS, 1)]);
        assert_eq!(page, [0x9c, 1, 8]);
    }
}

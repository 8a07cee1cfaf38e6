//! Fields of the parameter list of EXTENDED COPY(LID1).

/// The header of the parameter list (SPC-4 section 6.4.2).
pub mod list_header {
    use crate::scsi::BitField;

    /// LIST IDENTIFIER.
    pub const LIST_IDENTIFIER: BitField = BitField::bytes(0, 1);
    /// The reserved bits before STR.
    pub const RESERVED: BitField = BitField::bits(1, 7, 2);
    /// LIST ID USAGE.
    pub const LIST_ID_USAGE: BitField = BitField::bits(1, 4, 2);
    /// CSCD DESCRIPTOR LIST LENGTH in bytes.
    pub const CSCD_LIST_LENGTH: BitField = BitField::bytes(2, 2);
    /// SEGMENT DESCRIPTOR LIST LENGTH in bytes.
    pub const SEGMENT_LIST_LENGTH: BitField = BitField::bytes(8, 4);
    /// INLINE DATA LENGTH in bytes.
    pub const INLINE_DATA_LENGTH: BitField = BitField::bytes(12, 4);
    /// Bytes of the header.
    pub const LEN: usize = 16;
}

/// The identification CSCD descriptor (SPC-4 section 6.4.5.4). Its bytes from `CODE_SET` on are a designation
/// descriptor.
pub mod cscd_descriptor {
    use crate::scsi::BitField;

    /// DESCRIPTOR TYPE CODE.
    pub const TYPE_CODE: BitField = BitField::bytes(0, 1);
    /// PERIPHERAL DEVICE TYPE.
    pub const PERIPHERAL_DEVICE_TYPE: BitField = BitField::bits(1, 4, 5);
    /// The protocol identifier of the designation descriptor, which is reserved here.
    pub const PROTOCOL: BitField = BitField::bits(4, 7, 4);
    /// CODE SET.
    pub const CODE_SET: BitField = BitField::bits(4, 3, 4);
    /// The PIV bit of the designation descriptor and the bit after it, which are reserved here.
    pub const PIV: BitField = BitField::bits(5, 7, 2);
    /// ASSOCIATION and DESIGNATOR TYPE in one number.
    pub const ASSOCIATION_AND_TYPE: BitField = BitField::bits(5, 5, 6);
    /// DESIGNATOR LENGTH in bytes.
    pub const DESIGNATOR_LENGTH: BitField = BitField::bytes(7, 1);
    /// The first byte of DESIGNATOR.
    pub const DESIGNATOR: usize = 8;
    /// DISK BLOCK LENGTH in bytes.
    pub const BLOCK_LENGTH: BitField = BitField::bytes(29, 3);
    /// Bytes of the descriptor.
    pub const LEN: usize = 32;
}

/// The segment descriptors from block device to block device (SPC-4 section 6.4.6).
pub mod segment_descriptor {
    use crate::scsi::BitField;

    /// DESCRIPTOR TYPE CODE.
    pub const TYPE_CODE: BitField = BitField::bytes(0, 1);
    /// The reserved bits before DC.
    pub const RESERVED: BitField = BitField::bits(1, 7, 6);
    /// DC: the length counts blocks of the destination.
    pub const DC: BitField = BitField::flag(1, 1);
    /// DESCRIPTOR LENGTH: the number of bytes that follow this field.
    pub const DESCRIPTOR_LENGTH: BitField = BitField::bytes(2, 2);
    /// SOURCE CSCD DESCRIPTOR ID.
    pub const SOURCE: BitField = BitField::bytes(4, 2);
    /// DESTINATION CSCD DESCRIPTOR ID.
    pub const DESTINATION: BitField = BitField::bytes(6, 2);
    /// NUMBER OF BYTES, if the length is in bytes; else reserved bytes, and the number of blocks.
    pub const BYTES: BitField = BitField::bytes(8, 4);
    /// BLOCK DEVICE NUMBER OF BLOCKS, if the length is in blocks.
    pub const BLOCKS: BitField = BitField::bytes(10, 2);
    /// SOURCE BLOCK DEVICE LOGICAL BLOCK ADDRESS.
    pub const SOURCE_LBA: BitField = BitField::bytes(12, 8);
    /// DESTINATION BLOCK DEVICE LOGICAL BLOCK ADDRESS.
    pub const DESTINATION_LBA: BitField = BitField::bytes(20, 8);
    /// The byte offset within the first block of the source, if the length is in bytes.
    pub const SOURCE_OFFSET: BitField = BitField::bytes(28, 2);
    /// The byte offset within the first block of the destination, if the length is in bytes.
    pub const DESTINATION_OFFSET: BitField = BitField::bytes(30, 2);
    /// Bytes up to the end of DESCRIPTOR LENGTH, which counts the bytes after them.
    pub const HEADER_LEN: usize = 4;
    /// Bytes of the descriptor with a length in blocks.
    pub const LEN: usize = 28;
    /// Bytes of the descriptor with a length in bytes.
    pub const LEN_WITH_OFFSETS: usize = 32;
}

//! Fields of READ CAPACITY.

/// READ CAPACITY(10) (SBC-4 section 5.20).
pub mod read_capacity_10 {
    use crate::scsi::BitField;

    /// LOGICAL BLOCK ADDRESS (obsolete).
    pub const LOGICAL_BLOCK_ADDRESS: BitField = BitField::bytes(2, 4);
    /// PMI (obsolete): the LBA after which access is slower.
    pub const PMI: BitField = BitField::flag(8, 0);
}

/// READ CAPACITY(16) (SBC-4 section 5.21).
pub mod read_capacity_16 {
    use crate::scsi::BitField;

    /// LOGICAL BLOCK ADDRESS (obsolete).
    pub const LOGICAL_BLOCK_ADDRESS: BitField = BitField::bytes(2, 8);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(10, 4);
    /// PMI (obsolete): the LBA after which access is slower.
    pub const PMI: BitField = BitField::flag(14, 0);
}

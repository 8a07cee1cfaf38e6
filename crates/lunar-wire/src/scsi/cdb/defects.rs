//! Fields of READ DEFECT DATA.

/// READ DEFECT DATA(10) (SBC-4).
pub mod read_defect_data_10 {
    use crate::scsi::BitField;

    /// REQ_PLIST: requests the primary defect list.
    pub const REQ_PLIST: BitField = BitField::flag(2, 4);
    /// REQ_GLIST: requests the grown defect list.
    pub const REQ_GLIST: BitField = BitField::flag(2, 3);
    /// DEFECT LIST FORMAT.
    pub const DEFECT_LIST_FORMAT: BitField = BitField::bits(2, 2, 3);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(7, 2);
}

/// READ DEFECT DATA(12) (SBC-4).
pub mod read_defect_data_12 {
    use crate::scsi::BitField;

    /// REQ_PLIST: requests the primary defect list.
    pub const REQ_PLIST: BitField = BitField::flag(1, 4);
    /// REQ_GLIST: requests the grown defect list.
    pub const REQ_GLIST: BitField = BitField::flag(1, 3);
    /// DEFECT LIST FORMAT.
    pub const DEFECT_LIST_FORMAT: BitField = BitField::bits(1, 2, 3);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(6, 4);
}

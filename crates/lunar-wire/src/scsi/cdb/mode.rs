//! Fields of MODE SENSE and MODE SELECT.

/// MODE SENSE(6) (SPC-5 section 6.14).
pub mod mode_sense_6 {
    use crate::scsi::BitField;

    /// DBD: no block descriptor.
    pub const DBD: BitField = BitField::flag(1, 3);
    /// PC (page control): the kind of values to report.
    pub const PC: BitField = BitField::bits(2, 7, 2);
    /// PAGE CODE.
    pub const PAGE_CODE: BitField = BitField::bits(2, 5, 6);
    /// SUBPAGE CODE.
    pub const SUBPAGE_CODE: BitField = BitField::bytes(3, 1);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(4, 1);
}

/// MODE SENSE(10) (SPC-5 section 6.15).
pub mod mode_sense_10 {
    pub use super::mode_sense_6::{DBD, PAGE_CODE, PC, SUBPAGE_CODE};
    use crate::scsi::BitField;

    /// LLBAA: the block descriptor may have the long format.
    pub const LLBAA: BitField = BitField::flag(1, 4);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(7, 2);
}

/// MODE SELECT(6) (SPC-5).
pub mod mode_select_6 {
    use crate::scsi::BitField;

    /// PF: the list has the format of mode pages.
    pub const PF: BitField = BitField::flag(1, 4);
    /// SP: saves the values.
    pub const SP: BitField = BitField::flag(1, 0);
    /// PARAMETER LIST LENGTH in bytes.
    pub const PARAMETER_LIST_LENGTH: BitField = BitField::bytes(4, 1);
}

/// MODE SELECT(10) (SPC-5).
pub mod mode_select_10 {
    pub use super::mode_select_6::{PF, SP};
    use crate::scsi::BitField;

    /// PARAMETER LIST LENGTH in bytes.
    pub const PARAMETER_LIST_LENGTH: BitField = BitField::bytes(7, 2);
}

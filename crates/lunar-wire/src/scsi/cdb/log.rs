//! Fields of LOG SENSE and LOG SELECT.

/// LOG SENSE (SPC-5 section 6.8).
pub mod log_sense {
    use crate::scsi::BitField;

    /// PC (page control): the values of the parameters to report.
    pub const PC: BitField = BitField::bits(2, 7, 2);
    /// PAGE CODE.
    pub const PAGE_CODE: BitField = BitField::bits(2, 5, 6);
    /// SUBPAGE CODE.
    pub const SUBPAGE_CODE: BitField = BitField::bytes(3, 1);
    /// PARAMETER POINTER: the first parameter code to report.
    pub const PARAMETER_POINTER: BitField = BitField::bytes(5, 2);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(7, 2);
}

/// LOG SELECT (SPC-5).
pub mod log_select {
    pub use super::log_sense::{PAGE_CODE, PC, SUBPAGE_CODE};
    use crate::scsi::BitField;

    /// PCR (parameter code reset): sets the parameters to their default values.
    pub const PCR: BitField = BitField::flag(1, 1);
    /// PARAMETER LIST LENGTH in bytes.
    pub const PARAMETER_LIST_LENGTH: BitField = BitField::bytes(7, 2);
}

//! Fields of SEND DIAGNOSTIC and RECEIVE DIAGNOSTIC RESULTS.

/// RECEIVE DIAGNOSTIC RESULTS (SPC-5 section 6.27).
pub mod receive_diagnostic_results {
    use crate::scsi::BitField;

    /// PCV: PAGE CODE is valid.
    pub const PCV: BitField = BitField::flag(1, 0);
    /// PAGE CODE.
    pub const PAGE_CODE: BitField = BitField::bytes(2, 1);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(3, 2);
}

/// SEND DIAGNOSTIC (SPC-5 section 6.42).
pub mod send_diagnostic {
    use crate::scsi::BitField;

    /// PF: the list has the format of a diagnostic page.
    pub const PF: BitField = BitField::flag(1, 4);
    /// SELFTEST: the default self-test.
    pub const SELFTEST: BitField = BitField::flag(1, 2);
    /// PARAMETER LIST LENGTH in bytes.
    pub const PARAMETER_LIST_LENGTH: BitField = BitField::bytes(3, 2);
}

//! Fields of INQUIRY and REPORT LUNS.

/// INQUIRY (SPC-5 section 6.7).
pub mod inquiry {
    use crate::scsi::BitField;

    /// EVPD: a VPD page instead of standard data.
    pub const EVPD: BitField = BitField::flag(1, 0);
    /// PAGE CODE of the VPD page.
    pub const PAGE_CODE: BitField = BitField::bytes(2, 1);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(3, 2);
}

/// REPORT LUNS (SPC-5 section 6.33).
pub mod report_luns {
    use crate::scsi::BitField;

    /// SELECT REPORT: 0 without well-known logical units, 1 only them, 2 all.
    pub const SELECT_REPORT: BitField = BitField::bytes(2, 1);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(6, 4);
}

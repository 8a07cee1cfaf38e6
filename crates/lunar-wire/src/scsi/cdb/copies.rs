//! Fields of the copy commands.

/// EXTENDED COPY(LID1) (SPC-4 section 6.4).
pub mod extended_copy {
    use crate::scsi::BitField;

    /// PARAMETER LIST LENGTH in bytes.
    pub const PARAMETER_LIST_LENGTH: BitField = BitField::bytes(10, 4);
}

/// RECEIVE COPY RESULTS (SPC-4 section 6.24).
pub mod receive_copy_results {
    use crate::scsi::BitField;

    /// LIST IDENTIFIER of the copy.
    pub const LIST_IDENTIFIER: BitField = BitField::bytes(2, 1);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(10, 4);
}

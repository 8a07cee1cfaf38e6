//! Fields of REQUEST SENSE.

/// REQUEST SENSE (SPC-5 section 6.41).
pub mod request_sense {
    use crate::scsi::BitField;

    /// DESC: sense data in descriptor format.
    pub const DESC: BitField = BitField::flag(1, 0);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(4, 1);
}

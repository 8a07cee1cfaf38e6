//! Fields of the commands of persistent reservations.

/// PERSISTENT RESERVE IN (SPC-5 section 6.16).
pub mod persistent_reserve_in {
    use crate::scsi::BitField;

    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(7, 2);
}

/// PERSISTENT RESERVE OUT (SPC-5 section 6.17).
pub mod persistent_reserve_out {
    use crate::scsi::BitField;

    /// SCOPE and TYPE in one byte.
    pub const SCOPE_AND_TYPE: BitField = BitField::bytes(2, 1);
    /// SCOPE: 0 is the logical unit.
    pub const SCOPE: BitField = BitField::bits(2, 7, 4);
    /// TYPE of the reservation.
    pub const TYPE: BitField = BitField::bits(2, 3, 4);
    /// PARAMETER LIST LENGTH in bytes.
    pub const PARAMETER_LIST_LENGTH: BitField = BitField::bytes(5, 4);
}

//! Fields of START STOP UNIT and PREVENT ALLOW MEDIUM REMOVAL.

/// START STOP UNIT (SBC-4 section 5.31).
pub mod start_stop_unit {
    use crate::scsi::BitField;

    /// POWER CONDITION; 0 is START_VALID.
    pub const POWER_CONDITION: BitField = BitField::bits(4, 7, 4);
    /// NO_FLUSH: the cache is not flushed first.
    pub const NO_FLUSH: BitField = BitField::flag(4, 2);
    /// LOEJ: loads the medium with START, and ejects it without.
    pub const LOEJ: BitField = BitField::flag(4, 1);
    /// START.
    pub const START: BitField = BitField::flag(4, 0);
}

/// PREVENT ALLOW MEDIUM REMOVAL (SPC-5 section 6.17).
pub mod prevent_allow_medium_removal {
    use crate::scsi::BitField;

    /// PREVENT: 0 allows removal, 1 prevents it.
    pub const PREVENT: BitField = BitField::bits(4, 1, 2);
}

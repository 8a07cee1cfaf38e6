//! Fields of the commands of asymmetric logical unit access.

/// REPORT TARGET PORT GROUPS (SPC-5 section 6.37).
pub mod report_target_port_groups {
    use crate::scsi::BitField;

    /// PARAMETER DATA FORMAT: 1 is the extended header.
    pub const PARAMETER_DATA_FORMAT: BitField = BitField::bits(1, 7, 3);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(6, 4);
}

/// SET TARGET PORT GROUPS (SPC-5 section 6.45).
pub mod set_target_port_groups {
    use crate::scsi::BitField;

    /// PARAMETER LIST LENGTH in bytes.
    pub const PARAMETER_LIST_LENGTH: BitField = BitField::bytes(6, 4);
}

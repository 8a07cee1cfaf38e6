//! Fields of REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.

/// REPORT SUPPORTED OPERATION CODES (SPC-5 section 6.35).
pub mod report_supported_operation_codes {
    use crate::scsi::BitField;

    /// RCTD: with command timeouts descriptors.
    pub const RCTD: BitField = BitField::flag(2, 7);
    /// REPORTING OPTIONS: 0 all commands, 1 to 3 one command.
    pub const REPORTING_OPTIONS: BitField = BitField::bits(2, 2, 3);
    /// REQUESTED OPERATION CODE.
    pub const REQUESTED_OPERATION_CODE: BitField = BitField::bytes(3, 1);
    /// REQUESTED SERVICE ACTION.
    pub const REQUESTED_SERVICE_ACTION: BitField = BitField::bytes(4, 2);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(6, 4);
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-5 section 6.36).
pub mod report_task_management {
    use crate::scsi::BitField;

    /// REPD: extended parameter data.
    pub const REPD: BitField = BitField::flag(2, 7);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(6, 4);
}

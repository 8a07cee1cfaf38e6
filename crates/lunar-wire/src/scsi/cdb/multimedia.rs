//! Fields of the commands of CD and DVD drives.

/// READ TOC/PMA/ATIP (MMC-6 section 6.25).
pub mod read_toc {
    use crate::scsi::BitField;

    /// MSF: addresses as minute, second and frame.
    pub const MSF: BitField = BitField::flag(1, 1);
    /// FORMAT.
    pub const FORMAT: BitField = BitField::bits(2, 3, 4);
    /// TRACK/SESSION NUMBER: the first one to report.
    pub const TRACK_SESSION_NUMBER: BitField = BitField::bytes(6, 1);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(7, 2);
    /// FORMAT of SFF-8020i, in CONTROL.
    pub const OLD_FORMAT: BitField = BitField::bits(9, 7, 2);
}

/// GET CONFIGURATION (MMC-6 section 6.6).
pub mod get_configuration {
    use crate::scsi::BitField;

    /// RT: 0 all features, 1 the current ones, 2 one feature.
    pub const RT: BitField = BitField::bits(1, 1, 2);
    /// STARTING FEATURE NUMBER.
    pub const STARTING_FEATURE_NUMBER: BitField = BitField::bytes(2, 2);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(7, 2);
}

/// GET EVENT STATUS NOTIFICATION (MMC-6 section 6.7).
pub mod get_event_status {
    use crate::scsi::BitField;

    /// POLLED: synchronous operation.
    pub const POLLED: BitField = BitField::flag(1, 0);
    /// NOTIFICATION CLASS REQUEST: a bit per class.
    pub const NOTIFICATION_CLASS_REQUEST: BitField = BitField::bytes(4, 1);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(7, 2);
}

/// READ DISC INFORMATION (MMC-6).
pub mod read_disc_information {
    use crate::scsi::BitField;

    /// DATA TYPE: 0 standard disc information.
    pub const DATA_TYPE: BitField = BitField::bits(1, 2, 3);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(7, 2);
}

/// READ TRACK INFORMATION (MMC-6 section 6.26).
pub mod read_track_information {
    use crate::scsi::BitField;

    /// ADDRESS/NUMBER TYPE: 0 logical block, 1 track, 2 session.
    pub const ADDRESS_NUMBER_TYPE: BitField = BitField::bits(1, 1, 2);
    /// LOGICAL BLOCK ADDRESS/TRACK/SESSION NUMBER.
    pub const ADDRESS: BitField = BitField::bytes(2, 4);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(7, 2);
}

/// MECHANISM STATUS (MMC-6).
pub mod mechanism_status {
    use crate::scsi::BitField;

    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(8, 2);
}

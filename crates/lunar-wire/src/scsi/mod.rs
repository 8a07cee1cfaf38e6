//! SCSI on the wire: CDBs, status, sense data, and the parameter data of common commands (SAM-5, SPC-5, SBC-4).

pub mod asc;
mod bit_field;
pub mod buffer;
pub mod cdb;
pub mod copy;
pub mod defects;
pub mod diagnostic;
pub mod fields;
pub mod inquiry;
pub mod limits;
pub mod log;
pub mod lun;
pub mod mmc;
pub mod mode;
pub mod op;
pub mod pr;
pub mod report;
pub mod sanitize;
pub mod sense;
pub mod task;
pub mod transport_id;
pub mod unmap;
pub mod vpd;

pub use bit_field::BitField;
pub use sense::Sense;
pub use task::{TaskAttribute, TaskManagementFunction};

/// SCSI status (SAM-5 section 5.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// GOOD.
    Good = 0x00,
    /// CHECK CONDITION: sense data report the cause.
    CheckCondition = 0x02,
    /// CONDITION MET: the cache has room for the blocks of PRE-FETCH.
    ConditionMet = 0x04,
    /// BUSY: the logical unit accepts no command for now.
    Busy = 0x08,
    /// RESERVATION CONFLICT with another I_T nexus.
    ReservationConflict = 0x18,
    /// TASK SET FULL.
    TaskSetFull = 0x28,
    /// ACA ACTIVE: an auto contingent allegiance holds the task set.
    AcaActive = 0x30,
    /// TASK ABORTED by another I_T nexus (TAS of the control mode page).
    TaskAborted = 0x40,
}

impl Status {
    /// The statuses that mean that the device server did nothing (SAM-5 section 5.3.1): the command may be repeated.
    pub const NOT_EXECUTED: [Status; 4] =
        [Status::Busy, Status::ReservationConflict, Status::TaskSetFull, Status::AcaActive];

    const ALL: [Status; 8] = [
        Status::Good,
        Status::CheckCondition,
        Status::ConditionMet,
        Status::Busy,
        Status::ReservationConflict,
        Status::TaskSetFull,
        Status::AcaActive,
        Status::TaskAborted,
    ];

    /// The status with this code; `None` if SAM-5 defines none.
    pub fn decode(code: u8) -> Option<Status> {
        Status::ALL.into_iter().find(|known| *known as u8 == code)
    }
}

/// The name of a SCSI status code; `None` if SAM-5 defines none.
pub fn status_name(status: u8) -> Option<&'static str> {
    const NAMES: [(Status, &str); 8] = [
        (Status::Good, "GOOD"),
        (Status::CheckCondition, "CHECK CONDITION"),
        (Status::ConditionMet, "CONDITION MET"),
        (Status::Busy, "BUSY"),
        (Status::ReservationConflict, "RESERVATION CONFLICT"),
        (Status::TaskSetFull, "TASK SET FULL"),
        (Status::AcaActive, "ACA ACTIVE"),
        (Status::TaskAborted, "TASK ABORTED"),
    ];
    NAMES.iter().find(|(known, _)| *known as u8 == status).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_status_has_its_name() {
        assert_eq!(status_name(0x18), Some("RESERVATION CONFLICT"));
        assert_eq!(status_name(0x22), None);
    }
}

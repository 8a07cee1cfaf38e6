//! SCSI on the wire: status, sense, command codes.

pub mod asc;
pub mod cdb;
pub mod fields;
pub mod inquiry;
pub mod lun;
pub mod mode;
pub mod op;
pub mod pr;
pub mod report;
pub mod sense;
pub mod vpd;

pub use sense::Sense;

/// SCSI status (SAM-5 section 5.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Good = 0x00,
    /// Sense data tells what happened.
    CheckCondition = 0x02,
    /// Equal data: PRE-FETCH found room in the cache.
    ConditionMet = 0x04,
    /// Try again later.
    Busy = 0x08,
    /// A reservation of another I_T nexus forbids it.
    ReservationConflict = 0x18,
    /// No room for another task.
    TaskSetFull = 0x28,
    /// An auto contingent allegiance holds the task set.
    AcaActive = 0x30,
    /// Another I_T nexus ended the task (TAS of the control mode page).
    TaskAborted = 0x40,
}

/// The standard's name of a SCSI status.
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
    fn a_status_has_its_name() {
        assert_eq!(status_name(0x18), Some("RESERVATION CONFLICT"));
        assert_eq!(status_name(0x22), None);
    }
}

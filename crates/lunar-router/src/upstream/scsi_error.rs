//! Maps upstream failures to SCSI errors for hosts.

use lunar_initiator::{Error, ErrorCode};
use lunar_target::ScsiError;
use lunar_wire::scsi::{Sense, Status};
use std::io;

/// LOGICAL UNIT NOT READY, MANUAL INTERVENTION REQUIRED.
pub const MANUAL_INTERVENTION: Sense = Sense::new(2, 0x04, 0x03);

/// The sense data for a failure without a response of the logical unit.
const WITHOUT_ANSWER: [(ErrorCode, Sense); 14] = [
    (ErrorCode::IdentityMismatch, MANUAL_INTERVENTION),
    (ErrorCode::UnknownHost, Sense::NOT_READY_TRANSITION),
    (ErrorCode::Unreachable, Sense::NOT_READY_TRANSITION),
    (ErrorCode::Refused, Sense::NOT_READY_TRANSITION),
    (ErrorCode::NegotiationFailed, Sense::NOT_READY_TRANSITION),
    (ErrorCode::AuthenticationFailed, Sense::NOT_READY_TRANSITION),
    (ErrorCode::NotFound, Sense::NOT_READY_TRANSITION),
    (ErrorCode::TimedOut, Sense::NOT_READY_TRANSITION),
    (ErrorCode::ConnectionLost, Sense::NOT_READY_TRANSITION),
    (ErrorCode::ProtocolError, Sense::NOT_READY_TRANSITION),
    (ErrorCode::SessionClosed, Sense::NOT_READY_TRANSITION),
    // An invalid request, or fewer bytes than requested.
    (ErrorCode::InvalidArgument, Sense::INTERNAL_FAILURE),
    (ErrorCode::ScsiError, Sense::INTERNAL_FAILURE),
    (ErrorCode::ReservationConflict, Sense::INTERNAL_FAILURE),
];

/// The statuses that are forwarded.
const STATUSES: [Status; 5] =
    [Status::Busy, Status::ReservationConflict, Status::TaskSetFull, Status::AcaActive, Status::TaskAborted];

/// A response of the logical unit is forwarded unchanged. Other failures become a condition of this target.
pub fn scsi_error(e: &Error) -> ScsiError {
    if let Some(sense) = e.sense {
        return sense.into();
    }
    let answered = |status: &&Status| e.status == Some(**status as u8);
    if let Some(status) = STATUSES.iter().find(answered) {
        return ScsiError { status: *status, sense: None };
    }
    let row = WITHOUT_ANSWER.iter().find(|(kind, _)| *kind == e.code);
    row.map_or(Sense::INTERNAL_FAILURE, |(_, sense)| *sense).into()
}

/// Adds the SCSI status to an error of the initiator.
pub fn with_scsi_error(e: io::Error) -> io::Error {
    let Some(scsi_error) = Error::of(&e).map(scsi_error) else { return e };
    tracing::debug!("{scsi_error}: {e}");
    scsi_error.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sense_of(e: Error) -> Option<Sense> {
        ScsiError::of(&with_scsi_error(e.into())).expect("a SCSI error").sense
    }

    #[test]
    fn sense_is_passed_on_with_its_address() {
        let sense = Sense { key: 3, asc: 0x11, ascq: 1, ..Sense::READ_ERROR }.at(4711);
        let answered = Error::new(ErrorCode::ScsiError, "a scratch").with_status(2).with_sense(Some(sense));
        assert_eq!(sense_of(answered), Some(sense));
        // The status was returned until the initiator gave up.
        let busy = Error::new(ErrorCode::TimedOut, "it stays").with_status(2);
        let becoming = Sense::new(2, 0x04, 0x01);
        assert_eq!(sense_of(busy.with_sense(Some(becoming))), Some(becoming));
    }

    #[test]
    fn status_that_stays_is_passed_on() {
        for (kind, status) in [
            (ErrorCode::TimedOut, Status::Busy),
            (ErrorCode::TimedOut, Status::TaskSetFull),
            (ErrorCode::ReservationConflict, Status::ReservationConflict),
            (ErrorCode::ScsiError, Status::TaskAborted),
        ] {
            let e = with_scsi_error(Error::new(kind, "answered").with_status(status as u8).into());
            assert_eq!(ScsiError::of(&e), Some(ScsiError { status, sense: None }), "{kind:?}");
        }
    }

    #[test]
    fn missing_answer_is_retryable_and_other_disk_is_not() {
        for kind in [
            ErrorCode::ConnectionLost,
            ErrorCode::TimedOut,
            ErrorCode::Unreachable,
            ErrorCode::Refused,
            ErrorCode::ProtocolError,
        ] {
            assert_eq!(
                sense_of(Error::new(kind, "no answer")),
                Some(Sense::NOT_READY_TRANSITION),
                "{kind:?}"
            );
        }
        assert_eq!(sense_of(Error::new(ErrorCode::IdentityMismatch, "another")), Some(MANUAL_INTERVENTION));
        assert_eq!(
            sense_of(Error::new(ErrorCode::ScsiError, "half of it came")),
            Some(Sense::INTERNAL_FAILURE)
        );
        let none = Error::new(ErrorCode::ScsiError, "CHECK CONDITION without sense data").with_status(2);
        assert_eq!(sense_of(none), Some(Sense::INTERNAL_FAILURE));
    }

    #[test]
    fn error_of_the_operating_system_stays_what_it_is() {
        let e = with_scsi_error(io::ErrorKind::StorageFull.into());
        assert_eq!((e.kind(), ScsiError::of(&e)), (io::ErrorKind::StorageFull, None));
    }
}

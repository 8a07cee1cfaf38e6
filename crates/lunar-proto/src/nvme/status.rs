//! Statuses of SCSI as those of NVMe, and the reverse.

use lunar_wire::nvme::NvmeStatus;
use lunar_wire::scsi::{Sense, Status};

/// A row: sense key, additional sense code and its qualifier, where `None` is any; and the status.
type Row = (u8, Option<u8>, Option<u8>, NvmeStatus);

/// The first row that fits counts.
const OF_SENSE: &[Row] = &[
    (0x0, None, None, NvmeStatus::SUCCESS),
    (0x1, None, None, NvmeStatus::SUCCESS),
    (0x2, Some(0x04), Some(0x0a), NvmeStatus::ANA_TRANSITION),
    (0x2, Some(0x04), Some(0x0b), NvmeStatus::ANA_INACCESSIBLE),
    (0x2, Some(0x04), Some(0x0c), NvmeStatus::ANA_INACCESSIBLE),
    (0x2, Some(0x04), Some(0x1b), NvmeStatus::SANITIZE_IN_PROGRESS),
    (0x2, None, None, NvmeStatus::NAMESPACE_NOT_READY),
    (0x3, Some(0x03), None, NvmeStatus::WRITE_FAULT),
    (0x3, Some(0x0c), None, NvmeStatus::WRITE_FAULT),
    (0x3, Some(0x31), None, NvmeStatus::SANITIZE_FAILED),
    (0x3, None, None, NvmeStatus::READ_ERROR),
    (0x4, None, None, NvmeStatus::INTERNAL_ERROR),
    (0x5, Some(0x20), None, NvmeStatus::INVALID_OPCODE),
    (0x5, Some(0x21), None, NvmeStatus::LBA_OUT_OF_RANGE),
    (0x5, Some(0x25), None, NvmeStatus::INVALID_NAMESPACE),
    (0x5, Some(0x2c), None, NvmeStatus::SEQUENCE_ERROR),
    (0x5, None, None, NvmeStatus::INVALID_FIELD),
    // A unit attention is an event, and the host repeats the command.
    (0x6, None, None, NvmeStatus::INTERRUPTED),
    (0x7, Some(0x27), Some(0x07), NvmeStatus::CAPACITY_EXCEEDED),
    (0x7, None, None, NvmeStatus::WRITE_PROTECTED),
    // The state has changed since the command was checked: its repetition learns the reason.
    (0xa, Some(0x00), None, NvmeStatus::INTERRUPTED),
    (0xa, Some(0x0d), Some(0x02), NvmeStatus::INTERRUPTED),
    // A step of Copy has failed, perhaps because of the path: another path may be better.
    (0xa, Some(0x0d), Some(0x01), NvmeStatus { do_not_retry: false, ..NvmeStatus::INTERNAL_ERROR }),
    (0xb, Some(0x47), None, NvmeStatus::TRANSIENT_TRANSPORT_ERROR),
    (0xb, None, None, NvmeStatus { do_not_retry: false, ..NvmeStatus::INTERNAL_ERROR }),
    (0xe, None, None, NvmeStatus::COMPARE_FAILURE),
];

/// The status of an NVMe command that was executed as a SCSI command.
pub fn of_scsi(status: Status, sense: Option<Sense>) -> NvmeStatus {
    match status {
        Status::Good | Status::ConditionMet => NvmeStatus::SUCCESS,
        Status::Busy | Status::TaskSetFull | Status::AcaActive => NvmeStatus::INTERRUPTED,
        Status::ReservationConflict => NvmeStatus::RESERVATION_CONFLICT,
        // Another host has aborted it, and this one did not ask for that: it may repeat the command.
        Status::TaskAborted => NvmeStatus { do_not_retry: false, ..NvmeStatus::ABORT_REQUESTED },
        Status::CheckCondition => sense.map_or(NvmeStatus::INTERNAL_ERROR, of_sense),
    }
}

fn of_sense(sense: Sense) -> NvmeStatus {
    let fits = |(key, asc, ascq, _): &&Row| {
        *key == sense.key && asc.is_none_or(|asc| asc == sense.asc) && ascq.is_none_or(|q| q == sense.ascq)
    };
    OF_SENSE.iter().find(fits).map_or(NvmeStatus::INTERNAL_ERROR, |(.., status)| *status)
}

/// NOT READY, format in progress.
const FORMAT_IN_PROGRESS: Sense = Sense::new(0x2, 0x04, 0x04);
/// NOT READY, cause not reportable.
const NOT_READY: Sense = Sense::new(0x2, 0x04, 0x00);
/// ILLEGAL REQUEST, access denied: invalid LU identifier.
const INVALID_IDENTIFIER: Sense = Sense::new(0x5, 0x20, 0x09);
/// ABORTED COMMAND, data phase error.
const DATA_PHASE_ERROR: Sense = Sense::new(0xb, 0x4b, 0x00);
/// ILLEGAL REQUEST, format command failed.
const FORMAT_FAILED: Sense = Sense::new(0x5, 0x31, 0x01);
/// MEDIUM ERROR, peripheral device write fault.
const WRITE_FAULT: Sense = Sense::new(0x3, 0x03, 0x00);

/// The status of a SCSI command that was executed as an NVMe command.
pub fn to_scsi(status: NvmeStatus) -> (Status, Option<Sense>) {
    let sense = match (status.kind, status.code) {
        (0, 0x00) => return (Status::Good, None),
        (0, 0x83) => return (Status::ReservationConflict, None),
        // The host repeats the command.
        (0, 0x21 | 0x22) | (3, 0x00) => return (Status::Busy, None),
        (0, 0x01) => Sense::INVALID_OPCODE,
        (0, 0x02) | (1, 0x80) => Sense::INVALID_FIELD_IN_CDB,
        (0, 0x04) => DATA_PHASE_ERROR,
        (0, 0x05 | 0x07..=0x0a | 0x1b) => Sense::COMMAND_ABORTED,
        (0, 0x0b) | (2, 0x86) => INVALID_IDENTIFIER,
        (0, 0x0c) => Sense::COMMAND_SEQUENCE,
        (0, 0x1c) => Sense::SANITIZE_FAILED,
        (0, 0x1d) => Sense::SANITIZE_IN_PROGRESS,
        (0, 0x20) | (1, 0x82) => Sense::WRITE_PROTECTED,
        (0, 0x80) => Sense::LBA_OUT_OF_RANGE,
        (0, 0x81) => Sense::SPACE_ALLOCATION_FAILED,
        (0, 0x82) => NOT_READY,
        (0, 0x84) => FORMAT_IN_PROGRESS,
        (1, 0x0a) => FORMAT_FAILED,
        (2, 0x80) => WRITE_FAULT,
        (2, 0x81 | 0x87) => Sense::READ_ERROR,
        // Guard, application tag and reference tag.
        (2, code @ 0x82..=0x84) => Sense::new(0x3, 0x10, code - 0x81),
        (2, 0x85) => Sense::MISCOMPARE,
        (3, 0x01 | 0x02) => Sense::NOT_READY_UNAVAILABLE,
        (3, 0x03) => Sense::NOT_READY_TRANSITION,
        _ => Sense::INTERNAL_FAILURE,
    };
    (Status::CheckCondition, Some(sense))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sense_has_the_status_of_its_meaning() {
        for (sense, status) in [
            (Sense::NOT_READY_STANDBY, NvmeStatus::ANA_INACCESSIBLE),
            (Sense::NOT_READY_UNAVAILABLE, NvmeStatus::ANA_INACCESSIBLE),
            (Sense::NOT_READY_TRANSITION, NvmeStatus::ANA_TRANSITION),
            (Sense::NOT_READY_NO_MEDIUM, NvmeStatus::NAMESPACE_NOT_READY),
            (Sense::WRITE_ERROR, NvmeStatus::WRITE_FAULT),
            (Sense::READ_ERROR, NvmeStatus::READ_ERROR),
            (Sense::INTERNAL_FAILURE, NvmeStatus::INTERNAL_ERROR),
            (Sense::INVALID_OPCODE, NvmeStatus::INVALID_OPCODE),
            (Sense::LBA_OUT_OF_RANGE, NvmeStatus::LBA_OUT_OF_RANGE),
            (Sense::INVALID_FIELD_IN_PARAMETERS, NvmeStatus::INVALID_FIELD),
            (Sense::LUN_NOT_SUPPORTED, NvmeStatus::INVALID_NAMESPACE),
            (Sense::CAPACITY_CHANGED, NvmeStatus::INTERRUPTED),
            (Sense::WRITE_PROTECTED, NvmeStatus::WRITE_PROTECTED),
            (Sense::SPACE_ALLOCATION_FAILED, NvmeStatus::CAPACITY_EXCEEDED),
            (Sense::MISCOMPARE, NvmeStatus::COMPARE_FAILURE),
            (Sense::COPY_TARGET_UNREACHABLE.segment(1, 4), NvmeStatus::INTERRUPTED),
            (
                Sense::COPY_DEVICE_FAILURE.segment(0, 6),
                NvmeStatus { do_not_retry: false, ..NvmeStatus::INTERNAL_ERROR },
            ),
        ] {
            assert_eq!(of_scsi(Status::CheckCondition, Some(sense)), status, "{sense:?}");
        }
        assert_eq!(of_scsi(Status::Good, None), NvmeStatus::SUCCESS);
        assert_eq!(of_scsi(Status::ReservationConflict, None), NvmeStatus::RESERVATION_CONFLICT);
        assert_eq!(of_scsi(Status::CheckCondition, None), NvmeStatus::INTERNAL_ERROR);
    }

    /// A host must repeat such commands on another path, so DNR is 0.
    #[test]
    fn statuses_of_paths_and_waits_allow_a_retry() {
        let busy = [Status::Busy, Status::TaskSetFull].map(|status| of_scsi(status, None));
        let ana = [Sense::NOT_READY_STANDBY, Sense::NOT_READY_TRANSITION, Sense::COMMAND_ABORTED]
            .map(|sense| of_scsi(Status::CheckCondition, Some(sense)));
        assert!(busy.iter().chain(&ana).all(|status| !status.do_not_retry));
    }

    #[test]
    fn failure_never_becomes_success() {
        for (key, asc) in (2..16).flat_map(|key| (0..=255).map(move |asc| (key, asc))) {
            let status = of_scsi(Status::CheckCondition, Some(Sense::new(key, asc, 0)));
            assert!(!status.is_success(), "{key:x}/{asc:02x}");
        }
        for (kind, code) in (0..8).flat_map(|kind| (0..=255).map(move |code| (kind, code))) {
            let status = NvmeStatus { kind, code, ..NvmeStatus::SUCCESS };
            assert_eq!(to_scsi(status).0 == Status::Good, status.is_success(), "{status}");
        }
    }

    #[test]
    fn status_that_crosses_both_keeps_its_meaning() {
        for status in [
            NvmeStatus::SUCCESS,
            NvmeStatus::INVALID_OPCODE,
            NvmeStatus::INVALID_FIELD,
            NvmeStatus::LBA_OUT_OF_RANGE,
            NvmeStatus::CAPACITY_EXCEEDED,
            NvmeStatus::NAMESPACE_NOT_READY,
            NvmeStatus::RESERVATION_CONFLICT,
            NvmeStatus::INTERRUPTED,
            NvmeStatus::WRITE_PROTECTED,
            NvmeStatus::SANITIZE_IN_PROGRESS,
            NvmeStatus::SANITIZE_FAILED,
            NvmeStatus::WRITE_FAULT,
            NvmeStatus::READ_ERROR,
            NvmeStatus::COMPARE_FAILURE,
            NvmeStatus::ANA_INACCESSIBLE,
            NvmeStatus::ANA_TRANSITION,
            NvmeStatus::INTERNAL_ERROR,
        ] {
            let (scsi, sense) = to_scsi(status);
            assert_eq!(of_scsi(scsi, sense), status, "{status}");
        }
        assert_eq!(
            to_scsi(NvmeStatus { code: 0x83, ..NvmeStatus::READ_ERROR }).1,
            Some(Sense::new(3, 0x10, 2))
        );
    }
}

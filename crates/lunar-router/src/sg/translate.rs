//! Maps the kernel's completion of a command to the reply of a SCSI device.
//!
//! A response of the device itself is forwarded unchanged. If only the host adapter or its driver reports a result, a
//! table selects the reply on which a host reacts correctly. BUSY is used only if the device has not received the
//! command: hosts repeat it after BUSY, and a tape must not write a block twice.

use super::driver::{SgIo, SgOutcome};
use lunar_target::{CommandFate, PassthroughData, PassthroughResponse};
use lunar_wire::scsi::{Sense, Status};
use rustix::io::Errno;
use std::io;

/// An unreachable device is NOT READY: it may return, and multipath software uses another path. With LOGICAL UNIT NOT
/// SUPPORTED, hosts would remove it.
const UNREACHABLE: SubstituteResponse = SubstituteResponse::Check(Sense::NOT_READY_UNAVAILABLE);
/// The command may have been executed in part: only the host knows whether it may be repeated.
const TIMED_OUT: SubstituteResponse = SubstituteResponse::Check(Sense::new(0xb, 0x2e, 0x02));
const TERMINATED: SubstituteResponse = SubstituteResponse::Check(Sense::new(0xb, 0x00, 0x06));
const PARITY: SubstituteResponse = SubstituteResponse::Check(Sense::new(0xb, 0x47, 0x00));
/// The host adapter reports an unspecific failure: ABORTED COMMAND, because the device itself reported none.
const ADAPTER: SubstituteResponse = SubstituteResponse::Check(Sense::new(0xb, 0x44, 0x00));
const BUSY: SubstituteResponse = SubstituteResponse::Status(Status::Busy);

/// A reply in place of a missing response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubstituteResponse {
    /// A status without sense data.
    Status(Status),
    /// CHECK CONDITION.
    Check(Sense),
}

/// The replies to `DID_*` (the kernel's `scsi/scsi_status.h`) if the device did not respond.
const HOST: [(u16, SubstituteResponse); 19] = [
    (0x01, UNREACHABLE),                                               // NO_CONNECT
    (0x02, BUSY),                                                      // BUS_BUSY
    (0x03, TIMED_OUT),                                                 // TIME_OUT
    (0x04, UNREACHABLE),                                               // BAD_TARGET
    (0x05, TERMINATED),                                                // ABORT
    (0x06, PARITY),                                                    // PARITY
    (0x07, ADAPTER),                                                   // ERROR
    (0x08, SubstituteResponse::Check(Sense::POWER_ON)),                // RESET: so every nexus hears of it
    (0x09, ADAPTER),                                                   // BAD_INTR
    (0x0b, ADAPTER),     // SOFT_ERROR: perhaps seen by the device
    (0x0c, ADAPTER),     // IMM_RETRY: the same
    (0x0d, BUSY),        // REQUEUE
    (0x0e, ADAPTER),     // TRANSPORT_DISRUPTED: perhaps seen by the device
    (0x0f, UNREACHABLE), // TRANSPORT_FAILFAST
    (0x10, SubstituteResponse::Check(Sense::INTERNAL_FAILURE)), // TARGET_FAILURE
    (0x11, SubstituteResponse::Status(Status::ReservationConflict)), // NEXUS_FAILURE
    (0x12, SubstituteResponse::Check(Sense::SPACE_ALLOCATION_FAILED)), // ALLOC_FAILURE
    (0x13, SubstituteResponse::Check(Sense::READ_ERROR)), // MEDIUM_ERROR
    (0x14, UNREACHABLE), // TRANSPORT_MARGINAL
];

/// The replies to `DRIVER_*` (the low 4 bits) of kernels before 5.14. 8 means only that there are sense data.
const DRIVER: [(u16, SubstituteResponse); 7] = [
    (1, BUSY),                                                   // BUSY
    (2, BUSY),                                                   // SOFT
    (3, SubstituteResponse::Check(Sense::READ_ERROR)),           // MEDIA
    (4, ADAPTER),                                                // ERROR
    (5, SubstituteResponse::Check(Sense::INVALID_FIELD_IN_CDB)), // INVALID
    (6, TIMED_OUT),                                              // TIMEOUT
    (7, SubstituteResponse::Check(Sense::INTERNAL_FAILURE)),     // HARD
];

/// DID_OK and DID_PASSTHROUGH: the status of the device applies.
const HOST_IS_FINE: [u16; 2] = [0x00, 0x0a];
const DRIVER_SENSE: u16 = 8;

/// The reply to a completed command.
pub(super) fn reply(sg_io: SgIo, outcome: SgOutcome) -> PassthroughResponse {
    let len = sg_io.len() as u64;
    let moved = len.saturating_add_signed(-i64::from(outcome.residual));
    let (status, sense) = match said(&outcome) {
        Ok(status) => (status, outcome.sense),
        Err(answer) => return answer.reply(),
    };
    let data = match sg_io.data {
        PassthroughData::In(mut buf) => {
            buf.set_visible(moved.min(len) as usize);
            Some(buf)
        }
        _ => None,
    };
    let sense = if status == Status::CheckCondition { sense } else { Vec::new() };
    PassthroughResponse { status: status as u8, sense: sense.into(), data, moved, fate: CommandFate::Ended }
}

/// The status of the device itself, or its substitute.
fn said(outcome: &SgOutcome) -> Result<Status, SubstituteResponse> {
    // Bits 0 and 7 were vendor-specific in SCSI-1.
    let status = status_of(outcome.status & 0x7e);
    let has_sense = Sense::decode(&outcome.sense).is_some();
    match status {
        Some(Status::CheckCondition) if has_sense => Ok(Status::CheckCondition),
        Some(Status::Good) if has_sense && outcome.driver & DRIVER_SENSE != 0 => Ok(Status::CheckCondition),
        Some(Status::Good) => quiet(outcome).map_or(Ok(Status::Good), Err),
        Some(Status::CheckCondition) | None => Err(quiet(outcome).unwrap_or(ADAPTER)),
        Some(other) => Ok(other),
    }
}

/// The reply for the results of host adapter and driver if the device did not respond.
fn quiet(outcome: &SgOutcome) -> Option<SubstituteResponse> {
    let row =
        |table: &[(u16, SubstituteResponse)], code| table.iter().find(|row| row.0 == code).map(|row| row.1);
    if !HOST_IS_FINE.contains(&outcome.host) {
        return Some(row(&HOST, outcome.host).unwrap_or(ADAPTER));
    }
    row(&DRIVER, outcome.driver & 7)
}

fn status_of(byte: u8) -> Option<Status> {
    use Status::*;
    let all =
        [Good, CheckCondition, ConditionMet, Busy, ReservationConflict, TaskSetFull, AcaActive, TaskAborted];
    all.into_iter().find(|status| *status as u8 == byte)
}

/// The reply to a command of `len` bytes that the kernel rejected. `max_transfer` is its maximum.
pub(super) fn refused(e: &io::Error, len: usize, max_transfer: usize) -> SubstituteResponse {
    match Errno::from_io_error(e) {
        // Too large for the host adapter, or a CDB that the kernel cannot carry.
        Some(Errno::INVAL | Errno::MSGSIZE | Errno::TOOBIG) => {
            SubstituteResponse::Check(Sense::INVALID_FIELD_IN_CDB)
        }
        Some(Errno::NOMEM) if len > max_transfer => SubstituteResponse::Check(Sense::INVALID_FIELD_IN_CDB),
        Some(Errno::NOMEM | Errno::AGAIN | Errno::INTR | Errno::BUSY) => BUSY,
        Some(Errno::DOM) => SubstituteResponse::Status(Status::TaskSetFull),
        Some(Errno::NODEV | Errno::NXIO) => UNREACHABLE,
        _ => SubstituteResponse::Check(Sense::INTERNAL_FAILURE),
    }
}

impl SubstituteResponse {
    /// For a device that is not present.
    pub const GONE: SubstituteResponse = UNREACHABLE;
    /// For a command that was ended before it was submitted.
    pub const ENDED: SubstituteResponse = SubstituteResponse::Status(Status::TaskAborted);

    /// Converts it to a reply without data.
    pub fn reply(self) -> PassthroughResponse {
        let (status, sense) = match self {
            SubstituteResponse::Status(status) => (status, Vec::new()),
            SubstituteResponse::Check(sense) => (Status::CheckCondition, sense.encode(false)),
        };
        PassthroughResponse {
            status: status as u8,
            sense: sense.into(),
            data: None,
            moved: 0,
            fate: CommandFate::Ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_runtime::Buf;
    use proptest::prelude::*;

    const SENSE: [u8; 18] = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x21, 0, 0, 0, 0, 0];

    fn sg_io(data: PassthroughData) -> SgIo {
        SgIo { cdb: [0; 6].into(), data, timeout_ms: 1, first: false }
    }

    fn completed(len: usize, outcome: SgOutcome) -> PassthroughResponse {
        reply(sg_io(PassthroughData::In(Buf::zeroed(len))), outcome)
    }

    fn key(reply: &PassthroughResponse) -> (u8, u8, u8) {
        let sense = Sense::decode(&reply.sense).expect("sense data");
        (sense.key, sense.asc, sense.ascq)
    }

    #[test]
    fn reply_has_only_the_received_data() {
        let short = completed(96, SgOutcome { residual: 60, ..SgOutcome::default() });
        assert_eq!((short.status, short.moved, short.data.expect("data").len()), (0, 36, 36));
        let over = completed(96, SgOutcome { residual: -4, ..SgOutcome::default() });
        assert_eq!((over.moved, over.data.expect("data").len()), (100, 96));
        let out = reply(
            sg_io(PassthroughData::Out(Buf::zeroed(512))),
            SgOutcome { residual: 12, ..SgOutcome::default() },
        );
        assert!((out.moved, out.data.is_none()) == (500, true));
    }

    /// A short tape block has data and sense data (ILI).
    #[test]
    fn sense_data_go_on_as_they_are_with_the_data() {
        let outcome =
            SgOutcome { status: 2, driver: 8, sense: SENSE.to_vec(), residual: 500, ..SgOutcome::default() };
        let reply = completed(512, outcome);
        assert_eq!((reply.status, &reply.sense[..]), (2, &SENSE[..]));
        assert_eq!((reply.moved, reply.data.expect("data").len()), (12, 12));
    }

    #[test]
    fn device_status_overrides_adapter_status() {
        let outcome = SgOutcome { status: 2, host: 7, sense: SENSE.to_vec(), ..SgOutcome::default() };
        assert_eq!(key(&completed(8, outcome)), (5, 0x21, 0));
        let conflict = completed(8, SgOutcome { status: 0x18, host: 7, ..SgOutcome::default() });
        assert_eq!((conflict.status, conflict.sense.len()), (0x18, 0));
        let old = SgOutcome { driver: 8, sense: SENSE.to_vec(), ..SgOutcome::default() };
        assert_eq!(key(&completed(8, old)), (5, 0x21, 0));
    }

    #[test]
    fn missing_status_becomes_sense_data() {
        let host = |host| completed(8, SgOutcome { host, ..SgOutcome::default() });
        assert_eq!(key(&host(0x01)), (2, 0x04, 0x0c));
        assert_eq!(key(&host(0x03)), (0xb, 0x2e, 0x02));
        assert_eq!(key(&host(0x08)), (6, 0x29, 0x00));
        assert_eq!((host(0x02).status, host(0x0d).status), (8, 8));
        assert_eq!(key(&host(0x7777)), (0xb, 0x44, 0));
        assert!(host(0x01).data.is_none() && host(0x01).moved == 0);
        assert_eq!(key(&completed(8, SgOutcome { driver: 6, ..SgOutcome::default() })), (0xb, 0x2e, 0x02));
        assert_eq!(key(&completed(8, SgOutcome { status: 2, ..SgOutcome::default() })), (0xb, 0x44, 0));
    }

    #[test]
    fn kernel_error_becomes_sense_data() {
        let substitute = |errno: Errno, len| refused(&errno.into(), len, 4096);
        assert_eq!(substitute(Errno::INVAL, 1), SubstituteResponse::Check(Sense::INVALID_FIELD_IN_CDB));
        assert_eq!(substitute(Errno::NOMEM, 8192), SubstituteResponse::Check(Sense::INVALID_FIELD_IN_CDB));
        assert_eq!(substitute(Errno::NOMEM, 4096), BUSY);
        assert_eq!(substitute(Errno::DOM, 1), SubstituteResponse::Status(Status::TaskSetFull));
        assert_eq!(substitute(Errno::NODEV, 1), UNREACHABLE);
        assert_eq!(substitute(Errno::PERM, 1), SubstituteResponse::Check(Sense::INTERNAL_FAILURE));
    }

    proptest! {
        #[test]
        fn any_kernel_completion_makes_a_valid_reply(
            status: u8, host in prop_oneof![0_u16..0x20, any::<u16>()], driver in prop_oneof![0_u16..0x20, any::<u16>()],
            sense in proptest::collection::vec(any::<u8>(), 0..97), residual: i32, len in 0_usize..9000, direction in 0..3,
        ) {
            let data = match direction {
                0 => PassthroughData::None,
                1 => PassthroughData::In(Buf::zeroed(len)),
                _ => PassthroughData::Out(Buf::zeroed(len)),
            };
            let reply = reply(sg_io(data), SgOutcome { status, host, driver, sense, residual });
            prop_assert!(status_of(reply.status).is_some());
            prop_assert_eq!(reply.status == 2, Sense::decode(&reply.sense).is_some());
            prop_assert_eq!(reply.status == 2, !reply.sense.is_empty());
            if let Some(data) = &reply.data {
                prop_assert!(direction == 1 && data.len() as u64 == reply.moved.min(len as u64));
            }
        }
    }
}

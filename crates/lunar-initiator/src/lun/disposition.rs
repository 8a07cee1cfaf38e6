//! The disposition of a status: done, retry, or error (SPC-5 section 4.4, SAM-5 section 5.3).

use crate::{Completion, Error, ErrorCode};
use lunar_wire::scsi::{Sense, Status};
use std::time::Duration;

/// The maximum number of attempts for a command that was aborted or returned a unit attention.
const TRIES: u32 = 8;
/// The first pause before a retry on a busy logical unit. It grows with each retry.
const BUSY_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// The action after a SCSI status.
#[derive(Debug, PartialEq)]
pub enum Disposition {
    /// The command succeeded.
    Done,
    /// It was not executed: retry at once.
    Retry,
    /// It was not executed: retry after a pause.
    RetryAfter(Duration),
    /// It failed.
    Failed(Error),
}

/// The disposition of the response to attempt number `tries`, counted from 1. It also reports unit attentions and
/// deferred errors. An aborted command may have been executed, so it is sent again only if it is `repeatable`. A
/// command that returned a deferred error was not executed (SPC-5 section 4.4.7): it may be sent again in any case.
pub fn disposition(
    c: &Completion,
    tries: u32,
    repeatable: bool,
    on_sense: impl FnOnce(Sense),
) -> Disposition {
    let pause = (BUSY_PAUSE * (1 << tries.min(10))).min(LAST_PAUSE);
    let failed = |kind, what: String| Disposition::Failed(Error::new(kind, what).with_status(c.status));
    match c.status {
        s if s == Status::Good as u8 || s == Status::ConditionMet as u8 => Disposition::Done,
        s if s == Status::Busy as u8 || s == Status::TaskSetFull as u8 => Disposition::RetryAfter(pause),
        s if s == Status::TaskAborted as u8 && repeatable && tries < TRIES => Disposition::Retry,
        s if s == Status::ReservationConflict as u8 => failed(
            ErrorCode::ReservationConflict,
            "reservation conflict: another I_T nexus holds a reservation on the LUN".into(),
        ),
        s if s == Status::CheckCondition as u8 => match c.sense() {
            Some(sense) => by_sense(sense, (tries, repeatable), pause, on_sense),
            None => failed(
                ErrorCode::ScsiError,
                "the command ended with CHECK CONDITION and no sense data".into(),
            ),
        },
        s => failed(ErrorCode::ScsiError, format!("the command ended with SCSI status {s:02x}h")),
    }
}

/// Whether the path is in an ALUA state transition. Another path may work.
pub fn is_in_transition(c: &Completion) -> bool {
    let is = |s: Sense| (s.key, s.asc, s.ascq) == (2, 0x04, 0x0a);
    c.status == Status::CheckCondition as u8 && c.sense().is_some_and(is)
}

fn by_sense(
    sense: Sense,
    (tries, repeatable): (u32, bool),
    pause: Duration,
    on_sense: impl FnOnce(Sense),
) -> Disposition {
    if sense.deferred {
        tracing::warn!("the LUN reports a deferred error of an earlier command: {sense}");
        // A recovered error loses no data.
        if sense.key > 1 {
            on_sense(sense);
        }
        return if tries < TRIES { Disposition::Retry } else { failed_by(sense) };
    }
    match (sense.key, sense.asc, sense.ascq) {
        // NO SENSE, RECOVERED ERROR, COMPLETED.
        (0 | 1 | 0xf, ..) => return Disposition::Done,
        (6, ..) => {
            on_sense(sense);
            if tries < TRIES {
                return Disposition::Retry;
            }
        }
        // Cause not reportable, becoming ready, asymmetric access state transition.
        (2, 0x04, 0x00 | 0x01 | 0x0a) => return Disposition::RetryAfter(pause),
        (0xb, ..) if repeatable && tries < TRIES => return Disposition::Retry,
        _ => {}
    }
    failed_by(sense)
}

fn failed_by(sense: Sense) -> Disposition {
    let error = Error::new(ErrorCode::ScsiError, sense.to_string()).with_status(Status::CheckCondition as u8);
    Disposition::Failed(error.with_sense(Some(sense)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn as_error(status: Status, sense: Option<Sense>, tries: u32) -> (Disposition, Option<Sense>) {
        let sense = sense.map(|s| s.encode(false).into()).unwrap_or_default();
        let c =
            Completion { status: status as u8, sense, transferred: 0, overflow: 0, queued: Duration::ZERO };
        let mut reported_sense = None;
        let verdict = disposition(&c, tries, true, |s| reported_sense = Some(s));
        (verdict, reported_sense)
    }

    #[test]
    fn unit_attention_is_reported_and_the_command_retried() {
        let (verdict, reported_sense) = as_error(Status::CheckCondition, Some(Sense::CAPACITY_CHANGED), 1);
        assert_eq!((verdict, reported_sense), (Disposition::Retry, Some(Sense::CAPACITY_CHANGED)));
        let (verdict, _) = as_error(Status::CheckCondition, Some(Sense::CAPACITY_CHANGED), TRIES);
        assert!(matches!(verdict, Disposition::Failed(_)), "the last attempt must fail");
    }

    #[test]
    fn aborted_command_is_resent_only_if_repeatable() {
        let sense = Sense { key: 0xb, asc: 0x47, ascq: 0x05, ..Sense::READ_ERROR };
        let end = |status: Status, sense: Option<Sense>, repeatable| {
            let sense = sense.map(|s| s.encode(false).into()).unwrap_or_default();
            let c = Completion {
                status: status as u8,
                sense,
                transferred: 0,
                overflow: 0,
                queued: Duration::ZERO,
            };
            disposition(&c, 1, repeatable, |_| {})
        };
        for (status, sense) in [(Status::TaskAborted, None), (Status::CheckCondition, Some(sense))] {
            assert_eq!(end(status, sense, true), Disposition::Retry, "{status:?}");
            assert!(matches!(end(status, sense, false), Disposition::Failed(_)), "{status:?}");
        }
        let attention = end(Status::CheckCondition, Some(Sense::CAPACITY_CHANGED), false);
        assert_eq!(attention, Disposition::Retry, "a unit attention means that the command was not executed");
    }

    #[test]
    fn deferred_error_means_this_command_was_not_performed() {
        for (key, repeatable) in [(1, false), (3, false), (4, false), (1, true), (0xb, false)] {
            let sense = Sense { deferred: true, ..Sense::new(key, 0x0c, 0) };
            let end = |tries| {
                let (status, sense_data) = (Status::CheckCondition as u8, sense.encode(false).into());
                let c = Completion {
                    status,
                    sense: sense_data,
                    transferred: 0,
                    overflow: 0,
                    queued: Duration::ZERO,
                };
                let mut lost = None;
                let verdict = disposition(&c, tries, repeatable, |sense| lost = Some(sense));
                assert_eq!(lost, (key > 1).then_some(sense), "key {key}");
                verdict
            };
            assert_eq!(end(1), Disposition::Retry, "key {key}");
            assert!(matches!(end(TRIES), Disposition::Failed(_)), "key {key}: the last attempt must fail");
        }
    }

    #[test]
    fn passing_condition_is_retried_and_lasting_one_fails() {
        for (status, sense) in [
            (Status::Busy, None),
            (Status::TaskSetFull, None),
            (Status::CheckCondition, Some(Sense::NOT_READY_TRANSITION)),
        ] {
            assert!(matches!(as_error(status, sense, 3).0, Disposition::RetryAfter(_)), "{status:?}");
        }
        for (status, sense, kind) in [
            (Status::ReservationConflict, None, ErrorCode::ReservationConflict),
            (Status::CheckCondition, Some(Sense::READ_ERROR), ErrorCode::ScsiError),
            (Status::CheckCondition, Some(Sense::WRITE_PROTECTED), ErrorCode::ScsiError),
            (Status::CheckCondition, Some(Sense::NOT_READY_NO_MEDIUM), ErrorCode::ScsiError),
            (Status::CheckCondition, None, ErrorCode::ScsiError),
            (Status::AcaActive, None, ErrorCode::ScsiError),
        ] {
            let Disposition::Failed(error) = as_error(status, sense, 1).0 else {
                panic!("{status:?} {sense:?}")
            };
            assert_eq!((error.code, error.sense, error.status), (kind, sense, Some(status as u8)));
        }
        assert_eq!(as_error(Status::Good, None, 1).0, Disposition::Done);
    }
}

//! Answers of a session as SRP says them (SRP r16a section 6.9).

use super::login::SENSE_LEN;
use lunar_wire::iscsi::Bhs;
use lunar_wire::scsi::Status;
use lunar_wire::srp::{Residual, Response, task_status};

/// Flags of a SCSI Response and of a Data-In with status (RFC 7143 sections 11.4.1 and 11.7).
const OVERFLOW: u8 = 0x04;
const UNDERFLOW: u8 = 0x02;
/// Solicited notifications.
const WANTED_GOOD: u8 = 0x02;
const WANTED_BAD: u8 = 0x04;

/// The answer to a command, of a SCSI Response or a Data-In with status. `segment` is what a response carries: sense
/// data behind its length.
pub fn command<'a>(header: &Bhs, segment: &'a [u8], writes: bool) -> Response<'a> {
    let count = header.word(44);
    let residual = match header.flags() {
        flags if flags & OVERFLOW != 0 => Residual::Over(count),
        flags if flags & UNDERFLOW != 0 => Residual::Under(count),
        _ => Residual::None,
    };
    let (residual_out, residual_in) =
        if writes { (residual, Residual::None) } else { (Residual::None, residual) };
    let sense = segment.get(2..).unwrap_or_default();
    let sense = &sense[..sense.len().min(SENSE_LEN)];
    Response { status: header.0[3], residual_out, residual_in, sense, ..Response::default() }
}

/// What the answer to a task management function says, by the response of the session (RFC 7143 section 11.6.1). A
/// task that is not there has ended: that is what was wanted.
pub fn task_management(response: u8) -> u8 {
    match response {
        0 | 1 => task_status::COMPLETE,
        4 | 5 => task_status::NOT_SUPPORTED,
        _ => task_status::FAILED,
    }
}

/// Whether the initiator wants to be notified of this.
pub fn is_solicited(notifications: u8, response: &Response<'_>) -> bool {
    let good = response.status == Status::Good as u8
        && response.task_status().unwrap_or(task_status::COMPLETE) == task_status::COMPLETE;
    notifications & if good { WANTED_GOOD } else { WANTED_BAD } != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_wire::iscsi::pdu;

    #[test]
    fn a_residual_belongs_to_the_direction_of_the_data() {
        let mut header = pdu::scsi_response(0, UNDERFLOW, 0, 2);
        header.set_word(44, 100);
        let out = command(&header, &[0, 2, 0x70, 0x00], true);
        assert_eq!((out.residual_out, out.residual_in), (Residual::Under(100), Residual::None));
        assert_eq!((out.status, out.sense), (2, &[0x70, 0x00][..]));
        header.0[1] = OVERFLOW;
        let read = command(&header, &[], false);
        assert_eq!((read.residual_out, read.residual_in), (Residual::None, Residual::Over(100)));
        assert!(command(&header, &[0; 400], false).sense.len() == SENSE_LEN);
    }

    /// SRP has no code of its own for a function that the access list forbids.
    #[test]
    fn a_forbidden_function_has_failed() {
        assert_eq!(
            [0, 5, 6].map(task_management),
            [task_status::COMPLETE, task_status::NOT_SUPPORTED, task_status::FAILED]
        );
    }

    #[test]
    fn notifications_are_told_apart_by_how_it_went() {
        let data = [0, 0, 0, task_status::FAILED];
        let failed = Response { data: &data, ..Response::default() };
        for (notifications, good, bad) in [(0, false, false), (2, true, false), (4, false, true)] {
            assert_eq!(is_solicited(notifications, &Response::default()), good, "{notifications}");
            assert_eq!(is_solicited(notifications, &failed), bad, "{notifications}");
        }
    }
}

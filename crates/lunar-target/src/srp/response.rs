//! SRP responses (SRP r16a section 6.9).

use super::login::SENSE_LEN;
use crate::core::{self, ManagementResponse};
use lunar_wire::scsi::Status;
use lunar_wire::srp::{Residual, SrpResponse, task_status};

/// Solicited notification bits: for a successful response, and for any other.
const NOTIFY_GOOD: u8 = 0x02;
const NOTIFY_BAD: u8 = 0x04;

/// A response without tag and credits, which are set when it is sent.
pub struct PendingResponse {
    status: u8,
    residual_out: Residual,
    residual_in: Residual,
    sense: Vec<u8>,
    /// The four bytes of response data of a task management function.
    function: Option<[u8; 4]>,
}

impl PendingResponse {
    fn new(status: u8, sense: Vec<u8>) -> PendingResponse {
        PendingResponse {
            status,
            residual_out: Residual::None,
            residual_in: Residual::None,
            sense,
            function: None,
        }
    }

    /// The response to a command. Its data came from the initiator if it `writes`.
    pub fn command(response: core::CommandResponse, writes: bool) -> PendingResponse {
        let core::CommandResponse { status, mut sense, residual, .. } = response;
        sense.truncate(SENSE_LEN);
        let residual = match residual {
            core::Residual::None => Residual::None,
            core::Residual::Overflow(count) => Residual::Over(count),
            core::Residual::Underflow(count) => Residual::Under(count),
        };
        let (residual_out, residual_in) =
            if writes { (residual, Residual::None) } else { (Residual::None, residual) };
        PendingResponse { residual_out, residual_in, ..PendingResponse::new(status, sense) }
    }

    /// The status of a task management function.
    pub fn function(status: u8) -> PendingResponse {
        PendingResponse { function: Some([0, 0, 0, status]), ..PendingResponse::new(0, Vec::new()) }
    }

    /// The response to a task management function. A task that does not exist has ended, so the function is complete.
    pub fn managed(managed: ManagementResponse) -> PendingResponse {
        PendingResponse::function(match managed {
            ManagementResponse::Complete | ManagementResponse::NoSuchTask => task_status::COMPLETE,
            // SRP has no code for a function that the access list forbids.
            ManagementResponse::NoSuchLun
            | ManagementResponse::Unauthorized
            | ManagementResponse::Rejected => task_status::FAILED,
        })
    }

    /// The response as a wire value.
    pub fn as_response(&self) -> SrpResponse<'_> {
        SrpResponse {
            status: self.status,
            residual_out: self.residual_out,
            residual_in: self.residual_in,
            sense: &self.sense,
            data: self.function.as_ref().map_or(&[], |data| &data[..]),
            ..SrpResponse::default()
        }
    }
}

/// Whether the initiator requests a solicited notification for this response.
pub fn is_solicited(notifications: u8, response: &SrpResponse<'_>) -> bool {
    let good = response.status == Status::Good as u8
        && response.task_status().unwrap_or(task_status::COMPLETE) == task_status::COMPLETE;
    notifications & if good { NOTIFY_GOOD } else { NOTIFY_BAD } != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::data_in::DataIn;

    fn response(residual: core::Residual, sense: &[u8]) -> core::CommandResponse {
        let (data, sent) = (DataIn::None, core::DataInProgress::default());
        core::CommandResponse { status: 2, sense: sense.to_vec(), residual, data, sent }
    }

    #[test]
    fn residual_follows_data_direction() {
        let out = PendingResponse::command(response(core::Residual::Underflow(100), &[0x70, 0x00]), true);
        let out = out.as_response();
        assert_eq!((out.residual_out, out.residual_in), (Residual::Under(100), Residual::None));
        assert_eq!((out.status, out.sense), (2, &[0x70, 0x00][..]));
        let read = PendingResponse::command(response(core::Residual::Overflow(100), &[]), false);
        let read = read.as_response();
        assert_eq!((read.residual_out, read.residual_in), (Residual::None, Residual::Over(100)));
        let long = PendingResponse::command(response(core::Residual::None, &[0; 400]), false);
        assert_eq!(long.as_response().sense.len(), SENSE_LEN);
    }

    #[test]
    fn forbidden_function_has_failed() {
        let status = |managed| PendingResponse::managed(managed).as_response().task_status();
        let all = [
            ManagementResponse::Complete,
            ManagementResponse::NoSuchTask,
            ManagementResponse::NoSuchLun,
            ManagementResponse::Unauthorized,
        ];
        let (done, failed) = (Some(task_status::COMPLETE), Some(task_status::FAILED));
        assert_eq!(all.map(status), [done, done, failed, failed]);
    }

    #[test]
    fn solicited_notification_depends_on_status() {
        let data = [0, 0, 0, task_status::FAILED];
        let failed = SrpResponse { data: &data, ..SrpResponse::default() };
        for (notifications, good, bad) in [(0, false, false), (2, true, false), (4, false, true)] {
            assert_eq!(is_solicited(notifications, &SrpResponse::default()), good, "{notifications}");
            assert_eq!(is_solicited(notifications, &failed), bad, "{notifications}");
        }
    }
}

//! Sends a command, with retries where its status permits them.

use super::NvmeNamespace;
use crate::nvme::command::NvmeCommand;
use crate::nvme::status::{ABORTED_BY_HOST, error_of};
use crate::{Direction, Error, hints};
use lunar_block::range_lock::RangeLock;
use lunar_runtime::Buf;
use lunar_wire::nvme::{NvmeStatus, Sqe};
use std::time::{Duration, Instant};

/// Attempts of a command whose status permits a retry but is no wait, as Linux has them.
const TRIES: u32 = 6;
/// The first pause before a retry. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(500);
/// The unit of the retry delays of a controller (CRDT).
const DELAY_UNIT: Duration = Duration::from_millis(100);

/// Status code type: path related.
const PATH_RELATED: u8 = 3;

/// Whether a status asks the host to wait: the condition passes.
fn is_wait(status: NvmeStatus) -> bool {
    matches!((status.kind, status.code), (0, 0x21 | 0x82) | (3, 0x00 | 0x03))
}

/// Whether a status is final. A status of the path is, if the host does not wait for the end of such a condition.
fn is_final(status: NvmeStatus, limit: Duration) -> bool {
    status.do_not_retry || status == ABORTED_BY_HOST || status.kind == PATH_RELATED && limit.is_zero()
}

/// The pause before attempt number `tries` + 1; None if the command has failed for good. `waited` is the time since the first
/// answer, `limit` its limit, and `delay` the retry delay of the controller.
fn pause_before_retry(
    status: NvmeStatus,
    tries: u32,
    (waited, limit): (Duration, Duration),
    delay: Duration,
) -> Option<Duration> {
    let may_retry = !is_final(status, limit) && if is_wait(status) { waited < limit } else { tries < TRIES };
    let pause = if status.retry_delay > 0 { delay } else { Duration::ZERO };
    may_retry.then(|| pause.max((FIRST_PAUSE * (1 << (tries - 1).min(10))).min(LAST_PAUSE)))
}

impl NvmeNamespace {
    /// The time that the condition of a status may last before its command fails.
    fn patience(&self, status: NvmeStatus) -> Duration {
        let timeouts = &self.controller.options().timeouts;
        timeouts.transition.filter(|_| status.kind == PATH_RELATED).unwrap_or(timeouts.busy)
    }

    /// Whether a command with this status is not tried again here.
    pub(super) fn is_final(&self, status: NvmeStatus) -> bool {
        is_final(status, self.patience(status))
    }

    /// Sends a command until it succeeds or fails for good, or the namespace is another one. The owner of a write that fails
    /// without its data must not send a replacement.
    pub(super) async fn perform(
        &self,
        sqe: Sqe,
        mut data: Direction,
        hold: Option<&RangeLock>,
    ) -> (Result<(), Error>, Option<Buf>) {
        let (started_at, timeouts) = (Instant::now(), &self.controller.options().timeouts);
        let is_out = matches!(data, Direction::Out(_));
        let (mut tries, mut answered_at) = (0, None);
        loop {
            // Each pass comes after a wait: for a lock, a status, or another command of the same operation.
            if let Err(e) = self.check_same() {
                return (Err(e), data.into_buf());
            }
            tries += 1;
            let mut command = NvmeCommand::new(sqe, data);
            command.hold = hold.map(RangeLock::add_holder);
            let (result, buf) = self.controller.submit(command).await;
            let status = match result {
                Ok(cqe) if cqe.status.is_success() => return (Ok(()), buf),
                Ok(cqe) => cqe.status,
                Err(e) => return (Err(e), buf),
            };
            let waited = answered_at.get_or_insert_with(Instant::now).elapsed();
            let delay = DELAY_UNIT * self.controller.info().identify.retry_delay.into();
            let pause = pause_before_retry(status, tries, (waited, self.patience(status)), delay);
            let left = timeouts.operation.saturating_sub(started_at.elapsed());
            match pause {
                Some(pause) if pause < left => compio::time::sleep(pause).await,
                Some(_) => return (Err(error_of(status).with_hint(hints::OPERATION_TIMEOUT)), buf),
                None => return (Err(error_of(status)), buf),
            }
            data = match buf {
                None if is_out => return (Err(error_of(status)), None),
                None => Direction::None,
                Some(buf) if is_out => Direction::Out(buf),
                Some(buf) => Direction::In(buf),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: (Duration, Duration) = (Duration::ZERO, Duration::from_secs(1));
    const LATE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(1));

    #[test]
    fn status_with_do_not_retry_fails_at_once() {
        for status in
            [NvmeStatus::LBA_OUT_OF_RANGE, NvmeStatus { do_not_retry: true, ..NvmeStatus::INTERRUPTED }]
        {
            assert_eq!(pause_before_retry(status, 1, SOON, Duration::ZERO), None, "{status}");
        }
    }

    #[test]
    fn error_is_retried_a_few_times_and_a_wait_until_its_limit() {
        let pause = |status, tries, times| pause_before_retry(status, tries, times, Duration::ZERO);
        assert_eq!(pause(NvmeStatus::TRANSIENT_TRANSPORT_ERROR, 1, LATE), Some(FIRST_PAUSE));
        assert_eq!(pause(NvmeStatus::TRANSIENT_TRANSPORT_ERROR, TRIES, SOON), None);
        assert_eq!(pause(NvmeStatus::ANA_TRANSITION, 1000, SOON), Some(LAST_PAUSE));
        assert_eq!(pause(NvmeStatus::INTERRUPTED, 1, LATE), None);
    }

    #[test]
    fn status_of_the_path_is_final_for_one_of_several_paths() {
        for status in [NvmeStatus::PATH_ERROR, NvmeStatus::ANA_INACCESSIBLE, NvmeStatus::ANA_TRANSITION] {
            let pause = |limit| pause_before_retry(status, 1, (Duration::ZERO, limit), Duration::ZERO);
            let expected = (Some(FIRST_PAUSE), None);
            assert_eq!((pause(Duration::from_secs(1)), pause(Duration::ZERO)), expected, "{status}");
        }
    }

    #[test]
    fn retry_delay_of_the_controller_is_honoured() {
        let status = NvmeStatus { retry_delay: 1, ..NvmeStatus::INTERRUPTED };
        let delay = Duration::from_secs(2);
        assert_eq!(pause_before_retry(status, 1, SOON, delay), Some(delay));
    }
}

//! The keep-alive timer of a controller. Any PDU on any of its queues shows that the host lives.

use super::admin::AdminQueue;
use super::identify::KEEP_ALIVE_UNITS;
use crate::end_reason::EndReason;
use std::rc::Weak;
use std::time::{Duration, Instant};

/// The granularity of the timer.
const STEP: Duration = Duration::from_millis(100 * KEEP_ALIVE_UNITS as u64);

/// The time-out that a host asks for, rounded up to the granularity of the timer. None: it asks for none.
fn timeout(ms: u32) -> Option<Duration> {
    (ms > 0).then(|| {
        STEP * u32::try_from(Duration::from_millis(ms.into()).as_millis().div_ceil(STEP.as_millis()))
            .unwrap_or(u32::MAX)
    })
}

/// Ends the controller when its host was silent for the time-out. A changed time-out counts at the next step.
pub async fn run(queue: Weak<AdminQueue>) {
    let mut heard = Instant::now();
    loop {
        lunar_runtime::sleep_until(Instant::now() + STEP).await;
        let Some(queue) = queue.upgrade() else { return };
        if queue.controller().take_heard() {
            heard = Instant::now();
        }
        let timeout = timeout(queue.state().keep_alive_ms());
        if timeout.is_some_and(|timeout| heard.elapsed() >= timeout) {
            return queue.end(EndReason::KeepaliveTimeout);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_is_rounded_up_to_whole_steps() {
        for (ms, seconds) in [(0, None), (1, Some(1)), (1000, Some(1)), (1001, Some(2)), (5000, Some(5))] {
            assert_eq!(timeout(ms), seconds.map(Duration::from_secs), "{ms}");
        }
        assert!(timeout(u32::MAX).is_some());
    }
}

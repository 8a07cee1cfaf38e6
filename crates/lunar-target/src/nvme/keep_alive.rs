//! The keep-alive timer of a controller. Any PDU on any of its queues shows that the host lives.

use super::admin::AdminQueue;
use super::identify::KEEP_ALIVE_UNITS;
use std::rc::Weak;
use std::time::{Duration, Instant};

/// The granularity of the timer.
const STEP: Duration = Duration::from_millis(100 * KEEP_ALIVE_UNITS as u64);

/// Whether a host was silent for too long. Steps are counted instead of time: while the server itself is held up, the host
/// cannot be heard.
fn is_over(silent_steps: u32, timeout: Option<Duration>) -> bool {
    timeout.is_some_and(|timeout| STEP.saturating_mul(silent_steps) >= timeout)
}

/// Ends the controller when its host was silent for the time-out. A changed time-out counts at the next step.
pub async fn run(queue: Weak<AdminQueue>) {
    let mut silent_steps = 0;
    loop {
        lunar_runtime::sleep_until(Instant::now() + STEP).await;
        let Some(queue) = queue.upgrade() else { return };
        silent_steps = if queue.controller().take_heard() { 0 } else { silent_steps + 1 };
        let (timeout, reason) = queue.state().silence_timeout();
        if is_over(silent_steps, timeout) {
            return queue.end(reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_ends_after_whole_steps() {
        let ms = |ms| Some(Duration::from_millis(ms));
        for (steps, timeout, expected) in [
            (1, None, false),
            (0, ms(1), false),
            (1, ms(1), true),
            (1, ms(1000), true),
            (1, ms(1001), false),
            (2, ms(1001), true),
            (u32::MAX, Some(Duration::MAX), false),
        ] {
            assert_eq!(is_over(steps, timeout), expected, "{steps} {timeout:?}");
        }
    }
}

//! Attempts to reach a target.

use crate::{Error, ErrorCode};
use std::time::Duration;

/// The pause after the first attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause. It doubles with each attempt.
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// Makes at most `tries` attempts while the target cannot be reached. `missing` receives the error of each attempt but the
/// last. Call it inside an event loop.
///
/// # Errors
/// The error of the last attempt. Another error than those of an unreachable target ends the attempts.
pub async fn with_retry<T>(
    tries: u32,
    missing: impl Fn(&Error),
    attempt: impl AsyncFn() -> Result<T, Error>,
) -> Result<T, Error> {
    let mut pause = FIRST_PAUSE;
    for _ in 1..tries.max(1) {
        match attempt().await {
            Err(e)
                if matches!(
                    e.code,
                    ErrorCode::Unreachable | ErrorCode::TimedOut | ErrorCode::ConnectionLost
                ) =>
            {
                missing(&e);
                compio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            end => return end,
        }
    }
    attempt().await
}

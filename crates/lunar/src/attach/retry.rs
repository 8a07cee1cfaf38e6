//! Attempts to open a disk.

use lunar_initiator::{Error, ErrorCode};
use std::time::Duration;

/// Pause after the first attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Limit of the pause, which doubles with each attempt.
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// Opens something, with at most `tries` attempts while the target cannot be reached. `missing` receives the error of each
/// attempt but the last.
///
/// # Errors
/// The error of the last attempt.
pub async fn open_with_retry<T>(
    tries: u32,
    missing: impl Fn(&Error),
    open: impl AsyncFn() -> Result<T, Error>,
) -> Result<T, Error> {
    let mut pause = FIRST_PAUSE;
    for _ in 1..tries.max(1) {
        match open().await {
            Err(e)
                if matches!(
                    e.code,
                    ErrorCode::Unreachable | ErrorCode::TimedOut | ErrorCode::ConnectionLost
                ) =>
            {
                tracing::warn!("{e}; trying again");
                missing(&e);
                compio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            end => return end,
        }
    }
    open().await
}

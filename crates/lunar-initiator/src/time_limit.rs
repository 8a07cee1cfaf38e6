//! Waits of any length. A user may set a time limit to [`Duration::MAX`], whose end no clock can represent.

use std::time::{Duration, Instant};

/// A hundred years: the longest wait. Kernels count nanoseconds in 63 bits, which end after 292 years.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// The time at the end of this limit.
pub fn deadline(limit: Duration) -> Instant {
    Instant::now() + limit.min(LONGEST)
}

/// Sleeps this long.
pub async fn sleep(pause: Duration) {
    compio::time::sleep(pause.min(LONGEST)).await;
}

/// The result of the work; None if it does not end within the limit.
pub fn within<T>(limit: Duration, work: impl Future<Output = T>) -> impl Future<Output = Option<T>> {
    // Not an async fn, whose future would have room for the work twice.
    let timed = compio::time::timeout(limit.min(LONGEST), work);
    async move { timed.await.ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_runtime::either;
    use std::future::{pending, ready};

    #[test]
    fn endless_limits_do_not_panic() {
        assert!(deadline(Duration::MAX) > Instant::now());
        compio::runtime::Runtime::new().expect("an event loop").block_on(async {
            assert_eq!(within(Duration::MAX, ready(1)).await, Some(1));
            assert_eq!(within(Duration::ZERO, pending::<()>()).await, None);
            let soon = sleep(Duration::from_millis(1));
            either(sleep(Duration::MAX), async { within(Duration::MAX, soon).await.expect("in time") }).await;
        });
    }
}

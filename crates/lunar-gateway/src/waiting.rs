//! Waiting in the event loop of the gateways.

use lunar_runtime::sleep_until;
use std::io;
use std::time::{Duration, Instant};

/// The interval in which a condition is checked.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Waits until something is so.
pub async fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        sleep_until(Instant::now() + CHECK_INTERVAL).await;
    }
}

/// Runs a blocking operation on a thread of its own.
pub async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (done, end) = flume::bounded(1);
    std::thread::Builder::new().name("gateway".into()).spawn(move || drop(done.send(work())))?;
    end.recv_async().await.unwrap_or_else(|_| Err(io::Error::other("a thread of the gateway has panicked")))
}

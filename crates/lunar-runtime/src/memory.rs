//! Returns memory to the kernel that has been unused for a while after a peak load.

use crate::{buf, pipe, pool, threads, timer};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Memory that was unused for this long is returned.
const IDLE: Duration = Duration::from_secs(5);

/// Something large was freed since the last trim of the allocator.
static FREED: AtomicBool = AtomicBool::new(false);

/// Records that a connection ended or buffers were freed, so that a trim of the allocator is worthwhile.
pub(crate) fn freed() {
    FREED.store(true, Relaxed);
}

/// Returns the unused memory of this core periodically.
pub(crate) async fn tidy() {
    loop {
        timer::sleep_until(Instant::now() + IDLE).await;
        pipe::trim();
        if pool::trim() > 0 {
            freed();
        }
        if FREED.swap(false, Relaxed) {
            // It may take milliseconds, so it runs outside the event loop.
            let give_back = || {
                buf::give_back();
                Ok(())
            };
            _ = threads::blocking(give_back).await;
        }
    }
}

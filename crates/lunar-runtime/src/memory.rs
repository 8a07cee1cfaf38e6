//! Memory that a load has left free goes back to the system once nobody uses it any more.

use crate::{buf, pool, threads, timer};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What was not used for so long is given back.
const IDLE: Duration = Duration::from_secs(5);

/// Something large was freed since the allocator gave back pages.
static FREED: AtomicBool = AtomicBool::new(false);

/// A connection has ended, or buffers were freed: the allocator may have whole pages of that.
pub(crate) fn freed() {
    FREED.store(true, Relaxed);
}

/// Gives back what this core does not use, again and again.
pub(crate) async fn tidy() {
    loop {
        timer::sleep_until(Instant::now() + IDLE).await;
        if pool::trim() > 0 {
            freed();
        }
        if FREED.swap(false, Relaxed) {
            // It may take milliseconds. An event loop does not wait for it.
            let give_back = || {
                buf::give_back();
                Ok(())
            };
            _ = threads::blocking(give_back).await;
        }
    }
}

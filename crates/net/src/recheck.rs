//! When to ask again what the kernel was asked before.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::cell::Cell;

/// An answer that holds for one batch of work, and no longer than one tick of the kernel's clock (some milliseconds): the
/// thread may have been held up for any time since.
#[derive(Default)]
pub struct Recheck(Cell<Option<Timespec>>);

impl Recheck {
    /// Whether to ask now. If so, the answer holds from now on.
    #[inline]
    pub fn is_due(&self) -> bool {
        let now = Some(clock_gettime(ClockId::MonotonicCoarse));
        self.0.replace(now) != now
    }

    /// The answer holds no longer.
    #[inline]
    pub fn renew(&self) {
        self.0.set(None);
    }
}

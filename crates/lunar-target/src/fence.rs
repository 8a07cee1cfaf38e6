//! Ends a session whose core is stalled, possibly for longer than initiators wait. Commands that the core has begun
//! must end before the session is replaced. Commands that it has not begun must never begin.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

const CLOSED: u32 = 1 << 31;

/// Counts the work in progress of a session, so that another core can end the session while its own core is stalled.
/// It has its own cache line, because the core of the session writes to it at each receive.
#[derive(Default)]
#[repr(align(64))]
pub struct SessionFence(AtomicU32);

/// While this exists, work is in progress that may execute commands.
pub struct InFlightGuard<F: Deref<Target = SessionFence>>(F);

/// Begins work that may execute commands. None: the fence is closed.
#[inline]
pub fn enter<F: Deref<Target = SessionFence>>(fence: F) -> Option<InFlightGuard<F>> {
    let before = fence.0.fetch_add(1, SeqCst);
    let entered = InFlightGuard(fence);
    (before & CLOSED == 0).then_some(entered)
}

impl<F: Deref<Target = SessionFence>> Drop for InFlightGuard<F> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, SeqCst);
    }
}

impl SessionFence {
    /// Lets no new work begin. Work in progress continues to its end.
    pub fn close(&self) {
        self.0.fetch_or(CLOSED, SeqCst);
    }

    /// Whether the fence is closed and no work is in progress, so that the session never executes anything again.
    pub fn is_quiet(&self) -> bool {
        self.0.load(SeqCst) == CLOSED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn closed_fence_lets_nothing_begin() {
        let fence = SessionFence::default();
        assert!(enter(&fence).is_some());
        fence.close();
        assert!(enter(&fence).is_none());
        assert!(fence.is_quiet());
    }

    #[test]
    fn closed_fence_is_quiet_after_last_work() {
        let fence = Arc::new(SessionFence::default());
        let (first, second) = (enter(fence.clone()), enter(fence.clone()));
        assert!(!fence.is_quiet());
        fence.close();
        drop(first);
        assert!(!fence.is_quiet());
        drop(second);
        assert!(fence.is_quiet());
    }
}

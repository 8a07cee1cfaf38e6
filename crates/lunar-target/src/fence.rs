//! The end of a session whose core is stalled. A core may be stalled for longer than initiators wait. The commands
//! that it has begun must end before the session is replaced. Those that it has not begun must never begin.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

const CLOSED: u32 = 1 << 31;

/// Counts the work in progress of a session, so that another core can end the session while its own is stalled. It has
/// a cache line of its own, because the core of the session writes to it for each receive.
#[derive(Default)]
#[repr(align(64))]
pub struct SessionFence(AtomicU32);

/// Work that may execute commands is in progress while this lives.
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
    /// Lets nothing new begin. Work in progress goes on to its end.
    pub fn close(&self) {
        self.0.fetch_or(CLOSED, SeqCst);
    }

    /// The fence is closed, and no work is in progress: the session will never execute anything again.
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

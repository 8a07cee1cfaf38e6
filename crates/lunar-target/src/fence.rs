//! The end of a session whose core does not answer. A core may be held up for longer than initiators wait. The commands
//! that it has begun have to end first; those that it has not begun must never begin once somebody has relied on that.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

const CLOSED: u32 = 1 << 31;

/// Counts what of a session is under way, so that another core can end the session while its own is held up. It has a
/// cache line of its own: the core of the session writes to it for each receive.
#[derive(Default)]
#[repr(align(64))]
pub struct SessionFence(AtomicU32);

/// Something that may carry out commands is under way while this lives.
pub struct InFlightGuard<F: Deref<Target = SessionFence>>(F);

/// Begins something that may carry out commands. None once the fence is closed.
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
    /// Nothing begins from here on. What is under way goes on to its end.
    pub fn close(&self) {
        self.0.fetch_or(CLOSED, SeqCst);
    }

    /// It is closed, and nothing is under way: nothing of the session will ever be again.
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
    fn closed_fence_is_quiet_when_the_last_has_ended() {
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

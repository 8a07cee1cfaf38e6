//! Commands that have ended, in that order.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

/// Commands whose results wait for their owner: the owner's number and the tag of each.
#[derive(Debug, Default)]
pub struct Completions {
    over: RefCell<VecDeque<(u32, u32)>>,
    /// The owner, while it waits.
    waker: RefCell<Option<Waker>>,
}

impl Completions {
    /// Adds a command that has ended.
    #[inline]
    pub fn add(&self, name: u32, tag: u32) {
        self.over.borrow_mut().push_back((name, tag));
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Returns the next one, or registers the waker.
    #[inline]
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<(u32, u32)> {
        if let Some(first) = self.over.borrow_mut().pop_front() {
            return Poll::Ready(first);
        }
        match &mut *self.waker.borrow_mut() {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

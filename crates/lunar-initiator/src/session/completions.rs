//! Commands that have ended, in the order of their ends.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

/// Commands that are over and whose answers wait for their owner: the owner's names for them, and their tags.
#[derive(Debug, Default)]
pub struct Completions {
    over: RefCell<VecDeque<(u32, u32)>>,
    /// The owner, while it waits.
    waker: RefCell<Option<Waker>>,
}

impl Completions {
    /// A command is over.
    #[inline]
    pub fn add(&self, name: u32, tag: u32) {
        self.over.borrow_mut().push_back((name, tag));
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// The next one, or a wake-up when there is one.
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

//! Completed commands, in order of completion.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

/// Completed commands whose owner has not taken the result: the owner's number and the tag of each.
#[derive(Debug)]
pub struct Completions<T = u32> {
    over: RefCell<VecDeque<(u32, T)>>,
    /// The waker of the owner, while it waits.
    waker: RefCell<Option<Waker>>,
}

impl<T> Default for Completions<T> {
    fn default() -> Completions<T> {
        Completions { over: RefCell::default(), waker: RefCell::default() }
    }
}

impl<T> Completions<T> {
    /// Adds a completed command.
    #[inline]
    pub fn add(&self, name: u32, tag: T) {
        self.over.borrow_mut().push_back((name, tag));
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Returns the next completed command, or registers the waker.
    #[inline]
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<(u32, T)> {
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

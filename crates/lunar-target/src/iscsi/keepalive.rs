//! The keepalive state of a connection.

use std::cell::Cell;

/// The keepalive state of a connection.
#[derive(Default)]
pub struct Keepalive {
    /// Whether something was received since the last check.
    heard: Cell<bool>,
    /// The tag of an unanswered ping.
    open: Cell<Option<u32>>,
    last: Cell<u32>,
}

impl Keepalive {
    /// Records that something was received.
    #[inline]
    pub fn heard(&self) {
        self.heard.set(true);
    }

    /// Whether something was received since the last call.
    pub fn take_heard(&self) -> bool {
        self.heard.take()
    }

    /// Forgets an unanswered ping.
    pub fn forget(&self) {
        self.open.set(None);
    }

    /// Records the answer to the ping with this tag.
    pub fn answered(&self, tag: u32) {
        if self.open.get() == Some(tag) {
            self.open.set(None);
        }
    }

    /// The tag of a new ping. None: the previous ping is unanswered.
    pub fn begin(&self) -> Option<u32> {
        if self.open.get().is_some() {
            return None;
        }
        self.last.set((self.last.get() + 1) & 0x7fff_ffff);
        self.open.set(Some(self.last.get()));
        self.open.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_ping_follows_the_answer_to_the_last() {
        let keepalive = Keepalive::default();
        assert_eq!((keepalive.begin(), keepalive.begin()), (Some(1), None));
        keepalive.answered(2);
        assert_eq!(keepalive.begin(), None, "another tag");
        keepalive.answered(1);
        assert_eq!(keepalive.begin(), Some(2));
        keepalive.forget();
        assert_eq!(keepalive.begin(), Some(3));
        keepalive.heard();
        assert_eq!([keepalive.take_heard(), keepalive.take_heard()], [true, false]);
    }
}

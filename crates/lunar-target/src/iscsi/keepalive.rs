//! The keepalive state of a connection.

/// The keepalive state of a connection.
#[derive(Default)]
pub struct Keepalive {
    /// Whether something was received since the last check.
    heard: bool,
    /// The tag of an unanswered ping.
    open: Option<u32>,
    last: u32,
}

impl Keepalive {
    /// Records that something was received.
    #[inline]
    pub fn heard(&mut self) {
        self.heard = true;
    }

    /// Whether something was received since the last call.
    pub fn take_heard(&mut self) -> bool {
        std::mem::take(&mut self.heard)
    }

    /// Forgets an unanswered ping.
    pub fn forget(&mut self) {
        self.open = None;
    }

    /// Records the answer to the ping with this tag.
    pub fn answered(&mut self, tag: u32) {
        self.open.take_if(|open| *open == tag);
    }

    /// The tag of a new ping. None: the previous ping is unanswered.
    pub fn begin(&mut self) -> Option<u32> {
        if self.open.is_some() {
            return None;
        }
        self.last = (self.last + 1) & 0x7fff_ffff;
        self.open = Some(self.last);
        self.open
    }
}

//! What is known of the life of the initiator of a connection.

/// What is known of the initiator's life.
#[derive(Default)]
pub struct Keepalive {
    /// Something was received since this was looked at last.
    heard: bool,
    /// The tag of a ping that is not answered.
    open: Option<u32>,
    last: u32,
}

impl Keepalive {
    /// Something was received.
    #[inline]
    pub fn heard(&mut self) {
        self.heard = true;
    }

    /// Whether something was received since this was asked last.
    pub fn take_heard(&mut self) -> bool {
        std::mem::take(&mut self.heard)
    }

    /// No ping is open any more.
    pub fn forget(&mut self) {
        self.open = None;
    }

    /// A ping with this tag is answered.
    pub fn answered(&mut self, tag: u32) {
        self.open.take_if(|open| *open == tag);
    }

    /// The tag of a new ping; None if the one before it is still open.
    pub fn begin(&mut self) -> Option<u32> {
        if self.open.is_some() {
            return None;
        }
        self.last = (self.last + 1) & 0x7fff_ffff;
        self.open = Some(self.last);
        self.open
    }
}

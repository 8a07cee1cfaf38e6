//! What is known of the life of the initiator of a connection.

use super::connection::Connection;
use super::session::Session;
use crate::core::State;
use crate::core::keepalive::Pinged;
use lunar_wire::iscsi::{NONE, pdu};

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

    /// A ping with this tag is answered.
    pub fn answered(&mut self, tag: u32) {
        self.open.take_if(|open| *open == tag);
    }

    /// The tag of a new ping; None if the one before it is still open.
    fn begin(&mut self) -> Option<u32> {
        if self.open.is_some() {
            return None;
        }
        self.last = (self.last + 1) & 0x7fff_ffff;
        self.open = Some(self.last);
        self.open
    }
}

/// Pings are NOP-In (RFC 7143 section 11.19).
impl Pinged<Session> for Connection {
    fn is_alive(&self, _: &mut State<Session>) -> bool {
        std::mem::take(&mut self.keepalive().borrow_mut().heard) | self.has_moved()
    }

    fn ping(&self, state: &mut State<Session>) -> bool {
        let tag = self.keepalive().borrow_mut().begin();
        if let Some(tag) = tag {
            state.front().notice(self.place(), pdu::nop_in(0, NONE, tag));
        }
        true
    }

    fn ping_sent(&self) {
        self.has_moved();
    }

    fn forget_ping(&self) {
        self.keepalive().borrow_mut().open = None;
    }

    fn close(&self) {
        Connection::close(self);
    }
}

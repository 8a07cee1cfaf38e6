//! Requests of the target to the initiator: credits, asynchronous events and logout (SRP r16a sections 6.5 to 6.7 and
//! 6.10 to 6.13). At most one is unanswered, because initiators have only one receive buffer for them.

use lunar_wire::srp::{Aer, CreditRequest, SrpError, TargetLogout};

/// Solicited notification bits of a login.
const NOTIFY_LOGOUT: u8 = 0x10;
const NOTIFY_CREDITS: u8 = 0x20;
const NOTIFY_EVENTS: u8 = 0x40;

/// Reasons of a logout (SRP r16a section 6.5).
pub mod reason {
    /// No other reason applies.
    pub const NONE: u32 = 0;
    /// An information unit had an unknown opcode.
    pub const OPCODE: u32 = 2;
    /// A response belonged to no request.
    pub const ANSWER: u32 = 3;
    /// A login requested to be the only channel.
    pub const ANOTHER_LOGIN: u32 = 4;
    /// An information unit had a wrong length.
    pub const LENGTH: u32 = 8;
}

/// The logout reason for an invalid information unit.
pub fn reason_of(error: &SrpError) -> u32 {
    match error {
        SrpError::Opcode(_) => reason::OPCODE,
        SrpError::Short { .. } => reason::LENGTH,
        _ => reason::NONE,
    }
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Credits, or a ping.
    Credits,
    /// An asynchronous event.
    Event,
}

/// The requests on one connection.
pub struct TargetRequests {
    notifications: u8,
    /// Whether the initiator has sent something. Before that it cannot receive requests: iWARP requires that the
    /// initiator sends first (RFC 5044 section 7.1).
    has_heard: bool,
    /// The unanswered request and its tag.
    open: Option<(RequestKind, u64)>,
    /// The latest tag.
    last: u64,
}

impl TargetRequests {
    /// No request was sent. `notifications`: those that the login requests.
    pub fn new(notifications: u8) -> TargetRequests {
        TargetRequests { notifications, has_heard: false, open: None, last: 0 }
    }

    /// Records that the initiator has sent something.
    pub fn hear(&mut self) {
        self.has_heard = true;
    }

    /// Whether the initiator has sent something, so that it can receive requests.
    pub fn has_heard(&self) -> bool {
        self.has_heard
    }

    /// Whether a request may be sent.
    pub fn may(&self) -> bool {
        self.has_heard && self.open.is_none()
    }

    fn ask(&mut self, kind: RequestKind) -> Option<u64> {
        let tag = self.last.wrapping_add(1);
        self.may().then(|| {
            (self.last, self.open) = (tag, Some((kind, tag)));
            tag
        })
    }

    /// A request that grants credits; zero credits are a ping. None: no request may be sent.
    pub fn credits(&mut self, credits: i32) -> Option<Vec<u8>> {
        let solicited = self.notifications & NOTIFY_CREDITS != 0;
        let tag = self.ask(RequestKind::Credits)?;
        Some(CreditRequest { solicited, credits, tag }.encode().to_vec())
    }

    /// A request that reports an event. None: no request may be sent.
    pub fn event(&mut self, lun: u64, sense: &[u8]) -> Option<Vec<u8>> {
        let solicited = self.notifications & NOTIFY_EVENTS != 0;
        let tag = self.ask(RequestKind::Event)?;
        let mut unit = Vec::new();
        Aer { solicited, credits: 0, tag, lun, sense }.encode(&mut unit);
        Some(unit)
    }

    /// A target logout. None: no request may be sent.
    pub fn logout(&mut self, reason: u32) -> Option<Vec<u8>> {
        let solicited = self.notifications & NOTIFY_LOGOUT != 0;
        let tag = self.last.wrapping_add(1);
        self.may().then(|| TargetLogout { solicited, reason, tag }.encode().to_vec())
    }

    /// Records a response. False: it belongs to no request.
    pub fn answered(&mut self, kind: RequestKind, tag: u64) -> bool {
        let fits = self.open == Some((kind, tag));
        if fits {
            self.open = None;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_sends_one_request_at_a_time() {
        let mut requests = TargetRequests::new(NOTIFY_CREDITS);
        assert_eq!((requests.credits(1), requests.event(0, &[]), requests.logout(0)), (None, None, None));
        requests.hear();
        let first = requests.credits(2).unwrap();
        assert_eq!(CreditRequest::decode(&first), Ok(CreditRequest { solicited: true, credits: 2, tag: 1 }));
        assert_eq!((requests.credits(1), requests.event(0, &[]), requests.logout(0)), (None, None, None));
        assert!(!requests.answered(RequestKind::Event, 1) && !requests.answered(RequestKind::Credits, 2));
        assert!(requests.answered(RequestKind::Credits, 1) && !requests.answered(RequestKind::Credits, 1));
        let event = requests.event(7, &[0x70]).unwrap();
        assert_eq!(Aer::decode(&event).map(|aer| (aer.solicited, aer.tag, aer.lun)), Ok((false, 2, 7)));
        assert!(requests.answered(RequestKind::Event, 2));
        let end = requests.logout(reason::ANOTHER_LOGIN).unwrap();
        assert_eq!(TargetLogout::decode(&end), Ok(TargetLogout { solicited: false, reason: 4, tag: 3 }));
    }
}

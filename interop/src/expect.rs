//! Responses where RFC 7143 permits several.

use crate::login::Login;
use crate::pdu::{Pdu, op};
use crate::raw::{Raw, Received, patience};
use std::net::SocketAddr;

/// The target's reaction to a PDU.
#[derive(Debug)]
pub enum PduOutcome {
    /// A Reject with this reason.
    Rejected(u8),
    Closed,
    Answered(Pdu),
}

impl PduOutcome {
    /// Fails unless the PDU was rejected with one of these reasons, or the connection closed.
    pub fn refused(self, reasons: &[u8]) {
        match self {
            PduOutcome::Rejected(reason) if reasons.contains(&reason) => {}
            PduOutcome::Closed => {}
            other => panic!("expected a Reject of {reasons:02x?} or a close, got {other:?}"),
        }
    }
}

impl Raw {
    /// Sends a PDU and waits for the reaction. Asynchronous messages are skipped.
    pub fn outcome(&mut self, pdu: &Pdu) -> PduOutcome {
        self.send(pdu);
        self.next_outcome()
    }

    /// Waits for the next PDU or the close. Asynchronous messages are skipped.
    pub fn next_outcome(&mut self) -> PduOutcome {
        loop {
            match self.get(patience()) {
                Received::Pdu(pdu) if pdu.opcode() == op::ASYNC => {}
                Received::Pdu(pdu) if pdu.opcode() == op::REJECT => return PduOutcome::Rejected(pdu.bhs[2]),
                Received::Pdu(pdu) => return PduOutcome::Answered(pdu),
                Received::Closed => return PduOutcome::Closed,
                Received::Nothing => panic!("no response and no close in time"),
            }
        }
    }

    /// Receives a Reject with the header of `bad`, and returns its reason.
    pub fn rejected(&mut self, bad: &Pdu) -> u8 {
        let reject = self.recv_op(op::REJECT);
        assert_eq!(reject.data, bad.header(), "the header of the bad PDU");
        reject.bhs[2]
    }
}

/// The response to one key that a login offered.
#[derive(Debug, PartialEq, Eq)]
pub enum KeyResponse {
    Value(String),
    Silence,
    /// The login failed with this status.
    Failed(u16),
}

impl KeyResponse {
    /// Whether the response is this value.
    pub fn is(&self, value: &str) -> bool {
        matches!(self, KeyResponse::Value(v) if v == value)
    }

    /// Whether the response is `Reject`, or the login failed with an initiator error.
    pub fn refused(&self) -> bool {
        self.is("Reject") || matches!(self, KeyResponse::Failed(status) if status >> 8 == 2)
    }

    /// The value as a number.
    pub fn number(&self) -> u64 {
        match self {
            KeyResponse::Value(v) => v.parse().unwrap_or_else(|e| panic!("{v}: {e}")),
            other => panic!("no number: {other:?}"),
        }
    }
}

/// Offers one key in the operational stage of a normal session.
pub fn negotiate(address: SocketAddr, key: &str, offer: &str) -> KeyResponse {
    match Login::new().answers(address, &[(key, offer)]) {
        Err(status) => KeyResponse::Failed(status),
        Ok(pairs) => {
            let mut found = pairs.into_iter().filter(|(k, _)| k == key);
            let answer = found.next().map_or(KeyResponse::Silence, |(_, value)| KeyResponse::Value(value));
            assert!(found.next().is_none(), "two responses to {key}");
            answer
        }
    }
}

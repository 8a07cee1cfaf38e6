//! The messages of the exchange.

use super::{DhChapHash, DhGroup};
use lunar_wire::le;
use std::fmt;

/// Type and identifier of messages: their first two bytes.
mod kind {
    pub const NEGOTIATE: [u8; 2] = [0x00, 0x00];
    pub const CHALLENGE: [u8; 2] = [0x01, 0x01];
    pub const REPLY: [u8; 2] = [0x01, 0x02];
    pub const SUCCESS1: [u8; 2] = [0x01, 0x03];
    pub const SUCCESS2: [u8; 2] = [0x01, 0x04];
    pub const FAILURE1: [u8; 2] = [0x00, 0xf1];
    pub const FAILURE2: [u8; 2] = [0x00, 0xf0];
}

/// The identifier of DH-HMAC-CHAP among the protocols of a negotiation.
const DH_CHAP: u8 = 1;
/// The most hashes, and the most groups, of an offer.
const LIST: usize = 30;
/// Bytes of the offer of a protocol.
const OFFER: usize = 64;
/// Bytes before challenges, responses and public keys.
const HEAD: usize = 16;

/// Why an exchange has failed: the explanation of the reason 1, authentication failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthFailure(pub u8);

impl AuthFailure {
    /// The response is wrong.
    pub const FAILED: AuthFailure = AuthFailure(1);
    /// The other side does not offer DH-HMAC-CHAP.
    pub const PROTOCOL: AuthFailure = AuthFailure(2);
    /// A secure channel is not supported.
    pub const CONCATENATION: AuthFailure = AuthFailure(3);
    /// No hash in common.
    pub const HASH: AuthFailure = AuthFailure(4);
    /// No group in common.
    pub const GROUP: AuthFailure = AuthFailure(5);
    /// A message is malformed.
    pub const INVALID_PAYLOAD: AuthFailure = AuthFailure(6);
    /// A message at the wrong point.
    pub const INVALID_MESSAGE: AuthFailure = AuthFailure(7);
}

impl fmt::Display for AuthFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            1 => "authentication failed",
            2 => "the authentication protocol is not usable",
            3 => "a secure channel is not supported",
            4 => "no hash in common",
            5 => "no Diffie-Hellman group in common",
            6 => "malformed authentication message",
            7 => "unexpected authentication message",
            _ => "authentication failed for an unknown reason",
        })
    }
}

impl std::error::Error for AuthFailure {}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthMessage {
    /// The host offers hashes and groups.
    Negotiate {
        /// A secure channel follows (SC_C not 0).
        concatenates: bool,
        /// Identifiers of hashes, the preferred one first. Empty: DH-HMAC-CHAP is not offered.
        hashes: Vec<u8>,
        /// Identifiers of groups.
        groups: Vec<u8>,
    },
    /// The controller challenges the host.
    Challenge {
        /// Identifier of the hash.
        hash: u8,
        /// Identifier of the group.
        group: u8,
        /// Sequence number.
        sequence: u32,
        /// The challenge, as long as a digest.
        challenge: Vec<u8>,
        /// The public key; empty without a group.
        public: Vec<u8>,
    },
    /// The host replies.
    Reply {
        /// Sequence number of its challenge.
        sequence: u32,
        /// The response.
        response: Vec<u8>,
        /// The challenge of the host, if the controller must prove itself.
        challenge: Option<Vec<u8>>,
        /// The public key; empty without a group.
        public: Vec<u8>,
    },
    /// The response of the host is right.
    Success1 {
        /// Bytes of a digest. Linux checks it without a response too.
        digest_len: u8,
        /// The response of the controller, if the host asked for one.
        response: Option<Vec<u8>>,
    },
    /// The response of the controller is right.
    Success2,
    /// The controller reports a failure.
    Failure1(AuthFailure),
    /// The host reports a failure.
    Failure2(AuthFailure),
}

impl AuthMessage {
    /// Decodes a message: the transaction and its content. `None`: it is malformed.
    pub fn decode(bytes: &[u8]) -> Option<(u16, AuthMessage)> {
        let head: &[u8; 8] = bytes.first_chunk()?;
        let transaction = le::get16(&head[4..]);
        let failure = || AuthFailure(head[7]);
        let message = match [head[0], head[1]] {
            kind::NEGOTIATE => negotiate(head, &bytes[8..])?,
            kind::CHALLENGE => challenge(bytes)?,
            kind::REPLY => reply(bytes)?,
            kind::SUCCESS1 => {
                let has_response = bytes.get(8)? & 1 != 0;
                let response = bytes.get(HEAD..)?.get(..usize::from(head[6]));
                let response = if has_response { Some(response?.into()) } else { None };
                AuthMessage::Success1 { digest_len: head[6], response }
            }
            kind::SUCCESS2 => AuthMessage::Success2,
            // The type of failures is common to all protocols; some send that of this one.
            [0 | 1, 0xf1] => AuthMessage::Failure1(failure()),
            [0 | 1, 0xf0] => AuthMessage::Failure2(failure()),
            _ => return None,
        };
        Some((transaction, message))
    }

    /// Encodes the message of a transaction.
    pub fn encode(&self, transaction: u16) -> Vec<u8> {
        let mut bytes = vec![0; HEAD];
        le::put16(&mut bytes[4..], transaction);
        let kind = match self {
            AuthMessage::Negotiate { concatenates, hashes, groups } => {
                bytes.truncate(8);
                (bytes[6], bytes[7]) = (u8::from(*concatenates), 1);
                bytes.extend(offer(hashes, groups));
                kind::NEGOTIATE
            }
            AuthMessage::Challenge { hash, group, sequence, challenge, public } => {
                (bytes[6], bytes[8], bytes[9]) = (challenge.len() as u8, *hash, *group);
                le::put16(&mut bytes[10..], public.len() as u16);
                le::put32(&mut bytes[12..], *sequence);
                bytes.extend([&challenge[..], public].concat());
                kind::CHALLENGE
            }
            AuthMessage::Reply { sequence, response, challenge, public } => {
                (bytes[6], bytes[8]) = (response.len() as u8, u8::from(challenge.is_some()));
                le::put16(&mut bytes[10..], public.len() as u16);
                le::put32(&mut bytes[12..], *sequence);
                // The place of the challenge is there even if it is not valid.
                let none = vec![0; response.len()];
                bytes.extend([&response[..], challenge.as_ref().unwrap_or(&none), public].concat());
                kind::REPLY
            }
            AuthMessage::Success1 { digest_len, response } => {
                (bytes[6], bytes[8]) = (*digest_len, u8::from(response.is_some()));
                bytes.extend(response.iter().flatten());
                kind::SUCCESS1
            }
            AuthMessage::Success2 => kind::SUCCESS2,
            AuthMessage::Failure1(failure) | AuthMessage::Failure2(failure) => {
                bytes.truncate(8);
                (bytes[6], bytes[7]) = (1, failure.0);
                if matches!(self, AuthMessage::Failure1(_)) { kind::FAILURE1 } else { kind::FAILURE2 }
            }
        };
        bytes[..2].copy_from_slice(&kind);
        bytes
    }
}

fn offer(hashes: &[u8], groups: &[u8]) -> [u8; OFFER] {
    let mut offer = [0; OFFER];
    let (hashes, groups) = (&hashes[..hashes.len().min(LIST)], &groups[..groups.len().min(LIST)]);
    (offer[0], offer[2], offer[3]) = (DH_CHAP, hashes.len() as u8, groups.len() as u8);
    offer[4..4 + hashes.len()].copy_from_slice(hashes);
    offer[4 + LIST..4 + LIST + groups.len()].copy_from_slice(groups);
    offer
}

fn negotiate(head: &[u8; 8], offers: &[u8]) -> Option<AuthMessage> {
    let concatenates = head[6] != 0;
    let mut all = offers.chunks_exact(OFFER).take(usize::from(head[7]));
    let Some(offer) = all.find(|offer| offer[0] == DH_CHAP) else {
        return Some(AuthMessage::Negotiate { concatenates, hashes: Vec::new(), groups: Vec::new() });
    };
    let [hashes, groups] = [(2, 4), (3, 4 + LIST)].map(|(len, at)| {
        let len = usize::from(offer[len]);
        (len <= LIST).then(|| offer[at..at + len].to_vec())
    });
    Some(AuthMessage::Negotiate { concatenates, hashes: hashes?, groups: groups? })
}

fn challenge(bytes: &[u8]) -> Option<AuthMessage> {
    let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
    let (challenge, rest) = rest.split_at_checked(usize::from(head[6]))?;
    Some(AuthMessage::Challenge {
        hash: head[8],
        group: head[9],
        sequence: le::get32(&head[12..]),
        challenge: challenge.into(),
        public: rest.get(..usize::from(le::get16(&head[10..])))?.into(),
    })
}

fn reply(bytes: &[u8]) -> Option<AuthMessage> {
    let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
    let len = usize::from(head[6]);
    let (response, rest) = rest.split_at_checked(len)?;
    let (challenge, rest) = rest.split_at_checked(len)?;
    Some(AuthMessage::Reply {
        sequence: le::get32(&head[12..]),
        response: response.into(),
        challenge: (head[8] & 1 != 0).then(|| challenge.into()),
        public: rest.get(..usize::from(le::get16(&head[10..])))?.into(),
    })
}

/// The first hash that this side allows, of those in an offer.
pub fn choose_hash(offered: &[u8], allowed: &[DhChapHash]) -> Option<DhChapHash> {
    allowed.iter().copied().find(|hash| offered.contains(&(*hash as u8)))
}

/// The first group that this side allows, of those in an offer.
pub fn choose_group(offered: &[u8], allowed: &[DhGroup]) -> Option<DhGroup> {
    allowed.iter().copied().find(|group| offered.contains(&(*group as u8)))
}

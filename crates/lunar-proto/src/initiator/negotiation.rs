//! Operational key negotiation of a login on the initiator side (RFC 7143 sections 6.2 and 13).

use std::collections::BTreeSet;

use lunar_wire::iscsi::text::{number, push, yes_no};

use super::login::{LoginError, LoginParams};
use super::shown;
use crate::keys::{self, KeyDefinition, KeySender, KeyType, KeyUse, NegotiationPhase, TABLE, VALUE_LEN};
use crate::login::{SessionType, UNKNOWN_KEYS};
use crate::parameters::{AllowedDigests, Offer, Parameters, TaskReporting};

/// Values that are valid in answers only (RFC 7143 section 6.2).
const ANSWERS_ONLY: [&str; 3] = ["Reject", "Irrelevant", "NotUnderstood"];

/// Keys that RFC 3720 does not define. Older targets answer NotUnderstood, and the feature stays off.
const YOUNG: [&str; 2] = ["TaskReporting", "iSCSIProtocolLevel"];

/// The state of the negotiation: which keys were offered, and which were answered.
#[derive(Debug)]
pub(super) struct Negotiation {
    offer: Offer,
    crc32c_first: bool,
    session_type: SessionType,
    leading: bool,
    target: Option<String>,
    parameters: Parameters,
    /// Bit n: key n of the table was offered.
    offered: u64,
    answered: u64,
    /// Names of all keys that the target sent.
    said: BTreeSet<String>,
    unknown: usize,
    /// Keys and values that the target sent, for messages.
    pub answers: Vec<(String, String)>,
    pub target_alias: Option<String>,
    pub portal_group_tag: Option<u16>,
}

impl Negotiation {
    pub fn new(wish: &LoginParams) -> Self {
        Negotiation {
            offer: wish.offer.clone(),
            crc32c_first: wish.crc32c_first,
            session_type: wish.session_type,
            leading: wish.tsih == 0,
            target: wish.target.clone(),
            parameters: Parameters::default(),
            offered: 0,
            answered: 0,
            said: BTreeSet::new(),
            unknown: 0,
            answers: vec![],
            target_alias: None,
            portal_group_tag: None,
        }
    }

    /// Offers all keys at the start of the operational stage. A Discovery session offers no session-wide keys,
    /// because some targets answer Irrelevant and others do not answer.
    pub fn propose(&mut self, out: &mut Vec<u8>) {
        let session = self.leading && self.session_type == SessionType::Normal;
        for (row, key) in TABLE.iter().enumerate() {
            let is_of_rdma = matches!(key.kind, KeyType::OverRdma(_)) && !session;
            if !key.may_stand(NegotiationPhase::Operational, session) || is_of_rdma || self.may_go_unsaid(key)
            {
                continue;
            }
            if let Some(value) = proposal(key, &self.offer, self.crc32c_first) {
                self.offered |= 1 << row;
                push(out, key.name, &value);
            }
        }
        self.parameters.max_recv_data_segment_length = self.offer.max_recv_data_segment_length;
        // The target may answer in any order, and the answers to RDMA keys depend on this value.
        self.parameters.rdma_extensions = session && self.offer.rdma_extensions;
    }

    /// Whether a key can be left out of the offer: a newer key at its default, or a key that RDMA replaces.
    fn may_go_unsaid(&self, key: &KeyDefinition) -> bool {
        let over_rdma = self.offer.rdma_extensions && self.session_type == SessionType::Normal;
        match key.name {
            "RDMAExtensions" => return !over_rdma,
            "HeaderDigest" | "DataDigest" | "MaxRecvDataSegmentLength" if over_rdma => return true,
            _ => {}
        }
        YOUNG.contains(&key.name) && proposal(key, &self.offer, false) == proposal(key, &Offer::rfc(), false)
    }

    /// Checks that the target may send this key in this phase, and that it has not sent it before. Returns the key's
    /// index in the table; `None` for an unknown key.
    pub fn admit(
        &mut self,
        phase: NegotiationPhase,
        key: &str,
        value: &str,
    ) -> Result<Option<usize>, LoginError> {
        let row = keys::find(key);
        let known = row.map(|r| &TABLE[r]);
        self.unknown += usize::from(row.is_none());
        if known.is_some_and(|k| k.sender == KeySender::Initiator) {
            return broke(key, value, "only initiators may send this key");
        }
        if known.is_some_and(|k| !k.may_stand(phase, self.leading)) {
            return broke(key, value, "the key is not valid in this login stage");
        }
        if self.unknown > UNKNOWN_KEYS {
            return Err(LoginError::Broke(format!("the target sent more than {UNKNOWN_KEYS} unknown keys")));
        }
        if !self.said.insert(key.to_owned()) {
            return broke(key, value, "the key was sent before");
        }
        if !key.starts_with("CHAP_") {
            self.answers.push((key.to_owned(), shown(value)));
        }
        Ok(row)
    }

    /// Whether the target repeats a declaration with the same value. Some targets do so in each stage.
    pub fn is_declared_again(&self, key: &str, value: &str) -> bool {
        let is_declared = keys::find(key).is_some_and(|row| matches!(TABLE[row].kind, KeyType::Declared));
        is_declared && self.answers.iter().any(|(k, v)| k == key && *v == shown(value))
    }

    /// Processes an operational key, and appends the answer if one is due. `over`: this response ends the login, so
    /// no answer can follow.
    pub fn take(
        &mut self,
        row: Option<usize>,
        key: &str,
        value: &str,
        over: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), LoginError> {
        let Some((row, known)) = row.map(|r| (r, &TABLE[r])) else {
            if ANSWERS_ONLY.contains(&value) {
                return broke(key, value, "the value is an answer, but the initiator did not offer this key");
            }
            push(out, key, "NotUnderstood");
            return Ok(());
        };
        if matches!(known.kind, KeyType::Declared) {
            return self.declared(known, value);
        }
        if self.offered & 1 << row == 0 {
            return self.respond(known, value, over, out);
        }
        self.answered |= 1 << row;
        self.accept(known, value)
    }

    /// Processes a declaration of the target.
    fn declared(&mut self, key: &KeyDefinition, value: &str) -> Result<(), LoginError> {
        if value.len() > VALUE_LEN {
            return broke(key.name, value, "the value is longer than 255 bytes");
        }
        match key.name {
            "TargetAlias" => self.target_alias = Some(value.replace(char::is_control, "?")),
            "TargetPortalGroupTag" => match keys::in_range(value, &(0..=0xffff)) {
                Ok(tag) => self.portal_group_tag = u16::try_from(tag).ok(),
                Err(_) => return broke(key.name, value, "the value is not a number from 0 to 65535"),
            },
            "TargetName" if self.target.as_deref() != Some(value) => {
                return broke(key.name, value, "the initiator requested another target");
            }
            _ => {}
        }
        Ok(())
    }

    /// Processes the answer to an offer. An answer is valid if the result function of the answer and the offer yields
    /// the answer.
    fn accept(&mut self, key: &KeyDefinition, value: &str) -> Result<(), LoginError> {
        let value = match value {
            "NotUnderstood" if YOUNG.contains(&key.name) => return Ok(()),
            // Without this key, RDMA cannot carry a session (RFC 7145 section 6.3).
            "No" if key.name == "RDMAExtensions" => {
                return broke(key.name, value, "a session over RDMA requires Yes");
            }
            "Irrelevant" if key.name == "FirstBurstLength" && self.sends_nothing_unasked() => {
                self.parameters.first_burst_length =
                    self.parameters.first_burst_length.min(self.offer.first_burst_length);
                return Ok(());
            }
            "Reject" | "Irrelevant" if !matches!(key.kind, KeyType::DeclaredNumber(..)) => {
                return self.left_at_default(key, value);
            }
            value => value,
        };
        match keys::settle(key, value, &self.offer, &mut self.parameters) {
            Ok(None) => Ok(()),
            Ok(Some(result)) if is_same(&result, value) => Ok(()),
            Ok(Some(_)) => broke(key.name, value, "the value is outside the range that was offered"),
            Err(_) => Err(unoffered(key.name, value)),
        }
    }

    fn sends_nothing_unasked(&self) -> bool {
        self.parameters.initial_r2t && !self.parameters.immediate_data
    }

    /// Processes Reject and Irrelevant, which leave a key at its default. They are valid if the default is a valid
    /// answer.
    fn left_at_default(&mut self, key: &KeyDefinition, value: &str) -> Result<(), LoginError> {
        let default = proposal(key, &Offer::rfc(), false).unwrap_or_default();
        match self.accept(key, &default) {
            Ok(()) => Ok(()),
            Err(_) => broke(key.name, value, "the default of the key was not offered"),
        }
    }

    /// Answers a key that the target proposes.
    fn respond(
        &mut self,
        key: &KeyDefinition,
        value: &str,
        over: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), LoginError> {
        if ANSWERS_ONLY.contains(&value) {
            return broke(
                key.name,
                value,
                "the value is an answer, but the initiator did not offer this key",
            );
        }
        if key.irrelevant_in_discovery && self.session_type == SessionType::Discovery {
            push(out, key.name, "Irrelevant");
            return Ok(());
        }
        match keys::settle(key, value, &self.offer, &mut self.parameters) {
            Err(_) => broke(key.name, value, "the value is not valid for this key"),
            Ok(None) => Ok(()),
            Ok(Some(_)) if over && !self.may_stay_unanswered(key, value) => broke(
                key.name,
                value,
                "the last Login Response contains a proposal, which the initiator cannot answer",
            ),
            Ok(Some(answer)) => {
                push(out, key.name, &answer);
                Ok(())
            }
        }
    }

    /// Whether a proposal needs no answer: its result is already known (RFC 7143 section 6.2.2), or the key is
    /// session-wide and this is a Discovery session.
    fn may_stay_unanswered(&self, key: &KeyDefinition, value: &str) -> bool {
        match key.kind {
            KeyType::And(_) | KeyType::Fixed("No") => value == "No",
            KeyType::Or(_) => value == "Yes",
            _ => key.when == KeyUse::Leading && self.session_type == SessionType::Discovery,
        }
    }

    /// The negotiated values after the last response. Fails if an offer that requires an answer has none.
    pub fn conclude(&mut self) -> Result<Parameters, LoginError> {
        let open = self.offered & !self.answered;
        for (_, key) in TABLE.iter().enumerate().filter(|(row, _)| open & 1 << row != 0) {
            match &key.kind {
                KeyType::DeclaredNumber(..) => {}
                KeyType::And(f) if !(f.offer)(&self.offer) => (f.set)(&mut self.parameters, false),
                KeyType::Or(f) if (f.offer)(&self.offer) => (f.set)(&mut self.parameters, true),
                _ => {
                    return Err(LoginError::Broke(format!("the target did not answer the key {}", key.name)));
                }
            }
        }
        self.parameters.bind();
        let p = &mut self.parameters;
        if p.rdma_extensions {
            // iSER has its own limits for data segments (RFC 7145 section 6.5).
            p.max_xmit_data_segment_length = p.target_recv_data_segment_length;
            p.max_recv_data_segment_length = p.initiator_recv_data_segment_length;
        }
        Ok(self.parameters.clone())
    }
}

/// The value that this side offers for a key; `None` if it does not offer the key.
fn proposal(key: &KeyDefinition, offer: &Offer, crc32c_first: bool) -> Option<String> {
    Some(match &key.kind {
        KeyType::And(f) | KeyType::Or(f) => yes_no((f.offer)(offer)).to_owned(),
        KeyType::Min(_, f) | KeyType::Max(_, f) => (f.offer)(offer).to_string(),
        KeyType::DeclaredNumber(..) => offer.max_recv_data_segment_length.to_string(),
        KeyType::Digest(may, _) => match (may(offer), crc32c_first) {
            (AllowedDigests { none: false, .. }, _) => "CRC32C",
            (AllowedDigests { crc32c: false, .. }, _) => "None",
            (_, true) => "CRC32C,None",
            (_, false) => "None,CRC32C",
        }
        .to_owned(),
        KeyType::Reporting => {
            let names = TaskReporting::NAMES.iter().rev();
            let list: Vec<_> = names.filter(|n| n.1 <= offer.task_reporting).map(|n| n.0).collect();
            list.join(",")
        }
        // A value that equals the default behaviour of peers is not offered: not every target supports these keys.
        KeyType::OverRdma(KeyType::Min(_, f)) if offer.rdma_extensions => (f.offer)(offer).to_string(),
        KeyType::Declared | KeyType::ForPeople | KeyType::Security | KeyType::Request => return None,
        KeyType::Fixed(_) | KeyType::OverRdma(_) => return None,
    })
}

/// Whether two values are the same text or the same number.
fn is_same(a: &str, b: &str) -> bool {
    a == b || number(a).is_some_and(|n| number(b) == Some(n))
}

/// The error for an answer that the offer does not allow. Targets with digests disabled answer `None`.
fn unoffered(key: &str, value: &str) -> LoginError {
    let what = format!("the target sent {key}={}: the value was not offered", shown(value));
    match (key, value) {
        ("HeaderDigest" | "DataDigest", "None") => LoginError::Digests(what),
        _ => LoginError::Broke(what),
    }
}

fn broke<T>(key: &str, value: &str, why: &str) -> Result<T, LoginError> {
    Err(LoginError::Broke(format!("the target sent {key}={}: {why}", shown(value))))
}

//! The keys of a login as the initiator offers them and takes the answers (RFC 7143 sections 6.2 and 13).

use std::collections::BTreeSet;

use lunar_wire::iscsi::text::{number, push, yes_no};

use super::login::{LoginError, LoginParams};
use super::shown;
use crate::keys::{self, KeyDefinition, KeySender, KeyType, KeyUse, NegotiationPhase, TABLE, VALUE_LEN};
use crate::login::{SessionType, UNKNOWN_KEYS};
use crate::parameters::{Digests, Offer, Parameters, TaskReporting};

/// Values that answer, and never propose (RFC 7143 section 6.2).
const ANSWERS_ONLY: [&str; 3] = ["Reject", "Irrelevant", "NotUnderstood"];

/// Keys younger than RFC 3720: old targets do not know them, and then leave the feature off.
const YOUNG: [&str; 2] = ["TaskReporting", "iSCSIProtocolLevel"];

/// What is offered, and what came back.
#[derive(Debug)]
pub(super) struct Negotiation {
    offer: Offer,
    crc32c_first: bool,
    session_type: SessionType,
    leading: bool,
    target: Option<String>,
    parameters: Parameters,
    /// Bit n: row n of the key table was offered; was answered.
    offered: u64,
    answered: u64,
    /// Every key that the target said.
    said: BTreeSet<String>,
    unknown: usize,
    /// The same with their values, for people.
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

    /// Everything at once, when the operational stage begins. In a Discovery session the defaults of what
    /// belongs to a session will do: some targets call those keys irrelevant, and some do not answer them.
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
        // Answers come in any order, and those of its keys count on it.
        self.parameters.rdma_extensions = session && self.offer.rdma_extensions;
    }

    /// Young keys at their defaults: saying them gains nothing. Over RDMA what others say in their place.
    fn may_go_unsaid(&self, key: &KeyDefinition) -> bool {
        let over_rdma = self.offer.rdma_extensions && self.session_type == SessionType::Normal;
        match key.name {
            "RDMAExtensions" => return !over_rdma,
            "HeaderDigest" | "DataDigest" | "MaxRecvDataSegmentLength" if over_rdma => return true,
            _ => {}
        }
        YOUNG.contains(&key.name) && proposal(key, &self.offer, false) == proposal(key, &Offer::rfc(), false)
    }

    /// The row of a key that a target may say here and now, and has not said before; None for one of no row.
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
            return broke(key, value, "which targets do not say");
        }
        if known.is_some_and(|k| !k.may_stand(phase, self.leading)) {
            return broke(key, value, "which does not belong into this stage");
        }
        if self.unknown > UNKNOWN_KEYS {
            return Err(LoginError::Broke(format!("more than {UNKNOWN_KEYS} keys that nobody knows")));
        }
        if !self.said.insert(key.to_owned()) {
            return broke(key, value, "which it said before");
        }
        if !key.starts_with("CHAP_") {
            self.answers.push((key.to_owned(), shown(value)));
        }
        Ok(row)
    }

    /// Whether the target declares again, in the same words, what it has declared: some do so in each stage.
    pub fn is_declared_again(&self, key: &str, value: &str) -> bool {
        let is_declared = keys::find(key).is_some_and(|row| matches!(TABLE[row].kind, KeyType::Declared));
        is_declared && self.answers.iter().any(|(k, v)| k == key && *v == shown(value))
    }

    /// Takes a key that is not one of security, and appends an answer where one is due. `over`: this
    /// response ends the login, so nothing more can be said.
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
                return broke(key, value, "an answer to a key that was not offered");
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

    /// What a target says of itself.
    fn declared(&mut self, key: &KeyDefinition, value: &str) -> Result<(), LoginError> {
        if value.len() > VALUE_LEN {
            return broke(key.name, value, "which is longer than 255 bytes");
        }
        match key.name {
            "TargetAlias" => self.target_alias = Some(value.replace(char::is_control, "?")),
            "TargetPortalGroupTag" => match keys::in_range(value, &(0..=0xffff)) {
                Ok(tag) => self.portal_group_tag = u16::try_from(tag).ok(),
                Err(_) => return broke(key.name, value, "which is no number from 0 to 65535"),
            },
            "TargetName" if self.target.as_deref() != Some(value) => {
                return broke(key.name, value, "which is not the target that was asked for");
            }
            _ => {}
        }
        Ok(())
    }

    /// The answer to an offer: what the result function gives for it and the offer must be the answer itself.
    fn accept(&mut self, key: &KeyDefinition, value: &str) -> Result<(), LoginError> {
        let value = match value {
            "NotUnderstood" if YOUNG.contains(&key.name) => return Ok(()),
            // There is no other session where it is offered (RFC 7145 section 6.3).
            "No" if key.name == "RDMAExtensions" => {
                return broke(key.name, value, "where RDMA carries the session");
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
            Ok(Some(_)) => broke(key.name, value, "which is beyond what was offered"),
            Err(_) => Err(unoffered(key.name, value)),
        }
    }

    fn sends_nothing_unasked(&self) -> bool {
        self.parameters.initial_r2t && !self.parameters.immediate_data
    }

    /// Reject and Irrelevant leave a key at its default. That will do where the default could have been the
    /// answer.
    fn left_at_default(&mut self, key: &KeyDefinition, value: &str) -> Result<(), LoginError> {
        let default = proposal(key, &Offer::rfc(), false).unwrap_or_default();
        match self.accept(key, &default) {
            Ok(()) => Ok(()),
            Err(_) => broke(key.name, value, "and its default is not what was offered"),
        }
    }

    /// A key that the target proposes.
    fn respond(
        &mut self,
        key: &KeyDefinition,
        value: &str,
        over: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), LoginError> {
        if ANSWERS_ONLY.contains(&value) {
            return broke(key.name, value, "an answer to a key that was not offered");
        }
        if key.irrelevant_in_discovery && self.session_type == SessionType::Discovery {
            push(out, key.name, "Irrelevant");
            return Ok(());
        }
        match keys::settle(key, value, &self.offer, &mut self.parameters) {
            Err(_) => broke(key.name, value, "which is not possible"),
            Ok(None) => Ok(()),
            Ok(Some(_)) if over && !self.may_stay_unanswered(key, value) => {
                broke(key.name, value, "a proposal in the last response, which cannot be answered")
            }
            Ok(Some(answer)) => {
                push(out, key.name, &answer);
                Ok(())
            }
        }
    }

    /// Proposals whose result is known without an answer (RFC 7143 section 6.2.2), and what means little in a
    /// Discovery session.
    fn may_stay_unanswered(&self, key: &KeyDefinition, value: &str) -> bool {
        match key.kind {
            KeyType::And(_) | KeyType::Fixed("No") => value == "No",
            KeyType::Or(_) => value == "Yes",
            _ => key.when == KeyUse::Leading && self.session_type == SessionType::Discovery,
        }
    }

    /// The result, once the last response is there: every offer is answered, or needed no answer.
    pub fn conclude(&mut self) -> Result<Parameters, LoginError> {
        let open = self.offered & !self.answered;
        for (_, key) in TABLE.iter().enumerate().filter(|(row, _)| open & 1 << row != 0) {
            match &key.kind {
                KeyType::DeclaredNumber(..) => {}
                KeyType::And(f) if !(f.offer)(&self.offer) => (f.set)(&mut self.parameters, false),
                KeyType::Or(f) if (f.offer)(&self.offer) => (f.set)(&mut self.parameters, true),
                _ => return Err(LoginError::Broke(format!("{} is not answered", key.name))),
            }
        }
        self.parameters.bind();
        let p = &mut self.parameters;
        if p.rdma_extensions {
            // The lengths of segments are its own (RFC 7145 section 6.5).
            p.max_xmit_data_segment_length = p.target_recv_data_segment_length;
            p.max_recv_data_segment_length = p.initiator_recv_data_segment_length;
        }
        Ok(self.parameters.clone())
    }
}

/// This side's value of a key that is negotiated, or that it declares as a number.
fn proposal(key: &KeyDefinition, offer: &Offer, crc32c_first: bool) -> Option<String> {
    Some(match &key.kind {
        KeyType::And(f) | KeyType::Or(f) => yes_no((f.offer)(offer)).to_owned(),
        KeyType::Min(_, f) | KeyType::Max(_, f) => (f.offer)(offer).to_string(),
        KeyType::DeclaredNumber(..) => offer.max_recv_data_segment_length.to_string(),
        KeyType::Digest(may, _) => match (may(offer), crc32c_first) {
            (Digests { none: false, .. }, _) => "CRC32C",
            (Digests { crc32c: false, .. }, _) => "None",
            (_, true) => "CRC32C,None",
            (_, false) => "None,CRC32C",
        }
        .to_owned(),
        KeyType::Reporting => {
            let names = TaskReporting::NAMES.iter().rev();
            let list: Vec<_> = names.filter(|n| n.1 <= offer.task_reporting).map(|n| n.0).collect();
            list.join(",")
        }
        // What both sides do unasked is not talked about: not all know these keys.
        KeyType::OverRdma(KeyType::Min(_, f)) if offer.rdma_extensions => (f.offer)(offer).to_string(),
        KeyType::Declared | KeyType::ForPeople | KeyType::Security | KeyType::Request => return None,
        KeyType::Fixed(_) | KeyType::OverRdma(_) => return None,
    })
}

/// Equal, or equal as numbers.
fn is_same(a: &str, b: &str) -> bool {
    a == b || number(a).is_some_and(|n| number(b) == Some(n))
}

/// An answer outside of the offer. Of digests, `None` is what targets say that have them switched off.
fn unoffered(key: &str, value: &str) -> LoginError {
    let what = format!("{key}={}, which is no answer to what was offered", shown(value));
    match (key, value) {
        ("HeaderDigest" | "DataDigest", "None") => LoginError::Digests(what),
        _ => LoginError::Broke(what),
    }
}

fn broke<T>(key: &str, value: &str, why: &str) -> Result<T, LoginError> {
    Err(LoginError::Broke(format!("{key}={}, {why}", shown(value))))
}

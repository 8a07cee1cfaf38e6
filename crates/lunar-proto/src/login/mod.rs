//! The login phase of one connection on the target side (RFC 7143 sections 6.3, 11.12 and 11.13).

mod policy;
mod security;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeSet;

use lunar_wire::iscsi::flag::{CONTINUE, TRANSIT};
use lunar_wire::iscsi::status::LoginStatus;
use lunar_wire::iscsi::text::{pairs, push};
use lunar_wire::iscsi::{Bhs, opcode, pdu};

use crate::Pdu;
use crate::chap::keys::ChapKeys;
pub use crate::chap::{Authentication, ChapUser, Secret};
use crate::keys::{self, KeySender, KeyType, NegotiationPhase};
use crate::name;
use crate::parameters::{Offer, Parameters};
use crate::text_reassembly::{TextReassembly, piece};
pub use policy::{LoginPolicy, TargetInfo};
use security::{Security, SecurityFailure};

/// Maximum length of a data segment in the login phase, in bytes (RFC 7143 section 6.3).
pub const SEGMENT_LEN: usize = 8192;

/// Maximum number of PDUs that either side sends in a login.
pub(crate) const EXCHANGES: u32 = 64;

/// Maximum number of unknown keys in a login.
pub(crate) const UNKNOWN_KEYS: usize = 1024;

/// The next step of a login.
#[derive(Debug, PartialEq, Eq)]
pub enum LoginStep {
    /// Send this PDU and wait for the response.
    Reply(Pdu),
    /// The negotiation is over: register the session, then call [`Login::accept`] or [`Login::refuse`].
    Ready,
    /// Send this PDU, then close the connection.
    Refuse(Pdu),
    /// Close the connection without a response.
    Drop,
}

/// SessionType (RFC 7143 section 13.21).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionType {
    /// A session with a target.
    #[default]
    Normal,
    /// A session for SendTargets only.
    Discovery,
}

impl SessionType {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Discovery => "Discovery",
        }
    }
}

/// Initiator, target and session type, from the first key text.
#[derive(Clone, Debug, Default)]
struct LoginNames {
    initiator: String,
    initiator_alias: Option<String>,
    target: Option<String>,
    session_type: SessionType,
}

/// The login of one connection. It owns StatSN until [`Login::accept`].
pub struct Login {
    offer: Offer,
    portal_group_tag: u16,
    gather: TextReassembly,
    parameters: Parameters,
    /// The first request: its ISID, TSIH, CID, version and CmdSN are those of the login.
    first: Option<Bhs>,
    /// The latest request.
    last: Bhs,
    phase: NegotiationPhase,
    identity: Option<LoginNames>,
    demand: Authentication,
    security: Security,
    redirect: Option<String>,
    /// Bit n: the initiator sent key n of the table.
    seen: u64,
    unknown: BTreeSet<String>,
    /// Key text that is not sent yet.
    out: Vec<u8>,
    declared: bool,
    exchanges: u32,
    stat_sn: u32,
    reason: Option<String>,
}

const _: () = assert!(keys::TABLE.len() <= 64, "one bit of `seen` per key");

impl Login {
    /// A connection that waits for its first PDU. `text_limit` is the maximum length of all key text of the login, in
    /// bytes.
    pub fn new(offer: Offer, portal_group_tag: u16, text_limit: usize) -> Self {
        Login {
            offer,
            portal_group_tag,
            gather: TextReassembly::new(text_limit),
            parameters: Parameters::default(),
            first: None,
            last: Bhs::new(opcode::LOGIN),
            phase: NegotiationPhase::Security,
            identity: None,
            demand: Authentication::none(),
            security: Security::Start,
            redirect: None,
            seen: 0,
            unknown: BTreeSet::new(),
            out: vec![],
            declared: false,
            exchanges: 0,
            stat_sn: 1,
            reason: None,
        }
    }

    /// Sets the first StatSN.
    pub fn with_stat_sn(mut self, stat_sn: u32) -> Self {
        self.stat_sn = stat_sn;
        self
    }

    /// Processes a PDU with its complete data segment, without padding.
    pub fn request(&mut self, header: &Bhs, data: &[u8], policy: &dyn LoginPolicy) -> LoginStep {
        if header.opcode() != opcode::LOGIN {
            return match self.first {
                None => LoginStep::Drop,
                Some(_) => LoginStep::Refuse(self.refusal(header, LoginStatus::INVALID_REQUEST)),
            };
        }
        self.last = *header;
        self.advance(header, data, policy)
            .unwrap_or_else(|status| LoginStep::Refuse(self.refusal(header, status)))
    }

    fn advance(
        &mut self,
        header: &Bhs,
        data: &[u8],
        policy: &dyn LoginPolicy,
    ) -> Result<LoginStep, LoginStatus> {
        self.check(header, data)?;
        if !self.out.is_empty() {
            // The rest of our answer is outstanding. An empty PDU requests it.
            let asks = data.is_empty() && !header.continues();
            let early =
                "the initiator sent key text before it requested the rest of the answer of the target";
            return if asks { self.answer(header, policy) } else { Err(self.blame(early)) };
        }
        let Ok(text) = self.gather.take(data, header.continues()) else {
            return Err(self.blame("the initiator sent more key text than a login may have"));
        };
        match text {
            None => Ok(LoginStep::Reply(self.reply(header, 0, vec![]))),
            Some(text) => {
                self.take(&text, policy)?;
                self.answer(header, policy)
            }
        }
    }

    /// Checks version, stages and bits of a header (RFC 7143 section 11.12).
    fn check(&mut self, header: &Bhs, data: &[u8]) -> Result<(), LoginStatus> {
        let (current, next) = header.stages();
        if self.first.is_none() {
            self.first = Some(*header);
            self.phase =
                if current == 1 { NegotiationPhase::Operational } else { NegotiationPhase::Security };
            if header.version_min() > 0 {
                return Err(LoginStatus::UNSUPPORTED_VERSION);
            }
        }
        self.exchanges += 1;
        let moves = !header.is_final() || matches!((current, next), (0, 1 | 3) | (1, 3));
        let fits = current == self.csg() && moves && !(header.is_final() && header.continues());
        if data.len() > SEGMENT_LEN {
            return Err(self.blame(format!(
                "the Login Request has {} bytes of data, above the maximum of {SEGMENT_LEN}",
                data.len()
            )));
        }
        if self.exchanges > EXCHANGES {
            return Err(self.blame(format!("the login has more than {EXCHANGES} requests")));
        }
        match fits {
            true => Ok(()),
            false => Err(self.blame(format!(
                "the Login Request has an invalid T bit, C bit, CSG or NSG: flags {:02x}h",
                header.flags()
            ))),
        }
    }

    /// Records why the request is invalid, and returns the status of an initiator error.
    fn blame(&mut self, why: impl Into<String>) -> LoginStatus {
        self.reason = Some(why.into());
        LoginStatus::INITIATOR_ERROR
    }

    /// Records the reason of a security failure for the log, and returns its status.
    fn note(&mut self, fault: SecurityFailure) -> LoginStatus {
        self.reason = fault.reason;
        fault.status
    }

    /// Like `blame`, for the value of a key. A security value is not shown.
    fn blame_key(&mut self, key: &str, value: &str, rule: &str) -> LoginStatus {
        let secret = keys::find(key).is_some_and(|row| matches!(keys::TABLE[row].kind, KeyType::Security));
        let value = if secret { "(not shown)".to_owned() } else { excerpt(value) };
        self.blame(format!("{}={value}: {rule}", excerpt(key)))
    }

    /// The reason why the login was rejected, if it says more than the status: the key, its value in printable
    /// characters, and the rule.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Processes a complete key text, and appends the answers to `out`.
    fn take(&mut self, text: &[u8], policy: &dyn LoginPolicy) -> Result<(), LoginStatus> {
        let mut found = vec![];
        for pair in pairs(text) {
            let Ok((key, value)) = pair else {
                return Err(self.blame("malformed key text: expected KEY=VALUE pairs, each ended by NUL"));
            };
            if !self.is_said_again(key, value) {
                let row = self.admit(key).map_err(|rule| self.blame_key(key, value, rule))?;
                found.push((row, key, value));
            }
        }
        found.sort_by_key(|f| f.0.unwrap_or(usize::MAX));
        match &self.identity {
            None => self.identify(&found, policy)?,
            Some(identity) => {
                if let Some((_, key, value)) = found.iter().find(|f| !stays(identity, f)) {
                    return Err(self.blame_key(key, value, "the key was sent before"));
                }
            }
        }
        let mut security = ChapKeys::default();
        let brought = found.iter().map(|f| f.1).collect::<Vec<_>>().join(", ");
        for (row, key, value) in found {
            self.settle(row, key, value, &mut security)?;
        }
        match self.phase {
            NegotiationPhase::Security => {
                let step = self.security.step(&security, &self.demand, &mut self.out);
                step.map_err(|fault| match fault.status {
                    LoginStatus::INITIATOR_ERROR => self.blame(format!(
                        "unexpected keys in this step of authentication: {}",
                        excerpt(&brought)
                    )),
                    _ => self.note(fault),
                })
            }
            _ => {
                self.late_method(security.method)?;
                self.declare();
                Ok(())
            }
        }
    }

    /// Answers AuthMethod in the operational stage with None. `enter` checks whether a login
    /// without authentication is allowed.
    fn late_method(&mut self, list: Option<&str>) -> Result<(), LoginStatus> {
        let Some(list) = list else { return Ok(()) };
        if keys::first_of(list, |method| method == "None").is_err() {
            return Err(self.blame("AuthMethod in the operational stage must contain None"));
        }
        push(&mut self.out, "AuthMethod", "None");
        Ok(())
    }

    /// Whether a key repeats a name of the first text after the security stage. RFC 7143 does not allow this, but
    /// libiscsi with CHAP credentials does so at a target that requires none.
    fn is_said_again(&self, key: &str, value: &str) -> bool {
        let began_secure = self.first.is_some_and(|f| f.stages().0 == 0);
        let Some(identity) = self.identity.as_ref().filter(|_| began_secure) else { return false };
        self.phase == NegotiationPhase::Operational
            && match key {
                "InitiatorName" => identity.initiator == name::fold(value),
                "TargetName" => identity.target.as_deref() == Some(&name::fold(value)),
                "SessionType" => value == identity.session_type.name(),
                _ => false,
            }
    }

    /// Checks that a key is allowed in this stage, and was not sent before. Returns its index in the table; `None`
    /// for an unknown key.
    fn admit(&mut self, key: &str) -> Result<Option<usize>, &'static str> {
        const TWICE: &str = "the key was sent before";
        let Some(row) = keys::find(key) else {
            return match self.unknown.len() < UNKNOWN_KEYS {
                true if self.unknown.insert(key.to_owned()) => Ok(None),
                true => Err(TWICE),
                false => Err("the login has too many unknown keys"),
            };
        };
        let (bit, k) = (1 << row, &keys::TABLE[row]);
        if self.seen & bit != 0 {
            return Err(TWICE);
        }
        self.seen |= bit;
        match k.sender {
            KeySender::Target => Err("only targets may send this key"),
            // Some initiators skip the security stage and still send AuthMethod: see `late_method`.
            _ if k.name == "AuthMethod" && self.phase == NegotiationPhase::Operational => Ok(Some(row)),
            _ if !k.may_stand(self.phase, self.tsih() == 0) => {
                Err("the key is not valid in this login stage")
            }
            _ => Ok(Some(row)),
        }
    }

    /// Processes initiator, target and session type of the first text, and checks them against the policy.
    fn identify(
        &mut self,
        found: &[(Option<usize>, &str, &str)],
        policy: &dyn LoginPolicy,
    ) -> Result<(), LoginStatus> {
        // Kept even if the login is rejected: the log names the initiator.
        let identity = identity(found).map_err(|(status, why)| {
            self.reason = Some(why);
            status
        })?;
        let identity = self.identity.insert(identity).clone();
        let target = identity.target.as_deref().map(|t| policy.target(t, &identity.initiator)).transpose()?;
        self.demand = match (&target, identity.session_type) {
            (Some(target), SessionType::Normal) => target.authentication.clone(),
            (Some(target), SessionType::Discovery) => target.authentication.clone().and(policy.discovery()?),
            (None, _) => policy.discovery()?,
        };
        if let Some(target) = target {
            if let Some((address, for_good)) = target.redirect {
                self.redirect = Some(address);
                return Err(if for_good {
                    LoginStatus::MOVED_PERMANENTLY
                } else {
                    LoginStatus::MOVED_TEMPORARILY
                });
            }
            if let (Some(alias), SessionType::Normal) = (&target.alias, identity.session_type) {
                push(&mut self.out, "TargetAlias", alias);
            }
            push(&mut self.out, "TargetPortalGroupTag", &self.portal_group_tag.to_string());
        }
        if identity.session_type == SessionType::Discovery {
            self.offer.error_recovery_level = 0; // RFC 7143 section 7.4.1
        }
        if self.phase == NegotiationPhase::Operational {
            self.enter(policy)?;
        }
        Ok(())
    }

    /// Checks that the security stage may end or be skipped, and that the initiator may log in.
    fn enter(&mut self, policy: &dyn LoginPolicy) -> Result<(), LoginStatus> {
        self.may_end_security()?;
        policy.authorize(self.target_name(), self.initiator_name(), self.chap_user())
    }

    fn may_end_security(&mut self) -> Result<bool, LoginStatus> {
        self.security.may_end(&self.demand).map_err(|fault| self.note(fault))
    }

    fn settle<'a>(
        &mut self,
        row: Option<usize>,
        key: &str,
        value: &'a str,
        security: &mut ChapKeys<'a>,
    ) -> Result<(), LoginStatus> {
        let Some(row) = row.map(|r| &keys::TABLE[r]) else {
            push(&mut self.out, key, "NotUnderstood");
            return Ok(());
        };
        if matches!(row.kind, KeyType::Security) {
            security.put(key, value);
        } else if row.name == "RDMAExtensions" && self.session_type() == SessionType::Discovery {
            // The only key that is answered with Irrelevant in discovery. Others have no effect there either (RFC
            // 7143 section 7.4), but initiators that offer them expect an answer from the table, and fail on
            // Irrelevant.
            push(&mut self.out, key, "Irrelevant");
        } else {
            let answer = keys::settle(row, value, &self.offer, &mut self.parameters);
            let answer = answer.map_err(|_| self.blame_key(key, value, &row.rule()))?;
            if let Some(answer) = answer {
                push(&mut self.out, key, &answer);
            }
        }
        Ok(())
    }

    /// Declares MaxRecvDataSegmentLength, once, in the operational stage.
    fn declare(&mut self) {
        if !self.declared {
            self.declared = true;
            // Over RDMA the key has no effect (RFC 7145 section 6.5), and some initiators reject a key that they did
            // not send.
            if self.parameters.rdma_extensions {
                return;
            }
            self.parameters.max_recv_data_segment_length = self.offer.max_recv_data_segment_length;
            push(
                &mut self.out,
                "MaxRecvDataSegmentLength",
                &self.offer.max_recv_data_segment_length.to_string(),
            );
        }
    }

    /// Sends the next part of the answer, and changes the stage if the initiator requests it and the stage may end.
    fn answer(&mut self, header: &Bhs, policy: &dyn LoginPolicy) -> Result<LoginStep, LoginStatus> {
        let rest = self.out.split_off(piece(&self.out, SEGMENT_LEN));
        let data = std::mem::replace(&mut self.out, rest);
        if !self.out.is_empty() {
            return Ok(LoginStep::Reply(self.reply(header, CONTINUE, data)));
        }
        let moves = header.is_final() && self.may_end_security()?;
        if !moves {
            return Ok(LoginStep::Reply(self.reply(header, 0, data)));
        }
        if self.phase == NegotiationPhase::Security {
            self.enter(policy)?;
        }
        if header.stages().1 == 3 {
            self.out = data;
            self.parameters.bind();
            return Ok(LoginStep::Ready);
        }
        let reply = self.reply(header, TRANSIT | 1, data);
        self.phase = NegotiationPhase::Operational;
        Ok(LoginStep::Reply(reply))
    }

    /// After [`LoginStep::Ready`]: the final Login Response. `tsih` is that of the session, `window` the number of
    /// commands that the initiator may have outstanding.
    pub fn accept(&mut self, tsih: u16, window: u32) -> Pdu {
        let data = std::mem::take(&mut self.out);
        let mut reply = self.reply(&self.last.clone(), TRANSIT | 3, data);
        reply.header.set_tsih(tsih);
        let max = self.cmd_sn().wrapping_add(window).wrapping_sub(1);
        reply.header.set_max_cmd_sn(max);
        reply
    }

    /// After [`LoginStep::Ready`]: the final Login Response if the session cannot be registered.
    pub fn refuse(&mut self, status: LoginStatus) -> Pdu {
        self.refusal(&self.last.clone(), status)
    }

    /// A Login Response of class 0 in the current stage.
    fn reply(&mut self, request: &Bhs, flags: u8, data: Vec<u8>) -> Pdu {
        let flags = flags | self.csg() << 2;
        self.respond(request, flags, LoginStatus::SUCCESS, data)
    }

    /// A Login Response that redirects or rejects the login.
    fn refusal(&mut self, request: &Bhs, status: LoginStatus) -> Pdu {
        let mut data = vec![];
        if let (Some(address), 1) = (&self.redirect, status.0) {
            push(&mut data, "TargetAddress", address);
        }
        self.respond(request, 0, status, data)
    }

    fn respond(&mut self, request: &Bhs, flags: u8, status: LoginStatus, data: Vec<u8>) -> Pdu {
        let first = self.first.unwrap_or(*request);
        let mut header = pdu::login_response(&first, flags, self.tsih(), status);
        header.set_itt(request.itt());
        pdu::stamp(&mut header, self.stat_sn, first.cmd_sn(), first.cmd_sn());
        self.stat_sn = self.stat_sn.wrapping_add(1);
        Pdu::new(header, data)
    }

    fn csg(&self) -> u8 {
        (self.phase != NegotiationPhase::Security).into()
    }

    /// The negotiated values. Keys of the leading login have their defaults if this login joins a session
    /// ([`Login::tsih`] is not 0).
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// InitiatorName; empty before the first text.
    pub fn initiator_name(&self) -> &str {
        self.identity.as_ref().map_or("", |i| &i.initiator)
    }

    /// InitiatorAlias, safe for a terminal.
    pub fn initiator_alias(&self) -> Option<&str> {
        self.identity.as_ref()?.initiator_alias.as_deref()
    }

    /// TargetName; `None` in most Discovery sessions.
    pub fn target_name(&self) -> Option<&str> {
        self.identity.as_ref()?.target.as_deref()
    }

    /// SessionType.
    pub fn session_type(&self) -> SessionType {
        self.identity.as_ref().map_or(SessionType::Normal, |i| i.session_type)
    }

    /// ISID of the first request.
    pub fn isid(&self) -> [u8; 6] {
        self.first.unwrap_or(self.last).isid()
    }

    /// TSIH of the first request: 0 for a new session, otherwise that of the session to join.
    pub fn tsih(&self) -> u16 {
        self.first.map_or(0, |f| f.tsih())
    }

    /// CID of the first request.
    pub fn cid(&self) -> u16 {
        self.first.map_or(0, |f| f.cid())
    }

    /// The CHAP user that authenticated.
    pub fn chap_user(&self) -> Option<&str> {
        self.security.user()
    }

    /// CmdSN of the first request: the session's first ExpCmdSN.
    pub fn cmd_sn(&self) -> u32 {
        self.first.map_or(0, |f| f.cmd_sn())
    }

    /// StatSN of the next response on this connection.
    pub fn next_stat_sn(&self) -> u32 {
        self.stat_sn
    }
}

/// Checks and folds the names of the first text. From here on they are compared byte by byte.
fn identity(found: &[(Option<usize>, &str, &str)]) -> Result<LoginNames, (LoginStatus, String)> {
    let value = |key| found.iter().find(|f| f.1 == key).map(|f| f.2);
    let named = |key| {
        let check = |n| name::check(n).map(Cow::into_owned).map_err(|why| wrong_name(key, n, &why));
        value(key).map(check).transpose()
    };
    let session_type = match value("SessionType") {
        None | Some("Normal") => SessionType::Normal,
        Some("Discovery") => SessionType::Discovery,
        Some(other) => {
            let why = format!("SessionType={}: the value must be Normal or Discovery", excerpt(other));
            return Err((LoginStatus::SESSION_TYPE_UNSUPPORTED, why));
        }
    };
    let missing = |key| (LoginStatus::MISSING_PARAMETER, format!("the key {key} is missing"));
    let initiator = named("InitiatorName")?.ok_or_else(|| missing("InitiatorName"))?;
    let target = named("TargetName")?;
    if target.is_none() && session_type == SessionType::Normal {
        return Err(missing("TargetName"));
    }
    let initiator_alias = value("InitiatorAlias").map(for_people);
    Ok(LoginNames { initiator, initiator_alias, target, session_type })
}

/// Makes a text safe for a terminal: replaces control characters, and cuts it at 255 bytes.
fn for_people(text: &str) -> String {
    let end = (0..=text.len().min(keys::VALUE_LEN)).rev().find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or(0)].replace(char::is_control, "?")
}

fn wrong_name(key: &str, name: &str, why: &str) -> (LoginStatus, String) {
    (LoginStatus::INITIATOR_ERROR, format!("{key}={}: not an iSCSI name: {why}", excerpt(name)))
}

/// Whether a later text leaves initiator, target and session type unchanged.
fn stays(identity: &LoginNames, (_, key, value): &(Option<usize>, &str, &str)) -> bool {
    match *key {
        "TargetName" | "InitiatorName" => false,
        "SessionType" => *value == "Normal" && identity.session_type == SessionType::Normal,
        _ => true,
    }
}

/// Maximum number of characters of an initiator's text in the log.
const EXCERPT: usize = 64;

/// The start of a text, in printable characters.
fn excerpt(text: &str) -> String {
    let shown: String = text.chars().take(EXCERPT).flat_map(char::escape_debug).collect();
    if text.chars().nth(EXCERPT).is_some() { shown + "..." } else { shown }
}

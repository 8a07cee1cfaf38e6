//! The login phase of one connection on the initiator side (RFC 7143 sections 6.3, 11.12 and 11.13).
//!
//! It begins in the security stage. Without credentials it offers AuthMethod=None, which every target supports. With
//! required credentials it offers only CHAP, so that no target can skip authentication unnoticed.

use lunar_wire::iscsi::flag::{CONTINUE, TRANSIT};
use lunar_wire::iscsi::status::LoginStatus;
use lunar_wire::iscsi::text::{pairs, push};
use lunar_wire::iscsi::{Bhs, opcode, request};

use super::negotiation::Negotiation;
pub use super::params::{Credentials, LoggedIn, LoginError, LoginParams};
use super::security::Security;
use super::shown;
use super::targets::PortalAddress;
use crate::Pdu;
use crate::chap::keys::ChapKeys;
use crate::keys::{self, KeyType, NegotiationPhase, TABLE, VALUE_LEN};
use crate::login::{EXCHANGES, SEGMENT_LEN, SessionType};
use crate::text_reassembly::{TextReassembly, piece};

/// Maximum key text of one login, in bytes.
const TEXT_LEN: usize = 65536;

/// The next step of a login.
#[derive(Debug, PartialEq, Eq)]
pub enum InitiatorLoginStep {
    /// Send this PDU and wait for the response.
    Send(Pdu),
    /// The login succeeded; full feature phase begins.
    Done(Box<LoggedIn>),
    /// The target redirects: close, and log in at the new address.
    Moved {
        /// TargetAddress. [`PortalAddress::parse`] accepts it.
        address: String,
        /// The target moved permanently; otherwise temporarily.
        permanent: bool,
    },
    /// The login failed: close the connection.
    Failed(LoginError),
}

/// The login of one connection, on the side of the initiator.
#[derive(Debug)]
pub struct InitiatorLogin {
    wish: LoginParams,
    phase: NegotiationPhase,
    security: Security,
    negotiation: Negotiation,
    gather: TextReassembly,
    /// Key text that is not sent yet.
    out: Vec<u8>,
    /// Flags of the latest request: T, C, CSG and NSG.
    asked: u8,
    /// The latest response.
    last: Option<Bhs>,
    exchanges: u32,
}

impl InitiatorLogin {
    /// Starts a login, and returns its first request. Call [`LoginParams::check`] first.
    pub fn new(mut wish: LoginParams) -> (Self, Pdu) {
        if wish.session_type == SessionType::Discovery {
            wish.offer.error_recovery_level = 0; // RFC 7143 section 7.4.1
        }
        let mut login = InitiatorLogin {
            phase: NegotiationPhase::Security,
            security: Security::Offered,
            negotiation: Negotiation::new(&wish),
            gather: TextReassembly::new(TEXT_LEN),
            out: vec![],
            asked: 0,
            last: None,
            exchanges: 0,
            wish,
        };
        login.introduce();
        let first = login.request();
        (login, first)
    }

    /// Appends the keys of the first request.
    fn introduce(&mut self) {
        let (wish, out) = (&self.wish, &mut self.out);
        push(out, "InitiatorName", &wish.initiator);
        if let Some(alias) = &wish.initiator_alias {
            let alias = alias.replace(char::is_control, "?");
            let ends = alias.char_indices().map(|(at, c)| at + c.len_utf8());
            let end = ends.take_while(|end| *end <= VALUE_LEN).last().unwrap_or(0);
            push(out, "InitiatorAlias", &alias[..end]);
        }
        if let Some(target) = &wish.target {
            push(out, "TargetName", target);
        }
        if wish.tsih == 0 {
            push(out, "SessionType", wish.session_type.name());
        }
        push(out, "AuthMethod", Security::methods(wish.credentials.as_ref()));
    }

    /// Takes the response to the latest request, with its whole data segment without padding.
    pub fn response(&mut self, header: &Bhs, data: &[u8]) -> InitiatorLoginStep {
        self.advance(header, data).unwrap_or_else(InitiatorLoginStep::Failed)
    }

    fn advance(&mut self, header: &Bhs, data: &[u8]) -> Result<InitiatorLoginStep, LoginError> {
        if header.opcode() != opcode::LOGIN_RESPONSE {
            return Err(before_login_ends(header.opcode()));
        }
        let status = header.login_status();
        match status.0 {
            0 | 1 => self.check(header, data)?,
            2 | 3 => return Err(LoginError::Refused(status)),
            _ => {
                return broke(format!(
                    "the target sent a Login Response with the unknown Status-Class {}",
                    status.0
                ));
            }
        }
        if status.0 == 1 {
            return moved(data, status == LoginStatus::MOVED_PERMANENTLY);
        }
        self.check_progress(header)?;
        self.last = Some(*header);
        if !self.out.is_empty() {
            // The rest of our own key text is outstanding. An empty response requests it.
            return if data.is_empty() && !header.continues() && !header.is_final() {
                Ok(InitiatorLoginStep::Send(self.request()))
            } else {
                broke("the target answered key text before its end (the request had the C bit)".into())
            };
        }
        match self.gather.take(data, header.continues()) {
            Err(_) => broke(format!("the target sent more than {TEXT_LEN} bytes of key text")),
            Ok(None) => Ok(InitiatorLoginStep::Send(self.request())),
            Ok(Some(text)) => self.take(header, &text),
        }
    }

    /// Checks the rules for every response that does not reject the login (RFC 7143 section 11.13).
    fn check(&mut self, header: &Bhs, data: &[u8]) -> Result<(), LoginError> {
        self.exchanges += 1;
        hold(&[
            (self.exchanges <= EXCHANGES, "the target did not end the login within 64 responses"),
            (header.ahs_len() == 0, "the target sent a Login Response with an additional header segment"),
            (
                data.len() <= SEGMENT_LEN,
                "the target sent a Login Response with a DataSegmentLength above 8192",
            ),
            (
                header.itt() == self.wish.itt,
                "the target sent a Login Response whose Initiator Task Tag differs from the request",
            ),
        ])
    }

    /// Checks the rules for a response that continues the login. A redirect is exempt, because a load balancer may
    /// send it that does not know the state of this login.
    fn check_progress(&self, header: &Bhs) -> Result<(), LoginError> {
        let (h, (current, next), t) = (header, header.stages(), header.is_final());
        let (asked, furthest) = (self.asked & TRANSIT != 0, self.asked & 3);
        hold(&[
            // Some targets return 0. This is harmless, because the connection identifies the login.
            (
                h.isid() == self.wish.isid || h.isid() == [0; 6],
                "the target sent a Login Response whose ISID differs from the request",
            ),
            (
                h.version_min() == 0,
                "the target sent a Version-active that is not 0, the only version offered",
            ),
            (
                self.last.is_none_or(|l| l.version_max() == h.version_max()),
                "the target changed Version-max during the login",
            ),
            (
                self.exp_stat_sn().is_none_or(|n| n == header.stat_sn()),
                "the target sent a Login Response with an unexpected StatSN",
            ),
            (!(t && header.continues()), "the target sent a Login Response with both T bit and C bit"),
            (current == self.csg(), "the target sent a Login Response whose CSG differs from the request"),
            (!t || asked, "the target sent a T bit that the request did not have"),
            (
                !t || (current..=furthest).contains(&next) && next != 2,
                "the target sent a Login Response whose NSG differs from the request",
            ),
        ])
    }

    /// Processes the complete key text of a response.
    fn take(&mut self, header: &Bhs, text: &[u8]) -> Result<InitiatorLoginStep, LoginError> {
        // A T bit whose NSG is the current stage has no effect; the request is repeated.
        let next = header.stages().1;
        let moves = header.is_final() && next > self.csg();
        let mut found = vec![];
        for pair in pairs(text) {
            let (key, value) = pair.map_err(|m| {
                LoginError::Broke(format!("the target sent malformed key text, at byte {}: {}", m.at, m.why))
            })?;
            let value = spelled(key, value);
            if self.is_late_method(key, value) || self.negotiation.is_declared_again(key, value) {
                continue;
            }
            found.push((self.negotiation.admit(self.phase, key, value)?, key, value));
        }
        found.sort_by_key(|f| f.0.unwrap_or(usize::MAX));
        let (mut keys, over) = (ChapKeys::default(), moves && next == 3);
        for (row, key, value) in found {
            match row.map(|r| &TABLE[r].kind) {
                Some(KeyType::Security) => keys.put(key, value),
                _ => self.negotiation.take(row, key, value, over, &mut self.out)?,
            }
        }
        if self.phase == NegotiationPhase::Security {
            self.security.step(&keys, self.wish.credentials.as_ref(), moves, &mut self.out)?;
        }
        self.go_on(header, moves)
    }

    /// AuthMethod=None in the operational stage. Some targets send it there, although authentication is over.
    fn is_late_method(&self, key: &str, value: &str) -> bool {
        self.phase == NegotiationPhase::Operational && (key, value) == ("AuthMethod", "None")
    }

    fn go_on(&mut self, header: &Bhs, moves: bool) -> Result<InitiatorLoginStep, LoginError> {
        match self.phase {
            NegotiationPhase::Security if moves && self.security.is_over() => {
                self.phase = NegotiationPhase::Operational;
                self.negotiation.propose(&mut self.out);
            }
            NegotiationPhase::Operational if moves => return self.finish(header),
            _ => {}
        }
        Ok(InitiatorLoginStep::Send(self.request()))
    }

    fn finish(&mut self, header: &Bhs) -> Result<InitiatorLoginStep, LoginError> {
        let tsih = header.tsih();
        let normal = self.wish.session_type == SessionType::Normal;
        if (self.wish.tsih != 0 && tsih != self.wish.tsih) || (normal && tsih == 0) {
            return broke(format!("the target sent an invalid TSIH {tsih} in the last Login Response"));
        }
        let (exp_cmd_sn, max_cmd_sn) = (header.exp_cmd_sn(), header.max_cmd_sn());
        let (begins, cmd_sn) = (self.wish.tsih == 0, self.wish.cmd_sn);
        // Over iSER, STGT counts the immediate login in ExpCmdSN, and still expects its CmdSN.
        if begins && ![cmd_sn, cmd_sn.wrapping_add(1)].contains(&exp_cmd_sn) {
            return broke(format!("the target sent ExpCmdSN {exp_cmd_sn} after a login with CmdSN {cmd_sn}"));
        }
        let exp_cmd_sn = if begins { cmd_sn } else { exp_cmd_sn };
        // A MaxCmdSN below ExpCmdSN - 1 is ignored (RFC 7143 section 4.2.2.1), which leaves a window of one command.
        let room = max_cmd_sn.wrapping_sub(exp_cmd_sn).wrapping_add(1) as i32 >= 0;
        let negotiation = &mut self.negotiation;
        Ok(InitiatorLoginStep::Done(Box::new(LoggedIn {
            parameters: negotiation.conclude()?,
            tsih,
            cmd_sn,
            exp_cmd_sn,
            max_cmd_sn: if room { max_cmd_sn } else { exp_cmd_sn },
            exp_stat_sn: header.stat_sn().wrapping_add(1),
            target_alias: negotiation.target_alias.take(),
            portal_group_tag: negotiation.portal_group_tag,
            answers: std::mem::take(&mut negotiation.answers),
            chap: self.security.proved(),
        })))
    }

    /// The next request: the next segment of key text, and the T bit once the stage can end.
    fn request(&mut self) -> Pdu {
        let rest = self.out.split_off(piece(&self.out, SEGMENT_LEN));
        let data = std::mem::replace(&mut self.out, rest);
        let next = if self.phase == NegotiationPhase::Security { 1 } else { 3 };
        let ends =
            self.phase != NegotiationPhase::Security || self.security.may_end(self.wish.credentials.as_ref());
        let moves = match (self.out.is_empty(), ends) {
            (false, _) => CONTINUE,
            (true, true) => TRANSIT | next,
            (true, false) => 0,
        };
        self.asked = moves | self.csg() << 2;
        Pdu::new(self.header(), data)
    }

    /// The header of a Login Request (RFC 7143 section 11.12).
    fn header(&self) -> Bhs {
        const IMMEDIATE: u8 = 0x40;
        let (mut b, wish) = (Bhs::new(opcode::LOGIN | IMMEDIATE), &self.wish);
        b.set_flags(self.asked);
        b.set_isid(wish.isid);
        b.set_tsih(wish.tsih);
        b.set_itt(wish.itt);
        b.set_cid(wish.cid);
        request::stamp(&mut b, wish.cmd_sn, self.exp_stat_sn().unwrap_or(0));
        b
    }

    fn exp_stat_sn(&self) -> Option<u32> {
        self.last.map(|l| l.stat_sn().wrapping_add(1))
    }

    fn csg(&self) -> u8 {
        (self.phase != NegotiationPhase::Security).into()
    }
}

/// Normalizes a value: trims spaces, and spells a keyword as RFC 7143 does, because some targets send lower case.
/// Names and CHAP values stay unchanged.
fn spelled<'a>(key: &str, value: &'a str) -> &'a str {
    const WORDS: [&str; 7] = ["Yes", "No", "None", "CRC32C", "Reject", "Irrelevant", "NotUnderstood"];
    if key.starts_with("CHAP_") {
        return value;
    }
    let value = value.trim_matches(' ');
    let is_free = keys::find(key).is_none_or(|row| matches!(TABLE[row].kind, KeyType::Declared));
    let word = WORDS.into_iter().find(|word| !is_free && word.eq_ignore_ascii_case(value));
    word.unwrap_or(value)
}

/// Decodes a redirect (RFC 7143 section 11.13.5). The address is checked here; the caller parses it.
fn moved(data: &[u8], permanent: bool) -> Result<InitiatorLoginStep, LoginError> {
    let pair = pairs(data).find_map(|p| p.ok().filter(|p| p.0 == "TargetAddress"));
    let Some((_, address)) = pair else {
        return broke("the target redirected the login without a TargetAddress".into());
    };
    match PortalAddress::parse(address) {
        Ok(_) => Ok(InitiatorLoginStep::Moved { address: address.to_owned(), permanent }),
        Err(why) => {
            broke(format!("the target redirected the login to TargetAddress={}: {why}", shown(address)))
        }
    }
}

/// Returns the first violated rule as an error.
fn hold(rules: &[(bool, &str)]) -> Result<(), LoginError> {
    rules.iter().find(|r| !r.0).map_or(Ok(()), |r| broke(r.1.into()))
}

/// The error for a PDU other than a Login Response.
fn before_login_ends(code: u8) -> LoginError {
    let what =
        format!("the target sent a PDU during login that is no Login Response: {}", opcode::name(code));
    if opcode::is_known(code) { LoginError::Broke(what) } else { LoginError::UnknownPdu(what) }
}

fn broke<T>(why: String) -> Result<T, LoginError> {
    Err(LoginError::Broke(why))
}

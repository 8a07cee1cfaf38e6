//! What goes into a login as the initiator plays it, and what comes out.

use std::fmt;

use lunar_wire::iscsi::status::LoginStatus;

use crate::chap::{Algorithm, Secret};
use crate::keys::VALUE_LEN;
use crate::login::SessionType;
use crate::name;
use crate::parameters::{Offer, Parameters};

/// What an initiator wants of a connection.
#[derive(Clone, Debug)]
pub struct LoginParams {
    /// InitiatorName.
    pub initiator: String,
    /// InitiatorAlias: a name for people.
    pub initiator_alias: Option<String>,
    /// TargetName; None for discovery of all targets.
    pub target: Option<String>,
    /// SessionType.
    pub session_type: SessionType,
    /// ISID, in one of the formats of RFC 7143 section 11.12.5.
    pub isid: [u8; 6],
    /// TSIH: 0 for a new session, else the session that this connection joins.
    pub tsih: u16,
    /// CID.
    pub cid: u16,
    /// CmdSN of the first command after the login, which uses none up itself.
    pub cmd_sn: u32,
    /// Initiator Task Tag of all Login Requests.
    pub itt: u32,
    /// What is offered.
    pub offer: Offer,
    /// Where the offer allows CRC32C and None, CRC32C is offered first.
    pub crc32c_first: bool,
    /// Who we are; without, only a target that lets everybody in can be used.
    pub credentials: Option<Credentials>,
}

/// How an initiator authenticates, by CHAP.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// CHAP_N.
    pub name: String,
    /// What proves it.
    pub secret: Secret,
    /// The name and secret by which the target must prove itself.
    pub mutual: Option<(String, Secret)>,
    /// CHAP_A: what is offered, preferred first.
    pub algorithms: Vec<Algorithm>,
    /// A target that wants no CHAP will not do. Otherwise None is offered too, unless the target must prove
    /// itself.
    pub required: bool,
}

impl Credentials {
    /// May the login go on without CHAP?
    pub(super) fn or_none(&self) -> bool {
        !self.required && self.mutual.is_none()
    }
}

impl LoginParams {
    /// Whether a login can be made of it: names in their form, texts that fit into keys, two secrets.
    ///
    /// # Errors
    /// What is wrong, in words for people.
    pub fn check(&self) -> Result<(), String> {
        name::check(&self.initiator).map_err(|why| format!("no iSCSI name: {:?}: {why}", self.initiator))?;
        if let Some(target) = self.target.as_ref().filter(|target| !name::is_usable(target)) {
            return Err(format!("no name of a target: {target:?}"));
        }
        if self.target.is_none() && self.session_type == SessionType::Normal {
            return Err("a session needs the name of its target".into());
        }
        self.credentials.as_ref().map_or(Ok(()), Credentials::check)
    }
}

impl Credentials {
    fn check(&self) -> Result<(), String> {
        let fits = |n: &str| (1..=VALUE_LEN).contains(&n.len()) && !n.contains(char::is_control);
        let mutual = self.mutual.as_ref();
        if !fits(&self.name) || !mutual.is_none_or(|m| fits(&m.0)) {
            return Err("a CHAP name has 1 to 255 bytes and no control characters".into());
        }
        if mutual.is_some_and(|m| m.1 == self.secret) {
            return Err("one CHAP secret cannot serve both directions".into());
        }
        if self.algorithms.is_empty() { Err("no CHAP algorithm is offered".into()) } else { Ok(()) }
    }
}

/// What a login came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedIn {
    /// What was agreed. Keys of the leading login stand at their defaults if this was not one.
    pub parameters: Parameters,
    /// TSIH that the target gave the session; some give none to Discovery sessions.
    pub tsih: u16,
    /// CmdSN of the next command.
    pub cmd_sn: u32,
    /// ExpCmdSN.
    pub exp_cmd_sn: u32,
    /// MaxCmdSN.
    pub max_cmd_sn: u32,
    /// StatSN that the target's next response will carry.
    pub exp_stat_sn: u32,
    /// TargetAlias, fit to be shown.
    pub target_alias: Option<String>,
    /// TargetPortalGroupTag.
    pub portal_group_tag: Option<u16>,
    /// Every key that the target said, in its order, with values fit to be shown; without those of CHAP.
    pub answers: Vec<(String, String)>,
    /// The algorithm by which this side proved itself; None if the target did not ask.
    pub chap: Option<Algorithm>,
}

/// Why a login came to nothing. The connection is to be closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginError {
    /// The target said no: class 2 for good, class 3 for now.
    Refused(LoginStatus),
    /// Both sides could not agree on who is who.
    Authentication(String),
    /// The target declined the digests that were required: by which answer.
    Digests(String),
    /// A PDU of no opcode that iSCSI has: the peer may speak another protocol.
    UnknownPdu(String),
    /// The target broke a rule: of which key or field, and how.
    Broke(String),
}

impl fmt::Display for LoginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(status) => write!(f, "the target refuses the login: {status}"),
            Self::Authentication(why) => write!(f, "authentication failed: {why}"),
            Self::Digests(why) | Self::UnknownPdu(why) | Self::Broke(why) => {
                write!(f, "the target breaks the rules of login: {why}")
            }
        }
    }
}

impl std::error::Error for LoginError {}

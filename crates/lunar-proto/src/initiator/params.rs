//! Parameters and result of a login on the initiator side.

use std::fmt;

use lunar_wire::iscsi::status::LoginStatus;

use crate::chap::{Algorithm, Secret};
use crate::keys::VALUE_LEN;
use crate::login::SessionType;
use crate::name;
use crate::parameters::{Offer, Parameters};

/// Parameters of a login.
#[derive(Clone, Debug)]
pub struct LoginParams {
    /// InitiatorName.
    pub initiator: String,
    /// InitiatorAlias.
    pub initiator_alias: Option<String>,
    /// TargetName; `None` in a Discovery session for all targets.
    pub target: Option<String>,
    /// SessionType.
    pub session_type: SessionType,
    /// ISID, in one of the formats of RFC 7143 section 11.12.5.
    pub isid: [u8; 6],
    /// TSIH: 0 for a new session, otherwise that of the session that this connection joins.
    pub tsih: u16,
    /// CID.
    pub cid: u16,
    /// CmdSN of the first command after the login. The immediate login does not consume it.
    pub cmd_sn: u32,
    /// Initiator Task Tag of all Login Requests.
    pub itt: u32,
    /// Values to offer.
    pub offer: Offer,
    /// Offer CRC32C before None, if the offer allows both.
    pub crc32c_first: bool,
    /// CHAP credentials; `None` for a login without authentication.
    pub credentials: Option<Credentials>,
}

/// CHAP credentials of an initiator.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// CHAP_N.
    pub name: String,
    /// The secret of that name.
    pub secret: Secret,
    /// Name and secret of the target for mutual CHAP.
    pub mutual: Option<(String, Secret)>,
    /// CHAP_A: algorithms to offer, preferred first.
    pub algorithms: Vec<Algorithm>,
    /// Fail if the target does not require CHAP. If false, None is offered too, unless mutual CHAP is set.
    pub required: bool,
}

impl Credentials {
    /// A name and its secret for one-way CHAP, with all algorithms. A target that requires no CHAP is accepted.
    pub fn new(name: impl Into<String>, secret: &[u8]) -> Credentials {
        Credentials {
            name: name.into(),
            secret: Secret::new(secret),
            mutual: None,
            algorithms: Algorithm::ALL.to_vec(),
            required: false,
        }
    }

    /// Whether the login may proceed without CHAP.
    pub(super) fn or_none(&self) -> bool {
        !self.required && self.mutual.is_none()
    }
}

impl LoginParams {
    /// Checks names, key lengths and secrets before a login.
    ///
    /// # Errors
    /// A message that describes the fault.
    pub fn check(&self) -> Result<(), String> {
        name::check(&self.initiator)
            .map_err(|why| format!("initiator name {:?}: not an iSCSI name: {why}", self.initiator))?;
        if let Some(target) = self.target.as_ref().filter(|target| !name::is_usable(target)) {
            return Err(format!("target name {target:?}: not a valid target name"));
        }
        if self.target.is_none() && self.session_type == SessionType::Normal {
            return Err("the login has no target name".into());
        }
        self.credentials.as_ref().map_or(Ok(()), Credentials::check)
    }
}

impl Credentials {
    fn check(&self) -> Result<(), String> {
        let fits = |n: &str| (1..=VALUE_LEN).contains(&n.len()) && !n.contains(char::is_control);
        let mutual = self.mutual.as_ref();
        if !fits(&self.name) || !mutual.is_none_or(|m| fits(&m.0)) {
            return Err(
                "the CHAP user has fewer than 1 or more than 255 bytes, or a control character".into()
            );
        }
        if mutual.is_some_and(|m| m.1 == self.secret) {
            return Err("the CHAP secrets of initiator and target are the same".into());
        }
        if self.algorithms.is_empty() { Err("the list of CHAP algorithms is empty".into()) } else { Ok(()) }
    }
}

/// The result of a successful login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedIn {
    /// Negotiated values. If this is not the leading login, the keys of the leading login have their defaults.
    pub parameters: Parameters,
    /// TSIH of the session. Some targets return 0 for Discovery sessions.
    pub tsih: u16,
    /// CmdSN of the next command.
    pub cmd_sn: u32,
    /// ExpCmdSN.
    pub exp_cmd_sn: u32,
    /// MaxCmdSN.
    pub max_cmd_sn: u32,
    /// StatSN that the target's next response will carry.
    pub exp_stat_sn: u32,
    /// TargetAlias, safe for a terminal.
    pub target_alias: Option<String>,
    /// TargetPortalGroupTag.
    pub portal_group_tag: Option<u16>,
    /// Every key that the target sent, in order, except CHAP keys. The values are safe for a terminal.
    pub answers: Vec<(String, String)>,
    /// The algorithm with which this side authenticated itself; `None` if the target did not require it.
    pub chap: Option<Algorithm>,
}

/// The reason why a login failed. The caller closes the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginError {
    /// The target rejected the login: class 2 is permanent, class 3 temporary.
    Refused(LoginStatus),
    /// Authentication failed.
    Authentication(String),
    /// The target did not accept the required digests; its answer.
    Digests(String),
    /// A PDU with an opcode that iSCSI does not define. The peer may speak another protocol.
    UnknownPdu(String),
    /// The target violated the protocol; a message that names the key or field, and the fault.
    Broke(String),
}

impl fmt::Display for LoginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(status) => write!(f, "the target rejected the login: {status}"),
            Self::Authentication(why) => write!(f, "authentication failed: {why}"),
            Self::Digests(why) | Self::UnknownPdu(why) | Self::Broke(why) => {
                write!(f, "the target violated the login protocol: {why}")
            }
        }
    }
}

impl std::error::Error for LoginError {}

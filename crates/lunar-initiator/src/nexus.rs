//! The two ends of an I_T nexus: the ISID of this initiator, and the target port.

use crate::portal::Portal;
use lunar_wire::srp::PortId;
use std::fmt;
use std::net::SocketAddr;

/// The portal and target of a login, and the initiator's part of the nexus.
#[derive(Clone, Debug)]
pub struct LoginTarget {
    /// The portal.
    pub portal: Portal,
    /// The target; None for a discovery session.
    pub target: Option<String>,
    /// The ISID. A login with the same ISID reinstates a lost session (RFC 7143 section 6.3.5).
    pub isid: [u8; 6],
    /// The login adds a channel to an SRP session: the target keeps the other channels of this port.
    pub is_extra_channel: bool,
}

/// The target port of an I_T nexus. In iSCSI it is a portal group (RFC 7143 section 4.4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TargetPort {
    /// A target portal group tag.
    PortalGroup(u16),
    /// An address of a target that reports no portal group. Another address may belong to another group.
    Portal(SocketAddr),
    /// An SRP target port.
    Srp(PortId),
}

impl fmt::Display for TargetPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetPort::PortalGroup(tag) => write!(f, "group:{tag}"),
            TargetPort::Portal(address) => write!(f, "portal:{address}"),
            TargetPort::Srp(port) => write!(f, "srp:{port}"),
        }
    }
}

/// Parses an ISID of twelve hexadecimal digits.
pub fn parse_isid(digits: &str) -> Option<[u8; 6]> {
    let is_plain = digits.len() == 12 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = is_plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()?;
    number.to_be_bytes()[2..].try_into().ok()
}

/// A new ISID in the random format (RFC 7143 section 11.12.5).
pub fn new_isid() -> [u8; 6] {
    let mut isid = [0; 6];
    getrandom::fill(&mut isid).expect("the kernel has random numbers");
    isid[0] = 0x80;
    isid
}

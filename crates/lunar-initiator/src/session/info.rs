//! What a session is.

use crate::nexus::TargetPort;
use crate::portal::Portal;
use lunar_proto::parameters::Parameters;

/// What a session is, for people and programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Where it leads.
    pub portal: Portal,
    /// The name of the target.
    pub target: String,
    /// TargetAlias.
    pub alias: Option<String>,
    /// Portal group of the target.
    pub portal_group_tag: Option<u16>,
    /// The target port of its nexus, where that can be known.
    pub port: Option<TargetPort>,
    /// Our part of the session's identifier.
    pub isid: [u8; 6],
    /// The target's part.
    pub tsih: u16,
    /// The CHAP user that the target has of us; empty where it did not ask for a proof.
    pub user: String,
    /// What carries it, and what carries that: `tcp`, `iser/iwarp`, `srp/verbs:rxe0`.
    pub carrier: String,
    /// What was negotiated.
    pub parameters: Parameters,
    /// It has a connection.
    pub connected: bool,
    /// Times that it was made anew.
    pub recoveries: u32,
    /// Commands that it has left behind at its end: the target may still carry them out.
    pub left_behind: usize,
}

impl SessionInfo {
    /// The port of the target in its nexus, by a name that no other port has; None where that cannot be known. It has no spaces.
    pub fn target_port(&self) -> Option<String> {
        port_name(self.port, &self.target)
    }
}

fn port_name(port: Option<TargetPort>, target: &str) -> Option<String> {
    Some(format!("{},{}", port?, target.replace(char::is_whitespace, "_")))
}

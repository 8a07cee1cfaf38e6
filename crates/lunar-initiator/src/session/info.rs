//! Information about a session, for its owners.

use crate::nexus::TargetPort;
use crate::portal::Portal;
use crate::transport::SessionTransport;
use lunar_proto::parameters::Parameters;

/// Information about a session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// The portal, after redirections.
    pub portal: Portal,
    /// The name of the target.
    pub target: String,
    /// TargetAlias.
    pub alias: Option<String>,
    /// The portal group tag of the target.
    pub portal_group_tag: Option<u16>,
    /// The target port of the nexus, if known.
    pub port: Option<TargetPort>,
    /// The ISID: the initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// The TSIH: the target's part of the session identifier.
    pub tsih: u16,
    /// The CHAP user. Empty if the target requested no authentication.
    pub user: String,
    /// The transport and its provider.
    pub transport: SessionTransport,
    /// The negotiated parameters.
    pub parameters: Parameters,
    /// Whether there is a connection.
    pub connected: bool,
    /// The reason why there is no connection.
    pub(crate) lost_by: Option<String>,
    /// The number of completed recoveries.
    pub recoveries: u32,
    /// The number of orphans at the end of the session. The target may still execute them.
    pub orphans: usize,
}

impl SessionInfo {
    /// The unique name of the target port, without spaces. None if it is unknown.
    pub fn target_port(&self) -> Option<String> {
        port_name(self.port, &self.target)
    }
}

fn port_name(port: Option<TargetPort>, target: &str) -> Option<String> {
    Some(format!("{},{}", port?, target.replace(char::is_whitespace, "_")))
}

//! The identities of sessions in the registry.

use crate::session_info::{SessionInfo, SessionProtocol};
use lunar_scsi::InitiatorPort;
use std::net::{IpAddr, SocketAddr};

/// The I_T nexus of a session: its initiator port and its target port. In iSCSI it identifies the session (RFC 7143
/// section 4.4.3; for discovery section 7.4.2). In SRP all channels between two ports have the same key, and in
/// NVMe all queues of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionKey {
    /// The initiator port.
    pub initiator: InitiatorPort,
    /// The CHAP account. The identifier of an initiator port is not secret (READ FULL STATUS reports it). Another
    /// account is therefore another initiator port, which neither ends nor blocks sessions of the first.
    pub user: Option<String>,
    /// Name of the target. None: unnamed discovery.
    pub target: Option<String>,
    /// Tag of the portal group, which is the port of the target.
    pub portal_group_tag: u16,
    /// The portal, by which unnamed discovery sessions and NVMe controllers differ.
    pub portal: Option<SocketAddr>,
    /// The address of an NVMe host, by which its paths through one portal differ.
    pub peer: Option<IpAddr>,
}

impl SessionKey {
    /// The key of a session that logged in at this portal.
    pub fn new(info: &SessionInfo, portal: SocketAddr) -> SessionKey {
        let is_nvme = matches!(info.protocol, SessionProtocol::Nvme(_));
        SessionKey {
            initiator: info.initiator_port(),
            user: info.user.clone(),
            target: info.target.clone(),
            portal_group_tag: info.portal_group_tag,
            portal: (info.target.is_none() || is_nvme).then_some(portal),
            peer: is_nvme.then(|| info.address.ip()),
        }
    }
}

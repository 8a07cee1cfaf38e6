//! The answers to text requests: SendTargets (RFC 7143 appendix C), and keys of the configuration.

use crate::access::{LoginContext, target_address};
use crate::config::{PortalProtocol, TargetNode};
use crate::server_state::ServerState;
use crate::session_info::SessionInfo;
use crate::sharing::RemotePort;
use lunar_proto::name::fold;
use lunar_proto::text::{SendTargets, TargetRecord};
use lunar_scsi::TransportProtocol;
use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

/// The targets that the initiator of a session may discover.
pub struct TargetDirectory {
    shared: Arc<ServerState>,
    info: Arc<SessionInfo>,
    login_context: LoginContext,
}

impl TargetDirectory {
    /// The directory for a session.
    pub fn new(
        shared: Arc<ServerState>,
        info: Arc<SessionInfo>,
        login_context: LoginContext,
    ) -> TargetDirectory {
        TargetDirectory { shared, info, login_context }
    }

    /// The answer of the configuration to a key.
    pub fn ask(&self, key: &str, value: &str) -> Option<String> {
        self.shared.config().text_keys.ask(self.info.target.as_deref(), key, value)
    }

    /// The targets that this initiator may see, with addresses that it can reach from `local`. A target without an
    /// address is omitted, because the initiator would look for it at this portal (RFC 7143 appendix C).
    pub fn records(&self, wanted: SendTargets<'_>, local: SocketAddr) -> Vec<TargetRecord> {
        let config = self.shared.config();
        let login_context = LoginContext { config: config.clone(), ..self.login_context.clone() };
        let own = self.info.target.as_deref();
        let named = if let SendTargets::Named(name) = wanted { fold(name) } else { Cow::default() };
        let asked = |name: &str| match wanted {
            SendTargets::All => true,
            SendTargets::Named(_) => named == name && (self.info.is_discovery() || own == Some(name)),
            SendTargets::Empty => own == Some(name),
        };
        let visible = config.targets.values().filter(|t| {
            t.subsystem.is_none() && asked(&t.name) && login_context.is_visible(t, &self.info.initiator)
        });
        let record =
            |t: &TargetNode| TargetRecord { name: t.name.clone(), addresses: self.addresses(t, local) };
        visible.map(record).filter(|record| !record.addresses.is_empty()).collect()
    }

    fn addresses(&self, target: &TargetNode, local: SocketAddr) -> Vec<String> {
        let portals = self.shared.portals();
        let portals = portals.iter().filter(|p| target.portal_groups.contains(&p.tag));
        let of_iscsi = portals.filter(|p| p.transports.protocol == PortalProtocol::Iscsi);
        let own = of_iscsi.filter_map(|p| target_address(p.advertise.as_deref(), p.address, local, p.tag));
        let remote = target.remote_ports();
        let remote = remote.iter().filter(|remote| remote.port.protocol == TransportProtocol::Iscsi);
        let with_tag = |remote: &RemotePort| {
            let tag = remote.port.portal_group_tag;
            remote.addresses.iter().map(|at| format!("{at},{tag}")).collect::<Vec<_>>()
        };
        own.chain(remote.flat_map(with_tag)).collect()
    }
}

//! Logical units that several servers share, and the sessions of this server with them.

use crate::LogicalUnit;
use crate::config::TargetNode;
use crate::end_reason::EndReason;
use crate::registry::{AbortScope, SessionMessage};
use crate::server_state::ServerState;
use crate::sharing::{RemotePort, StateSharing};
use lunar_scsi::NexusId;
use lunar_wire::scsi::op;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Time that the end of a session waits for other servers.
const NEXUS_TIMEOUT: Duration = Duration::from_secs(2);

impl LogicalUnit {
    /// Shares the state of the unit with other servers. Call this once, before the unit is served.
    pub fn share(&self, sharing: Arc<dyn StateSharing>) {
        _ = self.sharing.set(sharing);
    }

    /// The other servers of the unit. None: this server is the only one.
    #[inline]
    pub fn sharing(&self) -> Option<&Arc<dyn StateSharing>> {
        self.sharing.get()
    }

    /// Publishes the end of a RESERVE whose nexus has ended. If other servers do not follow in time, it takes place later.
    pub(crate) async fn publish_nexuses(&self) {
        if let Some(sharing) = self.sharing()
            && let Some(pending) = self.lu.follow_nexuses()
        {
            _ = compio::time::timeout(NEXUS_TIMEOUT, sharing.publish(pending)).await;
        }
    }

    /// Whether this server may decide on a new command of the unit.
    #[inline]
    pub fn may_decide(&self) -> bool {
        self.sharing().is_none_or(|sharing| sharing.may_decide())
    }

    /// Whether this command reports state that other servers may have changed a moment ago: PERSISTENT RESERVE IN. Others
    /// are decided with the state that this server has, because their order with such a change is free.
    pub(crate) fn reports_shared(&self, cdb: &[u8]) -> bool {
        self.sharing().is_some() && cdb.first() == Some(&op::PERSISTENT_RESERVE_IN)
    }

    /// Whether this server may answer commands of the unit. Of an unavailable one, it answers that.
    #[inline]
    pub fn may_answer(&self) -> bool {
        self.sharing().is_none_or(|sharing| sharing.may_serve() || sharing.is_unavailable())
    }

    /// Whether this server cannot serve the unit for now, and says so.
    pub fn is_unavailable(&self) -> bool {
        self.sharing().is_some_and(|sharing| sharing.is_unavailable())
    }
}

impl TargetNode {
    /// Whether this is one of its logical units.
    fn has(&self, unit: &Arc<LogicalUnit>) -> bool {
        self.luns.values().any(|own| Arc::ptr_eq(own, unit))
    }

    /// Whether this server may answer commands of all logical units, and serves one of them.
    pub(crate) fn may_serve(&self) -> bool {
        let mut units = self.luns.values();
        units.all(|unit| unit.may_answer())
            && (self.luns.is_empty() || !self.luns.values().all(|unit| unit.is_unavailable()))
    }

    /// The target ports of other servers.
    pub(crate) fn remote_ports(&self) -> Vec<RemotePort> {
        let all = self.luns.values().filter_map(|unit| unit.sharing()).map(|sharing| sharing.remote_ports());
        let mut ports: Vec<RemotePort> = Vec::new();
        for one in all.flat_map(|ports| ports.to_vec()) {
            match ports.iter_mut().find(|known| known.port == one.port) {
                Some(known) if known.addresses.is_empty() => known.addresses = one.addresses,
                Some(_) => {}
                None => ports.push(one),
            }
        }
        ports.sort_by_key(|port| (port.port.portal_group_tag, port.port.relative));
        ports
    }
}

/// The sessions of a server, for those who share the state of its logical units.
#[derive(Clone)]
pub struct ServedSessions(pub(crate) Arc<ServerState>);

impl ServedSessions {
    /// Aborts the tasks of these nexuses of a logical unit, or of all its nexuses. Returns when none of them can change
    /// the medium any more. Tasks that publish a change do not count: they wait for other servers, which may wait for
    /// this one.
    pub async fn abort(&self, unit: &Arc<LogicalUnit>, victims: Option<Vec<NexusId>>) {
        let scope = match victims {
            Some(victims) => AbortScope::Nexuses(victims.into()),
            None => AbortScope::units([unit.clone()]),
        };
        let message = |done| SessionMessage::Abort {
            scope: scope.clone(),
            from: None,
            indeterminate: Arc::default(),
            done,
        };
        self.0.registry.broadcast(None, message).await;
    }

    /// Ends all sessions of the targets of a logical unit, without answers to their commands. Returns when they are
    /// over.
    pub async fn end(&self, unit: &Arc<LogicalUnit>) {
        let config = self.0.config();
        let has_unit = |name: &str| config.targets.get(name).is_some_and(|target| target.has(unit));
        let chosen = |target: Option<&str>| target.is_some_and(has_unit);
        self.0.registry.end(|info| chosen(info.target.as_deref()), EndReason::Fenced).await;
    }

    /// The targets and LUNs of this server that show a logical unit.
    pub fn luns(&self, unit: &Arc<LogicalUnit>) -> Vec<(String, u16)> {
        let config = self.0.config();
        let all = config.targets.iter().flat_map(|(name, node)| node.luns.iter().map(move |lun| (name, lun)));
        let shows = all.filter(|(_, (_, own))| Arc::ptr_eq(own, unit));
        shows.map(|(name, (lun, _))| (name.clone(), *lun)).collect()
    }

    /// Passes changed ports of other servers to the sessions.
    pub fn follow_ports(&self) {
        let config = self.0.config();
        self.0.registry.send_each(|info| self.0.luns_update(&config, info));
    }

    /// The portal group tags of this server.
    pub fn own_tags(&self) -> BTreeSet<u16> {
        self.0.portals().iter().map(|portal| portal.tag).collect()
    }

    /// The target ports of this server for the targets of a logical unit, with their addresses.
    pub fn own_ports(&self, unit: &Arc<LogicalUnit>) -> Vec<RemotePort> {
        let (config, portals) = (self.0.config(), self.0.portals());
        let targets = config.targets.values().filter(|target| target.has(unit));
        let mut ports = Vec::new();
        for port in targets.flat_map(|target| self.0.own_ports(target)) {
            let of_port = |portal: &&crate::BoundPortal| {
                portal.tag == port.portal_group_tag && portal.transports.protocol.scsi() == port.protocol
            };
            let address = |portal: &crate::BoundPortal| {
                portal
                    .advertise
                    .clone()
                    .or((!portal.address.ip().is_unspecified()).then(|| portal.address.to_string()))
            };
            let addresses = portals.iter().filter(of_port).filter_map(address).collect();
            let one = RemotePort { port, addresses };
            if !ports.contains(&one) {
                ports.push(one);
            }
        }
        ports
    }
}

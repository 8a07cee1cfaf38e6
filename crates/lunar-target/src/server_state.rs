//! The state that all connections of a server share, and their slots.

use crate::access::LoginContext;
use crate::config::{TargetConfig, TargetNode};
use crate::connection_slots::{AdmissionError, ConnectionSlots, EvictionNotice, LoginTicket, PendingLogin};
use crate::fair_share::{self, SourcePrefix};
use crate::nvme::controllers::Controllers;
use crate::open_portal::BoundPortal;
use crate::registry::{Registry, SessionMessage};
use crate::server_events::ServerEvents;
use crate::session_info::{Addresses, SessionInfo};
use crate::tls::TlsRelay;
use event_listener::Event;
use lunar_runtime::cores::CorePlacement;
use lunar_runtime::{LogRateLimit, OncePerMinute, Pool, descriptors};
use lunar_scsi::{TargetPort, TransportProtocol};
use lunar_wire::iscsi::status::LoginStatus;
use std::net::SocketAddr;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Instant;

/// The state that all connections share.
pub struct ServerState {
    config: RwLock<Arc<TargetConfig>>,
    /// The sessions.
    pub registry: Arc<Registry>,
    /// Buffers of commands in flight.
    pub pool: Pool,
    portals: RwLock<Arc<[BoundPortal]>>,
    /// Slots of all connections, and of connections before login.
    slots: Mutex<ConnectionSlots>,
    /// Whether the server accepts no new connections and commands.
    pub stopping: AtomicBool,
    /// Number of connections that the file descriptors of this process allow. It is counted once, when the server has
    /// opened its own files.
    room: OnceLock<usize>,
    /// Limits log lines about connections without a session.
    closed_before_login: LogRateLimit,
    no_descriptors: OncePerMinute,
    login_refused: LogRateLimit,
    /// Limits log lines about sessions that begin or end.
    pub began: LogRateLimit,
    pub ended: LogRateLimit,
    /// Counts rare events.
    pub(crate) events: ServerEvents,
    /// The NVMe controllers.
    pub(crate) controllers: Arc<Controllers>,
    /// The number of changes that discovery may show, and the notification of them.
    pub(crate) generation: AtomicU64,
    pub(crate) discovery_changed: Event,
    /// TLS of connections.
    pub(crate) tls: TlsRelay,
}

impl ServerState {
    /// The state of a server with these portals.
    pub fn new(config: TargetConfig, portals: Arc<[BoundPortal]>) -> ServerState {
        name_units(&config);
        ServerState {
            pool: Pool::new(config.limits.memory),
            config: RwLock::new(Arc::new(config)),
            registry: Arc::default(),
            portals: RwLock::new(portals),
            slots: Mutex::default(),
            stopping: AtomicBool::new(false),
            room: OnceLock::new(),
            closed_before_login: LogRateLimit::default(),
            no_descriptors: OncePerMinute::default(),
            login_refused: LogRateLimit::default(),
            began: LogRateLimit::default(),
            ended: LogRateLimit::default(),
            events: ServerEvents::default(),
            controllers: Arc::default(),
            generation: AtomicU64::new(1),
            discovery_changed: Event::new(),
            tls: TlsRelay::default(),
        }
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.slots().used()
    }

    /// Number of connections before login.
    pub fn connections_before_login(&self) -> usize {
        self.slots().used_before_login()
    }

    /// Counts a login that has ended with this status.
    pub fn count_login(&self, target: Option<&str>, status: LoginStatus) {
        let config = self.config();
        self.events.login(target.filter(|target| config.targets.contains_key(*target)), status);
    }

    fn slots(&self) -> MutexGuard<'_, ConnectionSlots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs why a connection ended before login. Repeated reasons are summarized by a count.
    pub fn log_closed_before_login(&self, peer: SocketAddr, reason: &str) {
        if let Some(left_out) = self.closed_before_login.may_of(peer.ip(), Instant::now()) {
            tracing::info!(name: "connection.closed", %peer, reason, left_out, "connection closed before login");
        }
    }

    /// Logs that the file descriptors are exhausted, which is a fault of this server and not of the peer.
    pub(crate) fn out_of_descriptors(&self, peer: SocketAddr) {
        if let Some(left_out) = self.no_descriptors.may(Instant::now()) {
            let hint = "raise the hard limit on open files (ulimit -Hn, LimitNOFILE=), or reduce the number of connections";
            let reason = AdmissionError::FileDescriptors.to_string();
            tracing::warn!(name: "connection.closed", %peer, reason, left_out, hint, "new connections are closed");
        }
    }

    /// Logs why a login was rejected. Repeated rejections are summarized by a count.
    pub fn log_login_refused(&self, peer: SocketAddr, initiator: &str, target: &str, reason: &str) {
        if let Some(left_out) = self.login_refused.may_of(peer.ip(), Instant::now()) {
            let known = |name| Some(name).filter(|name: &&str| !name.is_empty());
            let (initiator, target) = (known(initiator), known(target));
            tracing::info!(name: "login.refused", %peer, initiator, target, %reason, left_out, "login refused");
        }
    }

    /// The bound portals.
    pub fn portals(&self) -> Arc<[BoundPortal]> {
        self.portals.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the bound portals.
    pub(crate) fn set_portals(&self, portals: Arc<[BoundPortal]>) {
        *self.portals.write().unwrap_or_else(PoisonError::into_inner) = portals;
        self.discovery_may_differ();
    }

    /// The target ports of a target, also those of other servers.
    pub fn target_ports(&self, target: &TargetNode) -> Arc<[TargetPort]> {
        let remote = target.remote_ports().into_iter().map(|remote| remote.port);
        self.own_ports(target).into_iter().chain(remote).collect()
    }

    /// The target ports of a target on this server: in each portal group one for iSCSI, one for SRP, or both. A group
    /// without portals belongs to another server, and counts as an iSCSI port.
    pub(crate) fn own_ports(&self, target: &TargetNode) -> Vec<TargetPort> {
        if target.subsystem.is_some() {
            let port = |group: &u16| target.port(TransportProtocol::Nvme, *group);
            return target.portal_groups.iter().map(port).collect();
        }
        let portals = self.portals();
        let any = |group, protocol| {
            let mut of_group = portals.iter().filter(|portal| portal.tag == group);
            of_group.any(|portal| portal.transports.protocol.scsi() == protocol)
        };
        let of_group = |group: &u16| {
            let (srp, iscsi) = (any(*group, TransportProtocol::Srp), any(*group, TransportProtocol::Iscsi));
            let protocols = [(TransportProtocol::Iscsi, iscsi || !srp), (TransportProtocol::Srp, srp)];
            let there = protocols.into_iter().filter(|(_, is_there)| *is_there);
            let group = *group;
            there.map(move |(protocol, _)| target.port(protocol, group))
        };
        target.portal_groups.iter().flat_map(of_group).collect()
    }

    /// The message with the LUNs of a session after a change of the configuration.
    pub fn luns_update(&self, config: &Arc<TargetConfig>, info: &SessionInfo) -> Option<SessionMessage> {
        let target = config.targets.get(info.target.as_ref()?);
        // The LUNs of a target that goes offline remain until its sessions have ended their commands and logged out.
        if target.is_some_and(|target| target.offline && !target.luns.is_empty()) {
            return Some(SessionMessage::Stop { done: flume::bounded(0).0 });
        }
        let addresses = Addresses { local: info.portal, peer: info.address };
        let login_context = LoginContext::new(config, info.portal_group_tag, addresses);
        let seen = target.filter(|t| !t.offline && t.rules().admit(info));
        let view =
            |t: &TargetNode| (Arc::new(login_context.lun_map(t, &info.initiator)), self.target_ports(t));
        Some(SessionMessage::Luns(seen.map(view)))
    }

    /// The message that ends a session whose portal was removed, or whose target port has another identifier now.
    pub fn end_of_stranded(
        &self,
        (before, portals): (&TargetConfig, &[BoundPortal]),
        now: &TargetConfig,
        info: &SessionInfo,
    ) -> Option<SessionMessage> {
        let number = |config: &TargetConfig| {
            let target = config.targets.get(info.target.as_ref()?)?;
            target.relative_ports.get(&info.portal_group_tag).copied()
        };
        let serves = |portals: &[BoundPortal]| portals.iter().any(|portal| portal.serves(info));
        let is_over = serves(portals) && !serves(&self.portals()) || number(before) != number(now);
        is_over.then(|| SessionMessage::Stop { done: flume::bounded(0).0 })
    }

    fn whole_room(&self) -> usize {
        *self.room.get_or_init(descriptors::room)
    }

    /// Number of connections that the file descriptors allow beside the open pipes.
    fn room(&self) -> usize {
        let more = lunar_runtime::pipe::open_descriptors() + self.tls.more_descriptors();
        self.whole_room().saturating_sub(more).max(1)
    }

    /// Warns if the limit on connections exceeds the limit on open files.
    pub(crate) fn warn_of_room(&self) {
        let (connections, room) = (self.config().limits.connections, self.whole_room());
        if connections > room {
            tracing::warn!(
                connections,
                room,
                "`connections` of [limits] exceeds the limit of this process on open files; hint: raise the limit on open files \
                 (ulimit -Hn, LimitNOFILE=)"
            );
        }
    }

    /// Replaces the configuration in force.
    pub(crate) fn set_config(&self, config: Arc<TargetConfig>) {
        name_units(&config);
        *self.config.write().unwrap_or_else(|e| e.into_inner()) = config;
        self.discovery_may_differ();
    }

    fn discovery_may_differ(&self) {
        self.generation.fetch_add(1, Relaxed);
        self.discovery_changed.notify(usize::MAX);
    }

    /// The configuration in force.
    pub fn config(&self) -> Arc<TargetConfig> {
        self.config.read().unwrap_or_else(|e| e.into_inner()).clone()
    }
}

/// Sets the names of all logical units for their log lines. A unit that is a namespace too has the name of its LUN.
fn name_units(config: &TargetConfig) {
    let (subsystems, targets): (Vec<_>, Vec<_>) =
        config.targets.iter().partition(|(_, target)| target.subsystem.is_some());
    for (name, target) in subsystems.into_iter().chain(targets) {
        target.luns.iter().for_each(|(lun, unit)| unit.io_failures.set_place(name, *lun));
    }
}

/// The slot of a connection. Dropping it releases the slot.
pub struct ConnectionGuard {
    shared: Arc<ServerState>,
    place: CorePlacement,
    entry: fair_share::AdmissionSlot,
    /// Its slot before login. None: it has logged in.
    ticket: Option<LoginTicket>,
    /// Set by the login: the connection cannot be evicted anymore.
    done: Option<PendingLogin>,
}

impl ConnectionGuard {
    /// Takes a slot for a connection from this address.
    pub fn new(
        shared: &Arc<ServerState>,
        peer: SocketAddr,
        place: CorePlacement,
    ) -> Result<ConnectionGuard, AdmissionError> {
        if shared.stopping.load(SeqCst) {
            return Err(AdmissionError::ServerStop);
        }
        let (limits, origin) = (&shared.config().limits, SourcePrefix::from(peer.ip()));
        let (entry, ticket) = shared.slots().enter(origin, limits, shared.room())?;
        Ok(ConnectionGuard { shared: shared.clone(), place, entry, ticket: Some(ticket), done: None })
    }

    /// Whether a connection from this address would get a slot.
    pub(crate) fn has_room(shared: &ServerState, peer: SocketAddr) -> bool {
        let (limits, origin) = (&shared.config().limits, SourcePrefix::from(peer.ip()));
        shared.slots().admits(origin, limits, shared.room()).is_ok()
    }

    /// The core of the connection.
    pub(crate) fn core(&self) -> usize {
        self.place.core()
    }

    /// Resolves when another connection takes the slot before this one has logged in.
    pub(crate) fn evicted(&self) -> EvictionNotice {
        self.ticket.as_ref().map(LoginTicket::evicted).unwrap_or_default()
    }

    /// Completes the login. False: another connection took the slot.
    pub fn logged_in(&mut self) -> bool {
        if let Some(ticket) = self.ticket.take() {
            self.done = self.shared.slots().logged_in(&ticket);
        }
        self.done.is_some()
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.shared.slots().leave(self.entry, self.ticket.take());
    }
}

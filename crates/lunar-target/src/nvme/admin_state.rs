//! The state of an admin queue, which lives on one core.

use super::controllers::Controller;
use super::namespaces::{NamespaceChanges, Namespaces};
use crate::access::{LoginContext, LunMap};
use crate::config::SubsystemSettings;
use crate::end_reason::EndReason;
use crate::server_state::ServerState;
use crate::session_info::SessionInfo;
use lunar_proto::nvme::{AsyncEvent, ControllerKind, ControllerProperties, EventQueue};
use lunar_wire::nvme::{ErrorEntry, ReservationLog, log_page};
use lunar_wire::scsi::Sense;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The most Asynchronous Event Requests.
pub const EVENT_REQUESTS: usize = 4;
/// The most reservation events that are kept for the host.
const MAX_NOTIFICATIONS: usize = 256;
/// The events that are on after a reset: all that the controller has.
const ALL_EVENTS: u32 = u32::MAX;
/// Bytes of Host Behavior Support.
pub const HOST_BEHAVIOR_LEN: usize = 512;

/// Sums of the counters of I/O queues.
#[derive(Clone, Copy, Debug, Default)]
pub struct IoTotals {
    /// Read commands.
    pub reads: u64,
    /// Write commands.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

/// The state of an admin queue.
pub struct AdminState {
    shared: Arc<ServerState>,
    context: LoginContext,
    info: Arc<SessionInfo>,
    controller: Arc<Controller>,
    kind: ControllerKind,
    /// Properties.
    pub properties: ControllerProperties,
    /// None: it is a discovery controller.
    namespaces: Option<Namespaces>,
    settings: SubsystemSettings,
    events: EventQueue,
    /// Namespaces that have changed since the host has read the log page.
    changed: BTreeSet<u32>,
    /// Reservation events that the host has not read, and the number of all.
    notifications: VecDeque<(u8, u32)>,
    notification_count: u64,
    /// Masks of reservation events, by namespace.
    reservation_masks: BTreeMap<u32, u32>,
    keep_alive_ms: u32,
    kept_features: BTreeMap<u8, u32>,
    host_behavior: [u8; HOST_BEHAVIOR_LEN],
}

/// The parts of the state of a new admin queue.
pub struct NewAdminState {
    /// The state that all connections share.
    pub shared: Arc<ServerState>,
    /// The context of the Connect.
    pub context: LoginContext,
    /// The facts about the session.
    pub info: Arc<SessionInfo>,
    /// The controller.
    pub controller: Arc<Controller>,
    /// Its kind.
    pub kind: ControllerKind,
    /// The most entries of a queue.
    pub max_queue_len: u16,
    /// The keep-alive time-out in milliseconds; 0: none.
    pub keep_alive_ms: u32,
    /// Its namespaces.
    pub namespaces: Option<Namespaces>,
}

impl AdminState {
    /// The state of a controller that is not enabled.
    pub fn new(new: NewAdminState) -> AdminState {
        let NewAdminState { shared, context, info, controller, kind, namespaces, .. } = new;
        let node = info.target.as_ref().and_then(|name| context.config.targets.get(name));
        let settings = node.and_then(|node| node.subsystem.clone());
        let settings = settings.unwrap_or_else(|| SubsystemSettings::new("", Some("discovery"), None));
        AdminState {
            properties: ControllerProperties::new(kind, new.max_queue_len),
            events: EventQueue::new(EVENT_REQUESTS, ALL_EVENTS),
            keep_alive_ms: new.keep_alive_ms,
            changed: BTreeSet::new(),
            notifications: VecDeque::new(),
            notification_count: 0,
            reservation_masks: BTreeMap::new(),
            kept_features: BTreeMap::new(),
            host_behavior: [0; HOST_BEHAVIOR_LEN],
            shared,
            context,
            info,
            controller,
            kind,
            namespaces,
            settings,
        }
    }

    /// The state that all connections share.
    pub fn shared(&self) -> &Arc<ServerState> {
        &self.shared
    }

    /// The context of the Connect.
    pub fn context(&self) -> &LoginContext {
        &self.context
    }

    /// The address that the host has reached.
    pub fn local(&self) -> SocketAddr {
        self.info.portal
    }

    /// The controller.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// Its kind.
    pub fn kind(&self) -> ControllerKind {
        self.kind
    }

    /// The version that it reports.
    pub fn version(&self) -> u32 {
        self.properties.version()
    }

    /// Serial number and model.
    pub fn settings(&self) -> &SubsystemSettings {
        &self.settings
    }

    /// Its namespaces. None: it is a discovery controller.
    pub fn namespaces(&self) -> Option<&Namespaces> {
        self.namespaces.as_ref()
    }

    /// Its events.
    pub fn events(&self) -> &EventQueue {
        &self.events
    }

    /// The same, mutably.
    pub fn events_mut(&mut self) -> &mut EventQueue {
        &mut self.events
    }

    /// The keep-alive time-out in milliseconds; 0: none.
    pub fn keep_alive_ms(&self) -> u32 {
        self.keep_alive_ms
    }

    /// How long the host may be silent, and the reason for which the controller then ends. A discovery controller without a
    /// keep-alive time-out would otherwise stay when its host has gone.
    pub fn silence_timeout(&self) -> (Option<Duration>, EndReason) {
        match (self.keep_alive_ms, self.kind) {
            (0, ControllerKind::Io) => (None, EndReason::KeepaliveTimeout),
            (0, ControllerKind::Discovery) => {
                (Some(self.shared.config().limits.discovery_timeout), EndReason::DiscoveryTimeout)
            }
            (ms, _) => (Some(Duration::from_millis(ms.into())), EndReason::KeepaliveTimeout),
        }
    }

    /// Changes the keep-alive time-out.
    pub fn set_keep_alive(&mut self, ms: u32) {
        self.keep_alive_ms = ms;
    }

    /// A feature that changes nothing.
    pub fn kept_feature(&self, id: u8) -> u32 {
        self.kept_features.get(&id).copied().unwrap_or(0)
    }

    /// Keeps the value of a feature that changes nothing.
    pub fn keep_feature(&mut self, id: u8, value: u32) {
        self.kept_features.insert(id, value);
    }

    /// Host Behavior Support.
    pub fn host_behavior(&self) -> &[u8; HOST_BEHAVIOR_LEN] {
        &self.host_behavior
    }

    /// Sets Host Behavior Support.
    pub fn set_host_behavior(&mut self, data: [u8; HOST_BEHAVIOR_LEN]) {
        self.host_behavior = data;
    }

    /// The reservation events of a namespace that the host does not want, as bits.
    pub fn reservation_mask(&self, namespace: u32) -> u32 {
        self.reservation_masks.get(&namespace).copied().unwrap_or(0)
    }

    /// Sets the mask of reservation events of a namespace.
    pub fn set_reservation_mask(&mut self, namespace: u32, mask: u32) {
        self.reservation_masks.insert(namespace, mask);
    }

    /// The error log, newest entry first.
    pub fn errors(&self) -> Vec<ErrorEntry> {
        self.controller.errors()
    }

    /// The number of errors so far.
    pub fn error_count(&self) -> u64 {
        self.errors().first().map_or(0, |newest| newest.count)
    }

    /// The namespaces that have changed since the host has read about it.
    pub fn changed(&self) -> Vec<u32> {
        self.changed.iter().copied().collect()
    }

    /// The oldest reservation event.
    pub fn notification(&self) -> ReservationLog {
        let Some((kind, namespace)) = self.notifications.front().copied() else {
            return ReservationLog::zeroed();
        };
        let more = self.notifications.len() - 1;
        let count = self.notification_count - more as u64;
        ReservationLog { count, kind, more: more.min(usize::from(u8::MAX)) as u8, namespace }
    }

    /// The host has read a log page, and does not ask to retain its event.
    pub fn log_was_read(&mut self, page: u8) {
        match page {
            log_page::CHANGED_NAMESPACES => self.changed.clear(),
            log_page::RESERVATION => _ = self.notifications.pop_front(),
            _ => {}
        }
        self.events.log_read(page);
    }

    /// The counters of the I/O queues.
    pub fn io_totals(&self) -> IoTotals {
        let id = self.controller.id();
        let queues = self.shared.registry.list();
        let own = queues.iter().map(|(_, info)| info).filter(|info| info.is_queue_of(id));
        own.map(|info| &info.counters).fold(IoTotals::default(), |sum, counters| IoTotals {
            reads: sum.reads + counters.reads.get(),
            writes: sum.writes + counters.writes.get(),
            read_bytes: sum.read_bytes + counters.read_bytes.get(),
            write_bytes: sum.write_bytes + counters.write_bytes.get(),
        })
    }

    /// Looks at the state of all namespaces again.
    pub fn refresh(&mut self) {
        let changes = self.namespaces.as_mut().map(Namespaces::refresh);
        changes.into_iter().for_each(|changes| self.raise(changes));
    }

    /// Looks at the state of the namespace with this identifier again.
    pub fn refresh_namespace(&mut self, id: u32) {
        let changes = self.namespaces.as_mut().map(|all| all.refresh_range(id..=id));
        changes.into_iter().for_each(|changes| self.raise(changes));
    }

    /// Replaces the namespaces.
    pub fn replace(&mut self, map: &LunMap) {
        let changes = self.namespaces.as_mut().map(|all| all.replace(map));
        changes.into_iter().for_each(|changes| self.raise(changes));
    }

    fn raise(&mut self, changes: NamespaceChanges) {
        let NamespaceChanges { namespaces, access, reservations } = changes;
        if !namespaces.is_empty() {
            self.changed.extend(namespaces);
            self.events.raise(AsyncEvent::NamespaceChanged);
        }
        if access {
            self.events.raise(AsyncEvent::AccessChanged);
        }
        for (namespace, sense) in reservations {
            self.notify(namespace, sense);
        }
    }

    /// Adds a reservation event, unless the host does not want it.
    fn notify(&mut self, namespace: u32, sense: Sense) {
        // 1: registration preempted, 2: reservation released, 3: reservation preempted.
        let kind = match sense {
            Sense::REGISTRATIONS_PREEMPTED => 1,
            Sense::RESERVATIONS_RELEASED => 2,
            _ => 3,
        };
        if self.reservation_mask(namespace) & 1 << kind != 0 || self.notifications.len() >= MAX_NOTIFICATIONS
        {
            return;
        }
        self.notifications.push_back((kind, namespace));
        self.notification_count += 1;
        self.events.raise(AsyncEvent::Reservation);
    }

    /// The controller was disabled: features and events are as they were at first.
    pub fn reset(&mut self) {
        self.events.reset(ALL_EVENTS);
        self.reservation_masks.clear();
        self.kept_features.clear();
        self.host_behavior = [0; HOST_BEHAVIOR_LEN];
    }
}

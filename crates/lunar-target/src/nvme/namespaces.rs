//! The namespaces of a controller, and their changes since its host was informed.

use super::identifiers::{GivenNamespaceIds, NamespaceIds};
use super::limits::MAX_NAMESPACES;
use crate::LogicalUnit;
use crate::access::{LunEntry, LunMap};
use lunar_scsi::{AccessState, LuWatcher, NamespaceView, Nexus, NexusPorts};
use lunar_wire::nvme::{AnaGroup, AnaState};
use lunar_wire::scsi::Sense;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeBounds;
use std::sync::Arc;

/// A namespace.
pub struct Namespace {
    unit: Arc<LogicalUnit>,
    /// A nexus of its own, which learns of reservations.
    nexus: Nexus,
    /// The state of which the host was informed.
    pub view: NamespaceView,
    /// Its identifiers, and those that the configuration gives.
    pub ids: NamespaceIds,
    given: GivenNamespaceIds,
    /// Number of changes of its access state.
    changes: u64,
}

impl Namespace {
    fn new(entry: &LunEntry, port: &Arc<NexusPorts>, watcher: &Arc<LuWatcher>) -> Namespace {
        let nexus = entry.unit.lu.attach(port.clone(), entry.read_only);
        entry.unit.lu.watch(watcher);
        let view = nexus.namespace();
        let ids = NamespaceIds::new(&port.target, &view.naa, entry.given_ids);
        Namespace { unit: entry.unit.clone(), nexus, view, ids, given: entry.given_ids, changes: 0 }
    }

    /// Its logical unit.
    pub fn unit(&self) -> &Arc<LogicalUnit> {
        &self.unit
    }

    fn is(&self, entry: &LunEntry) -> bool {
        Arc::ptr_eq(&self.unit, &entry.unit)
            && self.nexus.read_only() == entry.read_only
            && self.given == entry.given_ids
    }
}

/// Changes that are events of the host.
#[derive(Debug, Default)]
pub struct NamespaceChanges {
    /// Namespaces that came, went, or have other attributes.
    pub namespaces: BTreeSet<u32>,
    /// Access states have changed.
    pub access: bool,
    /// Reservation events, with their namespaces.
    pub reservations: Vec<(u32, Sense)>,
}

/// The namespaces of a controller, by their identifiers, which are the LUNs of the target.
pub struct Namespaces {
    port: Arc<NexusPorts>,
    watcher: Arc<LuWatcher>,
    all: BTreeMap<u32, Namespace>,
    /// Number of changes of access states.
    access_changes: u64,
}

/// The LUNs that can be namespaces.
fn visible(map: &LunMap) -> impl Iterator<Item = (u32, &LunEntry)> {
    map.iter()
        .map(|(number, entry)| (u32::from(*number), entry))
        .filter(|(id, _)| (1..=MAX_NAMESPACES).contains(id))
}

impl Namespaces {
    /// The namespaces of a port. `watcher` is called after changes.
    pub fn new(port: Arc<NexusPorts>, map: &LunMap, watcher: Arc<LuWatcher>) -> Namespaces {
        let open = |(id, entry)| (id, Namespace::new(entry, &port, &watcher));
        let all = visible(map).map(open).collect();
        Namespaces { port, watcher, all, access_changes: 0 }
    }

    /// The namespace with this identifier.
    pub fn get(&self, id: u32) -> Option<&Namespace> {
        self.all.get(&id)
    }

    /// All namespaces, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Namespace)> {
        self.all.iter().map(|(id, namespace)| (*id, namespace))
    }

    /// Replaces the namespaces.
    pub fn replace(&mut self, map: &LunMap) -> NamespaceChanges {
        let mut changes = self.refresh();
        let now: BTreeMap<u32, &LunEntry> = visible(map).collect();
        let ids: BTreeSet<u32> = self.all.keys().chain(now.keys()).copied().collect();
        for id in ids {
            match (self.all.get(&id), now.get(&id)) {
                (Some(old), Some(entry)) if old.is(entry) => continue,
                (_, None) => drop(self.all.remove(&id)),
                (_, Some(entry)) => {
                    let new = Namespace::new(entry, &self.port, &self.watcher);
                    self.all.insert(id, new);
                    changes.access = true;
                }
            }
            changes.namespaces.insert(id);
        }
        self.access_changes += u64::from(changes.access);
        changes
    }

    /// Looks at the state of all namespaces again.
    pub fn refresh(&mut self) -> NamespaceChanges {
        self.refresh_range(..)
    }

    /// Looks at the state of the namespaces in a range again.
    pub fn refresh_range(&mut self, range: impl RangeBounds<u32>) -> NamespaceChanges {
        let mut changes = NamespaceChanges::default();
        for (id, namespace) in self.all.range_mut(range) {
            let events = namespace.nexus.take_events();
            changes.reservations.extend(events.into_iter().map(|event| (*id, event)));
            let now = namespace.nexus.namespace();
            let before = std::mem::replace(&mut namespace.view, now);
            let now = &namespace.view;
            if before.naa != now.naa {
                namespace.ids = NamespaceIds::new(&self.port.target, &now.naa, namespace.given);
            }
            if before.access != now.access {
                namespace.changes += 1;
                changes.access = true;
            }
            if (NamespaceView { access: now.access, ..before }) != *now {
                changes.namespaces.insert(*id);
            }
        }
        self.access_changes += u64::from(changes.access);
        changes
    }

    /// The access log page. Each namespace is a group of its own.
    pub fn access_log(&self, with_namespaces: bool) -> Vec<u8> {
        let group = |(id, namespace): (&u32, &Namespace)| AnaGroup {
            id: *id,
            changes: namespace.changes,
            state: ana_state(namespace.view.access),
            namespaces: vec![*id],
        };
        let groups: Vec<AnaGroup> = self.all.iter().map(group).collect();
        AnaGroup::encode(self.access_changes, &groups, with_namespaces)
    }
}

/// The access state as NVMe has it, without a standby state.
fn ana_state(access: AccessState) -> AnaState {
    match access {
        AccessState::Optimized => AnaState::Optimized,
        AccessState::NonOptimized => AnaState::NonOptimized,
        AccessState::Standby | AccessState::Unavailable => AnaState::Inaccessible,
        AccessState::Transitioning => AnaState::Change,
    }
}

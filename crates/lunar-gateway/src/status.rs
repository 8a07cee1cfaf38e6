//! The state of this member and of its logical units, for administrators.

use crate::member::Phase;
use crate::object::{MemberId, MemberPort, SharedView};
use crate::shared_unit::SharedUnit;
use crate::store::Store;
use lunar_target::{LogicalUnit, ServedSessions};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// A server of a group, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayStatus {
    /// The name of the group.
    pub group: String,
    /// The number of this server in the group.
    pub id: MemberId,
    /// The logical units that it shares.
    pub units: Vec<SharedUnitStatus>,
}

/// A shared logical unit, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedUnitStatus {
    /// Pool, namespace and name of the image.
    pub image: String,
    /// The name of the object with the shared state.
    pub object: String,
    /// The targets and LUNs that show it.
    pub luns: Vec<(String, u16)>,
    /// The phase of the member of this server.
    pub phase: Phase,
    /// The time when the member joined. Before that, the time when the last one was lost, or the start of this server.
    pub since: SystemTime,
    /// The version of the installed state; 0 before it has joined.
    pub version: u64,
    /// The time since the cluster last confirmed the watch. None: there is no watch.
    pub watch_age: Option<Duration>,
    /// All members that the object names, also those that are away, and this one.
    pub members: BTreeMap<MemberId, MemberStatus>,
    /// The member that serves the medium. None: all members do, or none does for now.
    pub active: Option<MemberId>,
    /// Members whose hosts are to use others.
    pub drained: BTreeSet<MemberId>,
    /// The number of times that this server has joined.
    pub joins: u64,
    /// The number of times that its member was lost after it had joined.
    pub losses: u64,
    /// The changes of the state that this server has published.
    pub publishes: u64,
    /// The last loss, or the last attempt to join that failed.
    pub last_failure: Option<UnitFailure>,
    /// The number of registrations.
    pub registrations: usize,
    /// Whether there is a persistent reservation.
    pub is_reserved: bool,
    /// The initiator that holds it. None: all registrants do.
    pub holder: Option<String>,
}

/// A member of a shared logical unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberStatus {
    /// Whether it serves the logical unit.
    pub is_present: bool,
    /// Its target ports, also those of a member that is away.
    pub ports: Vec<MemberPort>,
}

/// The reason why a member was lost, or could not join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitFailure {
    /// The reason.
    pub reason: String,
    /// When it happened.
    pub at: SystemTime,
}

/// The facts of a shared logical unit that outlast its members.
pub struct UnitRecord(Mutex<Facts>);

struct Facts {
    /// The phase while there is no member.
    phase: Phase,
    since: SystemTime,
    others: BTreeMap<MemberId, MemberStatus>,
    joins: u64,
    losses: u64,
    publishes: u64,
    last_failure: Option<UnitFailure>,
}

impl UnitRecord {
    pub fn new() -> UnitRecord {
        UnitRecord(Mutex::new(Facts {
            phase: Phase::Joining,
            since: SystemTime::now(),
            others: BTreeMap::new(),
            joins: 0,
            losses: 0,
            publishes: 0,
            last_failure: None,
        }))
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A member has joined.
    pub fn joined(&self) {
        let mut facts = self.facts();
        facts.joins += 1;
        (facts.phase, facts.since) = (Phase::Serving, SystemTime::now());
    }

    /// A member is lost, or could not join.
    pub fn failed(&self, reason: &str) {
        let (mut facts, at) = (self.facts(), SystemTime::now());
        if facts.phase == Phase::Serving {
            facts.losses += 1;
            (facts.phase, facts.since) = (Phase::Lost, at);
        } else {
            facts.phase = Phase::Joining;
        }
        facts.last_failure = Some(UnitFailure { reason: reason.to_owned(), at });
    }

    /// A member has published a change.
    pub fn published(&self) {
        self.facts().publishes += 1;
    }

    /// Members or their ports may have changed. `own` is the member of this server.
    pub fn follow(&self, own: MemberId, view: &SharedView) {
        let ids = view.members.keys().chain(view.ports.keys()).filter(|id| **id != own);
        let status = |id: &MemberId| MemberStatus {
            is_present: view.members.contains_key(id),
            ports: view.ports.get(id).cloned().unwrap_or_default(),
        };
        self.facts().others = ids.map(|id| (*id, status(id))).collect();
    }
}

impl SharedUnit {
    /// Pool, namespace and name of its image.
    pub fn name(&self) -> String {
        self.image().trim_start_matches("rbd:").to_owned()
    }

    /// Its state. `sessions` are those of the server, when it has started.
    pub fn status(&self, unit: &Arc<LogicalUnit>, sessions: Option<&ServedSessions>) -> SharedUnitStatus {
        let member = self.member();
        let version = member.as_ref().map_or(0, |member| member.version());
        let watch_age = member.as_ref().and_then(|member| member.store().watch_age().ok());
        let luns = sessions.map(|sessions| sessions.luns(unit)).unwrap_or_default();
        let (registrations, is_reserved) = unit.lu.reservations();
        let holder = unit.lu.reservation_holder();
        let group = member.as_ref().map(|member| member.group()).unwrap_or_default();
        let facts = self.record.facts();
        let phase = member.as_ref().map_or(facts.phase, |member| member.phase());
        let own = MemberStatus {
            is_present: matches!(phase, Phase::Serving | Phase::Stale),
            ports: member.as_ref().map(|member| member.ports()).unwrap_or_default(),
        };
        SharedUnitStatus {
            image: self.name(),
            object: self.object(),
            luns,
            phase,
            since: facts.since,
            version,
            watch_age,
            members: facts.others.clone().into_iter().chain([(self.id(), own)]).collect(),
            active: group.access.active,
            drained: group.access.drained.clone(),
            joins: facts.joins,
            losses: facts.losses,
            publishes: facts.publishes,
            last_failure: facts.last_failure.clone(),
            registrations,
            is_reserved,
            holder,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::MemberRecord;

    #[test]
    fn loss_counts_only_after_a_join() {
        let record = UnitRecord::new();
        let counts = || {
            let facts = record.facts();
            (facts.phase, facts.joins, facts.losses)
        };
        record.failed("the id is taken");
        assert_eq!(counts(), (Phase::Joining, 0, 0));
        record.joined();
        record.failed("fenced");
        assert_eq!(counts(), (Phase::Lost, 1, 1));
        record.failed("no cluster");
        assert_eq!(counts(), (Phase::Joining, 1, 1));
        let reason = record.facts().last_failure.clone().map(|failure| failure.reason);
        assert_eq!(reason.as_deref(), Some("no cluster"));
        record.joined();
        assert_eq!(counts(), (Phase::Serving, 2, 1));
    }

    #[test]
    fn members_that_are_away_keep_their_ports() {
        let member = MemberRecord { incarnation: 1, ..MemberRecord::default() };
        let port =
            |tag| MemberPort { tag, relative: tag, srp: false, addresses: vec![format!("h{tag}:3260")] };
        let view = SharedView {
            members: [(1, member.clone()), (2, member)].into(),
            ports: [1, 2, 3].map(|id| (id, vec![port(u16::from(id))])).into(),
            ..SharedView::default()
        };
        let record = UnitRecord::new();
        record.follow(1, &view);
        let there = |is_present, tag| MemberStatus { is_present, ports: vec![port(tag)] };
        assert_eq!(record.facts().others, [(2, there(true, 2)), (3, there(false, 3))].into());
        let mut later = view;
        later.members.remove(&2);
        record.follow(1, &later);
        assert_eq!(record.facts().others[&2], there(false, 2));
    }
}

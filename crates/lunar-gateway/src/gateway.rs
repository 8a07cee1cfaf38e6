//! This server as a member of its group, with all logical units that it shares.

use crate::MemberId;
use crate::shared_unit::{GroupPlace, SharedUnit, SharedUnitGuard};
use crate::status::GatewayStatus;
use lunar_block::RbdBackend;
use lunar_runtime::{Cores, spawn};
use lunar_target::{LogicalUnit, ServedSessions};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Time that the units have to leave the group.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// A server of a group. Its units have an event loop of their own, so that a busy core does not make it silent.
pub struct Gateway {
    place: GroupPlace,
    cores: Arc<Cores>,
    units: Mutex<Units>,
}

struct Units {
    /// The sessions of the server, when it has started.
    sessions: Option<ServedSessions>,
    /// Each unit in progress has a clone.
    alive: Option<flume::Sender<()>>,
    ended: flume::Receiver<()>,
    all: Vec<(Weak<SharedUnit>, Weak<LogicalUnit>)>,
}

impl Gateway {
    /// A member of a group. `pool` is that of the objects with the shared state; without it, they are in the pools of the images.
    ///
    /// # Errors
    /// The event loop cannot be started.
    pub fn new(group: &str, id: MemberId, pool: Option<String>) -> io::Result<Gateway> {
        let (alive, ended) = flume::bounded(0);
        let units = Units { sessions: None, alive: Some(alive), ended, all: Vec::new() };
        let place = GroupPlace {
            group: group.to_owned(),
            id,
            pool,
            will_refresh: Arc::default(),
            held: Arc::default(),
            fencers: Arc::default(),
        };
        Ok(Gateway { place, cores: Arc::new(Cores::unbound()?), units: Mutex::new(units) })
    }

    /// Whether it is this member of this group, with the objects in this pool.
    pub fn is(&self, group: &str, id: MemberId, pool: Option<&str>) -> bool {
        self.place.group == group && self.place.id == id && self.place.pool.as_deref() == pool
    }

    fn units(&self) -> MutexGuard<'_, Units> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shares a logical unit that is not served yet. Its commands end with BUSY, and logins are refused, until it has
    /// joined the group.
    pub fn share(&self, unit: &Arc<LogicalUnit>, backend: Arc<RbdBackend>) -> SharedUnitGuard {
        let shared = SharedUnit::new(self.place.clone(), self.cores.clone(), unit, backend);
        let mut units = self.units();
        units.all.retain(|(shared, _)| shared.strong_count() > 0);
        units.all.push((Arc::downgrade(&shared), Arc::downgrade(unit)));
        if let Some(sessions) = units.sessions.clone() {
            self.begin(&units, shared.clone(), Arc::downgrade(unit), sessions);
        }
        SharedUnitGuard(shared)
    }

    /// The server has started: its units join the group.
    pub fn serve(&self, sessions: ServedSessions) {
        let mut units = self.units();
        units.sessions = Some(sessions.clone());
        for (shared, unit) in &units.all {
            if let Some(shared) = shared.upgrade() {
                self.begin(&units, shared, unit.clone(), sessions.clone());
            }
        }
    }

    fn begin(
        &self,
        units: &Units,
        shared: Arc<SharedUnit>,
        unit: Weak<LogicalUnit>,
        sessions: ServedSessions,
    ) {
        let alive = units.alive.clone();
        self.cores.run_on(0, move || {
            spawn(async move {
                shared.live(unit, sessions).await;
                drop(alive);
            });
        });
    }

    /// The state of this server and of its units, at this moment.
    pub fn status(&self) -> GatewayStatus {
        let (all, sessions) = {
            let units = self.units();
            (units.all.clone(), units.sessions.clone())
        };
        let served = all.iter().filter_map(|(shared, unit)| Some((shared.upgrade()?, unit.upgrade()?)));
        let status =
            |(shared, unit): (Arc<SharedUnit>, Arc<LogicalUnit>)| shared.status(&unit, sessions.as_ref());
        GatewayStatus {
            group: self.place.group.clone(),
            id: self.place.id,
            units: served.map(status).collect(),
        }
    }

    /// The logical units.
    pub(crate) fn shared_units(&self) -> Vec<Arc<SharedUnit>> {
        self.units().all.iter().filter_map(|(shared, _)| shared.upgrade()).collect()
    }

    /// Leaves the group with all units. The server has ended their sessions. Units that the cluster does not let go in time
    /// are fenced by the other members later.
    pub fn stop(&self) {
        let ended = {
            let mut units = self.units();
            units.alive = None;
            units.all.iter().filter_map(|(shared, _)| shared.upgrade()).for_each(|shared| shared.end());
            units.ended.clone()
        };
        // Nothing is ever sent.
        _ = ended.recv_timeout(LEAVE_TIMEOUT);
    }
}

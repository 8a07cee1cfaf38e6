//! What all connections of a server share, and their places in its counts.

use crate::access::Door;
use crate::crowds::{Crowds, Evicted, NO_DESCRIPTORS, Unfinished, Waits};
use crate::registry::{Letter, Registry};
use crate::session::Info;
use crate::setup::{Setup, Target, Transports};
use crate::share::{self, Origin};
use lunar_proto::login::Policy;
use lunar_runtime::cores::Place;
use lunar_runtime::{OncePerMinute, Pool, Seldom, descriptors};
use lunar_scsi::{Protocol, TargetPort};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

/// What all connections share.
pub struct Shared {
    setup: RwLock<Arc<Setup>>,
    /// The sessions.
    pub registry: Arc<Registry>,
    /// Buffers of commands in flight.
    pub pool: Pool,
    /// Where it listens.
    pub portals: Vec<Bound>,
    /// Connections in all, and those not logged in.
    crowds: Mutex<Crowds>,
    /// No new connections or commands.
    pub stopping: AtomicBool,
    /// Connections that the file descriptors of this process allow.
    room: usize,
    /// Lines about those who did not get in.
    turned_away: Seldom,
    no_descriptors: OncePerMinute,
    refused: Seldom,
    /// Lines about sessions that begin and end.
    pub began: Seldom,
    pub ended: Seldom,
}

impl Shared {
    /// What the connections of these portals share.
    pub fn new(setup: Setup, portals: Vec<Bound>) -> Shared {
        Shared {
            pool: Pool::new(setup.limits.memory),
            setup: RwLock::new(Arc::new(setup)),
            registry: Arc::default(),
            portals,
            crowds: Mutex::default(),
            stopping: AtomicBool::new(false),
            room: descriptors::room(),
            turned_away: Seldom::default(),
            no_descriptors: OncePerMinute::default(),
            refused: Seldom::default(),
            began: Seldom::default(),
            ended: Seldom::default(),
        }
    }

    /// Connections in all.
    #[cfg(test)]
    pub fn connections(&self) -> usize {
        self.crowds().used()
    }

    fn crowds(&self) -> MutexGuard<'_, Crowds> {
        self.crowds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells why a connection ended before it was logged in; of a flood a few lines and a number.
    pub fn turned_away(&self, peer: SocketAddr, reason: &str) {
        if let Some(left_out) = self.turned_away.may_of(peer.ip(), Instant::now()) {
            tracing::info!(%peer, reason, left_out, "connection closed before login");
        }
    }

    /// Reports that the file descriptors are used up, which is a fault of this server and of no peer.
    pub(crate) fn out_of_descriptors(&self, peer: SocketAddr) {
        if let Some(left_out) = self.no_descriptors.may(Instant::now()) {
            let hint =
                "raise the hard limit on open files (ulimit -Hn, LimitNOFILE=), or have fewer connections";
            tracing::warn!(%peer, reason = NO_DESCRIPTORS, left_out, hint, "new connections are closed");
        }
    }

    /// Tells who was refused at login, and why; of a flood a few lines and a number.
    pub fn refused(&self, peer: SocketAddr, initiator: &str, target: &str, reason: &str) {
        if let Some(left_out) = self.refused.may_of(peer.ip(), Instant::now()) {
            let known = |name| Some(name).filter(|name: &&str| !name.is_empty());
            let (initiator, target) = (known(initiator), known(target));
            tracing::info!(%peer, initiator, target, %reason, left_out, "login refused");
        }
    }

    /// The target ports that the portals of a group make: one for iSCSI, one for SRP, or both. A group without portals
    /// is one that others serve.
    pub fn target_ports(&self, group: u16) -> impl Iterator<Item = TargetPort> {
        let any = |srp| self.portals.iter().any(|portal| portal.tag == group && portal.transports.srp == srp);
        let (srp, iscsi) = (any(true), any(false));
        let protocols = [(Protocol::Iscsi, iscsi || !srp), (Protocol::Srp, srp)];
        protocols
            .into_iter()
            .filter(|(_, is_there)| *is_there)
            .map(move |(protocol, _)| TargetPort { protocol, group })
    }

    /// Warns of a limit that the file descriptors do not allow.
    pub(crate) fn warn_of_room(&self) {
        let (connections, room) = (self.setup().limits.connections, self.room);
        if connections > room {
            tracing::warn!(
                connections,
                room,
                "`connections` of [limits] is more than the open files of this process allow: ulimit -Hn, LimitNOFILE="
            );
        }
    }

    /// Puts another configuration in force.
    pub(crate) fn set_setup(&self, setup: Arc<Setup>) {
        *self.setup.write().unwrap_or_else(|e| e.into_inner()) = setup;
    }

    /// The configuration in force.
    pub fn setup(&self) -> Arc<Setup> {
        self.setup.read().unwrap_or_else(|e| e.into_inner()).clone()
    }
}

/// A portal that is listening.
#[derive(Clone, Debug)]
pub struct Bound {
    /// Its address, with the port that it got.
    pub address: SocketAddr,
    /// Tag of its portal group.
    pub tag: u16,
    /// What SendTargets tells instead.
    pub advertise: Option<String>,
    /// What it carries.
    pub transports: Transports,
}

/// What a session sees in a configuration.
pub fn luns_now(setup: &Arc<Setup>, info: &Info) -> Option<Letter> {
    let target = setup.targets.get(info.target.as_ref()?);
    let door = Door { setup: setup.clone(), group: info.tag, peer: info.address.ip() };
    // What another entry grants to CHAP users is not for one that logged in without being one of them.
    let may = |t: &&Target| door.authorize(Some(&t.name), &info.initiator, info.user.as_deref()).is_ok();
    let seen = target.filter(|t| !t.offline).filter(may);
    Some(Letter::Luns(seen.map(|t| Arc::new(door.lun_map(t, &info.initiator)))))
}

/// A connection's place in the counts.
pub struct Counted {
    shared: Arc<Shared>,
    place: Place,
    entry: share::Place,
    /// Among those before login; None: it is logged in.
    waits: Option<Waits>,
    /// It is not evicted any more.
    done: Option<Unfinished>,
}

impl Counted {
    /// A place for a connection from this address, or why there is none.
    pub fn new(shared: &Arc<Shared>, peer: SocketAddr, place: Place) -> Result<Counted, &'static str> {
        if shared.stopping.load(SeqCst) {
            return Err("the server stops");
        }
        let (limits, origin) = (&shared.setup().limits, Origin::from(peer.ip()));
        let (entry, waits) = shared.crowds().enter(origin, limits, shared.room)?;
        Ok(Counted { shared: shared.clone(), place, entry, waits: Some(waits), done: None })
    }

    /// There is a place for a connection from this address.
    pub(crate) fn has_room(shared: &Shared, peer: SocketAddr) -> bool {
        let (limits, origin) = (&shared.setup().limits, Origin::from(peer.ip()));
        shared.crowds().admits(origin, limits, shared.room).is_ok()
    }

    /// The core that it has its place on.
    pub(crate) fn core(&self) -> usize {
        self.place.core()
    }

    /// Comes back when the place goes to another connection before this one is logged in.
    pub(crate) fn evicted(&self) -> Evicted {
        self.waits.as_ref().map(Waits::evicted).unwrap_or_default()
    }

    /// The login is done. False: another connection has its place.
    pub fn logged_in(&mut self) -> bool {
        if let Some(waits) = self.waits.take() {
            self.done = self.shared.crowds().logged_in(&waits);
        }
        self.done.is_some()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.shared.crowds().leave(self.entry, self.waits.take());
    }
}

//! Status of the nexuses at another target, visible to every core. An [`UpstreamNexus`](super::nexus::UpstreamNexus) itself
//! stays on its own core.

use super::PassthroughSpec;
use crate::identity_change::{self, IdentityChange};
use crate::upstream::{PathStatus, State};
use lunar_initiator::Url;
use lunar_scsi::NexusPorts;
use lunar_wire::scsi::lun;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};

/// A path to a logical unit, with the host whose own it is; None while no host uses it.
pub type HostPath = (Option<String>, PathStatus);

/// A nexus at another target.
pub struct NexusStatus {
    router: String,
    upstream: String,
    /// The host for which it stands.
    host: String,
    /// The core that has it, as its thread is called.
    core: String,
    paths: Vec<Url>,
    /// Which of the paths has the session.
    taken: AtomicUsize,
    is_up: AtomicBool,
    /// Connections so far.
    made: AtomicU32,
}

impl NexusStatus {
    /// The nexus of this core that stands for one of ours. There is no session yet.
    pub fn begin(spec: &PassthroughSpec, port: &NexusPorts) -> Arc<NexusStatus> {
        Arc::new(NexusStatus {
            router: spec.router.clone(),
            upstream: spec.upstream.clone(),
            host: port.initiator.clone(),
            core: std::thread::current().name().unwrap_or("a thread").to_owned(),
            paths: spec.paths.iter().map(|(url, _)| url.clone()).collect(),
            taken: AtomicUsize::new(0),
            is_up: AtomicBool::new(false),
            made: AtomicU32::new(0),
        })
    }

    /// There is a session over the path of this number.
    pub fn take(&self, path: usize) {
        self.taken.store(path, Relaxed);
        self.is_back();
    }

    /// Its connection was made, or made anew.
    pub fn is_back(&self) {
        self.made.fetch_add(1, Relaxed);
        self.is_up.store(true, Relaxed);
    }

    /// There is no connection.
    pub fn is_lost(&self) {
        self.is_up.store(false, Relaxed);
    }

    /// Logs that the path leads to another logical unit: no command goes there.
    pub fn log_change(&self, lun: u64, was: &[u8], now: &[u8]) {
        let Some(url) = self.paths.get(self.taken.load(Relaxed)) else { return };
        let (target, lun) = (url.target.as_deref().unwrap_or_default(), lun::decode(lun).unwrap_or_default());
        let path = url.at(target, Some(lun)).plain();
        let (was, now) = (&identity_change::name(was), &identity_change::name(now));
        IdentityChange { router: &self.router, upstream: &self.upstream, target, lun, path: &path, was, now }
            .log();
    }
}

/// What one host has of a logical unit.
pub struct HostLu {
    status: Arc<NexusStatus>,
    /// Commands that are not answered yet.
    pub in_flight: AtomicUsize,
    /// Behind the path is another logical unit.
    pub is_changed: AtomicBool,
}

impl HostLu {
    /// Nothing was sent yet.
    pub fn new(status: Arc<NexusStatus>) -> Arc<HostLu> {
        Arc::new(HostLu { status, in_flight: AtomicUsize::default(), is_changed: AtomicBool::default() })
    }

    /// The paths, of which one has the session.
    pub fn paths(&self, places: &[String]) -> impl Iterator<Item = HostPath> {
        let status = &self.status;
        let path = move |(number, url): (usize, &String)| {
            let is_taken = number == status.taken.load(Relaxed);
            let path = PathStatus { core: Some(status.core.clone()), ..PathStatus::unused(url) };
            let path = match (is_taken, status.is_up.load(Relaxed)) {
                (true, true) => PathStatus {
                    state: Some(self.state()),
                    in_flight: self.in_flight.load(Relaxed),
                    recoveries: status.made.load(Relaxed).saturating_sub(1),
                    ..path
                },
                (false, true) => path,
                (_, false) => PathStatus { state: Some(State::Down), ..path },
            };
            (Some(status.host.clone()), path)
        };
        places.iter().enumerate().map(path)
    }

    fn state(&self) -> State {
        if self.is_changed.load(Relaxed) { State::Changed } else { State::Optimized }
    }
}

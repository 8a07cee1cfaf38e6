//! The status of upstream nexuses, for all cores. An [`UpstreamNexus`](super::nexus::UpstreamNexus) itself stays on
//! its core.

use super::PassthroughSpec;
use crate::identity_change::{self, IdentityChange};
use crate::upstream::{PathState, PathStatus};
use lunar_initiator::Url;
use lunar_scsi::NexusPorts;
use lunar_wire::scsi::lun;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};

/// A path to a logical unit, and the host that owns it. None while no host uses it.
pub type HostPath = (Option<String>, PathStatus);

/// The status of an upstream nexus.
pub struct NexusStatus {
    router: String,
    upstream: String,
    /// The host of the nexus.
    host: String,
    /// The core of the nexus, by the name of its thread.
    core: String,
    paths: Vec<Url>,
    /// The path that has the session.
    taken: AtomicUsize,
    is_up: AtomicBool,
    /// The number of connections so far.
    made: AtomicU32,
}

impl NexusStatus {
    /// The status of a new nexus on this core, without a session.
    pub fn begin(spec: &PassthroughSpec, port: &NexusPorts) -> Arc<NexusStatus> {
        Arc::new(NexusStatus {
            router: spec.router.clone(),
            upstream: spec.upstream.clone(),
            host: port.initiator.name().into_owned(),
            core: std::thread::current().name().unwrap_or("a thread").to_owned(),
            paths: spec.paths.iter().map(|(url, _)| url.clone()).collect(),
            taken: AtomicUsize::new(0),
            is_up: AtomicBool::new(false),
            made: AtomicU32::new(0),
        })
    }

    /// Records a session over the path with this index.
    pub fn take(&self, path: usize) {
        self.taken.store(path, Relaxed);
        self.record_connection();
    }

    /// Records a new connection.
    pub fn record_connection(&self) {
        self.made.fetch_add(1, Relaxed);
        self.is_up.store(true, Relaxed);
    }

    /// Records the loss of the connection.
    pub fn record_loss(&self) {
        self.is_up.store(false, Relaxed);
    }

    /// Logs that the path leads to another logical unit, which gets no commands.
    pub fn log_change(&self, lun: u64, was: &[u8], now: &[u8]) {
        let Some(url) = self.paths.get(self.taken.load(Relaxed)) else { return };
        let (target, lun) = (url.target.as_deref().unwrap_or_default(), lun::decode(lun).unwrap_or_default());
        let path = url.at(target, Some(lun)).plain();
        let (was, now) = (&identity_change::name(was), &identity_change::name(now));
        IdentityChange { router: &self.router, upstream: &self.upstream, target, lun, path: &path, was, now }
            .log();
    }
}

/// The state of a logical unit for one host.
pub struct HostLu {
    status: Arc<NexusStatus>,
    /// The number of commands without a response.
    pub in_flight: AtomicUsize,
    /// Whether the path leads to another logical unit.
    pub is_changed: AtomicBool,
}

impl HostLu {
    /// The initial state.
    pub fn new(status: Arc<NexusStatus>) -> Arc<HostLu> {
        Arc::new(HostLu { status, in_flight: AtomicUsize::default(), is_changed: AtomicBool::default() })
    }

    /// All paths, one of which has the session.
    pub fn paths(&self, locations: &[String]) -> impl Iterator<Item = HostPath> {
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
                (_, false) => PathStatus { state: Some(PathState::Down), ..path },
            };
            (Some(status.host.clone()), path)
        };
        locations.iter().enumerate().map(path)
    }

    fn state(&self) -> PathState {
        if self.is_changed.load(Relaxed) { PathState::Changed } else { PathState::Optimized }
    }
}

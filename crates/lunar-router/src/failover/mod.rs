//! Failover pairs: two routers with access to the same storage, one of which is active.
//!
//! The storage decides which router is active. The active router holds a persistent reservation on every logical unit
//! ([`fence`], or [`namespace_fence`] at NVMe storage). An [`IoGate`] stops the commands of the other. [`machine`] decides
//! when to take the reservation, from the state of the storage and the peer's heartbeats ([`heartbeat`]), which
//! [`history`] records. Heartbeats only inform this decision. The reservation enforces it.

mod controller;
mod fence;
mod gate;
mod heartbeat;
mod history;
mod machine;
mod namespace_fence;
mod owner;
mod storage_fence;
mod term;

pub use gate::{IoGate, IoPermit};
pub use machine::{PeerStatus, Role};
pub(crate) use namespace_fence::admit;

use crate::upstream::UpstreamLu;
use event_listener::{Event, EventListener};
use history::PeerHistory;
use lunar_initiator::Portal;
use lunar_scsi::AccessState;
use lunar_target::Instance;
use machine::{DEAD, PairView};
use std::convert::Infallible;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The text key that requests the status of an instance.
pub const KEY: &str = "X-org.lunar.pair";

/// The time without a request of the peer after which this router sends heartbeats to the storage.
const UNASKED: Duration = Duration::from_secs(1);

/// Closed when a pair has ended and released its reservations.
pub type PairEnd = flume::Receiver<Infallible>;

/// The configuration of a pair, on one of its routers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairSpec {
    /// The routing instance, which has the same name on both routers.
    pub router: String,
    /// A portal of the peer.
    pub peer: Portal,
    /// The peer's portal group tag.
    pub group: u16,
    /// Whether this router serves while both can.
    pub preferred: bool,
    /// The reservation key of this router, which must differ from the peer's.
    pub key: u64,
    /// A value unique to this router, which must not change at a restart.
    pub seed: String,
    /// The initiator name that holds the reservations. None means that of the upstream's sessions.
    pub initiator: Option<String>,
    /// The time limit for commands in flight when the router yields the active role.
    pub path_loss_timeout: Duration,
}

/// A request of the administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailoverRequest {
    /// Switch the active role.
    Failover,
    /// The router may become active.
    Eligible,
    /// The router must not become active. An active one yields.
    Ineligible,
}

/// The status of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairStatus {
    /// The role of this router.
    pub role: Role,
    /// Whether it may become active.
    pub eligible: bool,
    /// Whether it serves while both can.
    pub preferred: bool,
    /// The status of the peer. None if it does not respond.
    pub peer: Option<PeerStatus>,
}

/// This router's part in a pair.
pub struct Pair {
    spec: PairSpec,
    instance: Arc<Instance>,
    state: Mutex<State>,
    /// Notified when the controller must act before its next probe.
    notifier: Event,
    end: PairEnd,
    /// Called when the states that hosts see may have changed.
    changed: Box<dyn Fn() + Send + Sync>,
}

struct State {
    history: PeerHistory,
    role: Role,
    eligible: bool,
    healthy: bool,
    /// Whether both routers have the same reservation key, so that neither would exclude the other.
    clash: bool,
    asked: Instant,
    request: Option<FailoverRequest>,
    fresh: Vec<Weak<UpstreamLu>>,
}

impl Pair {
    /// Starts on standby after the end of the pair `before`. Call it inside an event loop. When dropped, it ends and
    /// releases its reservations.
    pub fn start(
        spec: PairSpec,
        eligible: bool,
        instance: Arc<Instance>,
        before: Option<PairEnd>,
        changed: impl Fn() + Send + Sync + 'static,
        run: impl FnOnce(Box<dyn FnOnce() + Send>),
    ) -> Arc<Pair> {
        let now = Instant::now();
        let state = State {
            history: PeerHistory::new(now),
            role: Role::Standby,
            eligible,
            healthy: false,
            clash: false,
            asked: now,
            request: None,
            fresh: Vec::new(),
        };
        let (state, notifier, changed) = (Mutex::new(state), Event::new(), Box::new(changed));
        let (over, end) = flume::bounded(0);
        let pair = Arc::new(Pair { spec, instance, state, notifier, end, changed });
        let weak = Arc::downgrade(&pair);
        run(Box::new(move || {
            lunar_runtime::spawn(heartbeat::listen(weak.clone()));
            lunar_runtime::spawn(controller::run(weak, before, over));
        }));
        pair
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A receiver that is closed at the end of the pair.
    pub fn end(&self) -> PairEnd {
        self.end.clone()
    }

    /// The configuration.
    pub fn spec(&self) -> &PairSpec {
        &self.spec
    }

    /// Adds a logical unit to the pair.
    pub fn add_lu(&self, remote: &Arc<UpstreamLu>) {
        self.state().fresh.push(Arc::downgrade(remote));
        self.notifier.notify(usize::MAX);
    }

    /// Submits a request to the controller.
    pub fn request(&self, request: FailoverRequest) {
        let mut state = self.state();
        match request {
            FailoverRequest::Eligible => state.eligible = true,
            FailoverRequest::Ineligible => state.eligible = false,
            FailoverRequest::Failover => {}
        }
        state.request = Some(request);
        drop(state);
        self.notifier.notify(usize::MAX);
    }

    /// The current status.
    pub fn status(&self) -> PairStatus {
        let state = self.state();
        let peer = state.history.view(Instant::now()).heard();
        PairStatus { role: state.role, eligible: state.eligible, preferred: self.spec.preferred, peer }
    }

    /// Whether the peer would serve if this router did not.
    pub fn can_hand_over(&self) -> bool {
        self.state().history.view(Instant::now()).can_hand_over()
    }

    /// The response to a status request of the peer.
    pub fn answer(&self) -> String {
        let now = Instant::now();
        let mut state = self.state();
        state.asked = now;
        let role = match state.role {
            // The peer must not take over before this router has finished yielding.
            Role::Yielding => Role::Active,
            Role::Standby if state.history.is_yielding(now) => Role::Yielding,
            role => role,
        };
        let PairSpec { preferred, key, .. } = self.spec;
        PeerStatus { role, eligible: state.eligible, preferred, healthy: state.healthy, key }.encode()
    }

    /// The ALUA state of a logical unit through this router.
    pub fn access(&self, is_open: bool) -> AccessState {
        match self.state().role {
            Role::Active if is_open => AccessState::Optimized,
            Role::Active | Role::Taking | Role::Yielding => AccessState::Transitioning,
            Role::Standby => AccessState::Standby,
        }
    }

    /// The ALUA state through the peer, and whether that is the preferred path.
    pub fn peer_access(&self) -> (AccessState, bool) {
        let Some(peer) = self.state().history.view(Instant::now()).heard() else {
            return (AccessState::Unavailable, !self.spec.preferred);
        };
        let access = match peer.role {
            Role::Active => AccessState::Optimized,
            Role::Taking => AccessState::Transitioning,
            Role::Standby | Role::Yielding => AccessState::Standby,
        };
        (access, peer.preferred)
    }

    fn heard(&self, status: PeerStatus) {
        let mut state = self.state();
        // Keys at NVMe storage begin with the prefix.
        let clash = term::prefix_of(status.key) == term::prefix_of(self.spec.key);
        if clash && !state.clash {
            tracing::error!(
                name: "pair.error",
                router = self.spec.router,
                "the peer {} has the same reservation key; hint: set another `key` in [router.NAME.failover] of one \
                 router",
                self.spec.peer
            );
        }
        state.clash = clash;
        state.history.heard(status, Instant::now());
    }

    /// The current view, including the fields that describe this router.
    fn view(&self, state: &State) -> PairView {
        let view = state.history.view(Instant::now());
        let own = self.spec.preferred;
        // If the configurations are ambiguous, the keys decide.
        let preferred = match view.heard() {
            Some(peer) if peer.preferred == own => self.spec.key > peer.key,
            _ => own,
        };
        PairView {
            is_active: state.role == Role::Active,
            eligible: state.eligible && !state.clash,
            preferred,
            has_hosts: self.instance.logins_active.load(Relaxed) > 0,
            ..view
        }
    }

    /// Whether the peer sends no requests: then only the storage can show it that this router is alive.
    fn is_unasked(&self) -> bool {
        self.state().asked.elapsed() >= UNASKED
    }

    fn set_role(&self, role: Role) {
        let before = std::mem::replace(&mut self.state().role, role);
        if before != role {
            tracing::info!(
                name: "pair.role",
                router = self.spec.router,
                role = role.name(),
                "this router is {} in its failover pair",
                role.description()
            );
            (self.changed)();
        }
    }

    fn listen(&self) -> EventListener {
        self.notifier.listen()
    }
}

/// Yields the active role of all these pairs and waits for it, so that their peers can take over at once.
pub fn leave(pairs: &[Arc<Pair>]) {
    let held: Vec<&Arc<Pair>> = pairs.iter().filter(|pair| pair.status().role != Role::Standby).collect();
    held.iter().for_each(|pair| pair.request(FailoverRequest::Ineligible));
    for pair in held {
        let late = Instant::now() + pair.spec.path_loss_timeout + DEAD;
        while pair.status().role != Role::Standby && Instant::now() < late {
            std::thread::sleep(Duration::from_millis(10));
        }
        // The peer sees it with its next status request.
        let (given, soon) = (Instant::now(), Instant::now() + UNASKED);
        while pair.state().asked < given && pair.status().peer.is_some() && Instant::now() < soon {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(test)]
mod tests;

//! Failover pairs: two routers in front of the same storage, of which one is active.
//!
//! The storage decides which router is active: that router holds a persistent reservation on every logical unit
//! ([`fence`]), and an [`IoGate`] stops the commands of the other one. [`machine`] decides when to take the reservation,
//! from the state of the storage and the peer's heartbeats ([`heartbeat`]), both recorded in [`history`]. Heartbeats only
//! inform this decision; the reservation enforces it.

mod controller;
mod fence;
mod gate;
mod heartbeat;
mod history;
mod machine;
mod owner;

pub use gate::{IoGate, IoPermit};
pub use machine::{PeerStatus, Role};

use crate::upstream::UpstreamLu;
use event_listener::{Event as Notifier, EventListener};
use history::PeerHistory;
use lunar_initiator::Portal;
use lunar_scsi::AccessState;
use lunar_target::Instance;
use machine::{DEAD, PairView};
use std::convert::Infallible;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The key of text requests that asks an instance what it is.
pub const KEY: &str = "X-org.lunar.pair";

/// After this time without a heartbeat of the peer, this router shows at the storage that it is alive.
const UNASKED: Duration = Duration::from_secs(1);

/// Closed when a pair is over, and has given back what it held.
pub type PairEnd = flume::Receiver<Infallible>;

/// The configuration of a pair, on one of its routers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairSpec {
    /// The routing instance, which has the same name on both.
    pub router: String,
    /// A portal of the peer.
    pub peer: Portal,
    /// The peer's portal group tag.
    pub group: u16,
    /// This router serves while both can.
    pub preferred: bool,
    /// Its reservation key, which the peer must not have.
    pub key: u64,
    /// Unique to this router, and the same after a restart.
    pub seed: String,
    /// The name under which the reservations are held; None: that of the upstream's sessions.
    pub initiator: Option<String>,
    /// Time limit for commands in flight when it gives up the active role.
    pub path_loss_timeout: Duration,
}

/// A request of the administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailoverRequest {
    /// Change places.
    Failover,
    /// It may become active.
    Eligible,
    /// It does not become active, and gives up its place.
    Ineligible,
}

/// The status of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairStatus {
    /// What this router is.
    pub role: Role,
    /// It may become active.
    pub eligible: bool,
    /// It serves while both can.
    pub preferred: bool,
    /// What the peer is; None when it does not answer.
    pub peer: Option<PeerStatus>,
}

/// One router's part of a pair.
pub struct Pair {
    spec: PairSpec,
    instance: Arc<Instance>,
    state: Mutex<State>,
    /// Rings when there is something to do before the next look.
    notifier: Notifier,
    end: PairEnd,
    /// Called when the state that hosts see may have changed.
    changed: Box<dyn Fn() + Send + Sync>,
}

struct State {
    history: PeerHistory,
    role: Role,
    eligible: bool,
    healthy: bool,
    /// Both have the same reservation key, so neither would exclude the other.
    clash: bool,
    asked: Instant,
    request: Option<FailoverRequest>,
    fresh: Vec<Weak<UpstreamLu>>,
}

impl Pair {
    /// Starts as standby, `eligible` or not, after the end of the pair `before`. Call it inside an event loop. When dropped,
    /// it ends and releases its reservations.
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
        let (state, notifier, changed) = (Mutex::new(state), Notifier::new(), Box::new(changed));
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

    /// When it is over.
    pub fn end(&self) -> PairEnd {
        self.end.clone()
    }

    /// How it was started.
    pub fn spec(&self) -> &PairSpec {
        &self.spec
    }

    /// Adds a logical unit to the pair.
    pub fn add_lu(&self, remote: &Arc<UpstreamLu>) {
        self.state().fresh.push(Arc::downgrade(remote));
        self.notifier.notify(usize::MAX);
    }

    /// Queues a request for the controller.
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

    /// How it is.
    pub fn status(&self) -> PairStatus {
        let state = self.state();
        let peer = state.history.view(Instant::now()).heard();
        PairStatus { role: state.role, eligible: state.eligible, preferred: self.spec.preferred, peer }
    }

    /// The peer would serve if this one did not.
    pub fn can_hand_over(&self) -> bool {
        self.state().history.view(Instant::now()).can_hand_over()
    }

    /// The response to a heartbeat of the peer.
    pub fn answer(&self) -> String {
        let now = Instant::now();
        let mut state = self.state();
        state.asked = now;
        let role = match state.role {
            // The peer must not take over before the end.
            Role::Yielding => Role::Active,
            Role::Standby if state.history.is_yielding(now) => Role::Yielding,
            role => role,
        };
        let PairSpec { preferred, key, .. } = self.spec;
        PeerStatus { role, eligible: state.eligible, preferred, healthy: state.healthy, key }.encode()
    }

    /// How hosts may use a logical unit through this router.
    pub fn access(&self, is_open: bool) -> AccessState {
        match self.state().role {
            Role::Active if is_open => AccessState::Optimized,
            Role::Active | Role::Taking | Role::Yielding => AccessState::Transitioning,
            Role::Standby => AccessState::Standby,
        }
    }

    /// How they may through the peer, and whether it is the preferred one.
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
        let clash = status.key == self.spec.key;
        if clash && !state.clash {
            tracing::error!(
                router = self.spec.router,
                "the peer {} has the same reservation key; hint: set another `key` in [router.NAME.failover] of one router",
                self.spec.peer
            );
        }
        state.clash = clash;
        state.history.heard(status, Instant::now());
    }

    /// What is seen now, with what the router knows of itself.
    fn view(&self, state: &State) -> PairView {
        let view = state.history.view(Instant::now());
        let own = self.spec.preferred;
        // Where the configurations leave it open, the keys decide.
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

    /// The peer sends no heartbeats: only the storage can show it that this router is alive.
    fn is_unasked(&self) -> bool {
        self.state().asked.elapsed() >= UNASKED
    }

    fn is(&self, role: Role) {
        let before = std::mem::replace(&mut self.state().role, role);
        if before != role {
            tracing::info!(router = self.spec.router, "this router is {} in its pair", role.name());
            (self.changed)();
        }
    }

    fn listen(&self) -> EventListener {
        self.notifier.listen()
    }
}

/// Gives up the active role of all these routers and waits for that, so that their peers can take over at once.
pub fn leave(pairs: &[Arc<Pair>]) {
    let held: Vec<&Arc<Pair>> = pairs.iter().filter(|pair| pair.status().role != Role::Standby).collect();
    held.iter().for_each(|pair| pair.request(FailoverRequest::Ineligible));
    for pair in held {
        let late = Instant::now() + pair.spec.path_loss_timeout + DEAD;
        while pair.status().role != Role::Standby && Instant::now() < late {
            std::thread::sleep(Duration::from_millis(10));
        }
        // The peer hears of it when it asks the next time.
        let (given, soon) = (Instant::now(), Instant::now() + UNASKED);
        while pair.state().asked < given && pair.status().peer.is_some() && Instant::now() < soon {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(test)]
mod tests;

//! Observations of the peer and of the storage, with their times.

use super::machine::{Holder, PairView, PeerStatus, Role};
use std::time::{Duration, Instant};

/// The time for which a router that yielded leaves the active role to its peer.
const YIELDING: Duration = Duration::from_secs(10);
/// After this time without access to the storage, a router counts itself as cut off. It is longer than one failed
/// probe.
const BLIND: Duration = Duration::from_secs(6);
/// For this time after a takeover, a status of the peer may be older than the takeover.
const STALE: Duration = Duration::from_secs(1);

/// The observations so far.
#[derive(Clone, Debug)]
pub struct PeerHistory {
    heard: Option<PeerStatus>,
    heard_at: Instant,
    /// The time since which the peer reports that it does not serve.
    idle: Option<Instant>,
    holder: Holder,
    /// The time since which the storage has been reachable, ignoring short gaps, and the time of the last success.
    seen: Option<(Instant, Instant)>,
    /// The time since which the storage is unreachable.
    blind: Option<Instant>,
    free: Option<Instant>,
    /// The sum of all PRGENERATION values. It grows with each change of a reservation.
    generation: Option<u64>,
    moved: Instant,
    was_fenced: bool,
    fenced: Option<Instant>,
    yielded: Option<Instant>,
}

impl PeerHistory {
    /// A history without observations.
    pub fn new(now: Instant) -> PeerHistory {
        PeerHistory {
            heard: None,
            heard_at: now,
            idle: None,
            holder: Holder::Unknown,
            seen: None,
            blind: None,
            free: None,
            generation: None,
            moved: now,
            was_fenced: false,
            fenced: None,
            yielded: None,
        }
    }

    /// Records a status of the peer.
    pub fn heard(&mut self, mut status: PeerStatus, now: Instant) {
        if self.fenced.is_some_and(|at| now.saturating_duration_since(at) < STALE) {
            status.role = Role::Active;
        }
        let is_idle = matches!(status.role, Role::Standby | Role::Yielding);
        if status.role == Role::Active {
            // The peer has taken the active role that this router yielded.
            self.yielded = None;
        }
        self.idle = self.idle.filter(|_| is_idle).or(is_idle.then_some(now));
        (self.heard, self.heard_at, self.was_fenced) = (Some(status), now, false);
    }

    /// Records a probe of the storage. `generation` is the sum for all logical units.
    pub fn saw(&mut self, holder: Holder, generation: u64, now: Instant) {
        let is_free = holder == Holder::Nobody;
        self.free = self.free.filter(|_| is_free).or(is_free.then_some(now));
        self.holder = holder;
        let is_seen = holder != Holder::Unknown;
        self.blind = self.blind.filter(|_| !is_seen).or((!is_seen).then_some(now));
        if is_seen {
            let goes_on = |(_, last): &(Instant, Instant)| now.saturating_duration_since(*last) < BLIND;
            self.seen = Some((self.seen.filter(goes_on).map_or(now, |(since, _)| since), now));
        }
        if is_seen && self.generation != Some(generation) {
            (self.generation, self.moved) = (Some(generation), now);
        }
    }

    /// Records that this router was preempted: the peer serves, whatever it reported before.
    pub fn fenced(&mut self, now: Instant) {
        (self.was_fenced, self.fenced, self.idle) = (true, Some(now), None);
        if let Some(status) = &mut self.heard {
            status.role = Role::Active;
        }
    }

    /// Records that this router gave up the active role on request.
    pub fn yielded(&mut self, now: Instant) {
        self.yielded = Some(now);
    }

    /// Records that this router may become active again.
    pub fn wanted(&mut self) {
        self.yielded = None;
    }

    /// Whether this router gave up the active role recently.
    pub fn is_yielding(&self, now: Instant) -> bool {
        self.yielded.is_some_and(|at| now.saturating_duration_since(at) < YIELDING)
    }

    /// The current view, without the fields that describe this router itself.
    pub fn view(&self, now: Instant) -> PairView {
        let since = |at: Option<Instant>| at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        PairView {
            yielded: self.is_yielding(now),
            was_fenced: self.was_fenced,
            holder: self.holder,
            seen: since(self.seen.map(|(since, _)| since)),
            blind: since(self.blind),
            free: since(self.free),
            still: since(Some(self.moved)),
            peer: self.heard,
            silent: since(Some(self.heard_at)),
            idle: since(self.idle),
            ..PairView::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::Decision;
    use super::*;

    fn peer_status(role: Role) -> PeerStatus {
        PeerStatus { role, eligible: true, preferred: false, healthy: true, key: 2 }
    }

    fn decide(history: &PeerHistory, now: Instant) -> Decision {
        PairView { eligible: true, has_hosts: true, ..history.view(now) }.decide()
    }

    /// If neither router reaches the storage, a change of roles does not help: both wait.
    #[test]
    fn active_router_yields_only_to_a_seeing_peer() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let decide = |history: &PeerHistory, now| PairView { is_active: true, ..history.view(now) }.decide();
        for peer_sees in [true, false] {
            let mut history = PeerHistory::new(start);
            history.heard(peer_status(Role::Standby), at(0));
            history.saw(Holder::Ours, 1, at(0));
            history.saw(Holder::Unknown, 1, at(100));
            assert_eq!(decide(&history, at(200)), Decision::Stay, "the peer may not have probed yet");
            history.heard(PeerStatus { healthy: peer_sees, ..peer_status(Role::Standby) }, at(3000));
            history.saw(Holder::Unknown, 1, at(3000));
            let decision = if peer_sees { Decision::Yield } else { Decision::Stay };
            assert_eq!(decide(&history, at(3200)), decision);
            history.saw(Holder::Ours, 1, at(3300));
            history.saw(Holder::Unknown, 1, at(3400));
            assert_eq!(decide(&history, at(3500)), Decision::Stay, "the storage was reachable in between");
        }
    }

    #[test]
    fn peer_status_before_its_takeover_is_void() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut history = PeerHistory::new(start);
        history.heard(peer_status(Role::Yielding), at(0));
        history.saw(Holder::Other, 1, at(10));
        assert_eq!(decide(&history, at(10)), Decision::Seize);
        history.fenced(at(10));
        assert_eq!(decide(&history, at(10)), Decision::Stay);
        // A status from before the takeover that arrives late.
        history.heard(peer_status(Role::Yielding), at(20));
        assert_eq!(decide(&history, at(20)), Decision::Stay);
        history.heard(peer_status(Role::Yielding), at(2000));
        assert_eq!(decide(&history, at(2000)), Decision::Seize);
    }

    #[test]
    fn own_outage_does_not_count_as_silence_of_the_peer() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut history = PeerHistory::new(start);
        history.heard(peer_status(Role::Standby), at(0));
        history.saw(Holder::Unknown, 0, at(1));
        history.saw(Holder::Other, 7, at(20));
        assert_eq!(decide(&history, at(20)), Decision::Stay);
        for second in 20..30 {
            history.saw(Holder::Other, second, at(second));
            assert_eq!(decide(&history, at(second)), Decision::Stay, "{second}");
        }
        assert_eq!(decide(&history, at(30)), Decision::Seize, "hosts may not reach the peer either");
        // A single failed probe does not count.
        history.saw(Holder::Unknown, 0, at(31));
        assert_eq!(decide(&history, at(31)), Decision::Stay);
        history.saw(Holder::Other, 31, at(34));
        assert_eq!(decide(&history, at(34)), Decision::Seize);
    }

    #[test]
    fn yielded_role_is_not_retaken_until_taken() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut history = PeerHistory::new(start);
        history.yielded(start);
        history.heard(peer_status(Role::Standby), at(4));
        history.saw(Holder::Nobody, 1, at(0));
        assert_eq!(decide(&history, at(4)), Decision::Stay);
        history.heard(peer_status(Role::Active), at(5));
        assert!(!history.is_yielding(at(5)));
    }
}

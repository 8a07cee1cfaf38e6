use super::*;

const S: fn(u64) -> Duration = Duration::from_secs;
const LONG: Duration = Duration::from_secs(3600);

fn peer_status(role: Role) -> Option<PeerStatus> {
    Some(PeerStatus { role, eligible: true, preferred: false, healthy: true, key: 2 })
}

/// A view on standby, eligible, with nothing new from the storage or the peer for an hour.
fn view(holder: Holder) -> PairView {
    let (seen, blind, free, still) = (LONG, LONG, LONG, LONG);
    PairView {
        eligible: true,
        holder,
        seen,
        blind,
        free,
        still,
        silent: LONG,
        idle: LONG,
        ..PairView::default()
    }
}

/// The same with a recent status of the peer.
fn beside(holder: Holder, role: Role) -> PairView {
    PairView { peer: peer_status(role), silent: S(0), ..view(holder) }
}

#[test]
fn free_disk_goes_to_preferred_router_or_after_grace() {
    use Holder::Nobody;
    let young = |v: PairView| PairView { free: S(1), ..v };
    let preferred = |v: PairView| PairView { preferred: true, ..v };
    let sick = |v: PairView| PairView { peer: v.peer.map(|p| PeerStatus { healthy: false, ..p }), ..v };
    let held = |v: PairView| PairView { peer: v.peer.map(|p| PeerStatus { eligible: false, ..p }), ..v };
    for (view, is) in [
        (young(view(Nobody)), Stay),
        (view(Nobody), Take),
        (preferred(young(view(Nobody))), Take),
        (young(beside(Nobody, Role::Standby)), Stay),
        (sick(young(beside(Nobody, Role::Standby))), Take),
        (held(young(beside(Nobody, Role::Standby))), Take),
        (preferred(young(beside(Nobody, Role::Standby))), Take),
        (beside(Nobody, Role::Standby), Take),
        (young(beside(Nobody, Role::Yielding)), Take),
        (preferred(young(beside(Nobody, Role::Active))), Stay),
        (preferred(young(beside(Nobody, Role::Taking))), Stay),
        (beside(Nobody, Role::Active), Take),
    ] {
        assert_eq!(view.decide(), is, "{view:?}");
    }
}

#[test]
fn peer_reservation_is_taken_only_if_yielded_or_gone() {
    use Holder::Other;
    let silent = |s, still| PairView { silent: S(s), still: S(still), ..view(Other) };
    let fenced = |v: PairView| PairView { was_fenced: true, ..v };
    let hosts = |v: PairView| PairView { has_hosts: true, ..v };
    for (view, is) in [
        (beside(Other, Role::Active), Stay),
        (beside(Other, Role::Taking), Stay),
        (beside(Other, Role::Yielding), Seize),
        (beside(Other, Role::Standby), Seize),
        (PairView { idle: S(2), ..beside(Other, Role::Standby) }, Stay),
        (silent(2, 60), Stay),
        (silent(4, 4), Seize),
        (PairView { seen: S(2), ..silent(60, 60) }, Stay),
        (hosts(PairView { seen: S(9), ..silent(60, 1) }), Stay),
        (silent(4, 2), Stay),
        (hosts(silent(9, 1)), Stay),
        (hosts(silent(11, 1)), Seize),
        (silent(11, 1), Stay),
        (fenced(silent(4, 4)), Stay),
        (fenced(silent(4, 6)), Seize),
        (fenced(hosts(silent(60, 1))), Stay),
    ] {
        assert_eq!(view.decide(), is, "{view:?}");
    }
}

#[test]
fn own_reservation_is_retaken_only_if_eligible_and_seeing() {
    assert_eq!(view(Holder::Ours).decide(), Take);
    assert_eq!(PairView { eligible: false, ..view(Holder::Ours) }.decide(), Stay);
    assert_eq!(view(Holder::Unknown).decide(), Stay);
}

#[test]
fn yielded_router_waits_only_for_an_able_peer() {
    let yielded = |v: PairView| PairView { yielded: true, ..v };
    assert_eq!(yielded(beside(Holder::Nobody, Role::Standby)).decide(), Stay);
    assert_eq!(yielded(beside(Holder::Other, Role::Standby)).decide(), Stay);
    assert_eq!(yielded(view(Holder::Nobody)).decide(), Take);
}

#[test]
fn active_router_yields_only_if_blind_and_peer_sees() {
    let active = |v: PairView| PairView { is_active: true, ..v };
    for holder in [Holder::Ours, Holder::Nobody, Holder::Other] {
        assert_eq!(active(beside(holder, Role::Standby)).decide(), Stay);
    }
    assert_eq!(active(beside(Holder::Unknown, Role::Standby)).decide(), Yield);
    assert_eq!(active(view(Holder::Unknown)).decide(), Stay);
}

#[test]
fn heartbeat_comes_back_as_it_was_and_others_are_refused() {
    for (role, name) in ROLES {
        for bits in 0..8 {
            let is = |bit: u8| bits & bit != 0;
            let one = PeerStatus { role, eligible: is(1), preferred: is(2), healthy: is(4), key: 0xabc };
            assert!(one.encode().starts_with(name));
            assert_eq!(PeerStatus::decode(&one.encode()), Some(one));
        }
    }
    let good = "active,eligible,-,healthy,0000000000000abc";
    assert!(PeerStatus::decode(good).is_some() && PeerStatus::decode(&format!("{good},more")).is_some());
    for cut in 0..good.len() {
        assert_eq!(PeerStatus::decode(&good[..cut]), None, "{}", &good[..cut]);
    }
    for bad in ["", "NotUnderstood", "active,held,-,well,0", "active,held,-,sick,+000000000000abc"] {
        assert_eq!(PeerStatus::decode(bad), None, "{bad}");
    }
}

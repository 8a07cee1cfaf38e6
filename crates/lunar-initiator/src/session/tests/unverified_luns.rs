//! Commands to logical units whose identity must be checked first.

use super::*;

const FIRST: u64 = 1 << 48;
const SECOND: u64 = 2 << 48;

fn read_of(peer: &mut Peer, lun: u64) -> u32 {
    let command = Command::new(lun, cdb::read_10(0, 1), Direction::In(Buf::zeroed(512)));
    peer.state.submit(command, Waiter::Unknown).expect("room")
}

fn tags(peer: &mut Peer) -> Vec<u32> {
    peer.sent().iter().map(|(h, _)| h.itt()).collect()
}

fn verify_first(peer: &mut Peer, lun: u64) -> u32 {
    peer.state.unverified.add(lun, Instant::now()).expect("a new check")
}

#[test]
fn they_wait_apart_and_go_in_their_order() {
    let mut peer = Peer::new(parameters());
    verify_first(&mut peer, FIRST);
    let first = [read_of(&mut peer, FIRST), read_of(&mut peer, FIRST)];
    let second = read_of(&mut peer, SECOND);
    assert_eq!(tags(&mut peer), [second]);
    peer.state.release(FIRST);
    assert_eq!(tags(&mut peer), first);
}

/// Resent commands precede commands that were never sent, on the same connection and on the next.
#[test]
fn resent_commands_go_before_queued_ones() {
    for is_lost in [false, true] {
        let mut peer = Peer::new(parameters());
        let sent = read_of(&mut peer, FIRST);
        peer.sent();
        verify_first(&mut peer, FIRST);
        let waits = read_of(&mut peer, FIRST);
        if is_lost {
            peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
            peer.log_in(parameters());
        } else {
            peer.state.ended_by_abort([sent], "a reset");
        }
        assert!(peer.sent().is_empty());
        peer.state.release(FIRST);
        assert_eq!(tags(&mut peer), [sent, waits], "lost: {is_lost}");
    }
}

#[test]
fn those_that_have_ended_meanwhile_are_not_sent() {
    let mut peer = Peer::new(parameters());
    verify_first(&mut peer, FIRST);
    let (ended, gone, waits) =
        (read_of(&mut peer, FIRST), read_of(&mut peer, FIRST), read_of(&mut peer, FIRST));
    peer.state.fail_queued(&Error::new(ErrorCode::TimedOut, "late"), |t| t.tag == ended);
    peer.state.tasks.abandon(gone);
    peer.state.release(FIRST);
    assert_eq!(tags(&mut peer), [waits]);
}

#[test]
fn one_check_at_a_time_is_that_of_its_connection() {
    let mut peer = Peer::new(parameters());
    let check = verify_first(&mut peer, FIRST);
    assert_eq!(peer.state.unverified.add(FIRST, Instant::now()), None, "a check is already running");
    assert!(peer.state.unverified.wants(FIRST, check));
    peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
    assert!(!peer.state.unverified.wants(FIRST, check));
    peer.log_in(parameters());
    let next = verify_first(&mut peer, FIRST);
    assert!(next != check && peer.state.unverified.wants(FIRST, next));
}

/// The time limit does not run without a connection, unless a check has already failed.
#[test]
fn time_runs_while_there_is_a_connection() {
    let s = Duration::from_secs;
    for (is_missed, late) in [(false, 0), (true, 1)] {
        let mut unverified = super::super::unverified_luns::UnverifiedLuns::default();
        let started_at = Instant::now();
        unverified.add(FIRST, started_at);
        assert!(unverified.late(started_at + s(9), s(10)).is_empty());
        if is_missed {
            assert!(!unverified.missed(FIRST, "it is not there".into()));
        }
        unverified.end_checks();
        assert!(
            unverified.late(started_at + s(60), s(10)).is_empty(),
            "the time limit does not run without a connection"
        );
        unverified.add(FIRST, started_at + s(60));
        assert_eq!(unverified.late(started_at + s(61), s(10)).len(), late);
        assert_eq!(unverified.late(started_at + s(70), s(10)).len(), 1);
        unverified.give_up(FIRST, Error::new(ErrorCode::TimedOut, "late"));
        assert!(unverified.late(started_at + s(80), s(10)).is_empty(), "each logical unit is reported once");
        assert!(unverified.obstacle(FIRST).is_some() && unverified.obstacle(SECOND).is_none());
    }
}

/// Also with a recovery timeout of zero, a check gets the minimum time to complete.
#[test]
fn check_without_a_result_is_given_its_time() {
    let mut peer = Peer::new(parameters());
    verify_first(&mut peer, FIRST);
    let (now, none) = (Instant::now(), Duration::ZERO);
    assert!(peer.state.unverified.late(now + Duration::from_secs(1), none).is_empty());
    assert_eq!(
        peer.state.unverified.late(now + Duration::from_secs(6), none).len(),
        1,
        "the check exceeds the minimum time"
    );
    peer.state.unverified.missed(FIRST, "it is not there".into());
    assert_eq!(peer.state.unverified.late(now + Duration::from_secs(1), none).len(), 1);
    assert!(peer.state.release(FIRST), "the logical unit was missing");
    verify_first(&mut peer, FIRST);
    assert!(!peer.state.release(FIRST), "the logical unit was not missing");
}

//! Writes whose connection is lost, and the proofs that the target no longer executes them.

use super::super::proof::Proof;
use super::*;
use crate::LateWrites;
use lunar_block::range_lock::{RangeAccess, RangeLocks};
use std::sync::Arc;

const LUN: u64 = 1 << 48;

fn lost(peer: &mut Peer) {
    peer.sent();
    peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
}

/// Logs in at a portal group.
fn log_in_at(peer: &mut Peer, group: u16) {
    (peer.exp_cmd_sn, peer.max_cmd_sn) = (1, 32);
    peer.state.port = Some(TargetPort::PortalGroup(group));
    peer.log_in(parameters());
}

fn at_group(group: u16) -> Peer {
    let mut peer = Peer::new(parameters());
    log_in_at(&mut peer, group);
    peer
}

fn once(peer: &mut Peer) -> u32 {
    peer.submit(cdb::compare_and_write(0, 1, false), Direction::Out(Buf::zeroed(1024)))
}

#[test]
fn write_waits_for_a_login_at_its_own_portal_group() {
    let mut peer = at_group(1);
    let (write, once) = (peer.write(512), once(&mut peer));
    lost(&mut peer);
    log_in_at(&mut peer, 2);
    assert!(peer.sent().is_empty() && peer.end(once).is_none(), "a login at another nexus proves nothing");
    lost(&mut peer);
    log_in_at(&mut peer, 1);
    assert_eq!(
        peer.end(once).expect("the command has ended").0.expect_err("unknown").code,
        ErrorCode::ConnectionLost
    );
    let sent: Vec<u32> = peer.sent().iter().map(|(h, _)| h.itt()).collect();
    assert_eq!(sent, [write], "the write is resent once");
}

#[test]
fn writes_that_waited_are_counted_by_their_end() {
    let mut peer = at_group(1);
    let (write, once) = (peer.write(512), once(&mut peer));
    lost(&mut peer);
    assert!(peer.state.has_waiting());
    log_in_at(&mut peer, 1);
    assert!(peer.end(once).is_some() && peer.state.has_waiting(), "the write is resent");
    peer.sent();
    let good = Completion {
        status: 0,
        sense: Box::default(),
        transferred: 512,
        overflow: 0,
        queued: Duration::ZERO,
    };
    peer.state.finish(write, Ok(good));
    assert!(!peer.state.has_waiting());
    assert_eq!(peer.state.tasks.count_waited(), [1, 0, 1]);
    assert_eq!(peer.state.tasks.count_waited(), [0; 3], "each outcome is counted once");
}

#[test]
fn after_the_time_for_recovery_a_write_ends_with_the_login() {
    let mut peer = at_group(1);
    let write = peer.write(512);
    lost(&mut peer);
    peer.state.gave_up = true;
    peer.state.fail_queued(&Error::new(ErrorCode::TimedOut, "no connection"), |_| true);
    assert!(peer.end(write).is_none());
    log_in_at(&mut peer, 1);
    assert!(peer.sent().is_empty(), "nothing is resent after the recovery timeout");
    assert_eq!(
        peer.end(write).expect("the command has ended").0.expect_err("the connection is lost").code,
        ErrorCode::ConnectionLost
    );
}

#[test]
fn reset_ends_what_was_lost_before_it_was_sent() {
    let mut peer = at_group(1);
    let (write, other) = (once(&mut peer), once(&mut peer));
    peer.state.tasks.get(other).expect("the task exists").lun = 2 << 48;
    lost(&mut peer);
    let (_, started_at) = peer.state.orphans(Some(LUN)).expect("an orphan");
    peer.state.prove(Proof::Reset(Some(LUN), started_at - Duration::from_millis(1)));
    assert!(peer.end(write).is_none(), "the command may have arrived after the reset");
    peer.state.prove(Proof::Reset(Some(LUN), started_at));
    assert!(peer.end(write).expect("the command has ended").0.is_err());
    assert!(peer.end(other).is_none(), "the reset was for another logical unit");
    peer.state.prove(Proof::Reset(None, Instant::now()));
    assert!(peer.end(other).is_some() && peer.state.orphans(None).is_none());
}

#[test]
fn late_or_abandoned_write_holds_its_range() {
    let ranges = Arc::new(RangeLocks::default());
    for unwanted in [
        (|p, tag| p.state.expire(tag, Error::new(ErrorCode::TimedOut, "late"))) as fn(&mut Peer, u32),
        |p, tag| p.state.tasks.abandon(tag),
        |p, tag| assert!(p.state.abort(tag, &Error::new(ErrorCode::Aborted, "on demand")).is_none()),
    ] {
        let mut peer = at_group(1);
        let mut command = Command::new(LUN, cdb::write_10(0, 1, false), Direction::Out(Buf::zeroed(512)));
        command.hold = ranges.try_lock(&(0..512), RangeAccess::Shared);
        let tag = peer.state.submit(command, Waiter::Unknown).expect("room");
        lost(&mut peer);
        unwanted(&mut peer, tag);
        assert!(ranges.try_lock(&(0..512), RangeAccess::Shared).is_none(), "newer writes must wait");
        peer.state.tasks.forget_abandoned();
        assert_eq!(peer.state.tasks.count(), 1);
        log_in_at(&mut peer, 1);
        assert!(peer.sent().is_empty() && peer.end(tag).is_none_or(|(result, _)| result.is_err()));
        assert!(ranges.try_lock(&(0..512), RangeAccess::Shared).is_some());
        assert_eq!(peer.state.tasks.count(), 0);
    }
}

#[test]
fn write_that_is_late_on_its_connection_waits_for_its_end() {
    let mut peer = at_group(1);
    let (write, read) = (peer.write(512), peer.read(512));
    peer.sent();
    for tag in [write, read] {
        peer.state.expire(tag, Error::new(ErrorCode::TimedOut, "late"));
    }
    assert!(peer.end(write).is_none());
    assert_eq!(
        peer.end(read).expect("the command has ended").0.expect_err("the command has timed out").code,
        ErrorCode::TimedOut
    );
    peer.state.ended_by_abort([write], "aborted");
    assert_eq!(
        peer.end(write).expect("the command has ended").0.expect_err("the command has timed out").code,
        ErrorCode::TimedOut
    );
}

#[test]
fn reads_and_what_takes_the_risk_do_not_wait() {
    let mut peer = at_group(1);
    let read = peer.submit(cdb::read_10(0, 1), Direction::In(Buf::zeroed(512)));
    peer.state.tasks.get(read).expect("the task exists").repeatable = false;
    lost(&mut peer);
    assert!(peer.end(read).is_some());
    let mut peer = at_group(1);
    peer.state.late_writes = LateWrites::Risk;
    let (write, once) = (peer.write(512), once(&mut peer));
    lost(&mut peer);
    assert!(peer.end(once).is_some() && peer.end(write).is_none());
    peer.state.fail_queued(&Error::new(ErrorCode::TimedOut, "no connection"), |_| true);
    assert!(peer.end(write).is_some());
}

#[test]
fn after_a_logout_in_order_nothing_waits() {
    let mut peer = at_group(1);
    let once = once(&mut peer);
    peer.state.connection.end_logout(true);
    lost(&mut peer);
    assert!(peer.end(once).is_some() && peer.state.orphans(None).is_none());
    log_in_at(&mut peer, 1);
    assert!(!peer.state.connection.is_logged_out(), "the logout applies to one connection");
}

#[test]
fn portal_of_no_group_proves_nothing_for_another_one() {
    let portal = |n: u8| Some(TargetPort::Portal(([192, 0, 2, n], 3260).into()));
    let mut peer = Peer::new(parameters());
    let log_in = |peer: &mut Peer, port: Option<TargetPort>| {
        (peer.exp_cmd_sn, peer.max_cmd_sn) = (1, 32);
        peer.state.port = port;
        peer.log_in(parameters());
    };
    for (lost_at, proofs) in [(None, vec![]), (portal(1), vec![portal(1)])] {
        log_in(&mut peer, lost_at);
        let write = once(&mut peer);
        lost(&mut peer);
        for other in [None, portal(2), Some(TargetPort::PortalGroup(1))] {
            log_in(&mut peer, other);
            assert!(peer.end(write).is_none(), "{lost_at:?}: {other:?} may be another nexus");
            lost(&mut peer);
        }
        for port in proofs {
            log_in(&mut peer, port);
            assert_eq!(
                peer.end(write).expect("the command has ended").0.expect_err("unknown").code,
                ErrorCode::ConnectionLost
            );
        }
    }
}

//! Resent commands, and invalid responses.

use super::*;

/// A session with at most `limit` commands in flight.
fn narrow(limit: u16) -> Peer {
    let mut peer = Peer::new(parameters());
    peer.state = SessionState::new(limit, Instant::now);
    peer.state.port = Some(TargetPort::PortalGroup(1));
    peer.log_in(parameters());
    peer
}

fn tags(peer: &mut Peer) -> Vec<u32> {
    peer.sent().iter().map(|(h, _)| h.itt()).collect()
}

#[test]
fn command_queued_behind_an_aborted_one_is_sent() {
    let mut peer = narrow(1);
    let once = peer.submit(cdb::compare_and_write(0, 1, false), Direction::Out(Buf::zeroed(1024)));
    let read = peer.read(512);
    assert_eq!(tags(&mut peer)[0], once);
    peer.state.ended_by_abort([once], "late");
    assert_eq!(
        peer.end(once).expect("the command has ended").0.expect_err("the command has timed out").code,
        ErrorCode::TimedOut
    );
    assert_eq!(tags(&mut peer), [read]);
}

#[test]
fn command_that_a_reset_ends_keeps_the_hint() {
    let mut peer = narrow(1);
    let once = peer.submit(cdb::compare_and_write(0, 1, false), Direction::Out(Buf::zeroed(1024)));
    tags(&mut peer);
    let late = Error::new(ErrorCode::TimedOut, "late").with_hint("wait longer");
    peer.state.ended_by([once], &late);
    assert_eq!(
        peer.end(once).expect("the command has ended").0.expect_err("the command has timed out"),
        late
    );
}

#[test]
fn new_command_wakes_those_that_wait() {
    let mut peer = narrow(2);
    let reads: Vec<u32> = (0..3).map(|_| peer.read(512)).collect();
    assert_eq!(tags(&mut peer), reads[..2]);
    peer.state.finish(reads[0], Err(Error::new(ErrorCode::Aborted, "on demand")));
    peer.read(512);
    assert_eq!(tags(&mut peer), [reads[2]]);
}

#[test]
fn commands_ended_by_reset_are_resent_in_order_first() {
    let mut peer = narrow(4);
    peer.state.command_window.cmd_sn = u32::MAX;
    (peer.state.command_window.exp_cmd_sn, peer.state.command_window.max_cmd_sn) = (u32::MAX, 32);
    let first = peer.read(512);
    let reads: Vec<u32> = (0..5).map(|_| peer.read(512)).collect();
    assert_eq!(tags(&mut peer), [&[first], &reads[..3]].concat());
    // Its slot becomes free for a newer command.
    peer.state.finish(first, Err(Error::new(ErrorCode::Aborted, "on demand")));
    _ = peer.end(first);
    peer.state.pump();
    assert_eq!(tags(&mut peer), [reads[3]]);
    let young = peer.read(512);
    assert!(young & 0xffff == first & 0xffff && tags(&mut peer).is_empty());
    peer.state.ended_by_abort([reads[3], reads[1], reads[0], reads[2]], "a reset");
    assert_eq!(tags(&mut peer), reads[..4]);
    peer.state.ended_by_abort([reads[0]], "a reset");
    assert_eq!(tags(&mut peer), [reads[0]], "the other two stay queued behind it");
}

/// Otherwise the command would wait for a check that is queued behind it.
#[test]
fn resent_command_waits_for_the_identity_check() {
    let mut peer = narrow(1);
    let write = peer.write(512);
    assert_eq!(tags(&mut peer), [write]);
    peer.state.online = Online::Checking;
    let command = Command::new(1 << 48, cdb::inquiry(Some(0x83), 64), Direction::In(Buf::zeroed(64)));
    let check = peer.state.submit_urgently(command, Waiter::Unknown).expect("room");
    assert!(tags(&mut peer).is_empty());
    peer.state.ended_by_abort([write], "a reset");
    assert_eq!(tags(&mut peer), [check]);
}

/// The target has not received the command, so a response to it is a protocol violation.
#[test]
fn answer_to_what_was_not_sent_is_none() {
    type Answer = fn(&mut Peer, u32);
    let answers: [(&str, Answer); 3] = [
        ("a status", |p, tag| p.respond(tag, 0, 0, 0, &[])),
        ("a failure", |p, tag| p.say(pdu::scsi_response(tag, 0, 1, 0), &[], true)),
        ("a Reject", |p, tag| {
            let mut header = Bhs::new(opcode::SCSI_COMMAND);
            header.set_itt(tag);
            p.say(pdu::reject(0x09), header.as_bytes(), true);
        }),
    ];
    for (name, answer) in answers {
        let mut peer = narrow(1);
        let (_, waits) = (peer.write(512), peer.write(512));
        peer.sent();
        answer(&mut peer, waits);
        assert_eq!(peer.broken().code, ErrorCode::ProtocolError, "{name}");
        assert!(peer.end(waits).is_none(), "{name}: the unsent command may not complete");
        peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
        peer.log_in(parameters());
        assert_eq!(peer.sent().len(), 1, "{name}");
    }
}

#[test]
fn data_that_did_not_come_are_not_counted_whatever_the_status() {
    let sense = Sense::new(1, 0x18, 0).encode(false);
    for came in [0, 100, 512] {
        let mut peer = Peer::new(parameters());
        let tag = peer.read(512);
        peer.data_in(tag, 0, &vec![1; came], true, None);
        peer.respond(tag, 0, 2, 0, &sense);
        assert_eq!(peer.done(tag).0.transferred, came, "received bytes, without a residual count");
    }
    let mut peer = Peer::new(parameters());
    let tag = peer.read(512);
    peer.data_in(tag, 0, &[1; 512], true, None);
    peer.respond(tag, 0x02, 2, 412, &sense);
    assert_eq!(peer.done(tag).0.transferred, 100, "buffer length minus residual");
}

#[test]
fn target_that_sends_r2ts_and_reads_nothing_is_left() {
    let mut peer = Peer::new(parameters());
    let tag = peer.write(65536);
    let r2t = |n: u32, offset: u32| pdu::r2t(0, tag, 9, n, offset, 2048);
    for n in 0..32 {
        peer.say(r2t(n, n * 2048), &[], false);
    }
    assert!(peer.state.connection.fault().is_none(), "each range was requested once");
    peer.sent();
    for n in 32..320 {
        peer.say(r2t(n, 0), &[], false);
        peer.sent();
    }
    assert!(peer.state.connection.fault().is_none(), "the target may request data again if it reads them");
    let unread = (320..10_000).position(|n| {
        peer.say(r2t(n, 0), &[], false);
        peer.state.connection.fault().is_some()
    });
    assert!(unread.is_some_and(|n| n < 200) && peer.broken().code == ErrorCode::ProtocolError, "{unread:?}");
}

/// The future on another core is dropped.
#[test]
fn command_abandoned_on_another_core_is_never_sent() {
    let mut peer = narrow(1);
    let mut write = || {
        let (reply, answer) = flume::bounded(1);
        let command = Command::new(1 << 48, cdb::write_10(0, 1, false), Direction::Out(Buf::zeroed(512)));
        (peer.state.submit(command, Waiter::There(reply, 0)).expect("room"), answer)
    };
    let [(sent, one), (_, other), (wanted, third)] = [write(), write(), write()];
    assert_eq!(tags(&mut peer), [sent]);
    drop((one, other));
    assert!(
        peer.state.tasks.get(sent).is_some_and(|task| task.is_abandoned()),
        "the target may still execute the command"
    );
    peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
    peer.log_in(parameters());
    assert_eq!(tags(&mut peer), [wanted]);
    assert_eq!((peer.state.tasks.count(), third.is_disconnected()), (1, false));
    let (reply, _) = flume::bounded(1);
    if let Some(task) = peer.state.tasks.get(wanted) {
        task.waiter = Waiter::There(reply, 0);
    }
    peer.state.ended_by_abort([wanted], "a reset");
    assert!(tags(&mut peer).is_empty() && peer.state.tasks.count() == 0);
}

/// The error handler reset the logical unit for another command. This one has not timed out.
#[test]
fn write_ended_by_reset_while_data_leave_is_resent() {
    let mut peer = Peer::new(parameters());
    let tag = peer.write(1024);
    let Some(super::super::task::Data::Out(buf)) = peer.state.tasks.get(tag).map(|task| &task.data) else {
        panic!("not a write");
    };
    let leaves = buf.clone();
    assert_eq!(tags(&mut peer)[0], tag);
    peer.state.ended_by_abort([tag], "a reset");
    let again = peer.sent();
    assert_eq!((again[0].0.itt(), &again[0].1[..]), (tag, &leaves[..512]));
    peer.respond(tag, 0, 0, 0, &[]);
    assert_eq!(peer.done(tag).1.expect("its buffer")[..], leaves[..], "a copy with the same data");
}

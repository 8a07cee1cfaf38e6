//! PDUs sent around a logout.

use super::*;

fn inquiry() -> Command {
    Command::new(1 << 48, cdb::inquiry(Some(0x83), 64), Direction::In(Buf::zeroed(64)))
}

/// LGO-007: after the logout request, neither replies to the target nor requests of owners are sent.
#[test]
fn logout_request_is_the_last_pdu_sent() {
    let mut peer = Peer::new(parameters());
    let (read, write) = (peer.read(512), peer.write(4096));
    let logout = peer.state.log_out();
    let sent = peer.sent();
    let last = sent.last().expect("requests").0;
    assert_eq!(last.opcode(), opcode::LOGOUT);
    peer.say(pdu::nop_in(0, NONE, 5), &[], false);
    peer.say(pdu::r2t(1 << 48, write, 77, 0, 1024, 512), &[], false);
    peer.say(pdu::reject(0x09), sent[0].0.as_bytes(), true);
    peer.state.ping();
    peer.state.start_text(b"X-org.lunar.route=?\0".to_vec());
    peer.state.submit_urgently(inquiry(), Waiter::Unknown).expect("room");
    peer.read(512);
    assert!(peer.sent().is_empty() && peer.state.connection.fault().is_none());
    assert!(peer.end(read).is_some(), "the rejected command has ended");
    peer.say(pdu::logout_response(last.itt(), 0, 0, 0), &[], true);
    assert_eq!(logout.try_recv(), Ok(Ok(0)));
    peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "left"));
    peer.log_in(parameters());
    let codes: Vec<u8> = peer.sent().iter().map(|(h, _)| h.opcode()).collect();
    assert_eq!(
        codes[..2],
        [opcode::SCSI_COMMAND, opcode::DATA_OUT],
        "commands are sent on the next connection"
    );
}

/// ASY-004: an identity check is a new command too, and is not sent. It is valid on one connection only.
#[test]
fn target_that_wants_us_to_leave_is_not_looked_at() {
    let mut peer = Peer::new(parameters());
    peer.state.online = Online::Checking;
    peer.say(pdu::async_message(0, 1, [0, 0, 5]), &[], true);
    let check = peer.state.submit_urgently(inquiry(), Waiter::Unknown).expect("room");
    assert!(peer.sent().is_empty());
    peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "left"));
    peer.log_in(parameters());
    assert!(peer.sent().is_empty() && matches!(peer.end(check), Some((Err(_), _))));
}

/// ASY-004: a further message may shorten the time limit, but not extend it.
#[test]
fn shortest_time_that_the_target_gives_counts() {
    let mut peer = Peer::new(parameters());
    let now = peer.state.now;
    let mut by = |within_s| {
        peer.say(pdu::async_message(0, 1, [0, 0, within_s]), &[], true);
        peer.state.connection.logout_by().expect("a logout deadline") - now
    };
    assert_eq!([100, 2, 30].map(&mut by), [99_000, 1500, 1500].map(Duration::from_millis));
    peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "left"));
    peer.log_in(parameters());
    assert!(
        peer.state.connection.logout_by().is_none() && !peer.state.connection.is_logout_asked(),
        "a logout request applies to one connection"
    );
}

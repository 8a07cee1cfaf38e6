//! Requests of owners beside commands: text requests, aborts, and long CDBs.

use super::*;
use crate::command::MAX_CDB_LEN;
use crate::session::owner_requests::ReferencedTask;
use proptest::prelude::*;

fn text_response(itt: u32, flags: u8, ttt: u32) -> Bhs {
    let mut request = Bhs::new(opcode::TEXT);
    request.set_itt(itt);
    pdu::text_response(&request, flags, ttt)
}

/// TXT-001: a second text request waits for the response to the first.
#[test]
fn questions_are_asked_one_after_the_other() {
    let mut peer = Peer::new(parameters());
    let (a, b) = (peer.state.start_text(b"X-a=1\0".to_vec()), peer.state.start_text(b"X-b=1\0".to_vec()));
    let sent = peer.sent();
    let [(header, data)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((header.opcode(), header.immediate(), &data[..]), (opcode::TEXT, true, &b"X-a=1\0"[..]));
    // The response arrives in two PDUs.
    peer.say(text_response(header.itt(), 0x40, 5), b"X-a=", true);
    let (more, data) = peer.sent().remove(0);
    assert_eq!((more.itt(), more.ttt(), data.len()), (header.itt(), 5, 0));
    assert!(a.is_empty());
    peer.say(text_response(header.itt(), 0x80, NONE), b"2\0", true);
    assert_eq!(a.try_recv(), Ok(Ok(b"X-a=2\0".to_vec())));
    let (next, data) = peer.sent().remove(0);
    assert_eq!(data, b"X-b=1\0");
    assert_ne!(next.itt(), header.itt());
    peer.say(text_response(next.itt(), 0x80, NONE), b"", true);
    assert_eq!(b.try_recv(), Ok(Ok(vec![])));
    assert!(peer.state.connection.fault().is_none());
}

/// TXT-002: a text request longer than the target's MaxRecvDataSegmentLength.
#[test]
fn long_question_goes_in_pieces() {
    let mut peer = Peer::new(parameters());
    let question = [b"X-a=", &[b'a'; 600][..], b"\0"].concat();
    let answer = peer.state.start_text(question.clone());
    let (first, begun) = peer.sent().remove(0);
    assert!(first.continues() && !first.is_final() && begun.len() == 512);
    peer.say(text_response(first.itt(), 0, 9), b"", true);
    let (last, rest) = peer.sent().remove(0);
    assert!(last.is_final() && [begun, rest].concat() == question);
    peer.say(text_response(first.itt(), 0x80, NONE), b"X-a=1\0", true);
    assert_eq!(answer.try_recv(), Ok(Ok(b"X-a=1\0".to_vec())));
}

#[test]
fn text_refusal_differs_from_loss_and_violation() {
    for reason in [0x04, 0x05, 0x0b] {
        let mut peer = Peer::new(parameters());
        let (a, b) = (peer.state.start_text(b"X-a=1\0".to_vec()), peer.state.start_text(b"X-b=1\0".to_vec()));
        let (header, _) = peer.sent().remove(0);
        peer.say(pdu::reject(reason), header.as_bytes(), true);
        assert_eq!(a.try_recv().unwrap().unwrap_err().code, ErrorCode::Refused);
        assert!(peer.state.connection.fault().is_none());
        assert_eq!(peer.sent().len(), 1, "the next request is sent");
        peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
        assert_eq!(b.try_recv().unwrap().unwrap_err().code, ErrorCode::ConnectionLost);
    }
    for (itt, flags) in [(0x7777, 0x80), (0, 0xc0), (0, 0)] {
        let mut peer = Peer::new(parameters());
        let _answer = peer.state.start_text(b"X-a=1\0".to_vec());
        let (header, _) = peer.sent().remove(0);
        let itt = if itt == 0 { header.itt() } else { itt };
        peer.say(text_response(itt, flags, NONE), b"", true);
        assert_eq!(peer.broken().code, ErrorCode::ProtocolError);
    }
}

/// A caller that stops waiting does not disturb the connection. Its unsent requests are dropped.
#[test]
fn abandoned_text_request_does_not_delay_others() {
    let mut peer = Peer::new(parameters());
    drop(peer.state.start_text(b"X-a=1\0".to_vec()));
    drop(peer.state.start_text(b"X-b=1\0".to_vec()));
    let answer = peer.state.start_text(b"X-c=1\0".to_vec());
    let (header, _) = peer.sent().remove(0);
    peer.say(text_response(header.itt(), 0x80, NONE), b"X-a=2\0", true);
    let (header, data) = peer.sent().remove(0);
    assert_eq!(data, b"X-c=1\0");
    peer.say(text_response(header.itt(), 0x80, NONE), b"X-c=2\0", true);
    assert_eq!(answer.try_recv(), Ok(Ok(b"X-c=2\0".to_vec())));
}

/// RFC 7143 section 11.2.2.3 and FRM-007: an additional header segment is sent only for a long CDB.
#[test]
fn cdb_beyond_16_bytes_travels_in_an_ahs() {
    for (len, words) in [(1, 0), (16, 0), (17, 2), (20, 2), (32, 5), (259, 62), (MAX_CDB_LEN, 62)] {
        let mut peer = Peer::new(Parameters { header_digest: true, ..parameters() });
        let cdb: Vec<u8> = (0..len).map(|i| 0x7f ^ i as u8).collect();
        let command = Command::long(1 << 48, &cdb, Direction::Out(Buf::zeroed(600))).expect("a command");
        peer.state.submit(command, Waiter::Unknown).expect("room");
        let bytes = peer.state.connection.out().take_bytes();
        assert_eq!(bytes[4], words, "{len} bytes");
        let ahs = &bytes[48..48 + 4 * usize::from(words)];
        let rest = cdb.get(16..).unwrap_or_default();
        if words > 0 {
            assert_eq!(ahs[..4], [0, 1 + rest.len() as u8, 1, 0], "length and type");
            assert_eq!((&ahs[4..4 + rest.len()], ahs.len()), (rest, (4 + rest.len()).next_multiple_of(4)));
        }
        let first = cdb.len().min(16);
        assert_eq!(bytes[32..32 + first], cdb[..first]);
        assert!(bytes[32 + first..48].iter().all(|b| *b == 0), "followed by zeros");
        let end = 48 + ahs.len();
        let digest = lunar_runtime::iscsi::digest::crc32c(&[&bytes[..end]]);
        assert_eq!(bytes[end..end + 4], digest.to_le_bytes(), "the header digest covers the AHS");
    }
    for len in [0, MAX_CDB_LEN + 1] {
        assert_eq!(
            Command::long(0, &vec![0; len], Direction::None).unwrap_err().code,
            ErrorCode::InvalidArgument
        );
    }
}

#[test]
fn long_cdb_is_whole_on_the_next_connection_too() {
    let mut peer = Peer::new(parameters());
    let mut command = Command::long(1 << 48, &[0x7f; 32], Direction::None).expect("a command");
    assert!(!command.repeatable, "an unknown command is not repeatable");
    command.repeatable = true;
    peer.state.submit(command, Waiter::Unknown).expect("room");
    let first = peer.state.connection.out().take_bytes();
    peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
    (peer.exp_cmd_sn, peer.max_cmd_sn) = (1, 32);
    peer.log_in(parameters());
    assert_eq!((peer.state.connection.out().take_bytes(), first.len()), (first, 48 + 20));
}

fn aborted() -> Error {
    Error::new(ErrorCode::Aborted, "aborted")
}

#[test]
fn command_that_has_not_been_sent_is_just_taken_out() {
    let mut peer = Peer::new(parameters());
    let tags: Vec<u32> = (0..34).map(|_| peer.write(512)).collect();
    assert_eq!(peer.sent().len(), 32);
    assert_eq!(peer.state.abort(tags[32], &aborted()), None);
    let (result, buf) = peer.end(tags[32]).expect("the command has ended");
    assert_eq!((result.expect_err("aborted").code, buf.map(|b| b.len())), (ErrorCode::Aborted, Some(512)));
    (peer.exp_cmd_sn, peer.max_cmd_sn) = (33, 35);
    peer.respond(tags[0], 0, 0, 0, &[]);
    assert_eq!(peer.sent().iter().map(|(h, _)| h.itt()).collect::<Vec<_>>(), [tags[33]]);
}

/// The owner has aborted the command: it is resent neither on the next connection nor after a reset.
#[test]
fn command_being_aborted_is_not_resent() {
    for ends in [
        (|p, tag| {
            p.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
            assert!(p.end(tag).is_none(), "the target may still execute the command");
            p.log_in(parameters());
        }) as fn(&mut Peer, u32),
        |p, tag| p.state.ended_by_abort([tag], "a reset"),
    ] {
        let mut peer = Peer::new(parameters());
        let tag = peer.write(512);
        peer.sent();
        assert_eq!(peer.state.abort(tag, &aborted()), Some(ReferencedTask { lun: 1 << 48, cmd_sn: 1 }));
        assert!(peer.end(tag).is_none(), "the target has the command");
        ends(&mut peer, tag);
        let (result, buf) = peer.end(tag).expect("the command has ended");
        assert_eq!(
            (result.expect_err("aborted").code, buf.map(|b| b.len())),
            (ErrorCode::Aborted, Some(512))
        );
        peer.log_in(parameters());
        assert!(peer.sent().is_empty());
        assert_eq!(peer.state.tasks.count(), 0);
        assert_eq!(peer.state.abort(tag, &aborted()), None, "an ended command is not aborted");
    }
}

thread_local! {
    static LATER_MS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// A clock that advances only when the test moves it.
fn clock() -> Instant {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *START.get_or_init(Instant::now) + Duration::from_millis(LATER_MS.get())
}

#[test]
fn completion_reports_the_time_in_the_queue() {
    let ms = Duration::from_millis;
    let mut peer = Peer::new(parameters());
    peer.state.clock = clock;
    let tags: Vec<u32> = (0..33).map(|_| peer.read(512)).collect();
    LATER_MS.set(300);
    (peer.exp_cmd_sn, peer.max_cmd_sn) = (33, 64);
    peer.data_in(tags[0], 0, &[0; 512], true, Some(0));
    assert_eq!(peer.done(tags[0]).0.queued, Duration::ZERO, "the command was not queued");
    LATER_MS.set(1000);
    peer.data_in(tags[1], 0, &[0; 512], true, Some(0));
    assert_eq!(peer.done(tags[1]).0.queued, Duration::ZERO, "the target's service time is not queueing time");
    peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
    LATER_MS.set(1500);
    (peer.exp_cmd_sn, peer.max_cmd_sn) = (1, 64);
    peer.log_in(parameters());
    for (tag, queued) in [(tags[32], ms(300 + 500)), (tags[2], ms(500))] {
        peer.data_in(tag, 0, &[0; 512], true, Some(0));
        assert_eq!(peer.done(tag).0.queued, queued);
    }
}

proptest! {
    /// A CDB of any content and length arrives unchanged.
    #[test]
    fn any_cdb_arrives(cdb in prop::collection::vec(any::<u8>(), 1..=MAX_CDB_LEN)) {
        let command = Command::long(0, &cdb, Direction::None).expect("a command");
        let rest = command.extended_cdb.as_ref().map_or(&[][..], |cdb| cdb.ahs());
        let rest_len = rest.first_chunk::<2>().map_or(1, |len| u16::from_be_bytes(*len)) as usize - 1;
        let whole = [&command.cdb[..], rest.get(4..4 + rest_len).unwrap_or_default()].concat();
        prop_assert_eq!(&whole[..cdb.len()], &cdb[..]);
        prop_assert!(whole.len() == cdb.len().max(16) && rest.len().is_multiple_of(4));
    }
}

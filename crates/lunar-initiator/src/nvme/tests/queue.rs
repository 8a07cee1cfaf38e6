//! The commands of a queue pair and their data.

use super::*;
use crate::nvme::status::ABORTED_BY_HOST;
use crate::{Error, ErrorCode};
use lunar_runtime::iscsi::digest::crc32c;
use lunar_wire::nvme::NvmeStatus;
use std::time::{Duration, Instant};

#[test]
fn read_is_a_capsule_without_data() {
    let mut pair = Pair::new(4);
    let sqe = Sqe::new(2, 0, 7).with_dword(10, 0x0102_0304).with_dword(12, 1);
    pair.submit_command(NvmeCommand::new(sqe, Direction::In(Buf::zeroed(1024))));
    let mut expected = vec![4, 0, 72, 0, 72, 0, 0, 0, 2, 0x40, 0, 0, 7, 0, 0, 0];
    expected.extend([0; 16 + 8]);
    expected.extend([0, 4, 0, 0, 0, 0, 0, 0x5a, 4, 3, 2, 1, 0, 0, 0, 0, 1, 0, 0, 0]);
    expected.extend([0; 12]);
    assert_eq!(pair.sent(), expected);
}

#[test]
fn small_write_leaves_in_its_capsule() {
    let mut pair = Pair::new(4);
    let key = pair.write(&[9; 512]);
    let sent = pair.sent();
    assert_eq!(sent[..8], [4, 0, 72, 72, 0x48, 2, 0, 0]);
    assert_eq!((&sent[8 + 32..8 + 40], &sent[72..]), (&[0, 2, 0, 0, 0, 0, 0, 1][..], &[9; 512][..]));
    pair.take(&response(0, 0, 0));
    let (result, buf) = pair.ended(key);
    assert!(result.expect("a completion").status.is_success());
    assert_eq!(buf.expect("the buffer")[..], [9; 512]);
}

#[test]
fn long_write_sends_what_each_r2t_asks_for() {
    let mut pair = Pair::new(4);
    let data: Vec<u8> = (0..20_000u32).map(|n| n as u8).collect();
    let key = pair.write(&data);
    assert_eq!(pair.sent().len(), 72, "the data do not fit the capsule");
    let mut moved = Vec::new();
    for (tag, at, len, parts) in [(5, 0, 10_000, 2), (6, 10_000, 10_000, 2)] {
        pair.take(&r2t(0, tag, at, len));
        let sent = pdus(&pair.sent());
        assert_eq!(sent.len(), parts);
        for (n, pdu) in sent.iter().enumerate() {
            let last = if n + 1 == parts { 4 } else { 0 };
            assert_eq!(pdu[..4], [6, last, 24, 24]);
            assert_eq!(pdu[8..12], [0, 0, tag as u8, 0]);
            assert_eq!(pdu[12..16], (moved.len() as u32).to_le_bytes());
            assert_eq!(pdu[16..20], (pdu.len() as u32 - 24).to_le_bytes());
            assert!(pdu.len() <= 24 + MAX_DATA as usize);
            moved.extend_from_slice(&pdu[24..]);
        }
    }
    assert_eq!(moved, data);
    pair.take(&response(0, 0, 0));
    assert_eq!(pair.ended(key).1.expect("the buffer")[..], data);
}

#[test]
fn data_land_in_the_buffer_whatever_the_segmentation() {
    let data: Vec<u8> = (0..50_000u32).map(|n| (n / 7) as u8).collect();
    let bytes = [
        c2h_data(0, 0, &data[..100], 0),
        c2h_data(0, 100, &data[100..40_000], 0),
        c2h_data(0, 40_000, &data[40_000..], 4),
        response(0, 0, 5),
    ]
    .concat();
    for step in [1, 7, 4096, 1 << 20] {
        let mut pair = Pair::new(4);
        let key = pair.read(data.len());
        bytes.chunks(step).for_each(|chunk| pair.take(chunk));
        let (result, buf) = pair.ended(key);
        assert_eq!(result.map(|cqe| cqe.result), Ok(5));
        assert_eq!(buf.expect("the buffer")[..], data, "steps of {step}");
    }
}

#[test]
fn data_with_success_end_the_read() {
    let mut pair = Pair::new(2);
    let key = pair.read(4);
    pair.take(&c2h_data(0, 0, &[1, 2, 3, 4], 4 | 8));
    let (result, buf) = pair.ended(key);
    assert_eq!(
        (result.map(|cqe| cqe.status), &buf.expect("the buffer")[..]),
        (Ok(NvmeStatus::SUCCESS), &[1, 2, 3, 4][..])
    );
}

#[test]
fn commands_in_flight_are_less_than_the_entries() {
    let mut pair = Pair::new(3);
    let keys =
        [pair.submit(0, Direction::None), pair.submit(0, Direction::None), pair.submit(0, Direction::None)];
    assert_eq!(pdus(&pair.sent()).len(), 2);
    pair.take(&response(1, 0, 0));
    let sent = pdus(&pair.sent());
    assert_eq!((sent.len(), &sent[0][10..12]), (1, &[1, 0][..]), "the free identifier is used again");
    pair.take(&[response(0, 0, 0), response(1, 0, 0)].concat());
    assert!(keys.into_iter().all(|key| pair.ended(key).0.is_ok()));
    assert!(!pair.state.is_busy());
}

fn submit_fused(pair: &mut Pair) -> [u64; 2] {
    let half = |fuse| {
        let mut sqe = Sqe::new(5, 0, 1);
        sqe.0[1] |= fuse;
        NvmeCommand::new(sqe, Direction::Out(Buf::zeroed(512))).once()
    };
    let waiters = [CompletionWaiter::Unknown, CompletionWaiter::Unknown];
    pair.state.submit_pair([half(1), half(2)], waiters).expect("accepted")
}

#[test]
fn command_of_another_queue_is_refused_as_one_that_was_sent() {
    let mut pair = Pair::new(4);
    pair.state.refuse(&Error::new(ErrorCode::ConnectionLost, "lost"));
    for (sends, code) in [(0, ErrorCode::Unreachable), (1, ErrorCode::ConnectionLost)] {
        let command = NvmeCommand { sends, ..NvmeCommand::new(Sqe::new(1, 0, 1), Direction::None) };
        let refused = pair.state.submit(command, CompletionWaiter::Unknown).expect_err("refused");
        assert_eq!(refused.0.map_err(|e| e.code), Err(code), "sent {sends} times");
    }
}

#[test]
fn command_that_became_too_long_ends_unsent() {
    let mut pair = Pair::new(4);
    let (long, short) = (pair.write(&[7; 1024]), pair.write(&[8; 512]));
    pair.sent();
    pair.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "lost"));
    pair.state.max_transfer = 512;
    pair.connect(PLAIN);
    let sent = pdus(&pair.sent());
    assert_eq!(sent.iter().map(|pdu| pdu.len()).collect::<Vec<_>>(), [72 + 512]);
    let (result, buf) = pair.ended(long);
    assert_eq!(result.map(|cqe| cqe.status), Ok(ABORTED_BY_HOST));
    assert_eq!(buf.expect("the data for smaller commands")[..], [7; 1024]);
    assert!(pair.poll(short).is_pending());
    let later = pair.read(1024);
    assert_eq!(pair.ended(later).0.map(|cqe| cqe.status), Ok(ABORTED_BY_HOST), "no command of another queue");
}

#[test]
fn identifier_that_is_free_longest_is_used_first() {
    let mut pair = Pair::new(4);
    pair.submit(0, Direction::None);
    pair.take(&response(0, 0, 0));
    pair.submit(0, Direction::None);
    pair.submit(0, Direction::None);
    pair.submit(0, Direction::None);
    let sent = pdus(&pair.sent());
    assert_eq!(sent.iter().map(|pdu| pdu[10]).collect::<Vec<_>>(), [0, 1, 2, 0]);
}

#[test]
fn fused_pair_fails_on_a_queue_with_room_for_one() {
    let mut pair = Pair::new(2);
    let before = pair.read(4);
    let keys = submit_fused(&mut pair);
    let behind = pair.read(4);
    pair.take(&c2h_data(0, 0, &[0; 4], 4 | 8));
    assert!(pair.ended(before).0.is_ok());
    for key in keys {
        let error = pair.ended(key).0.expect_err("no room");
        assert!(error.code == ErrorCode::InvalidArgument && error.hint.is_some(), "{error}");
    }
    assert_eq!(pdus(&pair.sent()).iter().map(|pdu| pdu[8]).collect::<Vec<_>>(), [2, 2]);
    pair.take(&c2h_data(0, 0, &[0; 4], 4 | 8));
    assert!(pair.ended(behind).0.is_ok());
}

#[test]
fn fused_pair_waits_for_two_identifiers() {
    let mut pair = Pair::new(4);
    pair.submit(0, Direction::None);
    pair.submit(0, Direction::None);
    submit_fused(&mut pair);
    pair.submit(0, Direction::None);
    assert_eq!(pdus(&pair.sent()).len(), 2, "nothing overtakes the pair");
    pair.take(&response(0, 0, 0));
    let sent = pdus(&pair.sent());
    assert_eq!(sent.iter().map(|pdu| pdu[9] & 3).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn status_of_a_failure_is_passed_on() {
    let mut pair = Pair::new(4);
    let key = pair.read(512);
    // 0/80h with Do Not Retry, and no data.
    pair.take(&response(0, 0x8000 | 0x80 << 1, 0));
    assert_eq!(pair.ended(key).0.map(|cqe| cqe.status), Ok(NvmeStatus::LBA_OUT_OF_RANGE));
}

#[test]
fn digests_are_sent_and_a_mismatch_of_data_fails_one_command() {
    let digests = Digests { header: true, data: true };
    let mut pair = Pair::with(4, digests);
    pair.write(&[7; 16]);
    let sent = pair.sent();
    assert_eq!(sent[..8], [4, 3, 72, 76, 96, 0, 0, 0]);
    assert_eq!(sent[72..76], crc32c(&[&sent[..72]]).to_le_bytes());
    assert_eq!(sent[92..], crc32c(&[&[7; 16]]).to_le_bytes());
    let key = pair.read(4);
    let mut data = header(7, 4 | 8 | 3, 28, 36, (1, 0, 0, 4));
    data.extend(crc32c(&[&data]).to_le_bytes());
    data.extend([1, 2, 3, 4, 0, 0, 0, 0]);
    pair.take(&data);
    assert_eq!(pair.ended(key).0.map(|cqe| cqe.status), Ok(NvmeStatus::TRANSIENT_TRANSPORT_ERROR));
}

#[test]
fn buffer_of_an_early_completion_returns_when_it_is_sent() {
    let mut pair = Pair::new(4);
    let key = pair.write(&[1; 10_000]);
    pair.sent();
    pair.take(&r2t(0, 1, 0, 5000));
    pair.take(&response(0, 0x8000 | 0x06 << 1, 0));
    assert!(pair.poll(key).is_pending(), "the send queue still has a part of the buffer");
    pair.sent();
    assert!(pair.ended(key).1.is_some());
}

#[test]
fn abandoned_command_that_waits_is_not_sent() {
    let mut pair = Pair::new(2);
    pair.submit(0, Direction::None);
    let waits = pair.write(&[1; 512]);
    let last = pair.submit(2, Direction::In(Buf::zeroed(512)));
    pair.sent();
    pair.state.abandon(waits);
    pair.take(&response(0, 0, 0));
    let sent = pdus(&pair.sent());
    assert_eq!(sent.iter().map(|pdu| pdu[8]).collect::<Vec<_>>(), [2]);
    pair.take(&[c2h_data(0, 0, &[3; 512], 4), response(0, 0, 0)].concat());
    assert!(pair.ended(last).0.is_ok());
}

#[test]
fn time_limit_does_not_apply_to_open_ended_commands() {
    let mut pair = Pair::new(4);
    let event =
        NvmeCommand { is_open_ended: true, ..NvmeCommand::new(Sqe::new(0x0c, 0, 0), Direction::None) };
    pair.submit_command(event);
    assert_eq!(pair.state.oldest(), None);
    let later = Instant::now() + Duration::from_secs(7);
    pair.state.now = later;
    pair.read(4);
    assert_eq!(pair.state.oldest(), Some((later, 2)));
    // Data that move, and a socket that takes no more, put the limit off.
    pair.state.now = later + Duration::from_secs(1);
    pair.take(&c2h_data(1, 0, &[1, 2], 0));
    assert_eq!(pair.state.oldest(), Some((pair.state.now, 2)));
}

#[test]
fn blocked_socket_puts_time_limits_off() {
    let mut pair = Pair::new(4);
    let started_at = Instant::now();
    pair.state.now = started_at - Duration::from_secs(60);
    pair.write(&[1; 512]);
    assert_eq!(pair.state.oldest(), Some((pair.state.now, 1)));
    pair.state.record_blocked();
    assert!(pair.state.oldest().is_some_and(|(at, _)| at >= started_at));
}

#[test]
fn lost_connection_repeats_commands_in_their_order() {
    let mut pair = Pair::new(4);
    let keys = [pair.write(&[1; 512]), pair.read(40_000), pair.submit(0, Direction::None)];
    let once = pair.submit_command(NvmeCommand::new(Sqe::new(5, 0, 1), Direction::None).once());
    let newer = pair.write(&[2; 512]);
    assert_eq!(pdus(&pair.sent()).len(), 3);
    // The flush ends, and its identifier goes to the command that must not be repeated. The read has a part of its data.
    pair.take(&response(2, 0, 0));
    assert!(pair.ended(keys[2]).0.is_ok());
    pair.sent();
    let part = c2h_data(1, 0, &[5; 30_000], 0);
    pair.take(&part[..20_000]);
    let why = Error::new(ErrorCode::ConnectionLost, "closed");
    pair.state.disconnect(&why);
    assert_eq!(pair.ended(once).0, Err(why), "it may have been executed");
    assert!(
        pair.poll(keys[0]).is_pending() && pair.poll(keys[1]).is_pending() && pair.poll(newer).is_pending()
    );
    pair.connect(PLAIN);
    let sent = pdus(&pair.sent());
    let shown: Vec<_> = sent.iter().map(|pdu| (pdu[8], pdu.get(72).copied())).collect();
    assert_eq!(shown, [(1, Some(1)), (2, None), (1, Some(2))], "the older ones come first");
    let id = |pdu: &[u8]| u16::from_le_bytes([pdu[10], pdu[11]]);
    pair.take(&[c2h_data(id(&sent[1]), 0, &[6; 40_000], 4), response(id(&sent[1]), 0, 0)].concat());
    assert_eq!(pair.ended(keys[1]).1.expect("the buffer")[..], [6; 40_000]);
}

#[test]
fn command_that_ends_every_connection_fails_in_the_end() {
    let mut pair = Pair::new(4);
    let key = pair.read(4);
    let why = Error::new(ErrorCode::ProtocolError, "a violation");
    for _ in 1..6 {
        assert_eq!(pdus(&pair.sent()).len(), 1);
        pair.state.disconnect(&why);
        assert!(pair.poll(key).is_pending());
        pair.connect(PLAIN);
    }
    pair.state.disconnect(&why);
    assert_eq!(pair.ended(key).0, Err(why));
}

#[test]
fn refused_queue_fails_what_waits_until_it_admits_again() {
    let mut pair = Pair::new(4);
    let key = pair.read(4);
    let gone = Error::new(ErrorCode::ConnectionLost, "gone");
    pair.state.disconnect(&gone);
    pair.state.refuse(&gone);
    assert_eq!(pair.ended(key).0, Err(gone));
    let command = NvmeCommand::new(Sqe::new(0, 0, 1), Direction::None);
    let refused = pair.state.submit(command, CompletionWaiter::Unknown).expect_err("refused");
    assert_eq!(refused.0.map_err(|e| e.code), Err(ErrorCode::Unreachable), "it was never sent");
    pair.connect(PLAIN);
    pair.read(4);
    assert_eq!(pdus(&pair.sent()).len(), 1);
}

#[test]
fn queue_of_one_connection_fails_commands_with_its_end() {
    let mut pair = Pair::new(2);
    pair.state.ends_with_connection = true;
    let keys = [pair.read(4), pair.read(4)];
    let gone = Error::new(ErrorCode::ConnectionLost, "gone");
    pair.state.disconnect(&gone);
    let codes = keys.map(|key| pair.ended(key).0.map_err(|e| e.code));
    assert_eq!(codes, [Err(ErrorCode::ConnectionLost), Err(ErrorCode::Unreachable)], "one was sent");
    // The end may come just before the start of the association admits commands.
    pair.state.admit();
    let command = NvmeCommand::new(Sqe::new(6, 0, 1), Direction::None);
    let refused = pair.state.submit(command, CompletionWaiter::Unknown).expect_err("no connection");
    assert_eq!(refused.0.map_err(|e| e.code), Err(ErrorCode::Unreachable));
}

/// Without patience, the queue refuses commands before its connection has ended.
#[test]
fn command_of_a_refused_queue_fails_with_its_connection() {
    let mut pair = Pair::new(4);
    let key = pair.read(4);
    let gone = Error::new(ErrorCode::ConnectionLost, "gone");
    pair.state.refuse(&gone);
    assert!(pair.poll(key).is_pending(), "the controller may still answer");
    pair.state.disconnect(&gone);
    assert_eq!(pair.ended(key).0, Err(gone));
}

#[test]
fn first_commands_go_before_those_that_wait() {
    let mut pair = Pair::new(4);
    let gone = Error::new(ErrorCode::ConnectionLost, "gone");
    pair.state.disconnect(&gone);
    pair.read(4);
    assert_eq!(pair.state.submit_first(NvmeCommand::new(Sqe::new(0x7f, 0, 1), Direction::None)), None);
    pair.state.connect(NvmeLink { digests: PLAIN, max_data: MAX_DATA });
    let first = NvmeCommand::new(Sqe::new(0x7f, 0, 1), Direction::Out(Buf::zeroed(8000)));
    let key = pair.state.submit_first(first).expect("there is a connection");
    let sent = pdus(&pair.sent());
    assert_eq!((sent.len(), sent[0].len()), (1, 72 + 8000), "8192 bytes fit a fabrics command");
    pair.take(&response(0, 0, 0));
    assert!(pair.ended(key).0.is_ok());
    pair.state.admit();
    assert_eq!(pdus(&pair.sent())[0][8], 2);
}

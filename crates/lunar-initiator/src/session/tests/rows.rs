//! Rules of RFC 7143 for the full feature phase. The ids are those of the conformance rows.

use super::*;
use crate::session::Event;
use lunar_wire::scsi::TaskManagementFunction::*;

/// Changes header bytes without accessors, such as reserved ones.
fn raw(header: &mut Bhs, change: impl FnOnce(&mut [u8; BHS_LEN])) {
    let mut bytes = *header.as_bytes();
    change(&mut bytes);
    *header = Bhs::from_bytes(bytes);
}

/// A Data-In with these flags.
fn piece(tag: u32, data_sn: u32, offset: u32, flags: u8) -> Bhs {
    let mut header = Bhs::new(opcode::DATA_IN);
    header.set_flags(flags);
    header.set_itt(tag);
    header.set_ttt(NONE);
    header.set_data_sn(data_sn);
    header.set_buffer_offset(offset);
    header
}

/// Target Transfer Tag, DataSN and buffer offset of each Data-Out.
fn data_outs(sent: &[(Bhs, Vec<u8>)]) -> Vec<(u32, u32, u32)> {
    let outs = sent.iter().filter(|(h, _)| h.opcode() == opcode::DATA_OUT);
    outs.map(|(h, _)| (h.ttt(), h.data_sn(), h.buffer_offset())).collect()
}

/// FRM-003: reserved fields are ignored.
#[test]
fn reserved_fields_of_answers_are_ignored() {
    let mut peer = Peer::new(parameters());
    let (read, write) = (peer.read(512), peer.write(4096));
    let mut r2t = pdu::r2t(1 << 48, write, 7, 0, 1024, 512);
    raw(&mut r2t, |b| b[1..4].fill(0xff));
    peer.say(r2t, &[], false);
    let mut data = piece(read, 0, 0, 0xb8);
    raw(&mut data, |b| b[2] = 0xff);
    raw(&mut data, |b| b[8..16].fill(0xff));
    peer.say(data, &[1; 512], false);
    for tag in [read, write] {
        let mut response = pdu::scsi_response(tag, 0x61, 0, 0);
        raw(&mut response, |b| b[8..16].fill(0xff));
        peer.say(response, &[], true);
    }
    let mut ping = pdu::nop_in(0, NONE, 9);
    raw(&mut ping, |b| b[1..4].fill(0xff));
    raw(&mut ping, |b| b[36..48].fill(0xff));
    peer.say(ping, &[], false);
    assert!(peer.state.connection.fault().is_none());
    peer.sent();
    assert_eq!((peer.done(read).0.status, peer.done(write).0.status), (0, 0));
}

/// FRM-004: reserved codes count as failures. In a PDU that has no response they end the connection.
#[test]
fn reserved_codes_are_errors() {
    let mut peer = Peer::new(parameters());
    let tag = peer.read(512);
    let mut response = pdu::scsi_response(tag, 0, 0x02, 0);
    response.set_exp_data_sn(0);
    peer.say(response, &[], true);
    assert_eq!(
        peer.end(tag).expect("the command has ended").0.expect_err("a failure").code,
        ErrorCode::ScsiError
    );
    let answer = peer.state.manage(AbortTaskSet, 0, None);
    let tag = peer.sent().pop().expect("a request").0.itt();
    peer.say(pdu::task_management_response(tag, 100), &[], true);
    assert_eq!(answer.try_recv(), Ok(Ok(100)));
    assert!(peer.state.connection.fault().is_none());
    peer.say(pdu::async_message(0, 6, [0; 3]), &[], true);
    assert_eq!(peer.broken().code, ErrorCode::ProtocolError);
}

/// FRM-007: a target's PDU has no additional header segment. FRM-025: a data segment has at most the declared length.
#[test]
fn additional_headers_and_too_long_segments_end_the_connection() {
    let mut peer = Peer::new(parameters());
    peer.bytes(&encode(Digests::default(), pdu::nop_in(0, NONE, 1), &[0; 8], &[]));
    assert_eq!(peer.broken().code, ErrorCode::ProtocolError);
    let mut peer = Peer::new(parameters());
    let tag = peer.read(100_000);
    let bytes = encode(Digests::default(), piece(tag, 0, 0, 0), &[], &vec![0; 65_537]);
    assert!(peer.receiver.feed(&bytes, &mut peer.state).is_err(), "MaxRecvDataSegmentLength is 65536");
}

/// FRM-021, FRM-022, FRM-023: a PDU with a data digest error has no effect. At ErrorRecoveryLevel 0 it ends the
/// session, and the command is resent.
#[test]
fn damaged_data_have_no_effect() {
    let digests = Digests { header: false, data: true };
    let p = Parameters { data_digest: true, ..parameters() };
    type Bad = fn(u32) -> (Bhs, Vec<u8>);
    let bad: [Bad; 3] = [
        |_| (pdu::async_message(0, 1, [0; 3]), vec![0; 4]),
        |tag| (piece(tag, 0, 0, 0x81), vec![1; 512]),
        |tag| (pdu::scsi_response(tag, 0, 0, 2), [&[0, 18][..], &Sense::READ_ERROR.encode(false)].concat()),
    ];
    for make in bad {
        let mut peer = Peer::new(p.clone());
        peer.receiver = PduReceiver::new(digests, 65536, Vec::new());
        let tag = peer.read(512);
        let (mut header, data) = make(tag);
        pdu::stamp(&mut header, 7, 2, 32);
        let mut bytes = encode(digests, header, &[], &data);
        bytes[50] ^= 1;
        peer.bytes(&bytes);
        assert_eq!(peer.broken().code, ErrorCode::ProtocolError);
        assert_eq!(
            (peer.state.connection.exp_stat_sn(), peer.state.connection.is_logout_asked()),
            (7, false)
        );
        assert!(peer.end(tag).is_none());
        peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "damaged"));
        (peer.exp_cmd_sn, peer.max_cmd_sn) = (1, 32);
        peer.state.connection.out().take_bytes();
        peer.log_in(parameters());
        assert_eq!(peer.sent()[0].0.itt(), tag);
    }
}

/// FRM-012: a tag is not reused while its task lives, and is never the reserved value, however many tags are
/// allocated.
#[test]
fn no_tag_serves_twice() {
    let mut peer = Peer::new(parameters());
    let stays = peer.read(512);
    let mut last = stays;
    for _ in 0..70_000 {
        let tag = peer.read(512);
        assert!(tag != stays && tag != last && tag != NONE);
        last = tag;
        (peer.exp_cmd_sn, peer.max_cmd_sn) = (peer.exp_cmd_sn + 1, peer.max_cmd_sn + 1);
        peer.data_in(tag, 0, &[0; 512], true, Some(0));
        peer.done(tag);
        peer.state.connection.out().take_bytes();
    }
    let _answer = peer.state.manage(LunReset, 0, None);
    let first = peer.state.controls[0].tag;
    for _ in 0..70_000 {
        let tag = peer.state.control_tag();
        assert!(tag != first && tag != NONE);
    }
}

/// CMD-002, CMD-020: immediate requests do not advance CmdSN, and commands are in order.
#[test]
fn immediate_requests_use_up_no_number() {
    let mut peer = Peer::new(parameters());
    peer.read(512);
    peer.state.ping();
    let _answer = peer.state.manage(LunReset, 0, None);
    peer.write(512);
    let command_window: Vec<_> =
        peer.sent().iter().map(|(h, _)| (h.opcode(), h.immediate(), h.cmd_sn())).collect();
    assert_eq!(command_window, [(1, false, 1), (0, true, 2), (2, true, 2), (1, false, 2)]);
}

/// CMD-019: if the target still expects the CmdSN of a rejected command, a NOP-Out takes it. A command with a digest
/// error is resent.
#[test]
fn rejected_command_leaves_no_gap() {
    for (reason, exp_cmd_sn, filled) in [(0x02, 1, true), (0x09, 1, true), (0x09, 2, false)] {
        let mut peer = Peer::new(parameters());
        let tag = peer.read(512);
        let (header, _) = peer.sent().remove(0);
        peer.exp_cmd_sn = exp_cmd_sn;
        peer.say(pdu::reject(reason), header.as_bytes(), true);
        let sent = peer.sent();
        let fills = sent.iter().any(|(h, _)| h.opcode() == 0 && !h.immediate() && h.cmd_sn() == 1);
        assert_eq!(fills, filled, "reason {reason}, ExpCmdSN {exp_cmd_sn}");
        let again = sent.iter().any(|(h, _)| h.itt() == tag && h.cmd_sn() == 2);
        assert_eq!((again, peer.end(tag).is_some()), (reason == 2, reason != 2));
        assert!(peer.state.connection.fault().is_none());
    }
}

/// DAT-001, DAT-002, DAT-003, DAT-006, DAT-007, DAT-009, DAT-010: immediate and unsolicited data follow the
/// negotiated keys.
#[test]
fn unsolicited_data_keep_to_what_was_agreed() {
    for (initial_r2t, immediate_data, first_burst_length, len, pieces) in [
        (true, false, 1024, 4096, vec![(0, true)]),
        (true, true, 1024, 4096, vec![(512, true)]),
        (true, true, 1024, 300, vec![(300, true)]),
        (false, false, 1024, 4096, vec![(0, false), (512, false), (512, true)]),
        (false, false, 1024, 700, vec![(0, false), (512, false), (188, true)]),
        (false, true, 1024, 4096, vec![(512, false), (512, true)]),
        (false, true, 512, 4096, vec![(512, true)]),
        (false, true, 1024, 512, vec![(512, true)]),
    ] {
        let mut peer =
            Peer::new(Parameters { initial_r2t, immediate_data, first_burst_length, ..parameters() });
        peer.write(len);
        let sent = peer.sent();
        let got: Vec<_> = sent.iter().map(|(h, d)| (d.len(), h.is_final())).collect();
        assert_eq!(got, pieces, "InitialR2T {initial_r2t}, ImmediateData {immediate_data}, {len} bytes");
        assert_eq!(sent[0].0.flags() & 0x60, 0x20, "only the W bit is set");
    }
}

/// DAT-011: the R and W bits match the direction of the data.
#[test]
fn length_has_a_direction() {
    let mut peer = Peer::new(parameters());
    peer.submit(cdb::test_unit_ready(), Direction::None);
    peer.read(512);
    peer.write(512);
    let sent = peer.sent();
    let lengths: Vec<_> = sent.iter().map(|(h, _)| (h.flags() & 0x60, h.edtl())).collect();
    assert_eq!(lengths, [(0, 0), (0x40, 512), (0x20, 512)]);
}

/// DAT-012: unsolicited data of two commands are sent in the order of the commands.
#[test]
fn unsolicited_data_follow_the_order_of_commands() {
    let mut peer = Peer::new(Parameters { immediate_data: false, ..parameters() });
    let (a, b) = (peer.write(1024), peer.write(1024));
    let tags: Vec<u32> = peer.sent().iter().map(|(h, _)| h.itt()).collect();
    assert_eq!(tags, [a, a, a, b, b, b]);
}

/// DAT-013, DAT-016, REC-004: R2Ts are answered in order, at any offset, also for data that were sent before.
#[test]
fn r2ts_are_answered_in_their_order() {
    let mut peer = Peer::new(Parameters { initial_r2t: true, immediate_data: false, ..parameters() });
    let tag = peer.write(2048);
    peer.sent();
    for (n, offset) in [1024, 0, 1024].into_iter().enumerate() {
        peer.say(pdu::r2t(0, tag, 50 + n as u32, n as u32, offset, 1024), &[], false);
    }
    let want = [(50, 0, 1024), (50, 1, 1536), (51, 0, 0), (51, 1, 512), (52, 0, 1024), (52, 1, 1536)];
    assert_eq!(data_outs(&peer.sent()), want);
}

/// DAT-021: Data-In may arrive in any order if DataPDUInOrder=No was negotiated.
#[test]
fn data_come_in_any_order_where_agreed() {
    let mut peer = Peer::new(Parameters { data_pdu_in_order: false, ..parameters() });
    let tag = peer.read(1024);
    peer.say(piece(tag, 0, 512, 0), &[2; 512], false);
    peer.say(piece(tag, 1, 0, 0x81), &[1; 512], true);
    let buf = peer.done(tag).1.expect("the buffer");
    assert_eq!((buf[0], buf[511], buf[512], buf[1023]), (1, 1, 2, 2));
}

/// DAT-021: duplicate bytes do not count as missing ones.
#[test]
fn data_that_come_twice_are_no_other_data() {
    for second in [0, 1, 511] {
        let mut peer = Peer::new(Parameters { data_pdu_in_order: false, ..parameters() });
        let tag = peer.read(1024);
        peer.say(piece(tag, 0, 0, 0), &[2; 512], false);
        let end = encode(Digests::default(), piece(tag, 1, second, 0x81), &[], &[1; 512]);
        _ = peer.receiver.feed(&end, &mut peer.state);
        assert!(peer.broken().what.contains("overlaps an earlier Data-In"), "{second}: {}", peer.broken());
    }
}

/// DAT-027: a Data-In without data is accepted.
#[test]
fn empty_data_in_are_accepted() {
    let mut peer = Peer::new(parameters());
    let tag = peer.read(512);
    peer.say(piece(tag, 0, 0, 0), &[], false);
    peer.say(piece(tag, 1, 0, 0x80), &[3; 512], false);
    peer.say(piece(tag, 2, 0, 0x81), &[], true);
    let (done, buf) = peer.done(tag);
    assert_eq!((done.transferred, buf.expect("the buffer")[511]), (512, 3));
}

/// DAT-031: status and residual count in the last Data-In complete the command and are acknowledged.
#[test]
fn status_in_data_in_ends_the_command() {
    let mut peer = Peer::new(parameters());
    let tag = peer.read(512);
    let mut header = piece(tag, 0, 0, 0x83);
    header.set_residual_count(412);
    peer.say(header, &[1; 100], true);
    let done = peer.done(tag).0;
    assert_eq!((done.status, done.transferred, peer.state.connection.exp_stat_sn()), (0, 100, 8));
}

/// DAT-033, REC-015: at ErrorRecoveryLevel 0, the A bit is ignored.
#[test]
fn acknowledge_bit_at_level_0_is_not_answered() {
    let mut peer = Peer::new(parameters());
    let tag = peer.read(512);
    peer.sent();
    peer.say(piece(tag, 0, 0, 0xc1), &[1; 512], true);
    assert!(peer.sent().is_empty());
    assert_eq!(peer.done(tag).0.transferred, 512);
}

/// RSP-010: a response code other than "completed" is a failure, whatever the status field contains.
#[test]
fn response_code_is_a_failure() {
    let mut peer = Peer::new(parameters());
    let once = peer.submit(cdb::compare_and_write(0, 1, false), Direction::Out(Buf::zeroed(1024)));
    let read = peer.read(512);
    peer.sent();
    peer.say(pdu::scsi_response(once, 0, 1, 0), &[], true);
    assert_eq!(
        peer.end(once).expect("the command has ended").0.expect_err("a failure").code,
        ErrorCode::ConnectionLost
    );
    peer.say(pdu::scsi_response(read, 0, 1, 0), &[], true);
    assert_eq!(peer.sent()[0].0.itt(), read, "a repeatable command is resent");
    (0..5).for_each(|_| peer.say(pdu::scsi_response(read, 0, 1, 0), &[], true));
    assert_eq!(
        peer.end(read).expect("the last attempt has ended").0.expect_err("a failure").code,
        ErrorCode::ConnectionLost
    );
    assert!(peer.state.connection.fault().is_none());
}

/// RSP-011: every SCSI status is returned unchanged.
#[test]
fn statuses_are_passed_on() {
    for status in [0x00, 0x04, 0x08, 0x18, 0x28, 0x30, 0x40] {
        let mut peer = Peer::new(parameters());
        let tag = peer.submit(cdb::test_unit_ready(), Direction::None);
        peer.respond(tag, 0, status, 0, &[]);
        assert_eq!(peer.done(tag).0.status, status);
    }
}

/// TMF-002, TMF-003: LUN, Referenced Task Tag and RefCmdSN are set as the function requires.
#[test]
fn functions_name_what_they_are_about() {
    for (function, lun, task, expected) in [
        (AbortTask, 3 << 48, Some((9, 77)), (3 << 48, 9, 77)),
        (AbortTaskSet, 3 << 48, None, (3 << 48, NONE, 0)),
        (ClearTaskSet, 3 << 48, None, (3 << 48, NONE, 0)),
        (LunReset, 3 << 48, None, (3 << 48, NONE, 0)),
        (TargetWarmReset, 3 << 48, None, (0, NONE, 0)),
        (TargetColdReset, 3 << 48, None, (0, NONE, 0)),
    ] {
        let mut peer = Peer::new(parameters());
        let _answer = peer.state.manage(function, lun, task);
        let (header, _) = peer.sent().remove(0);
        assert_eq!(
            (header.lun(), header.referenced_task_tag(), header.ref_cmd_sn()),
            expected,
            "{function:?}"
        );
        assert_eq!(
            (header.flags() & 0x7f, header.immediate()),
            (lunar_wire::iscsi::request::function_code(function), true)
        );
    }
}

/// TMF-013: R2Ts of a task that is being aborted are still answered.
#[test]
fn r2ts_of_tasks_that_are_being_aborted_are_answered() {
    let mut peer = Peer::new(parameters());
    let tag = peer.write(4096);
    let _answer = peer.state.manage(AbortTask, 1 << 48, Some((tag, 1)));
    peer.sent();
    peer.say(pdu::r2t(1 << 48, tag, 5, 0, 1024, 512), &[], false);
    let sent = peer.sent();
    assert_eq!(data_outs(&sent), [(5, 0, 1024)]);
    assert!(sent[0].0.is_final());
}

/// TMF-014: a command that completes before the response to ABORT TASK keeps its result, and the response has no
/// effect.
#[test]
fn answer_before_that_of_its_abort_counts() {
    let mut peer = Peer::new(parameters());
    let tag = peer.read(512);
    let answer = peer.state.manage(AbortTask, 1 << 48, Some((tag, 1)));
    let function = peer.sent()[1].0.itt();
    peer.data_in(tag, 0, &[1; 512], true, Some(0));
    peer.say(pdu::task_management_response(function, 1), &[], true);
    assert_eq!(answer.try_recv(), Ok(Ok(1)));
    peer.state.ended_by_abort([tag], "aborted");
    assert_eq!(peer.done(tag).0.transferred, 512);
    assert!(peer.state.connection.fault().is_none() && peer.sent().is_empty());
}

/// TMF-021: a TARGET COLD RESET that also drops the connection has no response. Commands continue on the next
/// connection.
#[test]
fn cold_reset_may_stay_unanswered() {
    let mut peer = Peer::new(parameters());
    let tag = peer.read(512);
    let answer = peer.state.manage(TargetColdReset, 0, None);
    peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "reset"));
    assert!(matches!(answer.try_recv(), Ok(Err(e)) if e.code == ErrorCode::ConnectionLost));
    (peer.exp_cmd_sn, peer.max_cmd_sn) = (1, 32);
    peer.log_in(parameters());
    assert_eq!(peer.sent()[0].0.itt(), tag);
}

/// TMF-035: the caller of a function gets the response code.
#[test]
fn task_management_response_codes_are_returned() {
    for code in [0, 1, 2, 3, 4, 5, 6, 255] {
        let mut peer = Peer::new(parameters());
        let answer = peer.state.manage(LunReset, 1 << 48, None);
        let tag = peer.sent()[0].0.itt();
        peer.say(pdu::task_management_response(tag, code), &[], true);
        assert_eq!(answer.try_recv(), Ok(Ok(code)));
    }
}

/// NOP-004: a NOP-In that requests no reply gets none.
#[test]
fn nop_in_without_tags_is_not_answered() {
    let mut peer = Peer::new(parameters());
    peer.say(pdu::nop_in(0, NONE, NONE), &[], false);
    assert!(peer.sent().is_empty() && peer.state.connection.fault().is_none());
}

/// NOP-007: a ping acknowledges the received StatSN.
#[test]
fn ping_acknowledges_received_status() {
    let mut peer = Peer::new(parameters());
    let tag = peer.read(512);
    peer.sent();
    peer.data_in(tag, 0, &[0; 512], true, Some(0));
    peer.state.ping();
    assert_eq!(peer.sent()[0].0.exp_stat_sn(), 8);
}

/// ASY-006, ASY-007, SES-016: the target drops the connection or session, and states how long to wait before the next
/// login.
#[test]
fn dropped_connection_says_when_to_come_back() {
    for code in [2, 3] {
        let mut peer = Peer::new(parameters());
        let wait_s = peer.state.connection.time2wait_s();
        assert_eq!(wait_s, parameters().default_time2wait, "SES-015");
        peer.say(pdu::async_message(0, code, [1, 17, 30]), &[], true);
        assert_eq!(
            (peer.broken().code, peer.state.connection.time2wait_s()),
            (ErrorCode::ConnectionLost, 17)
        );
        peer.log_in(parameters());
        assert_eq!(peer.state.connection.time2wait_s(), wait_s, "the wait applies to one connection");
    }
}

/// ASY-010: a request to renegotiate leads to a logout and a new session. ASY-011: vendor-specific events are ignored,
/// but advance StatSN.
#[test]
fn async_message_of_each_kind_is_handled() {
    let mut peer = Peer::new(parameters());
    for code in [248, 250, 255] {
        peer.say(pdu::async_message(0, code, [1, 2, 3]), &[7; 33], true);
    }
    assert!(peer.state.connection.fault().is_none() && !peer.state.connection.is_logout_asked());
    assert_eq!((peer.state.connection.exp_stat_sn(), peer.state.events.len()), (10, 0));
    peer.say(pdu::async_message(0, 4, [0, 0, 3]), &[], true);
    assert!(peer.state.connection.is_logout_asked() && peer.state.connection.fault().is_none());
}

/// REJ-015: after the Reject of a Data-Out, its command waits for its own response.
#[test]
fn rejected_data_out_ends_nothing() {
    let mut peer = Peer::new(parameters());
    let tag = peer.write(1024);
    let (header, _) = peer.sent().pop().expect("a Data-Out");
    peer.say(pdu::reject(0x02), header.as_bytes(), true);
    assert!(peer.end(tag).is_none() && peer.state.connection.fault().is_none());
    let sense = Sense { key: 0xb, asc: 0x47, ascq: 5, ..Sense::READ_ERROR };
    peer.respond(tag, 0, 2, 0, &sense.encode(false));
    assert_eq!(peer.done(tag).0.sense().map(|s| s.asc), Some(0x47));
}

/// SES-021: a new session does not inherit negotiated parameters.
#[test]
fn parameters_are_those_of_the_session() {
    let mut peer = Peer::new(Parameters { header_digest: true, ..parameters() });
    assert!(peer.state.connection.digests().header);
    peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
    peer.log_in(Parameters::default());
    assert_eq!(*peer.state.connection.parameters(), Parameters::default());
    assert!(!peer.state.connection.digests().header);
}

/// A flood of messages without content must not grow any state, except the send queue.
#[test]
fn floods_leave_nothing_behind() {
    let mut peer = Peer::new(parameters());
    for n in 0..20_000 {
        peer.say(pdu::nop_in(0, NONE, NONE), &[], false);
        peer.say(pdu::nop_in(0, NONE, n), &[], false);
        peer.say(pdu::async_message(0, 255, [0; 3]), &[], true);
        peer.state.connection.out().take_bytes();
    }
    assert!(peer.state.connection.fault().is_none() && peer.state.controls.is_empty());
    // Now the target does not read the replies.
    let unread = (0..200_000).position(|n| {
        peer.say(pdu::nop_in(0, NONE, n), &[7; 8], false);
        peer.state.connection.fault().is_some()
    });
    assert!(unread.is_some());
    let mut peer = Peer::new(parameters());
    let sense = Sense::LUNS_CHANGED.encode(false);
    let data = [&(sense.len() as u16).to_be_bytes()[..], &sense].concat();
    peer.say(pdu::async_message(0, 0, [0; 3]), &data, true);
    assert!(matches!(peer.state.events[..], [Event::UnitAttention { .. }]));
}

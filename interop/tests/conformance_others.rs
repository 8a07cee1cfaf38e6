//! NOP, asynchronous messages, text, Reject, logout and SNACK (RFC 7143 sections 11.9 to 11.11, 11.14 to
//! 11.19).

use interop::config::{self, target};
use interop::scsi::{READ, WRITE, read10, write10};
use interop::{Login, NONE, Pdu, PduOutcome, Raw, Received, Server, op, shared};
use std::time::{Duration, Instant};

const SLOW: u16 = 2;
const C: u8 = 0x40;

fn keepalive() -> Server {
    let quick = "nop_interval_s = 1\nnop_timeout_s = 1";
    Server::start(&config::standard().replace("nop_interval_s = 0", quick))
}

/// NOP-001
#[test]
fn nop_001_pings_are_answered() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    for first in [op::NOP_OUT | 0x40, op::NOP_OUT] {
        let ping = raw.request(first).ttt(NONE).lun(1);
        let pong = raw.ask(&ping);
        assert_eq!((pong.opcode(), pong.transfer_tag()), (op::NOP_IN, NONE));
    }
    assert_eq!(raw.window.map(|w| w.0), Some(raw.cmd_sn), "one of the two advances CmdSN");
}

/// NOP-002
#[test]
fn nop_002_ping_data_comes_back() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[("MaxRecvDataSegmentLength", "4096")]);
    for length in [0, 1, 4096, 5000, 65536] {
        let data: Vec<u8> = (0..length).map(|i| i as u8).collect();
        let ping = raw.request(op::NOP_OUT | 0x40).ttt(NONE).data(&data);
        assert!(raw.ask(&ping).data == data[..length.min(4096)], "{length}");
    }
}

/// NOP-004
#[test]
fn nop_004_no_response_to_a_nop_out_without_tag() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let quiet =
        Pdu::new(op::NOP_OUT | 0x40).itt(NONE).ttt(NONE).cmd_sn(raw.cmd_sn).exp_stat_sn(raw.exp_stat_sn);
    raw.send(&quiet);
    raw.expect_silence();
    raw.ping();
}

/// NOP-006, NOP-008, SN-002: the client answers two pings of the target, and then no more.
#[test]
fn nop_008_an_initiator_that_does_not_answer_is_dropped() {
    let server = keepalive();
    let mut raw = Raw::session(server.portal(), &[]);
    for _ in 0..2 {
        let ping = raw.recv();
        assert_eq!((ping.opcode(), ping.tag(), ping.data.len()), (op::NOP_IN, NONE, 0));
        assert_ne!(ping.transfer_tag(), NONE);
        let pong = Pdu::new(op::NOP_OUT | 0x40).itt(NONE).ttt(ping.transfer_tag()).bytes(8, &ping.bhs[8..16]);
        raw.send(&pong.cmd_sn(raw.cmd_sn).exp_stat_sn(raw.exp_stat_sn));
    }
    let seen = raw.until_close();
    assert!(
        seen.iter().all(|p| matches!(p.opcode(), op::NOP_IN | op::ASYNC)) && !seen.is_empty(),
        "{seen:?}"
    );
}

/// ASY-002: a message reports a changed LUN map if the access list enables that; otherwise, a unit attention does.
#[test]
fn asy_002_scsi_events_are_sent_where_enabled() {
    for aen in [true, false] {
        let access = format!("[[target.access]]\ninitiators = [\"*\"]\naen = {aen}\n");
        let mut server = Server::start(&config::with("", "", &access));
        let mut raw = Raw::session(server.portal(), &[]);
        let more = "[[target.lun]]\nlun = 7\nbackend = \"null\"\nsize = \"1GiB\"\n".to_string();
        server.rewrite(&config::with("", "", &(more + &access)));
        server.signal(1);
        let wait = if aen { Duration::from_secs(5) } else { Duration::from_secs(1) };
        match raw.get(wait) {
            Received::Pdu(message) if aen => {
                assert_eq!((message.opcode(), message.bhs[36]), (op::ASYNC, 0), "{message:?}");
                let length = u16::from_be_bytes([message.data[0], message.data[1]]) as usize;
                assert_eq!(interop::sense(&message.data[2..2 + length]), 0x06_3f0e);
            }
            Received::Nothing if !aen => assert_eq!(raw.simple(0, &[0; 6]).sense(), 0x06_3f0e),
            other => panic!("aen = {aen}: {other:?}"),
        }
    }
}

/// ASY-001, ASY-003, ASY-005, REJ-013: if an initiator ignores the logout request, the target rejects its new commands or
/// ends the connection.
#[test]
fn asy_005_an_ignored_logout_request() {
    let mut server = Server::start(&config::standard());
    let mut raw = Raw::session(server.portal(), &[]);
    server.signal(15);
    let message = raw.recv();
    assert_eq!((message.opcode(), message.tag()), (op::ASYNC, NONE), "{message:?}");
    let command = raw.command(0, 0x80, &[0; 6], 0);
    match raw.outcome(&command) {
        PduOutcome::Answered(answer) => assert_eq!(answer.tag(), command.tag()),
        other => other.refused(&[0x0c]),
    }
    let end = Instant::now() + Duration::from_secs(25);
    loop {
        match raw.get(Duration::from_secs(1)) {
            Received::Closed => break,
            Received::Pdu(pdu) => assert_eq!(pdu.opcode(), op::ASYNC, "{pdu:?}"),
            Received::Nothing => assert!(Instant::now() < end, "the connection stays open"),
        }
    }
    assert!(server.wait(Duration::from_secs(20)).success());
}

/// Twenty targets, so that a list does not fit into 512 bytes.
fn twenty_targets() -> Server {
    let group = "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n".to_string();
    Server::start(
        &(0..20).fold(group, |toml, i| toml + &target(&format!("iqn.2026-11.org.example:t{i:02}"), "")),
    )
}

fn send_targets(raw: &mut Raw) -> Pdu {
    raw.request(op::TEXT | 0x40).ttt(NONE).keys(&[("SendTargets", "All")])
}

/// TXT-001
#[test]
fn txt_001_two_text_requests_at_once() {
    let server = twenty_targets();
    let mut raw = Raw::discovery(server.portal(), &[("MaxRecvDataSegmentLength", "512")]);
    let (first, second) = (send_targets(&mut raw), send_targets(&mut raw));
    raw.send_all(&[first.clone(), second.clone()]);
    assert_eq!(raw.recv_for(first.tag()).opcode(), op::TEXT_RESPONSE);
    match raw.next_outcome() {
        PduOutcome::Answered(answer) => {
            assert_eq!((answer.opcode(), answer.tag()), (op::TEXT_RESPONSE, second.tag()))
        }
        other => other.refused(&[4, 7, 9, 0x0a]),
    }
}

/// TXT-004, TXT-009: the client checks in every Text Response that F and TTT match.
#[test]
fn txt_009_a_new_request_starts_from_the_beginning() {
    let server = twenty_targets();
    let mut raw = Raw::discovery(server.portal(), &[("MaxRecvDataSegmentLength", "512")]);
    let first = send_targets(&mut raw);
    let start = raw.ask(&first);
    assert!(!start.is_final());
    let next = raw.request(op::TEXT | 0x40).itt(first.tag()).ttt(start.transfer_tag());
    let second = raw.ask(&next);
    assert!(second.opcode() == op::TEXT_RESPONSE && second.data != start.data);
    let again = send_targets(&mut raw).itt(first.tag());
    assert_eq!(raw.ask(&again).data, start.data);
}

/// TXT-005, TXT-006, TXT-007
#[test]
fn txt_005_f_is_set_only_in_answer_to_f() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let open = raw.request(op::TEXT | 0x40).flags(0).ttt(NONE).keys(&[("X-com.example.a", "1")]);
    let answer = raw.ask(&open);
    assert_eq!((answer.opcode(), answer.is_final()), (op::TEXT_RESPONSE, false));
    let close = raw
        .request(op::TEXT | 0x40)
        .itt(open.tag())
        .ttt(answer.transfer_tag())
        .keys(&[("X-com.example.b", "1")]);
    let last = raw.ask(&close.bytes(8, &answer.bhs[8..16]));
    assert!(last.is_final() && last.value("X-com.example.b").as_deref() == Some("NotUnderstood"), "{last:?}");
    let single = raw.text(&[("MaxRecvDataSegmentLength", "8192")]);
    assert!(single.is_final() || !single.data.is_empty(), "an empty answer with F=0 to F=1: {single:?}");
    for (key, _) in single.pairs() {
        assert_eq!(key, "MaxRecvDataSegmentLength", "an answer with F=1 asks for nothing");
    }
}

/// TXT-008, REJ-005
#[test]
fn txt_008_continue_excludes_final() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let both = raw.request(op::TEXT | 0x40).flags(0x80 | C).ttt(NONE).keys(&[("X-com.example.a", "1")]);
    raw.outcome(&both).refused(&[4]);
    Raw::session(server.portal(), &[]).ping();
}

/// TXT-011, REJ-010
#[test]
fn txt_011_a_stale_transfer_tag() {
    let server = twenty_targets();
    let mut raw = Raw::discovery(server.portal(), &[("MaxRecvDataSegmentLength", "512")]);
    let first = send_targets(&mut raw);
    let start = raw.ask(&first);
    let wrong = raw.request(op::TEXT | 0x40).itt(first.tag()).ttt(start.transfer_tag().wrapping_add(1));
    raw.outcome(&wrong).refused(&[4, 9, 0x0a]);
    let mut raw = Raw::discovery(server.portal(), &[]);
    let unknown = raw.request(op::TEXT | 0x40).ttt(0x1234_5678);
    raw.outcome(&unknown).refused(&[4, 9, 0x0a]);
}

/// NEG-004: text may also be split in full feature phase. Each part but the last gets an empty response.
#[test]
fn txt_005_text_in_parts() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let text = b"X-com.example.a=1\0X-com.example.b=2\0";
    let first = raw.request(op::TEXT | 0x40).flags(C).ttt(NONE).data(&text[..20]);
    let empty = raw.ask(&first);
    assert_eq!((empty.opcode(), empty.is_final(), empty.data.len()), (op::TEXT_RESPONSE, false, 0));
    let rest = raw.request(op::TEXT | 0x40).itt(first.tag()).ttt(empty.transfer_tag()).data(&text[20..]);
    let answer = raw.ask(&rest);
    assert!(answer.is_final());
    assert_eq!(answer.pairs().len(), 2, "{answer:?}");
}

/// REJ-001, REJ-002, REJ-006
#[test]
fn rej_001_a_reject_holds_the_whole_header() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")]);
    for ahs in [&[][..], &[0, 5, 2, 0, 0, 0, 2, 0], &[0, 1, 9, 0, 0, 1, 9, 0, 0, 1, 9, 0]] {
        let bad = raw.request(0x4a).ahs(ahs).data(b"some data").bytes(32, b"sixteen more....");
        let window = raw.window;
        raw.send(&bad);
        assert_eq!(raw.rejected(&bad), 5);
        assert_eq!(raw.window.map(|w| w.0), window.map(|w| w.0), "ExpCmdSN");
        raw.ping();
    }
}

/// REJ-007
#[test]
fn rej_007_a_flood_of_immediate_commands() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let read = raw.command(SLOW, 0x80 | READ, &read10(0, 1), 512);
    raw.send(&read);
    let pings: Vec<Pdu> =
        (0..2000u32).map(|i| raw.request(op::NOP_OUT | 0x40).ttt(NONE).data(&i.to_be_bytes())).collect();
    let (mut bytes, mut answers) = (Vec::new(), 0);
    pings.iter().for_each(|p| bytes.extend_from_slice(&p.encode(false, false)));
    let mut writer = raw.stream.try_clone().expect("a second handle");
    let sender = std::thread::spawn(move || std::io::Write::write_all(&mut writer, &bytes));
    while answers < pings.len() {
        match raw.recv() {
            pdu if pdu.opcode() == op::NOP_IN => answers += 1,
            pdu if pdu.opcode() == op::REJECT && pdu.bhs[2] == 6 => answers += 1,
            pdu => assert_eq!(pdu.tag(), read.tag(), "{pdu:?}"),
        }
        if answers == pings.len() {
            break;
        }
    }
    sender.join().expect("a thread").expect("sent");
    raw.ping();
    raw.simple(0, &[0; 6]).good();
}

/// REJ-011: text beyond the configured limit is rejected and discarded.
#[test]
fn rej_011_text_without_end() {
    let server = Server::start(&format!("[limits]\ntext_bytes = \"16KiB\"\n{}", config::standard()));
    let mut raw = Raw::session(server.portal(), &[]);
    let (itt, mut ttt) = (raw.new_itt(), NONE);
    for _ in 0..100 {
        let part = raw.request(op::TEXT | 0x40).itt(itt).flags(C).ttt(ttt).data(&[b'a'; 4096]);
        match raw.outcome(&part) {
            PduOutcome::Answered(answer) => ttt = answer.transfer_tag(),
            other => return other.refused(&[4, 9, 0x0a]),
        }
    }
    panic!("the target accepted 400 KiB of text");
}

/// REJ-012: the client checks in every Reject that the reason is not reserved or retired. Here, the target responds
/// to a bad negotiation.
#[test]
fn rej_012_the_retired_reason_is_not_used() {
    let server = shared();
    for keys in [&[("MaxRecvDataSegmentLength", "1")][..], &[("MaxRecvDataSegmentLength", "x")], &[("a", "")]]
    {
        let mut raw = Raw::session(server.portal(), &[]);
        let text = raw.request(op::TEXT | 0x40).ttt(NONE).keys(keys);
        match raw.outcome(&text) {
            PduOutcome::Answered(answer) => assert!(answer.is_final(), "{answer:?}"),
            other => other.refused(&[4, 9]),
        }
    }
}

/// LGO-001, LGO-008, LGO-010
#[test]
fn lgo_001_a_logout_ends_all_commands() {
    let server = shared();
    for reason in [0, 1] {
        let mut raw = Raw::session(server.portal(), &[("ImmediateData", "No")]);
        let write = raw.command(0, 0x80 | WRITE, &write10(0, 1), 512);
        raw.send(&write);
        assert_eq!(raw.recv_for(write.tag()).opcode(), op::R2T);
        let slow: Vec<Pdu> = (0..3).map(|_| raw.command(SLOW, 0x80 | READ, &read10(0, 1), 512)).collect();
        raw.send_all(&slow);
        let _unseen = raw.take_cmd_sn();
        let beyond = raw.command(0, 0x80, &[0; 6], 0);
        raw.send(&beyond);
        let bye = raw.logout(reason, 0);
        assert_eq!((bye.opcode(), bye.bhs[2]), (op::LOGOUT_RESPONSE, 0), "reason {reason}");
        let after = raw.until_close();
        assert!(after.is_empty(), "after the Logout Response came {after:?}");
    }
}

/// LGO-002, LGO-005
#[test]
fn lgo_005_an_unknown_connection() {
    let server = shared();
    let mut raw = Login::new().session(0, 5).on(server.portal());
    let unknown = raw.logout(1, 99);
    assert_eq!((unknown.opcode(), unknown.bhs[2]), (op::LOGOUT_RESPONSE, 1));
    raw.ping();
    assert_eq!(raw.logout(1, 5).bhs[2], 0, "the CID of the login");
    raw.expect_close();
}

/// LGO-004
#[test]
fn lgo_004_recovery_needs_level_two() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    assert_eq!(raw.logout(2, 0).bhs[2], 2);
    raw.ping();
}

/// A non-immediate Logout waits for the commands with lower CmdSN.
#[test]
fn lgo_001_a_logout_in_the_order_of_cmd_sn() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let missing = raw.command(0, 0x80, &[0; 6], 0);
    let logout = raw.request(op::LOGOUT);
    raw.send(&logout);
    raw.expect_silence();
    raw.send(&missing);
    raw.collect(missing.tag(), &[]).good();
    assert_eq!(raw.recv_for(logout.tag()).bhs[2], 0);
    raw.expect_close();
}

/// LGO-013: a unit attention reports that an iSCSI event ended the tasks of the nexus.
#[test]
fn lgo_013_tasks_ended_by_reinstatement_are_reported() {
    let server = shared();
    let login = Login::new();
    let mut old = login.on(server.portal());
    old.clear_attentions(SLOW);
    let read = old.command(SLOW, 0x80 | READ, &read10(0, 1), 512);
    old.send(&read);
    old.ping();
    let mut new = login.clone().session(old.tsih, 0).cmd_sn(old.cmd_sn).on(server.portal());
    old.expect_close();
    let sense = new.simple(SLOW, &[0; 6]).sense();
    assert!(matches!(sense, 0x06_477f | 0x06_2907 | 0x06_2900), "commands were cleared: {sense:06x}");
}

/// SNK-002, REJ-004, RSP-009
#[test]
fn snk_002_snack_at_level_zero() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let read = raw.command(SLOW, 0x80 | READ, &read10(0, 1), 512);
    raw.send(&read);
    let snack = Pdu::new(op::SNACK).itt(read.tag()).ttt(NONE).exp_stat_sn(raw.exp_stat_sn);
    raw.send(&snack);
    assert_eq!(raw.rejected(&snack), 3);
    raw.collect(read.tag(), &[]).check(0x0b_1113);
    let status = Pdu::new(op::SNACK).flags(0x81).itt(NONE).ttt(NONE).exp_stat_sn(raw.exp_stat_sn);
    raw.outcome(&status.set32(40, raw.exp_stat_sn.wrapping_sub(1))).refused(&[3, 4]);
    Raw::session(server.portal(), &[]).ping();
}

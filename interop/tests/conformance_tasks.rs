//! Task management (RFC 7143 sections 4.2.3, 11.5, 11.6).

use interop::scsi::{READ, WRITE, read10, write10};
use interop::{Login, NONE, Pdu, PduOutcome, Raw, Received, Server, config, op, shared};
use std::time::Duration;

const SLOW: u16 = 2;
const ORDERED: u8 = 2;
const HEAD_OF_QUEUE: u8 = 3;
const ABORT_TASK: u8 = 1;
const ABORT_TASK_SET: u8 = 2;
const CLEAR_ACA: u8 = 3;
const CLEAR_TASK_SET: u8 = 4;
const LUN_RESET: u8 = 5;
const WARM_RESET: u8 = 6;
const COLD_RESET: u8 = 7;
const BUSY: u8 = 0x08;
const FAST_ABORT: (&str, &str) = ("TaskReporting", "FastAbort,ResponseFence,RFC3720");

fn own() -> Server {
    Server::start(&config::standard())
}

fn slow_write(raw: &mut Raw, lba: u32, byte: u8) -> Pdu {
    raw.command(SLOW, 0x80 | WRITE, &write10(lba, 1), 512).data(&[byte; 512])
}

fn slow_read(raw: &mut Raw) -> Pdu {
    raw.command(SLOW, 0x80 | READ, &read10(0, 1), 512)
}

fn test_unit_ready(raw: &mut Raw, attribute: u8) -> Pdu {
    raw.command(SLOW, 0x80, &[0; 6], 0).flags(0x80 | attribute)
}

/// A write on `lun` that waits for its data, and its R2T.
fn held_write(raw: &mut Raw, lun: u16, lba: u32) -> (Pdu, Pdu) {
    let write = raw.command(lun, 0x80 | WRITE, &write10(lba, 1), 512);
    raw.send(&write);
    let r2t = raw.recv_for(write.tag());
    assert_eq!(r2t.opcode(), op::R2T);
    (write, r2t)
}

fn give(raw: &mut Raw, r2t: &Pdu, byte: u8) {
    raw.send(&raw.data_out(r2t.tag(), r2t.transfer_tag(), 0, 0, &[byte; 512]).bytes(8, &r2t.bhs[8..16]));
}

/// Checks that no PDU arrives for longer than a command of the slow LUN takes.
fn nothing_more(raw: &mut Raw) {
    match raw.get(Duration::from_millis(800)) {
        Received::Nothing => {}
        other => panic!("{other:?}"),
    }
}

/// The sense of the next TEST UNIT READY.
fn attention(raw: &mut Raw, lun: u16) -> u32 {
    raw.simple(lun, &[0; 6]).sense()
}

/// TMF-001, TMF-020
#[test]
fn tmf_001_every_request_is_answered() {
    let server = own();
    for function in [1, 2, 3, 4, 5, 6, 8, 9, 11, 14, 77, 127] {
        let mut raw = Raw::session(server.portal(), &[]);
        let tag = if matches!(function, 1 | 8) { 0x0bad } else { NONE };
        let tmf = raw.tmf(function, 0, tag, raw.cmd_sn.wrapping_sub(1));
        let answer = raw.ask(&tmf);
        assert_eq!(answer.opcode(), op::TMF_RESPONSE, "function {function}");
        let fine: &[u8] = match function {
            ABORT_TASK => &[1],
            ABORT_TASK_SET | CLEAR_TASK_SET | LUN_RESET => &[0],
            CLEAR_ACA => &[0, 5, 255],
            WARM_RESET => &[0, 5, 6],
            8 => &[4],
            _ => &[5, 255],
        };
        assert!(fine.contains(&answer.bhs[2]), "function {function}: {}", answer.bhs[2]);
    }
}

/// TMF-002: a LUN that is not there.
#[test]
fn tmf_002_an_unknown_lun() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    for function in [ABORT_TASK_SET, CLEAR_TASK_SET, LUN_RESET] {
        assert_eq!(raw.manage(function, 99), 2, "function {function}");
    }
}

/// TMF-005
#[test]
fn tmf_005_abort_task_ends_a_live_task() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let read = slow_read(&mut raw);
    let write = slow_write(&mut raw, 10, 1);
    raw.send_all(&[read.clone(), write.clone()]);
    let aborts = [&read, &write].map(|task| raw.tmf(ABORT_TASK, SLOW, task.tag(), task.get32(24)));
    raw.send_all(&aborts);
    for tmf in &aborts {
        assert_eq!(raw.recv_for(tmf.tag()).bhs[2], 0);
    }
    nothing_more(&mut raw);
    raw.read_blocks(SLOW, 10, 1);
}

/// TMF-006
#[test]
fn tmf_006_abort_task_of_an_unseen_command() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    raw.write_blocks(0, 9000, &[1; 512]).good();
    let late = raw.command(0, 0x80 | WRITE, &write10(9000, 1), 512).data(&[2; 512]);
    let tmf = raw.tmf(ABORT_TASK, 0, late.tag(), late.get32(24));
    let answer = raw.ask(&tmf);
    assert_eq!(answer.bhs[2], 0);
    raw.ping();
    assert_eq!(raw.window.map(|w| w.0), Some(raw.cmd_sn), "the CmdSN counts as received");
    raw.send(&late);
    raw.expect_silence();
    assert_eq!(raw.read_blocks(0, 9000, 1), [1; 512]);
}

/// TMF-006, TMF-016: a function waits for a missing command until another function marks that command as received.
#[test]
fn tmf_006_a_command_taken_as_received_is_not_awaited() {
    let server = own();
    let mut raw = Raw::session(server.portal(), &[]);
    raw.clear_attentions(0);
    let missing = raw.take_cmd_sn();
    let set = raw.tmf(ABORT_TASK_SET, 0, NONE, 0);
    raw.send(&set);
    raw.expect_silence();
    let tag = raw.new_itt();
    let one = raw.tmf(ABORT_TASK, 0, tag, missing);
    raw.send(&one);
    for tmf in [one, set] {
        assert_eq!(raw.recv_for(tmf.tag()).bhs[2], 0);
    }
}

/// An aborted command does not clear the unit attention that it would have reported.
#[test]
fn aborted_command_keeps_its_unit_attention() {
    const POWER_ON: u32 = 0x062900;
    let server = own();
    let mut raw = Login::new().key("InitialR2T", "No").on(server.portal());
    let write = raw.command(0, WRITE, &write10(0, 1), 512);
    raw.send(&write);
    raw.expect_silence();
    let abort = raw.tmf(ABORT_TASK, 0, write.tag(), write.get32(24));
    assert_eq!(raw.ask(&abort).bhs[2], 0);
    let read = raw.command(0, 0x80 | READ, &read10(0, 1), 512);
    let sense = raw.execute(&read, &[]).sense();
    assert_eq!(sense & 0xffff00, POWER_ON, "a read reports it, too");
}

/// TMF-007, TMF-008
#[test]
fn tmf_007_abort_task_of_no_task() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let read = raw.command(0, 0x80 | READ, &read10(0, 1), 512);
    raw.execute(&read, &[]).good();
    for (tag, ref_cmd_sn) in [
        (read.tag(), read.get32(24)),
        (0xabcd, raw.cmd_sn.wrapping_sub(1000)),
        (0xabcd, raw.cmd_sn.wrapping_add(100_000)),
    ] {
        let tmf = raw.tmf(ABORT_TASK, 0, tag, ref_cmd_sn);
        assert_eq!(raw.ask(&tmf).bhs[2], 1, "tag {tag:#x}");
    }
}

/// TMF-009, TMF-015
#[test]
fn tmf_009_a_reset_waits_for_data_and_cannot_be_aborted() {
    let server = own();
    let mut raw = Raw::session(server.portal(), &[("ImmediateData", "No")]);
    let (_, r2t) = held_write(&mut raw, 0, 1);
    let reset = raw.tmf(LUN_RESET, 0, NONE, 0);
    raw.send(&reset);
    raw.expect_silence();
    let tmf = raw.tmf(ABORT_TASK, 0, reset.tag(), reset.get32(24));
    assert_eq!(raw.ask(&tmf).bhs[2], 255);
    give(&mut raw, &r2t, 1);
    let answer = raw.recv();
    assert_eq!((answer.opcode(), answer.tag(), answer.bhs[2]), (op::TMF_RESPONSE, reset.tag(), 0));
}

/// TMF-010
#[test]
fn tmf_010_a_function_acts_on_lower_cmd_sn() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let before: Vec<Pdu> = (0..3).map(|_| slow_read(&mut raw)).collect();
    let tmf = raw.tmf(ABORT_TASK_SET, SLOW, NONE, 0);
    let after = slow_write(&mut raw, 20, 7);
    raw.send_all(&[&before[..], &[tmf.clone(), after.clone()]].concat());
    assert_eq!(raw.recv_for(tmf.tag()).bhs[2], 0);
    raw.collect(after.tag(), &[]).good();
    nothing_more(&mut raw);
    assert_eq!(raw.read_blocks(SLOW, 20, 1), [7; 512]);
}

/// TMF-011, TMF-017: on one connection, the responses of affected tasks come before the response of the function, and
/// none comes after it.
#[test]
fn tmf_011_the_response_is_the_last_word() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    for _ in 0..50 {
        let tasks: Vec<Pdu> = (0..8).map(|_| raw.command(0, 0x80 | READ, &read10(0, 8), 4096)).collect();
        let tmf = raw.tmf(ABORT_TASK_SET, 0, NONE, 0);
        raw.send_all(&tasks);
        raw.send(&tmf);
        while raw.recv().tag() != tmf.tag() {}
        let ping = raw.request(op::NOP_OUT | 0x40).ttt(NONE);
        raw.send(&ping);
        assert_eq!(raw.recv().tag(), ping.tag(), "a task continued after the response");
    }
}

/// TMF-012: ABORT TASK SET affects only the session's own tasks on one logical unit.
#[test]
fn tmf_012_abort_task_set_leaves_others_alone() {
    let server = own();
    let (mut a, mut b) = (Raw::session(server.portal(), &[]), Raw::session(server.portal(), &[]));
    let (of_a, of_b) = (slow_read(&mut a), slow_read(&mut b));
    a.send(&of_a);
    b.send(&of_b);
    assert_eq!(a.manage(ABORT_TASK_SET, SLOW), 0);
    b.collect(of_b.tag(), &[]).good();
    nothing_more(&mut a);
    assert_eq!((attention(&mut a, SLOW), attention(&mut b, SLOW)), (0, 0));
}

/// TMF-012, TMF-016: the tasks of other sessions end too. The function does not wait for their data or for gaps in
/// their CmdSN.
#[test]
fn tmf_012_clear_task_set_and_lun_reset_reach_all_sessions() {
    for function in [CLEAR_TASK_SET, LUN_RESET] {
        let server = own();
        let (mut a, mut b) = (Raw::session(server.portal(), &[]), Raw::session(server.portal(), &[]));
        let (of_a, of_b) = (slow_read(&mut a), slow_read(&mut b));
        let elsewhere = b.command(0, 0x80 | READ, &read10(0, 1), 512);
        a.send(&of_a);
        b.send(&of_b);
        b.execute(&elsewhere, &[]).good();
        let _hole = b.take_cmd_sn();
        let beyond = b.command(SLOW, 0x80, &[0; 6], 0);
        b.send(&beyond);
        assert_eq!(a.manage(function, SLOW), 0, "function {function}");
        nothing_more(&mut a);
        nothing_more(&mut b);
        b.cmd_sn = beyond.get32(24).wrapping_sub(1);
        let filler = b.command(0, 0x80, &[0; 6], 0);
        b.execute(&filler, &[]).good();
        // This command arrived before the function, but in no task set. It must not start, whatever status the target
        // returns.
        let answer = b.collect(beyond.tag(), &[]);
        b.cmd_sn = beyond.get32(24).wrapping_add(1);
        let of_b = if answer.status == BUSY { attention(&mut b, SLOW) } else { answer.sense() };
        let wanted = if function == LUN_RESET { 0x0629 } else { 0x062f };
        assert_eq!(of_b >> 8, wanted, "function {function}: {of_b:06x}, status {:#x}", answer.status);
        assert_eq!(attention(&mut b, 0), 0, "LUN 0 was not touched");
    }
}

/// TMF-012, TMF-019
#[test]
fn tmf_019_lun_reset_is_reported_to_all() {
    let server = own();
    let (mut a, mut b) = (Raw::session(server.portal(), &[]), Raw::session(server.portal(), &[]));
    assert_eq!(a.manage(LUN_RESET, 0), 0);
    assert_eq!(attention(&mut b, 0) >> 8, 0x0629);
    assert_eq!(attention(&mut b, 0), 0, "once");
    let of_a = attention(&mut a, 0);
    assert!(of_a == 0 || of_a >> 8 == 0x0629, "{of_a:06x}");
    assert_eq!((attention(&mut a, 1), attention(&mut b, 1)), (0, 0), "one logical unit only");
}

/// TMF-012, TMF-020: a warm reset reaches every logical unit and keeps the sessions.
#[test]
fn tmf_020_target_warm_reset() {
    let server = own();
    let (mut a, mut b) = (Raw::session(server.portal(), &[]), Raw::session(server.portal(), &[]));
    let of_b = slow_read(&mut b);
    b.send(&of_b);
    let response = a.manage(WARM_RESET, 0);
    if response != 0 {
        assert!(matches!(response, 5 | 6), "{response}");
        return b.collect(of_b.tag(), &[]).good().clear();
    }
    nothing_more(&mut b);
    for lun in 0..3 {
        assert_eq!(attention(&mut b, lun) >> 8, 0x0629, "LUN {lun}");
    }
    a.ping();
}

/// TMF-015
#[test]
fn tmf_015_abort_task_set_waits_for_solicited_data() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[("ImmediateData", "No"), ("TaskReporting", "RFC3720")]);
    raw.write_blocks(0, 9100, &[1; 512]).good();
    let (write, r2t) = held_write(&mut raw, 0, 9100);
    let tmf = raw.tmf(ABORT_TASK_SET, 0, NONE, 0);
    raw.send(&tmf);
    raw.expect_silence();
    give(&mut raw, &r2t, 2);
    let answer = raw.recv();
    assert_eq!((answer.tag(), answer.bhs[2]), (tmf.tag(), 0), "not a response of {write:?}");
    raw.expect_silence();
}

/// TMF-016
#[test]
fn tmf_016_a_function_waits_for_earlier_commands() {
    let server = own();
    let mut raw = Raw::session(server.portal(), &[]);
    let missing = slow_read(&mut raw);
    let seen = slow_read(&mut raw);
    let tmf = raw.tmf(ABORT_TASK_SET, SLOW, NONE, 0);
    raw.send_all(&[seen, tmf.clone()]);
    raw.expect_silence();
    raw.send(&missing);
    let answer = raw.recv();
    assert_eq!((answer.tag(), answer.bhs[2]), (tmf.tag(), 0));
    nothing_more(&mut raw);
    let missing = slow_read(&mut raw);
    let reset = raw.tmf(WARM_RESET, 0, NONE, 0);
    assert!(matches!(raw.ask(&reset).bhs[2], 0 | 5 | 6), "a reset need not wait");
    raw.send(&missing);
    raw.ping();
}

/// TMF-018
#[test]
fn tmf_018_clear_aca_without_aca() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let response = raw.manage(CLEAR_ACA, 0);
    assert!(matches!(response, 0 | 5 | 255), "{response}");
    raw.simple(0, &[0; 6]).good();
}

/// A server with a guest that has read-only access, and a host with access to two of three LUNs. Returns it with both
/// sessions.
fn limited() -> (Server, Raw, Raw) {
    let access = "[[target.access]]\ninitiators = [\"iqn.2026-11.org.example:guest\"]\nread_only = true\n\
                  [[target.access]]\ninitiators = [\"iqn.2026-11.org.example:part\"]\nluns = [0, 1]\n\
                  [[target.access]]\n";
    let server = Server::start(&config::with("", "", access));
    let login = |name: &str| {
        let mut raw = Login::new().initiator(&format!("iqn.2026-11.org.example:{name}")).on(server.portal());
        raw.clear_attentions(0);
        raw
    };
    let (guest, part) = (login("guest"), login("part"));
    (server, guest, part)
}

/// RFC 7143 section 11.6.1: function authorization failed.
const UNAUTHORIZED: u8 = 6;

/// TMF-035
#[test]
fn tmf_035_a_read_only_guest_resets_nothing() {
    let (server, mut guest, _part) = limited();
    let mut host = Raw::session(server.portal(), &[]);
    host.clear_attentions(0);
    for function in [CLEAR_TASK_SET, LUN_RESET, WARM_RESET, COLD_RESET] {
        assert_eq!(guest.manage(function, 0), UNAUTHORIZED, "function {function}");
    }
    assert_eq!(guest.manage(ABORT_TASK_SET, 0), 0, "a host may abort its own tasks");
    assert_eq!(host.simple(0, &[0; 6]).status, 0, "no attention was raised");
    guest.read_blocks(0, 0, 1);
    guest.write(0, &write10(0, 1), &[1; 512]).check(0x07_2700);
    guest.simple(0, &[0x16, 0, 0, 0, 0, 0]).check(0x07_2700);
    let register = [0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    let parameters = [&[0; 8][..], &7u64.to_be_bytes(), &[0; 8]].concat();
    guest.write(0, &register, &parameters).check(0x07_2700);
    host.write_blocks(0, 0, &[2; 512]).good();
}

/// TMF-021
#[test]
fn tmf_021_a_cold_reset_takes_all_luns_of_the_target() {
    let (server, _guest, mut part) = limited();
    let mut host = Raw::session(server.portal(), &[]);
    host.clear_attentions(2);
    assert_eq!(part.manage(COLD_RESET, 0), UNAUTHORIZED);
    assert_eq!(part.manage(WARM_RESET, 0), 0);
    assert_eq!(host.simple(2, &[0; 6]).status, 0, "the resetting host cannot see LUN 2");
    assert_eq!(attention(&mut host, 0) >> 8, 0x06_29, "the resetting host can see LUN 0");
}

/// TMF-021
#[test]
fn tmf_021_target_cold_reset_closes_everything() {
    let server = own();
    let (mut a, mut b) = (Raw::session(server.portal(), &[]), Raw::session(server.portal(), &[]));
    let tmf = a.tmf(COLD_RESET, 0, NONE, 0);
    a.send(&tmf);
    let seen = a.until_close();
    assert!(
        seen.iter().all(|p| p.opcode() == op::ASYNC || p.tag() == tmf.tag() && p.bhs[2] == 0),
        "{seen:?}"
    );
    b.expect_close();
    let login = Login::new();
    assert_eq!(login.clone().session(a.tsih, 0).try_on(server.portal()).err(), Some(0x020a));
    let mut again = login.on(server.portal());
    assert_eq!(attention(&mut again, 0) >> 8, 0x0629, "as after power on");
}

/// TMF-022
#[test]
fn tmf_022_task_reassign_is_not_supported_at_level_zero() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let read = slow_read(&mut raw);
    raw.send(&read);
    for tag in [read.tag(), 0x4711] {
        let tmf = raw.tmf(8, SLOW, tag, 0);
        assert_eq!(raw.ask(&tmf).bhs[2], 4);
    }
    raw.collect(read.tag(), &[]).good();
}

/// TMF-032, CLR-004
#[test]
fn tmf_032_fast_abort_waits_for_no_data() {
    let server = own();
    let mut raw = Raw::session(server.portal(), &[("ImmediateData", "No"), FAST_ABORT]);
    for function in [ABORT_TASK_SET, CLEAR_TASK_SET, LUN_RESET] {
        raw.write_blocks(0, 9200, &[1; 512]).good();
        let (_, r2t) = held_write(&mut raw, 0, 9200);
        assert_eq!(raw.manage(function, 0), 0, "function {function}");
        give(&mut raw, &r2t, 2);
        raw.expect_silence();
        raw.clear_attentions(0);
        assert_eq!(raw.read_blocks(0, 9200, 1), [1; 512], "late data is dropped");
    }
}

/// TMF-033, TMF-034, ASY-009, ASY-001: a session with FastAbort whose tasks another session aborts gets AsyncEvent 5,
/// once for each logical unit. No other session gets it.
#[test]
fn tmf_033_other_sessions_hear_of_their_aborted_tasks() {
    let server = own();
    let keys = [("ImmediateData", "No"), FAST_ABORT];
    let mut issuer = Raw::session(server.portal(), &keys);
    let mut fast = Raw::session(server.portal(), &keys);
    let mut old = Raw::session(server.portal(), &[("ImmediateData", "No")]);
    let (_, of_fast) = held_write(&mut fast, 0, 1);
    held_write(&mut fast, 0, 2);
    let (_, of_old) = held_write(&mut old, 0, 3);
    let reset = issuer.tmf(LUN_RESET, 0, NONE, 0);
    issuer.send(&reset);
    let message = fast.recv();
    assert_eq!((message.opcode(), message.bhs[36]), (op::ASYNC, 5), "{message:?}");
    assert_eq!(message.bhs[8..16], [0; 8], "LUN 0");
    fast.expect_silence();
    let done =
        Pdu::new(op::NOP_OUT | 0x40).itt(NONE).ttt(NONE).cmd_sn(fast.cmd_sn).exp_stat_sn(fast.exp_stat_sn);
    fast.send(&done);
    give(&mut old, &of_old, 1);
    old.expect_silence();
    assert_eq!(issuer.recv_for(reset.tag()).bhs[2], 0);
    issuer.expect_silence();
    assert_ne!(of_fast.transfer_tag(), NONE);
    assert_eq!(attention(&mut fast, 0) >> 8, 0x0629);
    assert_eq!(attention(&mut old, 0) >> 8, 0x0629);
}

/// ASY-009
#[test]
fn asy_009_no_code_five_without_fast_abort() {
    let server = own();
    let (mut a, mut b) =
        (Raw::session(server.portal(), &[]), Raw::session(server.portal(), &[("ImmediateData", "No")]));
    let (_, r2t) = held_write(&mut b, 0, 1);
    let reset = a.tmf(LUN_RESET, 0, NONE, 0);
    a.send(&reset);
    b.expect_silence();
    give(&mut b, &r2t, 1);
    b.expect_silence();
    assert_eq!(a.recv_for(reset.tag()).bhs[2], 0);
}

/// Shorter than a command of the slow LUN.
const SOON: Duration = Duration::from_millis(300);

/// An ORDERED command waits for writes of its own session and of others (SAM-5 section 8.6).
#[test]
fn running_write_blocks_ordered_but_not_head_of_queue() {
    let server = own();
    let [mut raw, mut other] = [(); 2].map(|()| Raw::session(server.portal(), &[]));
    let write = slow_write(&mut raw, 30, 3);
    let [ordered, head] = [ORDERED, HEAD_OF_QUEUE].map(|a| test_unit_ready(&mut raw, a));
    raw.send_all(&[write.clone(), ordered.clone(), head.clone()]);
    let order = [&head, &write, &ordered].map(Pdu::tag);
    assert_eq!([(); 3].map(|()| raw.recv().tag()), order);

    let write = slow_write(&mut raw, 30, 4);
    let head = test_unit_ready(&mut raw, HEAD_OF_QUEUE);
    raw.send_all(&[write.clone(), head.clone()]);
    assert_eq!(raw.recv().tag(), head.tag(), "the write is being executed now");
    let ordered = test_unit_ready(&mut other, ORDERED);
    assert_eq!(other.ask(&ordered).tag(), ordered.tag());
    let Received::Pdu(done) = raw.get(SOON) else { panic!("the write has not ended") };
    assert_eq!(done.tag(), write.tag());
}

/// A command that waits for exclusive access blocks others only until it is aborted.
#[test]
fn aborted_ordered_command_blocks_no_command() {
    let server = own();
    let [mut raw, mut other] = [(); 2].map(|()| Raw::session(server.portal(), &[]));
    let write = slow_write(&mut raw, 30, 5);
    let head = test_unit_ready(&mut raw, HEAD_OF_QUEUE);
    raw.send_all(&[write.clone(), head.clone()]);
    assert_eq!(raw.recv().tag(), head.tag(), "the write is being executed now");
    let ordered = test_unit_ready(&mut other, ORDERED);
    other.send(&ordered);
    let abort = other.tmf(ABORT_TASK, SLOW, ordered.tag(), ordered.get32(24));
    assert_eq!(other.ask(&abort).bhs[2], 0);
    other.simple(SLOW, &[0; 6]).good();
    let Received::Nothing = raw.get(Duration::from_millis(1)) else {
        panic!("the command waited for the write")
    };
    assert_eq!(raw.recv().tag(), write.tag());
}

/// REJ-008
#[test]
fn rej_008_a_tag_that_is_in_use() {
    let server = shared();
    let mut raw = Raw::session(server.portal(), &[]);
    let read = slow_read(&mut raw);
    raw.send(&read);
    let twin = raw.command(0, 0x80, &[0; 6], 0).itt(read.tag());
    match raw.outcome(&twin) {
        PduOutcome::Rejected(reason) => {
            assert!(matches!(reason, 4 | 7), "{reason}");
            raw.collect(read.tag(), &[]).good();
        }
        PduOutcome::Closed => {}
        PduOutcome::Answered(answer) => panic!("{answer:?}"),
    }
}

//! Guarantees of the device server that depend on the transport.

use interop::scsi::{READ, WRITE, designator, extended_copy, read10, reserve_out, write10};
use interop::{Pdu, Raw, Received, Server, config, op};
use std::time::{Duration, Instant};

const WRITES: u8 = 2;
const READS: u8 = 3;
const VERIFIES: u8 = 5;
const OTHERS: u8 = 6;

/// LOG SENSE: cumulative values of all parameters of a page of counters.
fn counters(raw: &mut Raw, lun: u16, page: u8) -> Vec<u64> {
    let data = raw.read(lun, &[0x4d, 0, 0x40 | page, 0, 0, 0, 0, 0, 0xff, 0], 0xff).good();
    let value = |p: &[u8]| u64::from_be_bytes(p[4..12].try_into().expect("8 bytes"));
    data[4..].chunks_exact(12).map(value).collect()
}

/// Small commands, which the server executes inline, and large ones, over two sessions. LUN 0 is memory, LUN 1 is
/// null.
#[test]
fn log_pages_count_operations() {
    let server = Server::start(&config::standard());
    for lun in [0, 1] {
        let mut sessions = [(); 2].map(|()| Raw::session(server.portal(), &[]));
        for raw in &mut sessions {
            raw.write_blocks(lun, 0, &[1; 4096]).good();
            raw.write_blocks(lun, 0, &vec![2; 1 << 20]).good();
            raw.read_blocks(lun, 0, 8);
            raw.read_blocks(lun, 0, 2048);
            raw.simple(lun, &[0x2f, 0, 0, 0, 0, 0, 0, 0, 16, 0]).good();
        }
        let moved = 2 * (4096 + (1 << 20));
        let [raw, _] = &mut sessions;
        assert_eq!(counters(raw, lun, WRITES), [moved, 0], "LUN {lun}");
        assert_eq!(counters(raw, lun, READS), [moved, 0], "LUN {lun}");
        assert_eq!(counters(raw, lun, VERIFIES), [2 * 16 * 512, 0], "LUN {lun}");
        assert_eq!(counters(raw, lun, OTHERS), [0], "LUN {lun}");
    }
}

#[test]
fn log_pages_count_errors() {
    let failing = r#"[[target.lun]]
lun = 3
backend = "memory"
size = "1MiB"
filters = [{ kind = "error", rate = 1.0, op = "read" }]
"#;
    let server = Server::start(&(config::standard() + failing));
    let mut raw = Raw::session(server.portal(), &[]);
    raw.clear_attentions(3);
    for _ in 0..3 {
        let read = raw.read(3, &read10(5, 1), 512);
        read.check(0x03_1100);
    }
    assert_eq!(counters(&mut raw, 3, READS), [0, 3]);
    assert_eq!(counters(&mut raw, 3, WRITES), [0, 0]);
}

const ABORT_TASK: u8 = 1;
const LUN_RESET: u8 = 5;
const SANITIZING: u32 = 0x02_041b;

/// A LUN that needs two seconds to be overwritten.
fn slow() -> Server {
    let slow = r#"[[target.lun]]
lun = 3
backend = "memory"
size = "4MiB"
filters = [{ kind = "delay", read_us = 0, write_us = 500000 }]
"#;
    Server::start(&(config::standard() + slow))
}

/// Starts SANITIZE OVERWRITE with 5Ah in every byte, without IMMED.
fn begin_overwrite(raw: &mut Raw) -> Pdu {
    raw.clear_attentions(3);
    let list = [1, 0, 0, 1, 0x5a];
    let cdb = [0x48, 1, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
    let pdu = raw.command(3, 0x80 | WRITE, &cdb, list.len() as u32).data(&list);
    raw.send(&pdu);
    raw.ping();
    pdu
}

/// A sanitize operation continues after its task has ended (SBC-4 section 4.11). `manage` ends the task, and must not
/// wait for the operation.
fn survives(manage: impl Fn(&mut Raw, &Pdu) -> u8) {
    let server = slow();
    let mut raw = Raw::session(server.portal(), &[]);
    let sanitize = begin_overwrite(&mut raw);
    let started_at = Instant::now();
    assert_eq!(manage(&mut raw, &sanitize), 0);
    let mut other = Raw::session(server.portal(), &[]);
    other.clear_attentions(3);
    assert_eq!(other.simple(3, &[0; 6]).sense(), SANITIZING, "it waited for the end of the operation");
    let end = started_at + Duration::from_secs(20);
    while other.simple(3, &[0; 6]).status != 0 {
        assert!(Instant::now() < end, "the sanitize operation does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(other.read_blocks(3, 8191, 1), [0x5a; 512]);
}

#[test]
fn sanitize_operation_survives_abort_task() {
    survives(|raw, task| {
        let abort = raw.tmf(ABORT_TASK, 3, task.tag(), task.get32(24));
        raw.ask(&abort).bhs[2]
    });
}

#[test]
fn sanitize_operation_survives_a_reset() {
    survives(|raw, _| raw.manage(LUN_RESET, 3));
}

#[test]
fn sanitize_operation_survives_its_session() {
    survives(|raw, _| {
        let logout = raw.logout(0, 0);
        assert_eq!(logout.opcode(), op::LOGOUT_RESPONSE);
        logout.bhs[2]
    });
}

/// Waits until LUN 3 is ready.
fn becomes_ready(raw: &mut Raw) {
    let end = Instant::now() + Duration::from_secs(20);
    raw.clear_attentions(3);
    loop {
        let reply = raw.simple(3, &[0; 6]);
        if reply.status == 0 {
            return;
        }
        assert!(Instant::now() < end, "LUN 3 is not ready: {reply:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

const BLOCK_ERASE: [u8; 10] = [0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0];

/// The session ends before the operation starts. The logical unit must not report the operation as running.
#[test]
fn erase_whose_session_ends_leaves_the_unit_usable() {
    let server = slow();
    let mut raw = Raw::session(server.portal(), &[]);
    raw.clear_attentions(3);
    let erase = raw.command(3, 0x80, &BLOCK_ERASE, 0);
    let logout = raw.request(op::LOGOUT | 0x40).flags(0x80);
    raw.send_all(&[erase, logout.clone()]);
    assert_eq!(raw.recv_for(logout.tag()).opcode(), op::LOGOUT_RESPONSE);
    let mut other = Raw::session(server.portal(), &[]);
    becomes_ready(&mut other);
    other.write_blocks(3, 0, &[7; 512]).good();
    assert_eq!(other.read_blocks(3, 0, 1), [7; 512]);
}

/// The operation waits for a running write, and is aborted before it starts.
#[test]
fn erase_aborted_before_its_start_erases_nothing() {
    let server = slow();
    let [mut raw, mut other] = [(); 2].map(|()| Raw::session(server.portal(), &[]));
    raw.clear_attentions(3);
    other.clear_attentions(3);
    let write = other.command(3, 0x80 | WRITE, &write10(0, 1), 512).data(&[9; 512]);
    other.send(&write);
    // The response to the ping shows that the server has received the write, which holds the task set lock of its
    // logical unit.
    other.ping();
    let erase = raw.command(3, 0x80, &BLOCK_ERASE, 0);
    raw.send(&erase);
    let abort = raw.tmf(ABORT_TASK, 3, erase.tag(), erase.get32(24));
    assert_eq!(raw.ask(&abort).bhs[2], 0);
    other.collect(write.tag(), &[]).good();
    becomes_ready(&mut raw);
    assert_eq!(raw.read_blocks(3, 0, 1), [9; 512]);
}

/// Without an abort, the command ends with the operation.
#[test]
fn sanitize_command_waits_for_the_end() {
    let server = slow();
    let mut raw = Raw::session(server.portal(), &[]);
    let sanitize = begin_overwrite(&mut raw);
    raw.collect(sanitize.tag(), &[]).good();
    assert_eq!(raw.read_blocks(3, 0, 1), [0x5a; 512]);
}

/// A write that waited for its data when the operation started must not store them.
#[test]
fn write_from_before_a_sanitize_operation_is_refused() {
    let server = slow();
    let [mut raw, mut late] = [(); 2].map(|()| Raw::session(server.portal(), &[]));
    late.clear_attentions(3);
    let write = late.command(3, 0x80 | WRITE, &write10(0, 1), 512);
    late.send(&write);
    let r2t = late.recv_for(write.tag());
    assert_eq!(r2t.opcode(), op::R2T);
    let sanitize = begin_overwrite(&mut raw);
    let soon = Instant::now() + Duration::from_secs(20);
    while late.simple(3, &[0; 6]).sense() != SANITIZING {
        assert!(Instant::now() < soon, "the sanitize operation does not start");
    }
    late.answer(&r2t, &[0xee; 512]);
    late.collect(write.tag(), &[]).check(SANITIZING);
    raw.collect(sanitize.tag(), &[]).good();
    assert_eq!(raw.read_blocks(3, 0, 1), [0x5a; 512]);
}

const WARM_RESET: u8 = 6;
const REGISTER: u8 = 0;
const PREEMPT_AND_ABORT: u8 = 5;

/// The read of LUN 3 takes less time than that of LUN 2. If a reset handled one logical unit after the other, it
/// would end.
#[test]
fn target_reset_ends_tasks_of_all_logical_units() {
    let faster = r#"[[target.lun]]
lun = 3
backend = "memory"
size = "4MiB"
filters = [{ kind = "delay", read_us = 300000, write_us = 0 }]
"#;
    let server = Server::start(&(config::standard() + faster));
    let [mut a, mut b] = [(); 2].map(|()| Raw::session(server.portal(), &[]));
    for lun in [2, 3] {
        b.clear_attentions(lun);
    }
    let reads = [2, 3].map(|lun| b.command(lun, 0x80 | READ, &read10(0, 1), 512));
    b.send_all(&reads);
    b.ping();
    assert_eq!(a.manage(WARM_RESET, 0), 0);
    assert!(matches!(b.get(Duration::from_millis(800)), Received::Nothing), "both reads are aborted");
    for lun in [0, 2, 3] {
        assert_eq!(b.simple(lun, &[0; 6]).sense() >> 8, 0x0629, "LUN {lun}");
    }
}

/// Starts a copy from LUN 0 to LUN 3. Each write to LUN 3 takes a second, so the copy takes some.
fn copying() -> (Server, Raw, Pdu) {
    let late = r#"[[target.lun]]
lun = 3
backend = "memory"
size = "16MiB"
filters = [{ kind = "delay", read_us = 0, write_us = 1000000 }]
"#;
    let server = Server::start(&(config::standard() + late));
    let mut raw = Raw::session(server.portal(), &[]);
    for lun in [0, 3] {
        raw.clear_attentions(lun);
    }
    raw.write_blocks(0, 0, &vec![0x5e; 4 << 20]).good();
    reserve_out(&mut raw, 3, REGISTER, 0, 0, 0xa, 0).good();
    let (from, to) = (designator(&mut raw, 0), designator(&mut raw, 3));
    let (cdb, list) = extended_copy(&from, &to, 8192);
    let copy = raw.command(0, 0x80 | WRITE, &cdb, list.len() as u32).data(&list);
    raw.send(&copy);
    raw.ping();
    (server, raw, copy)
}

/// After PREEMPT AND ABORT, the preempted nexus writes nothing more, also not by a copy (SPC-5 section
/// 5.14.11.2.6).
#[test]
fn preempted_nexus_stops_its_copy() {
    let (server, mut raw, _) = copying();
    let mut other = Raw::session(server.portal(), &[]);
    other.clear_attentions(3);
    reserve_out(&mut other, 3, REGISTER, 0, 0, 0xb, 0).good();
    reserve_out(&mut other, 3, PREEMPT_AND_ABORT, 1, 0xb, 0xa, 0).good();
    let before = other.read_blocks(3, 0, 8200);
    assert!(matches!(raw.get(Duration::from_millis(2500)), Received::Nothing), "the copy is aborted");
    assert!(other.read_blocks(3, 0, 8200) == before, "something was written afterwards");
}

/// COMPARE AND WRITE, with which hosts hold locks, does not wait for the copy of another host.
#[test]
fn compare_and_write_waits_for_no_whole_copy() {
    let (server, mut raw, copy) = copying();
    let mut other = Raw::session(server.portal(), &[]);
    for lun in [0, 3] {
        other.clear_attentions(lun);
        let mut cdb = [0; 16];
        (cdb[0], cdb[13]) = (0x89, 1);
        (cdb[8], cdb[9]) = (0x3f, 0xff);
        other.write(lun, &cdb, &[[0; 512], [1; 512]].concat()).good();
    }
    assert!(matches!(raw.get(Duration::from_millis(1)), Received::Nothing), "the copy is still running");
    raw.collect(copy.tag(), &[]).good();
    assert_eq!(other.read_blocks(3, 9, 8192), vec![0x5e; 4 << 20]);
}

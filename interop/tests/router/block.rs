//! The block path: the router's own device server speaks for disks that are elsewhere.

use crate::*;
use interop::op;
use interop::script::{Script, Turn};
use interop::scsi::{READ, pattern, read10, reserve_out};

const KEY: u64 = 0xb10c;
const WRITE_EXCLUSIVE: u8 = 1;
const APTPL: u8 = 1;
const ABORT_TASK: u8 = 1;
const LUN_RESET: u8 = 5;
/// POWER ON, RESET, OR BUS DEVICE RESET OCCURRED, whatever its qualifier.
const RESET: u32 = 0x0629;

fn host(n: u8) -> Login {
    let name = format!("iqn.2026-11.org.example:host{n}");
    Login::new().target(T).initiator(&name).isid([0x80, 0, 0, n, 0, 1])
}

#[test]
fn a_reservation_holds_among_the_hosts_of_a_router_and_outlives_it() {
    let storage = storage_of(&target(A, &disk(0, "a0")));
    let mut router = router_to(&url(&storage, &format!("/{A}")), "");
    let mut holder = session_of(&host(1), router.portal(), &[0]);
    reserve_out(&mut holder, 0, 0, 0, 0, KEY, APTPL).good();
    reserve_out(&mut holder, 0, 1, WRITE_EXCLUSIVE, KEY, 0, 0).good();
    for _ in 0..2 {
        let mut other = session_of(&host(2), router.portal(), &[0]);
        assert_eq!(other.write_blocks(0, 8, &[9; 512]).status, CONFLICT);
        session_of(&host(1), router.portal(), &[0]).write_blocks(0, 8, &pattern(512, 1)).good();
        assert!(other.read_blocks(0, 8, 1) == pattern(512, 1));
        router.restart();
    }
}

#[test]
fn all_hosts_hear_that_the_storage_was_reset() {
    let storage = storage_of(&target(A, &disk(0, "a0")));
    let router = router_to(&url(&storage, &format!("/{A}")), "");
    let mut hosts = [1, 2].map(|n| session_of(&host(n), router.portal(), &[0]));
    hosts[0].write_blocks(0, 8, &pattern(512, 1)).good();
    assert_eq!(session(storage.portal(), A, &[0]).manage(LUN_RESET, 0), 0);
    // The router hears of it with its next command.
    assert!(hosts[0].read_blocks(0, 8, 1) == pattern(512, 1));
    for raw in &mut hosts {
        until("it is told", || (raw.simple(0, &[0; 6]).sense() >> 8 == RESET).then_some(()));
        raw.simple(0, &[0; 6]).good();
    }
}

/// A command is given up before hosts with the usual time-outs do so, and the storage is asked to end it; a host that aborts
/// it sooner is answered when that is done.
#[test]
fn a_command_that_hangs_upstream_is_over_before_its_abort_is_answered() {
    let hangs = Script::new().at(op::SCSI, |_, pdu| match pdu.bhs[32] {
        0x28 | 0x88 => Turn::Done,
        _ => Turn::Usual,
    });
    let target = hangs.listen();
    let place =
        format!("iscsi://{}/{}?command_timeout=1&operation_timeout=2", target.address(), interop::TARGET);
    let router = router_to(&place, "");
    let mut raw = session(router.portal(), T, &[0]);
    let read = raw.command(0, 0x80 | READ, &read10(0, 8), 4096);
    raw.send(&read);
    let hanging = || target.requests(op::SCSI).iter().any(|pdu| matches!(pdu.bhs[32], 0x28 | 0x88));
    until("it hangs", || hanging().then_some(()));
    let abort = raw.tmf(ABORT_TASK, 0, read.tag(), read.get32(24));
    let answer = raw.ask(&abort);
    assert_eq!((answer.opcode(), answer.bhs[2]), (op::TMF_RESPONSE, 0), "{answer:?}");
    let functions: Vec<u8> = target.requests(op::TMF).iter().map(|pdu| pdu.bhs[1] & 0x7f).collect();
    assert!(functions.contains(&ABORT_TASK), "{functions:?}");
    raw.simple(0, &[0; 6]).good();
    raw.expect_silence();
}

//! Block mode: the router's own device server answers for disks of another target.

use crate::*;
use interop::op;
use interop::script::{BLOCK, BLOCKS, HookAction, Script};
use interop::scsi::{READ, pattern, read10, reserve_out, write10};

const KEY: u64 = 0xb10c;
const WRITE_EXCLUSIVE: u8 = 1;
const APTPL: u8 = 1;
const ABORT_TASK: u8 = 1;
const LUN_RESET: u8 = 5;
const SERVICE_ACTION_IN_16: u8 = 0x9e;
const READ_CAPACITY_16: u8 = 0x10;
const GET_LBA_STATUS: u8 = 0x12;
/// LBPME and LBPRZ: the disk is thin, and unmapped blocks read as zeros.
const THIN: u8 = 0xc0;
/// Most descriptors in a response to GET LBA STATUS.
const MAX: usize = 256;
/// POWER ON, RESET, OR BUS DEVICE RESET OCCURRED, whatever its qualifier.
const RESET: u32 = 0x0629;

fn host(n: u8) -> Login {
    let name = format!("iqn.2026-11.org.example:host{n}");
    Login::new().target(T).initiator(&name).isid([0x80, 0, 0, n, 0, 1])
}

#[test]
fn router_keeps_reservations_over_a_restart() {
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
fn storage_reset_is_reported_to_all_hosts() {
    let storage = storage_of(&target(A, &disk(0, "a0")));
    let router = router_to(&url(&storage, &format!("/{A}")), "");
    let mut hosts = [1, 2].map(|n| session_of(&host(n), router.portal(), &[0]));
    hosts[0].write_blocks(0, 8, &pattern(512, 1)).good();
    assert_eq!(session(storage.portal(), A, &[0]).manage(LUN_RESET, 0), 0);
    // The router receives the unit attention with its next command.
    assert!(hosts[0].read_blocks(0, 8, 1) == pattern(512, 1));
    for raw in &mut hosts {
        until("the unit attention", || (raw.simple(0, &[0; 6]).sense() >> 8 == RESET).then_some(()));
        raw.simple(0, &[0; 6]).good();
    }
}

/// The router aborts a command at the storage before the usual time limits of hosts. A host that aborts it sooner gets its
/// response after that.
#[test]
fn abort_waits_for_a_command_that_hangs_upstream() {
    let hangs = Script::new().at(op::SCSI, |_, pdu| match pdu.bhs[32] {
        0x28 | 0x88 => HookAction::Done,
        _ => HookAction::Usual,
    });
    let target = hangs.listen();
    let place =
        format!("iscsi://{}/{}?command_timeout=1&operation_timeout=3", target.address(), interop::TARGET);
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

/// A disk whose every second block is mapped. It returns as many descriptors as the request has room for.
fn fragmented() -> Script {
    Script::new().scsi(SERVICE_ACTION_IN_16, |link, pdu| {
        let number = |bytes: &[u8]| bytes.iter().fold(0usize, |n, b| n << 8 | usize::from(*b));
        let cdb = &pdu.bhs[32..48];
        let data = match cdb[1] & 0x1f {
            READ_CAPACITY_16 => {
                let mut data = vec![0; 32];
                data[..8].copy_from_slice(&(BLOCKS as u64 - 1).to_be_bytes());
                data[8..12].copy_from_slice(&(BLOCK as u32).to_be_bytes());
                data[14] = THIN;
                data
            }
            GET_LBA_STATUS => {
                let room = (number(&cdb[10..14]) - 8) / 16;
                let descriptor = |lba: usize| {
                    [&(lba as u64).to_be_bytes()[..], &[0, 0, 0, 1], &[(lba % 2) as u8, 0, 0, 0]].concat()
                };
                let list: Vec<u8> = (number(&cdb[2..10])..BLOCKS).take(room).flat_map(descriptor).collect();
                [&(list.len() as u32 + 4).to_be_bytes()[..], &[0; 4], &list].concat()
            }
            _ => return HookAction::Usual,
        };
        link.data_in(pdu, &data);
        HookAction::Done
    })
}

/// First block, number of blocks and state of the descriptors of GET LBA STATUS, with room for `max` of them.
fn mapped(raw: &mut Raw, from: usize, max: usize) -> Vec<(u64, u32, u8)> {
    let room = (8 + 16 * max) as u32;
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (SERVICE_ACTION_IN_16, GET_LBA_STATUS);
    cdb[2..10].copy_from_slice(&(from as u64).to_be_bytes());
    cdb[10..14].copy_from_slice(&room.to_be_bytes());
    let answer = raw.read(0, &cdb, room).good();
    assert_eq!(u32::from_be_bytes(answer[..4].try_into().expect("4 bytes")) as usize, answer.len() - 4);
    let lba = |d: &[u8]| u64::from_be_bytes(d[..8].try_into().expect("8 bytes"));
    let blocks = |d: &[u8]| u32::from_be_bytes(d[8..12].try_into().expect("4 bytes"));
    answer[8..].chunks_exact(16).map(|d| (lba(d), blocks(d), d[12])).collect()
}

/// The upstream may be far away, and a copy of a sparse disk requests every extent.
#[test]
fn one_lba_status_request_is_one_request_upstream() {
    let target = fragmented().listen();
    let router = router_to(&format!("iscsi://{}/{}", target.address(), interop::TARGET), "");
    let mut raw = session(router.portal(), T, &[0]);
    let is_status =
        |pdu: &&interop::Pdu| pdu.bhs[32] == SERVICE_ACTION_IN_16 && pdu.bhs[33] == GET_LBA_STATUS;
    let asked = || target.requests(op::SCSI).iter().filter(is_status).count();
    let every: Vec<_> = (0..BLOCKS as u64).map(|lba| (lba, 1, (lba % 2) as u8)).collect();
    for max in [7, 64, MAX, 2 * MAX] {
        let (before, mut found, mut questions) = (asked(), Vec::new(), 0);
        while found.len() < BLOCKS {
            let more = mapped(&mut raw, found.len(), max);
            assert!((1..=max).contains(&more.len()));
            found.extend(more);
            questions += 1;
        }
        assert!(found == every, "{max} at a time: {found:?}");
        assert_eq!((questions, asked() - before), (BLOCKS.div_ceil(max.min(MAX)), questions));
    }
}

/// A failed flush loses data only if something was written.
#[test]
fn router_stop_fails_only_with_writes_not_flushed() {
    for (written, status) in [(false, 0), (true, 1)] {
        let mut storage = storage_of(&target(A, &disk(0, "a0")));
        let mut router = router_to(&url(&storage, &format!("/{A}?recovery_timeout=1")), "mode = \"block\"\n");
        let mut host = session(router.portal(), T, &[0]);
        if written {
            host.write(0, &write10(0, 1), &[7; 512]).good();
        }
        drop(host);
        storage.kill9();
        assert_eq!(router.stop().code(), Some(status), "written: {written}: {}", router.log());
    }
}

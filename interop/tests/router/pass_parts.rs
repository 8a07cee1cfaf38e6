//! Passthrough mode: data of a long read are sent to the host while the rest arrives.

use crate::*;
use interop::script::{HookAction, Script, ScriptConnection, Target};
use interop::scsi::{READ, read10};
use interop::{Pdu, op};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Bytes of the read, which has the whole disk, and of the first Data-In of the storage.
const LEN: usize = 512 << 10;
const FIRST: usize = 160 << 10;
const ABORT_TASK: u8 = 1;

/// A host to which a part fits into one Data-In.
fn login() -> Login {
    Login::new().target(T).with(&[("MaxRecvDataSegmentLength", "262144")])
}

/// A router in passthrough mode with this storage, and a session with it.
fn passing(script: Script) -> (Target, Server, Raw) {
    let target = script.listen();
    let upstream = upstream("a", &format!("iscsi://{}/{}", target.address(), interop::TARGET), "");
    let text = router_text("mode = \"passthrough\"\n", &(upstream + &map_target(T, "a")));
    let router = Server::start(&text);
    let raw = session_of(&login(), router.portal(), &[0]);
    (target, router, raw)
}

/// The content of the disk of a scripted target.
fn content() -> Vec<u8> {
    (0..LEN).map(|i| (i / 512 * 7 + i) as u8).collect()
}

/// Sends the first Data-In of a read.
fn first_part(link: &mut ScriptConnection, pdu: &Pdu) {
    let data = Pdu::new(op::DATA_IN).itt(pdu.tag()).ttt(interop::NONE);
    link.send(data.data(&content()[..FIRST]));
}

/// Begins a read of the whole disk. Returns the command, and the data that arrive before the storage has ended it.
fn begin(raw: &mut Raw) -> (Pdu, Vec<u8>) {
    let command = raw.command(0, 0x80 | READ, &read10(0, (LEN / 512) as u16), LEN as u32);
    raw.send(&command);
    let first = raw.recv();
    assert_eq!((first.opcode(), first.bhs[1], first.get32(36), first.get32(40)), (op::DATA_IN, 0, 0, 0));
    assert!(!first.data.is_empty() && first.data.len() < FIRST, "{} bytes", first.data.len());
    (command, first.data)
}

/// Receives the other Data-In up to the response, which may be in the last one.
fn rest(raw: &mut Raw, mut data: Vec<u8>) -> (Pdu, Vec<u8>) {
    for data_sn in 1.. {
        let pdu = raw.recv();
        if pdu.opcode() != op::DATA_IN {
            assert_eq!(pdu.get32(36), data_sn, "ExpDataSN");
            return (pdu, data);
        }
        assert_eq!((pdu.get32(36), pdu.get32(40) as usize), (data_sn, data.len()));
        data.extend_from_slice(&pdu.data);
        if pdu.bhs[1] & 1 != 0 {
            return (pdu, data);
        }
    }
    unreachable!("the response")
}

#[test]
fn lost_upstream_connection_does_not_repeat_data() {
    let reads = Arc::new(AtomicUsize::new(0));
    let (target, _router, mut raw) = passing(Script::new().scsi(0x28, move |link, pdu| {
        if reads.fetch_add(1, SeqCst) > 0 {
            return HookAction::Usual;
        }
        first_part(link, pdu);
        std::thread::sleep(Duration::from_millis(100));
        HookAction::Close
    }));
    let (_, first) = begin(&mut raw);
    let (last, data) = rest(&mut raw, first);
    assert_eq!((last.bhs[1], last.bhs[3]), (0x81, 0), "GOOD without a residual: {last:?}");
    assert!(data == target.disk());
}

#[test]
fn error_after_data_reaches_the_host_with_its_residual() {
    let (target, _router, mut raw) = passing(Script::new().scsi(0x28, |link, pdu| {
        first_part(link, pdu);
        std::thread::sleep(Duration::from_millis(100));
        let sense = [0, 18, 0x70, 0, 3, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0];
        let response = Pdu::new(op::SCSI_RESPONSE).flags(0x82).itt(pdu.tag()).byte(3, 2).set32(36, 1);
        link.send(response.set32(44, (LEN - FIRST) as u32).data(&sense));
        HookAction::Done
    }));
    let (_, first) = begin(&mut raw);
    let (last, data) = rest(&mut raw, first);
    assert_eq!((last.opcode(), last.bhs[1] & 6, last.bhs[3]), (op::SCSI_RESPONSE, 2, 2), "{last:?}");
    assert_eq!((last.get32(44) as usize, last.data[4]), (LEN - FIRST, 3));
    assert!(data == target.disk()[..FIRST]);
    raw.simple(0, &[0; 6]).good();
}

#[test]
fn no_data_follow_the_abort_of_a_long_read() {
    let (_target, _router, mut raw) = passing(Script::new().scsi(0x28, |link, pdu| {
        first_part(link, pdu);
        HookAction::Done
    }));
    let (command, _) = begin(&mut raw);
    let abort = raw.tmf(ABORT_TASK, 0, command.tag(), command.get32(24));
    let answer = raw.ask(&abort);
    assert_eq!((answer.opcode(), answer.bhs[2]), (op::TMF_RESPONSE, 0), "{answer:?}");
    raw.simple(0, &[0; 6]).good();
    raw.expect_silence();
}

/// Parts of a PDU cannot be checked before its data digest, so data leave after whole PDUs.
#[test]
fn long_reads_have_all_data_with_digests_on_either_side() {
    for (host, storage) in [(false, true), (true, false), (true, true)] {
        let target = storage_of(&target(A, &disk(0, "a0")));
        let settings = if storage { "?data_digest=crc32c&header_digest=crc32c" } else { "" };
        let upstream = upstream("a", &url(&target, &format!("/{A}{settings}")), "");
        let text = router_text("mode = \"passthrough\"\n", &(upstream + &map_target(T, "a")));
        let router = Server::start(&text);
        let keys: &[(&str, &str)] = if host { &[("DataDigest", "CRC32C")] } else { &[] };
        let mut raw = session_of(&login().with(keys), router.portal(), &[0]);
        let data = interop::scsi::pattern(1 << 20, 7);
        for at in 0..16 {
            raw.write_blocks(0, at * 128, &data[at as usize * 65536..][..65536]).good();
        }
        assert!(raw.read_blocks(0, 0, 2048) == data, "digests of host {host}, of storage {storage}");
    }
}

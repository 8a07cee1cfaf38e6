//! Passthrough mode: commands and their responses are forwarded unchanged.

use crate::*;
use interop::amounts::{DataOutMode, walk};
use interop::script::{HookAction, Script, ScriptConnection, Target};
use interop::scsi::{READ, WRITE, pattern, read_keys, read10, reserve_out, write10};
use interop::{Pdu, op};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

const KEY: u64 = 0x5161;
const WRITE_EXCLUSIVE: u8 = 1;
/// A vendor-specific operation code.
const OWN_COMMAND: u8 = 0xc1;
const ABORT_TASK: u8 = 1;
const LUN_RESET: u8 = 5;

fn passing(place: &str) -> Server {
    Server::start(&router_text("mode = \"passthrough\"\n", &(upstream("a", place, "") + &map_target(T, "a"))))
}

/// A login of a host whose nexus is always the same.
fn host(n: u8) -> Login {
    let name = format!("iqn.2026-11.org.example:host{n}");
    Login::new().target(T).initiator(&name).isid([0x80, 0, 0, n, 0, 1])
}

/// Checks that the holder can write, that the other host gets a conflict, and that the upstream has one key.
fn holds(storage: &Server, router: &Server, holder: &Login, other: &Login) {
    let mut mine = session_of(holder, router.portal(), &[0]);
    mine.write_blocks(0, 8, &pattern(512, 1)).good();
    let mut theirs = session_of(other, router.portal(), &[0]);
    assert_eq!(theirs.write_blocks(0, 8, &[9; 512]).status, CONFLICT);
    assert!(theirs.read_blocks(0, 8, 1) == pattern(512, 1));
    let mut direct = session(storage.portal(), A, &[0]);
    assert_eq!(read_keys(&mut direct, 0), [KEY]);
    assert_eq!(
        direct.write_blocks(0, 8, &[9; 512]).status,
        CONFLICT,
        "the reservation holds at the storage itself"
    );
}

#[test]
fn passthrough_reservation_survives_restarts() {
    let storage = storage_of(&target(A, &disk(0, "a0")));
    let mut router = passing(&url(&storage, &format!("/{A}")));
    let (holder, other) = (host(1), host(2));
    let mut mine = session_of(&holder, router.portal(), &[0]);
    let theirs = session_of(&other, router.portal(), &[0]);
    reserve_out(&mut mine, 0, 0, 0, 0, KEY, 0).good();
    reserve_out(&mut mine, 0, 1, WRITE_EXCLUSIVE, KEY, 0, 0).good();
    holds(&storage, &router, &holder, &other);
    mine.cut();
    theirs.cut();
    holds(&storage, &router, &holder, &other);
    router.restart();
    holds(&storage, &router, &holder, &other);
    let mut mine = session_of(&holder, router.portal(), &[0]);
    reserve_out(&mut mine, 0, 3, 0, KEY, 0, 0).good();
    session_of(&other, router.portal(), &[0]).write_blocks(0, 8, &[2; 512]).good();
}

/// A read-only disk, such as a CD, still accepts commands that do not write.
#[test]
fn commands_to_a_read_only_upstream_are_forwarded() {
    let fixed = disk(0, "a0").replace("\"file\"\npath = \"a0.img\"", "\"memory\"") + "read_only = true\n";
    let storage = storage_of(&target(A, &fixed));
    let router = passing(&url(&storage, &format!("/{A}")));
    let mut direct = session(storage.portal(), A, &[0]);
    let mut routed = session_of(&host(1), router.portal(), &[0]);
    const PREVENT: [u8; 6] = [0x1e, 0, 0, 0, 1, 0];
    const ALLOW: [u8; 6] = [0x1e, 0, 0, 0, 0, 0];
    const START: [u8; 6] = [0x1b, 0, 0, 0, 1, 0];
    const EVENTS: [u8; 10] = [0x4a, 1, 0, 0, 0x10, 0, 0, 0, 8, 0];
    const DISC: [u8; 10] = [0x51, 0, 0, 0, 0, 0, 0, 0, 34, 0];
    const RESERVE: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
    const RELEASE: [u8; 6] = [0x17, 0, 0, 0, 0, 0];
    let [here, there] = [&mut routed, &mut direct].map(|raw| {
        let cdbs = [&RESERVE[..], &RELEASE, &START, &PREVENT, &ALLOW, &EVENTS, &DISC];
        cdbs.map(|cdb| raw.simple(0, cdb)).map(|reply| (reply.status, reply.data))
    });
    assert_eq!(here, there);
    assert_eq!([here[0].0, here[1].0], [0, 0]);
    reserve_out(&mut routed, 0, 0, 0, 0, KEY, 0).good();
    assert_eq!(read_keys(&mut direct, 0), [KEY]);
    let refused = [&mut routed, &mut direct].map(|raw| raw.write_blocks(0, 8, &[1; 512]).data);
    assert_eq!(refused[0], refused[1], "the device itself refuses writes");
}

/// A RESERVE(6) reservation ends with the session of its holder, however that ends.
#[test]
fn reserve_6_reservation_ends_with_its_session() {
    let storage = storage_of(&target(A, &disk(0, "a0")));
    let router = passing(&url(&storage, &format!("/{A}")));
    let mut other = session_of(&host(2), router.portal(), &[0]);
    for logs_out in [true, false] {
        let mut holder = session_of(&host(1), router.portal(), &[0]);
        holder.simple(0, &[0x16, 0, 0, 0, 0, 0]).good();
        assert_eq!(other.simple(0, &[0; 6]).status, CONFLICT);
        if logs_out {
            assert_eq!(holder.logout(0, 0).bhs[2], 0);
        }
        let started_at = Instant::now();
        holder.cut();
        until("it is free", || (other.simple(0, &[0; 6]).status == 0).then_some(()));
        assert!(started_at.elapsed() < Duration::from_secs(10), "only after {:?}", started_at.elapsed());
    }
}

/// A router with a scripted upstream, and a session with it.
fn scripted(script: Script) -> (Target, Server, Raw) {
    let target = script.listen();
    let router = passing(&format!("iscsi://{}/{}", target.address(), interop::TARGET));
    let raw = session(router.portal(), T, &[0]);
    (target, router, raw)
}

/// A target that responds to the vendor-specific command.
fn own(answer: impl Fn(&mut ScriptConnection, &Pdu) + Send + Sync + 'static) -> Script {
    Script::new().scsi(OWN_COMMAND, move |link, pdu| {
        answer(link, pdu);
        HookAction::Done
    })
}

fn own_cdb() -> [u8; 10] {
    [OWN_COMMAND, 1, 2, 3, 4, 5, 6, 7, 8, 9]
}

#[test]
fn unknown_command_is_forwarded_with_its_short_response() {
    let (target, _router, mut raw) = scripted(own(|link, pdu| link.data_in(pdu, &pattern(100, 7))));
    let reply = raw.read(0, &own_cdb(), 512);
    assert_eq!((reply.flags & 6, reply.residual), (2, 412), "{reply:?}");
    assert!(reply.good() == pattern(100, 7));
    let sent = target
        .requests(op::SCSI)
        .into_iter()
        .find(|pdu| pdu.bhs[32] == OWN_COMMAND)
        .expect("the command arrived");
    assert_eq!((&sent.bhs[32..42], sent.get32(20)), (&own_cdb()[..], 512));
}

#[test]
fn overflow_of_a_forwarded_read_is_reported() {
    let (_target, _router, mut raw) = scripted(own(|link, pdu| {
        let data = Pdu::new(op::DATA_IN).flags(0x80).itt(pdu.tag()).ttt(interop::NONE);
        link.send(data.data(&pattern(512, 8)));
        link.send(Pdu::new(op::SCSI_RESPONSE).flags(0x84).itt(pdu.tag()).set32(36, 1).set32(44, 88));
    }));
    let reply = raw.read(0, &own_cdb(), 512);
    assert_eq!((reply.flags & 6, reply.residual), (4, 88), "{reply:?}");
    assert!(reply.good() == pattern(512, 8));
}

/// MEDIUM ERROR in descriptor format with an information descriptor: a router must not change it.
fn odd_sense() -> Vec<u8> {
    let mut sense = vec![0x72, 3, 0x11, 1, 0, 0, 0, 12, 0, 10, 0x80, 0];
    sense.extend_from_slice(&0x1234_5678_9abc_u64.to_be_bytes());
    sense
}

fn with_odd_sense(pdu: &Pdu) -> Pdu {
    let sense = odd_sense();
    let data = [&(sense.len() as u16).to_be_bytes()[..], &sense].concat();
    Pdu::new(op::SCSI_RESPONSE).itt(pdu.tag()).byte(3, 2).data(&data)
}

#[test]
fn data_and_sense_of_an_error_are_forwarded() {
    let (_target, _router, mut raw) = scripted(own(|link, pdu| {
        let data = Pdu::new(op::DATA_IN).flags(0x80).itt(pdu.tag()).ttt(interop::NONE);
        link.send(data.data(&pattern(64, 9)));
        link.send(with_odd_sense(pdu).flags(0x82).set32(36, 1).set32(44, 448));
    }));
    let reply = raw.read(0, &own_cdb(), 512);
    assert_eq!((reply.status, &reply.sense), (2, &odd_sense()), "{reply:?}");
    assert_eq!((reply.flags & 6, reply.residual), (2, 448), "{reply:?}");
    assert!(reply.data == pattern(64, 9), "the data are lost");
}

#[test]
fn write_error_is_forwarded_unchanged() {
    let (_target, _router, mut raw) = scripted(own(|link, pdu| {
        let expected = pdu.get32(20);
        link.send(with_odd_sense(pdu).flags(0x82).set32(44, expected));
    }));
    let reply = raw.write(0, &own_cdb(), &pattern(512, 1));
    assert_eq!((reply.status, &reply.sense), (2, &odd_sense()), "{reply:?}");
    assert_eq!((reply.flags & 6, reply.residual), (2, 512), "{reply:?}");
}

/// The device checks the length, with and without a router.
#[test]
fn wrong_data_out_length_is_rejected_or_cut_upstream() {
    let storage = Server::start(&interop::config::standard());
    let router = passing(&url(&storage, &format!("/{}", interop::TARGET)));
    for mode in DataOutMode::ALL {
        let login = Login::new().target(T).with(&mode.keys());
        // The router refuses EXTENDED COPY itself.
        walk(&mut session_of(&login, router.portal(), &[0, 1, 2]), mode, &[0x83]);
    }
}

#[test]
fn cdb_of_32_bytes_is_forwarded() {
    const VARIABLE: u8 = 0x7f;
    // The target returns the data that it received.
    let (_target, _router, mut raw) = scripted(Script::new().scsi(VARIABLE, |link, pdu| {
        let cdb = [&pdu.bhs[32..48], pdu.ahs.get(4..).unwrap_or_default()].concat();
        link.data_in(pdu, &cdb);
        HookAction::Done
    }));
    let mut cdb: Vec<u8> = (0..32).map(|n| n * 7 + 1).collect();
    (cdb[0], cdb[7]) = (VARIABLE, 24);
    let rest = [&[0, 17, 1, 0][..], &cdb[16..]].concat();
    let command = raw.command(0, 0x80 | READ, &cdb[..16], 32).ahs(&rest);
    assert_eq!(raw.execute(&command, &[]).good(), cdb);
}

/// The task management functions that reached the target.
fn functions(target: &Target) -> Vec<u8> {
    target.requests(op::TMF).iter().map(|pdu| pdu.bhs[1] & 0x7f).collect()
}

/// READ and WRITE hang at this target; other commands do not.
fn hangs() -> Script {
    Script::new().at(op::SCSI, |_, pdu| match pdu.bhs[32] {
        0x28 | 0x2a => HookAction::Done,
        _ => HookAction::Usual,
    })
}

#[test]
fn abort_of_a_hung_task_is_forwarded_and_awaited() {
    let (target, _router, mut raw) = scripted(hangs());
    for (flags, cdb) in [(READ, read10(0, 8)), (WRITE, write10(0, 8))] {
        let before = functions(&target).len();
        let data = if flags == WRITE { pattern(4096, 1) } else { Vec::new() };
        let command = raw.command(0, 0x80 | flags, &cdb, 4096).data(&data);
        raw.send(&command);
        let hanging = || target.requests(op::SCSI).iter().any(|pdu| pdu.bhs[32] == cdb[0]);
        until("it hangs", || hanging().then_some(()));
        let abort = raw.tmf(ABORT_TASK, 0, command.tag(), command.get32(24));
        let answer = raw.ask(&abort);
        assert_eq!((answer.opcode(), answer.bhs[2]), (op::TMF_RESPONSE, 0), "{answer:?}");
        assert_eq!(functions(&target)[before..], [ABORT_TASK]);
    }
    raw.simple(0, &[0; 6]).good();
    raw.expect_silence();
}

/// The upstream orders the tasks, not the router.
#[test]
fn hung_ordered_command_blocks_no_other_host() {
    const ORDERED: u8 = 2;
    let (target, router, mut raw) = scripted(hangs());
    let read = raw.command(0, 0x80 | READ, &read10(0, 8), 4096);
    raw.send(&read);
    until("it hangs", || target.requests(op::SCSI).iter().any(|pdu| pdu.bhs[32] == 0x28).then_some(()));
    let mut other = session_of(&host(2), router.portal(), &[0]);
    let ordered = other.command(0, 0x80, &[0; 6], 0).flags(0x80 | ORDERED);
    assert_eq!(other.execute(&ordered, &[]).status, 0);
    let attribute = |pdu: &Pdu| pdu.bhs[1] & 7;
    assert!(
        target.requests(op::SCSI).iter().any(|pdu| attribute(pdu) == ORDERED),
        "the router has changed the task attribute"
    );
    session_of(&host(3), router.portal(), &[0]).simple(0, &[0; 6]).good();
}

#[test]
fn forwarded_lun_reset_ends_hung_commands() {
    let (target, _router, mut raw) = scripted(hangs());
    let command = raw.command(0, 0x80 | READ, &read10(0, 8), 4096);
    raw.send(&command);
    until("it hangs", || target.requests(op::SCSI).iter().any(|pdu| pdu.bhs[32] == 0x28).then_some(()));
    let started_at = Instant::now();
    assert_eq!(raw.manage(LUN_RESET, 0), 0);
    assert!(started_at.elapsed() < Duration::from_secs(4), "{:?}", started_at.elapsed());
    assert!(functions(&target).contains(&LUN_RESET), "{:?}", functions(&target));
    raw.clear_attentions(0);
    raw.simple(0, &[0; 6]).good();
}

/// BUSY does not mean another disk. Hosts retry a path in transition, but give up a disk that needs manual intervention.
#[test]
fn busy_logical_unit_is_probed_again() {
    let is_busy = Arc::new(AtomicBool::new(false));
    let asked = is_busy.clone();
    let target = Script::new().scsi(0x12, move |link, pdu| {
        if pdu.bhs[33] & 1 == 0 || !asked.swap(false, SeqCst) {
            return HookAction::Usual;
        }
        link.send(Pdu::new(op::SCSI_RESPONSE).flags(0x82).itt(pdu.tag()).byte(3, 8).set32(44, pdu.get32(20)));
        HookAction::Done
    });
    let (_target, router, _first) = scripted(target);
    is_busy.store(true, SeqCst);
    let mut raw = host(2).on(router.portal());
    assert_eq!(raw.simple(0, &[0; 6]).sense(), 0x02_04_0a, "the state is in transition");
    assert!(!is_busy.load(SeqCst), "the router has not probed it");
    raw.simple(0, &[0; 6]).good();
}

#[test]
fn upstream_attentions_are_reported_to_each_host() {
    let storage = storage_of(&target(A, &disk(0, "a0")));
    let router = passing(&url(&storage, &format!("/{A}")));
    let mut hosts = [1, 2].map(|n| session_of(&host(n), router.portal(), &[0]));
    let mut direct = session(storage.portal(), A, &[0]);
    assert_eq!(direct.manage(LUN_RESET, 0), 0);
    for raw in &mut hosts {
        let sense = raw.simple(0, &[0; 6]).sense();
        assert_eq!(sense >> 8, 0x0629, "POWER ON, RESET, OR BUS DEVICE RESET OCCURRED: {sense:06x}");
        raw.simple(0, &[0; 6]).good();
    }
}

/// The probe starts much sooner than the next periodic one.
#[test]
fn luns_changed_attention_starts_a_probe() {
    let text = |luns: &str| format!("{HEAD}{}", target(A, luns));
    let mut storage = Server::start_in(Folder::fresh(), &text(&disk(0, "a0")));
    let router = passing(&url(&storage, &format!("/{A}")));
    let mut raw = session_of(&host(1), router.portal(), &[0]);
    storage.rewrite(&text(&(disk(0, "a0") + &disk(3, "a3"))));
    storage.signal(1);
    until("the unit attention", || (raw.simple(0, &[0; 6]).sense() == LUNS_CHANGED).then_some(()));
    until("it is there", || (raw.luns() == [0, 3]).then_some(()));
}

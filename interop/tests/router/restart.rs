//! A router that was killed with writes in flight: the storage must end them before the next router serves.

use crate::*;
use interop::script::{HookAction, ReceivedPdu, Script, Target};
use interop::scsi::{WRITE, pattern, write10};
use interop::{Pdu, Relay, op};
use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

const OLDER: u8 = 1;
const NEWER: u8 = 2;
const LEN: usize = 4096;
/// Sessions of hosts. Each has its own core, and so has the upstream session that carries its writes.
const HOSTS: usize = 2;

/// A router on two cores in front of these addresses of a target.
fn router_at(target: &str, addresses: &[SocketAddr]) -> Server {
    let place = |address: &SocketAddr| format!("iscsi://{address}/{target}?login_timeout=2");
    let places = addresses.iter().map(place).collect::<Vec<_>>().join("\", \"");
    let text = router_text("", &(upstream("a", &places, "") + &map_target(T, "a")));
    Server::start(&format!("[server]\ncores = {HOSTS}\n{text}"))
}

/// Sends a write from each host.
fn writing(hosts: &mut [Raw]) {
    for raw in hosts {
        let write = raw.command(0, 0x80 | WRITE, &write10(0, 8), 4096).data(&pattern(LEN, OLDER));
        raw.send(&write);
    }
}

/// Sessions of hosts, after all upstream sessions exist: one for each core and URL.
fn hosts(router: &Server, urls: usize) -> (Vec<Raw>, Vec<String>) {
    let mut hosts: Vec<Raw> = (0..HOSTS).map(|_| session(router.portal(), T, &[0])).collect();
    hosts.iter_mut().for_each(|raw| drop(raw.read_blocks(0, 0, 8)));
    let recorded = until("all ISIDs are recorded", || {
        let recorded = isids(router);
        (recorded.len() == HOSTS * urls).then_some(recorded)
    });
    (hosts, recorded)
}

/// While `writes` is set, writes get no response. While `logins` is set, logins wait.
#[derive(Default)]
struct StallSwitch {
    writes: AtomicBool,
    logins: AtomicBool,
}

fn stalling(stall: &Arc<StallSwitch>) -> Target {
    stalling_in(1, stall)
}

/// As [`stalling`], in this portal group.
fn stalling_in(group: u16, stall: &Arc<StallSwitch>) -> Target {
    let stall = stall.clone();
    let script = Script::new().group(group).answer("ImmediateData", "Yes").hook(move |_, pdu| {
        while pdu.opcode() == op::LOGIN && stall.logins.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        if is_write(pdu) && stall.writes.load(SeqCst) { HookAction::Done } else { HookAction::Usual }
    });
    script.listen()
}

fn is_write(pdu: &Pdu) -> bool {
    pdu.opcode() == op::SCSI && pdu.bhs[32] == 0x2a
}

fn is_read_or_write(seen: &ReceivedPdu) -> bool {
    is_write(&seen.pdu) || (seen.pdu.opcode() == op::SCSI && seen.pdu.bhs[32] == 0x28)
}

/// The ISIDs that have logged in, in the format of the router's record.
fn logged_in(seen: &[ReceivedPdu]) -> Vec<String> {
    let logins = seen.iter().filter(|seen| seen.pdu.opcode() == op::LOGIN);
    logins.map(|seen| seen.pdu.bhs[8..14].iter().map(|byte| format!("{byte:02x}")).collect()).collect()
}

#[test]
fn restarted_router_uses_all_isids_before_it_serves() {
    for urls in [1, 2] {
        let stall = Arc::new(StallSwitch::default());
        let targets = [stalling(&stall), stalling(&Arc::default())];
        let addresses: Vec<_> = targets.iter().take(urls).map(Target::address).collect();
        let mut router = router_at(interop::TARGET, &addresses);
        let (mut raws, recorded) = hosts(&router, urls);
        stall.writes.store(true, SeqCst);
        writing(&mut raws);
        let are_there = || targets[0].requests(op::SCSI).iter().filter(|pdu| is_write(pdu)).count() == HOSTS;
        until("the storage has the writes", || are_there().then_some(()));
        router.kill9();
        stall.writes.store(false, SeqCst);
        stall.logins.store(urls == 2, SeqCst);
        let serves = &targets[urls - 1];
        let before = serves.seen().len();
        router.restart();
        let mut raw = session(router.portal(), T, &[0]);
        raw.write_blocks(0, 0, &pattern(LEN, NEWER)).good();
        let seen = serves.seen().split_off(before);
        let first = seen.iter().position(is_read_or_write).expect("a write");
        let logins = logged_in(&seen[..first]);
        assert!(recorded.iter().all(|isid| logins.contains(isid)), "{urls}: {recorded:?} {logins:?}");
        stall.logins.store(false, SeqCst);
    }
}

/// The names of the initiators that logged in with these ISIDs, each once.
fn names(seen: &[ReceivedPdu], isids: &[String]) -> Vec<String> {
    let logins = seen.iter().filter(|seen| seen.pdu.opcode() == op::LOGIN);
    let old =
        logins.filter(|seen| logged_in(std::slice::from_ref(seen)).iter().any(|isid| isids.contains(isid)));
    let keys = old.flat_map(|seen| {
        String::from_utf8_lossy(&seen.pdu.data).split('\0').map(str::to_owned).collect::<Vec<_>>()
    });
    let mut names: Vec<String> =
        keys.filter_map(|key| Some(key.strip_prefix("InitiatorName=")?.to_owned())).collect();
    names.dedup();
    names
}

/// The initiator name is part of a nexus: only a login under the old name ends an old session.
#[test]
fn router_with_a_new_name_ends_sessions_of_its_old_name() {
    let [old, new] = ["old", "new"].map(|name| format!("iqn.2026-11.org.example:{name}"));
    let target = stalling(&Arc::default());
    let text = |name: &str| {
        let url = format!("iscsi://{}/{}?initiator={name}", target.address(), interop::TARGET);
        router_text("", &(upstream("a", &url, "") + &map_target(T, "a")))
    };
    let mut router = Server::start(&text(&old));
    drop(session(router.portal(), T, &[0]).read_blocks(0, 0, 8));
    let recorded = isids(&router);
    router.rewrite(&text(&new));
    let before = target.seen().len();
    router.restart();
    session(router.portal(), T, &[0]).write_blocks(0, 0, &pattern(LEN, NEWER)).good();
    assert_eq!(names(&target.seen()[before..], &recorded), [old, new]);
}

/// Function rejected (RFC 7143 section 11.6.1).
const REJECTED: u8 = 255;
const LUN_RESET: u8 = 5;

fn is_reset(pdu: &Pdu) -> bool {
    pdu.opcode() == op::TMF && pdu.bhs[1] & 0x7f == LUN_RESET
}

/// Storage in portal group 2 that rejects LOGICAL UNIT RESET until the test permits it.
fn refusing(refuses: &Arc<AtomicBool>) -> Target {
    let refuses = refuses.clone();
    let script = Script::new().group(2).hook(move |link, pdu| {
        if !is_reset(pdu) || !refuses.load(SeqCst) {
            return HookAction::Usual;
        }
        let mut answer = Pdu::new(op::TMF_RESPONSE).itt(pdu.tag());
        answer.bhs[2] = REJECTED;
        link.send(answer);
        HookAction::Done
    });
    script.listen()
}

/// The modes of a router.
const MODES: [&str; 2] = ["block", "passthrough"];

/// Storage with two portal groups, and a router that was killed with writes at the first group, whose logins now hang.
struct KilledRouter {
    stall: Arc<StallSwitch>,
    stalled: Target,
    serves: Target,
    router: Server,
    /// Requests that the second group had received before the restart.
    before: usize,
}

fn grouped(serves: Target, mode: &str, more: &str) -> KilledRouter {
    let stall = Arc::new(StallSwitch::default());
    let stalled = stalling_in(1, &stall);
    let place = |target: &Target| {
        format!("iscsi://{}/{}?login_timeout=1&fast_io_fail_timeout=1", target.address(), interop::TARGET)
    };
    let places = [&stalled, &serves].map(place).join("\", \"");
    let keys = format!("mode = \"{mode}\"\npath_loss_timeout_s = 60\n");
    let text = router_text(&keys, &(upstream("a", &places, more) + &map_target(T, "a")));
    let mut router = Server::start(&text);
    let mut raw = session(router.portal(), T, &[0]);
    until("the first path is used", || {
        drop(raw.read_blocks(0, 0, 8));
        stalled.seen().iter().any(is_read_or_write).then_some(())
    });
    stall.writes.store(true, SeqCst);
    writing(std::slice::from_mut(&mut raw));
    until("the storage has the write", || stalled.requests(op::SCSI).iter().any(is_write).then_some(()));
    router.kill9();
    stall.logins.store(true, SeqCst);
    let before = serves.seen().len();
    router.restart();
    KilledRouter { stall, stalled, serves, router, before }
}

/// Writes from a host, and checks that this storage executes the write.
fn newer(router: &Server, serves: &Target, before: usize) {
    let mut raw = session(router.portal(), T, &[0]);
    let write = raw.command(0, 0x80 | WRITE, &write10(0, 8), 4096).data(&pattern(LEN, NEWER));
    raw.send(&write);
    until("the storage has it", || {
        serves.seen()[before..].iter().any(|seen| is_write(&seen.pdu)).then_some(())
    });
    let answer = raw.recv_for(write.tag());
    assert_eq!((answer.opcode(), answer.bhs[3]), (op::SCSI_RESPONSE, 0), "{answer:?}");
}

#[test]
fn restarted_router_resets_units_of_another_group() {
    for mode in MODES {
        let serves = stalling_in(2, &Arc::default());
        let KilledRouter { stall, stalled: _stalled, serves, router, before } = grouped(serves, mode, "");
        newer(&router, &serves, before);
        let seen = serves.seen().split_off(before);
        let reset = seen.iter().position(|seen| is_reset(&seen.pdu)).expect("a reset");
        let first = seen.iter().position(is_read_or_write).expect("a write");
        assert!(reset < first, "{mode}: {reset} {first}");
        assert_eq!(
            seen.iter().filter(|seen| is_reset(&seen.pdu)).count(),
            1,
            "{mode}: each reset disturbs other hosts"
        );
        stall.logins.store(false, SeqCst);
    }
}

#[test]
fn restarted_router_waits_where_resets_are_refused() {
    for mode in MODES {
        let refuses = Arc::new(AtomicBool::new(true));
        let KilledRouter { stall, stalled: _stalled, serves, router, before } =
            grouped(refusing(&refuses), mode, "");
        let mut raw = session(router.portal(), T, &[0]);
        let write = raw.command(0, 0x80 | WRITE, &write10(0, 8), 4096).data(&pattern(LEN, NEWER));
        raw.send(&write);
        let resets = || serves.seen()[before..].iter().filter(|seen| is_reset(&seen.pdu)).count();
        until("it has tried twice", || (resets() > 1).then_some(()));
        assert!(!serves.seen()[before..].iter().any(|seen| is_write(&seen.pdu)), "{mode}");
        // A login at the first group also proves that the writes have ended.
        stall.writes.store(false, SeqCst);
        stall.logins.store(false, SeqCst);
        let answer = raw.recv_for(write.tag());
        assert_eq!((answer.opcode(), answer.bhs[3]), (op::SCSI_RESPONSE, 0), "{mode}: {answer:?}");
    }
}

#[test]
fn restarted_router_with_late_writes_risk_resets_nothing() {
    for mode in MODES {
        let serves = stalling_in(2, &Arc::default());
        let risk = "late_writes = \"risk\"\n";
        let KilledRouter { stall, stalled: _stalled, serves, router, before } = grouped(serves, mode, risk);
        newer(&router, &serves, before);
        assert!(!serves.seen()[before..].iter().any(|seen| is_reset(&seen.pdu)), "{mode}");
        stall.logins.store(false, SeqCst);
    }
}

/// The sessions of a storage, and how many writes each has sent.
fn sessions(storage: &Server) -> BTreeMap<u64, u64> {
    let sessions = json_output(storage, &["session", "list"])["items"].take();
    let number = |value: &Value| value.as_u64().expect("a number");
    let one = |session: &Value| (number(&session["tsih"]), number(&session["counters"]["writes"]));
    sessions.as_array().expect("a list").iter().map(one).collect()
}

#[test]
fn write_of_a_killed_router_never_undoes_a_newer_one() {
    for urls in [1, 2] {
        let storage = storage_of(&target(A, &disk(0, "a0")));
        let relays = [(); 2].map(|()| Relay::to(storage.portal()));
        let addresses: Vec<_> = relays.iter().take(urls).map(Relay::address).collect();
        let mut router = router_at(A, &addresses);
        let (mut raws, _) = hosts(&router, urls);
        let gate = relays[0].hold();
        writing(&mut raws);
        until("the writes are on their way", || (gate.waiting() >= HOSTS).then_some(()));
        let before = sessions(&storage);
        router.kill9();
        if urls == 1 {
            // The relay forwards new connections, and still holds those writes.
            relays[0].restore();
        }
        router.restart();
        let mut raw = session(router.portal(), T, &[0]);
        raw.write_blocks(0, 0, &pattern(LEN, NEWER)).good();
        gate.open();
        until("the old sessions are gone, or have written", || {
            let now = sessions(&storage);
            before.iter().all(|(old, writes)| now.get(old).is_none_or(|now| now > writes)).then_some(())
        });
        assert!(
            session(storage.portal(), A, &[0]).read_blocks(0, 0, 8) == pattern(LEN, NEWER),
            "{urls} URLs"
        );
    }
}

/// The lines of the record whose sessions have not ended with a logout.
fn owed(router: &Server) -> Vec<String> {
    let text = read_to_string(router.dir().join("r1.isids")).unwrap_or_default();
    text.lines().filter(|line| !line.contains(" at=none ")).map(str::to_owned).collect()
}

/// A login whose nexus is the same after a restart of the router.
fn same() -> Login {
    Login::new().target(T).isid([0x80, 0, 0, 0, 0, 7])
}

/// A router in front of two working portal groups, after a write of a host.
fn written(mode: &str, groups: &[Target; 2]) -> Server {
    let keys = format!("mode = \"{mode}\"\npath_loss_timeout_s = 60\n");
    let router = Server::start(&router_text(&keys, &places(&[0, 1].map(|number| &groups[number]))));
    session_of(&same(), router.portal(), &[0]).write_blocks(0, 0, &pattern(LEN, OLDER)).good();
    router
}

/// An upstream with these portals in this order, and its mapping.
fn places(portals: &[&Target]) -> String {
    let waits = "login_timeout=1&fast_io_fail_timeout=1";
    let place = |target: &&Target| format!("iscsi://{}/{}?{waits}", target.address(), interop::TARGET);
    let places = portals.iter().map(place).collect::<Vec<_>>().join("\", \"");
    upstream("a", &places, "") + &map_target(T, "a")
}

#[test]
fn stopped_router_leaves_no_session() {
    for mode in MODES {
        let stall = Arc::new(StallSwitch::default());
        let groups = [stalling_in(1, &stall), stalling_in(2, &Arc::default())];
        let mut router = written(mode, &groups);
        until("its sessions are recorded", || (!owed(&router).is_empty()).then_some(()));
        let before = groups[1].seen().len();
        assert!(router.stop().success(), "{mode}: {}", router.log());
        assert_eq!(owed(&router), Vec::<String>::new(), "{mode}");
        assert!(!groups[0].requests(op::LOGOUT).is_empty(), "{mode}");
        // The first group stalls now, but the router need not wait for it.
        stall.logins.store(true, SeqCst);
        router.restart();
        newer(&router, &groups[1], before);
        assert!(!groups[1].seen()[before..].iter().any(|seen| is_reset(&seen.pdu)), "{mode}");
        stall.logins.store(false, SeqCst);
    }
}

/// An upstream session ends with its host, or with its mapping.
#[test]
fn unused_session_leaves_no_record() {
    for mode in MODES {
        let groups = [1, 2].map(|group| stalling_in(group, &Arc::default()));
        let mut router = written(mode, &groups);
        until("its sessions are recorded", || (!owed(&router).is_empty()).then_some(()));
        let other = places(&[&groups[0], &groups[1]]).replace(".a]", ".b]").replace("\"a\"", "\"b\"");
        router.rewrite(&router_text(&format!("mode = \"{mode}\"\n"), &other));
        router.signal(1);
        until("they have ended", || owed(&router).is_empty().then_some(()));
    }
}

/// The number of logins with this ISID after the first `before` requests.
fn logins_of(isid: &str, target: &Target, before: usize) -> usize {
    let seen = target.seen().split_off(before);
    let first = seen.iter().filter(|seen| seen.pdu.opcode() == op::LOGIN && seen.pdu.bhs[1] & 0x0c == 0x04);
    let ids = logged_in(&first.cloned().collect::<Vec<_>>());
    ids.iter().filter(|id| *id == isid).count()
}

/// A login with the name and ISID of the live session, at its port, would end it.
#[test]
fn pass_router_never_ends_its_own_session() {
    for is_configured in [false, true] {
        let stall = Arc::new(StallSwitch::default());
        let groups = [stalling_in(1, &stall), stalling_in(2, &Arc::default())];
        let mut router = written("passthrough", &groups);
        let isid = isids(&router).remove(0);
        router.kill9();
        let [first, serves] = groups;
        // The path of the old session is gone, or leads to the other group.
        let address = first.address();
        drop(first);
        let moved = is_configured.then(|| {
            let listener = || std::net::TcpListener::bind(address).ok();
            let listener = until("the address is free", listener);
            Script::new().group(2).answer("ImmediateData", "Yes").listen_with(listener)
        });
        let portals: Vec<&Target> = [&serves].into_iter().chain(&moved).collect();
        router.rewrite(&router_text("mode = \"passthrough\"\npath_loss_timeout_s = 60\n", &places(&portals)));
        let before = serves.seen().len();
        router.restart();
        session_of(&same(), router.portal(), &[0]).write_blocks(0, 0, &pattern(LEN, NEWER)).good();
        let resets = serves.seen()[before..].iter().filter(|seen| is_reset(&seen.pdu)).count();
        let others = moved.as_ref().map_or(0, |moved| logins_of(&isid, moved, 0));
        assert_eq!((logins_of(&isid, &serves, before), others, resets), (1, 0, 1), "{is_configured}");
    }
}

#[test]
fn pass_router_replaces_an_old_session_once() {
    let groups = [1, 2].map(|group| stalling_in(group, &Arc::default()));
    let mut router = written("passthrough", &groups);
    let isid = isids(&router).remove(0);
    router.kill9();
    router.rewrite(&router_text(
        "mode = \"passthrough\"\npath_loss_timeout_s = 60\n",
        &places(&[&groups[1], &groups[0]]),
    ));
    let before = [0, 1].map(|group| groups[group].seen().len());
    router.restart();
    for _ in 0..3 {
        session(router.portal(), T, &[0]).write_blocks(0, 0, &pattern(LEN, NEWER)).good();
    }
    assert_eq!(logins_of(&isid, &groups[0], before[0]), 1);
    assert!(!groups[1].seen()[before[1]..].iter().any(|seen| is_reset(&seen.pdu)));
    assert!(!owed(&router).iter().any(|line| line.contains("at=group:1,")), "{:?}", owed(&router));
}

/// The target redirects a session to another portal group while the first group may still execute a write.
#[test]
fn new_port_is_recorded_before_anything_is_sent_there() {
    for mode in MODES {
        let (file, early) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
        let (record, found) = (file.clone(), early.clone());
        let second = Script::new().group(2).answer("ImmediateData", "Yes").hook(move |link, _| {
            if link.full_feature {
                found.get_or_init(|| record.get().map(|file| read_to_string(file).unwrap_or_default()));
            }
            HookAction::Usual
        });
        let second = second.listen();
        let (place, is_away) = (second.address(), Arc::new(AtomicBool::new(false)));
        let sends = is_away.clone();
        let first = Script::new().answer("ImmediateData", "Yes").hook(move |link, pdu| {
            if pdu.opcode() == op::LOGIN && sends.load(SeqCst) {
                let place = format!("{place},2");
                let answer = link.login_response(pdu, 0, &[("TargetAddress", &place)]).set16(36, 0x0101);
                link.send(answer);
                return HookAction::Done;
            }
            if is_write(pdu) {
                sends.store(true, SeqCst);
                return HookAction::Close;
            }
            HookAction::Usual
        });
        let first = first.listen();
        let keys = format!("mode = \"{mode}\"\n");
        let router = Server::start(&router_text(&keys, &places(&[&first])));
        file.set(router.dir().join("r1.isids")).expect("once");
        let mut raw = session(router.portal(), T, &[0]);
        writing(std::slice::from_mut(&mut raw));
        let text = until("it is at the other group", || early.get().cloned().flatten());
        assert!(text.contains(" at=group:1,") && text.contains(" at=group:2,"), "{mode}: {text}");
    }
}

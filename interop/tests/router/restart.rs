//! A router that was killed with writes in flight: the storage ends them before the next one serves.

use crate::*;
use interop::script::{Script, Seen, Target, Turn};
use interop::scsi::{WRITE, pattern, write10};
use interop::{Pdu, Relay, op};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const OLDER: u8 = 1;
const NEWER: u8 = 2;
const LEN: usize = 4096;
/// Sessions of hosts. Each is on a core of its own, and so is the session upstream that carries its writes.
const HOSTS: usize = 2;

/// A router on two cores before these addresses of a target.
fn router_at(target: &str, addresses: &[SocketAddr]) -> Server {
    let place = |address: &SocketAddr| format!("iscsi://{address}/{target}?login_timeout=2");
    let places = addresses.iter().map(place).collect::<Vec<_>>().join("\", \"");
    let text = router_text("", &(upstream("a", &places, "") + &map_target(T, "a")));
    Server::start(&format!("[server]\ncores = {HOSTS}\n{text}"))
}

/// Hosts of which each has a write in flight.
fn writing(hosts: &mut [Raw]) {
    for raw in hosts {
        let write = raw.command(0, 0x80 | WRITE, &write10(0, 8), 4096).data(&pattern(LEN, OLDER));
        raw.send(&write);
    }
}

/// Sessions of hosts, once all sessions upstream are there: one for each core and URL.
fn hosts(router: &Server, urls: usize) -> (Vec<Raw>, Vec<String>) {
    let mut hosts: Vec<Raw> = (0..HOSTS).map(|_| session(router.portal(), T, &[0])).collect();
    hosts.iter_mut().for_each(|raw| drop(raw.read_blocks(0, 0, 8)));
    let recorded = until("all ISIDs are recorded", || {
        let recorded = isids(router);
        (recorded.len() == HOSTS * urls).then_some(recorded)
    });
    (hosts, recorded)
}

/// Writes get no answer, or logins wait.
#[derive(Default)]
struct Stall {
    writes: AtomicBool,
    logins: AtomicBool,
}

fn stalling(stall: &Arc<Stall>) -> Target {
    let stall = stall.clone();
    let script = Script::new().answer("ImmediateData", "Yes").hook(move |_, pdu| {
        while pdu.opcode() == op::LOGIN && stall.logins.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        if is_write(pdu) && stall.writes.load(SeqCst) { Turn::Done } else { Turn::Usual }
    });
    script.listen()
}

fn is_write(pdu: &Pdu) -> bool {
    pdu.opcode() == op::SCSI && pdu.bhs[32] == 0x2a
}

fn is_read_or_write(seen: &Seen) -> bool {
    is_write(&seen.pdu) || (seen.pdu.opcode() == op::SCSI && seen.pdu.bhs[32] == 0x28)
}

/// The ISIDs that have logged in, as the record writes them.
fn logged_in(seen: &[Seen]) -> Vec<String> {
    let logins = seen.iter().filter(|seen| seen.pdu.opcode() == op::LOGIN);
    logins.map(|seen| seen.pdu.bhs[8..14].iter().map(|byte| format!("{byte:02x}")).collect()).collect()
}

#[test]
fn a_restarted_router_logs_in_with_all_isids_before_it_serves() {
    for urls in [1, 2] {
        let stall = Arc::new(Stall::default());
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

/// The sessions of a storage, and how many writes each has sent.
fn sessions(storage: &Server) -> BTreeMap<u64, u64> {
    let sessions = told(storage, &["session", "list"]);
    let number = |value: &Value| value.as_u64().expect("a number");
    let one = |session: &Value| (number(&session["tsih"]), number(&session["counters"]["writes"]));
    sessions.as_array().expect("a list").iter().map(one).collect()
}

#[test]
fn a_write_of_a_killed_router_never_undoes_a_newer_one() {
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
            // The storage goes on but for those writes.
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

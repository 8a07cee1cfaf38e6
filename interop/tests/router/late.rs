//! Writes of a lost session that the storage may still execute: hosts get no response before these writes have ended.

use crate::*;
use interop::op;
use interop::script::{HookAction, Script, Target};
use interop::scsi::{WRITE, pattern, write10};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

const ABORT_TASK: u8 = 1;
const ABORT_TASK_SET: u8 = 2;
const CLEAR_TASK_SET: u8 = 4;
const LUN_RESET: u8 = 5;
/// Function rejected (RFC 7143 section 11.6.1).
const REJECTED: u8 = 255;
const CHECK_CONDITION: u8 = 2;
/// Longer than the sum of the time-outs of the upstream and of the router.
const AFTER_ALL: Duration = Duration::from_secs(6);

/// Storage whose session sends nothing after it has received a write. Logins wait until the test releases them.
fn stalls(lets: &Arc<AtomicBool>) -> Target {
    let (lets, stalled) = (lets.clone(), Mutex::new(None));
    let script = Script::new().answer("ImmediateData", "Yes").hook(move |link, pdu| {
        let mut stalled = stalled.lock().expect("no thread panics while it holds the lock");
        if stalled.is_none() && pdu.opcode() == op::SCSI && matches!(pdu.bhs[32], 0x2a | 0x8a) {
            *stalled = Some(link.number);
        }
        let (is_stalled, is_any) = (*stalled == Some(link.number), stalled.is_some());
        drop(stalled);
        while is_any && !is_stalled && pdu.opcode() == op::LOGIN && !lets.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        if is_stalled { HookAction::Done } else { HookAction::Usual }
    });
    script.listen()
}

/// A router in front of these portals.
fn router_at(portals: &[&Target], mode: &str, more: &str) -> Server {
    let waits = "noop_interval=1&noop_timeout=1&command_timeout=2&abort_timeout=1&lun_reset_timeout=1\
                 &target_reset_timeout=1&operation_timeout=3&login_timeout=60&fast_io_fail_timeout=60";
    let place = |portal: &&Target| format!("iscsi://{}/{}?{waits}", portal.address(), interop::TARGET);
    let places = portals.iter().map(place).collect::<Vec<_>>().join("\", \"");
    let keys = format!("mode = \"{mode}\"\npath_loss_timeout_s = 1\n");
    Server::start(&router_text(&keys, &(upstream("a", &places, more) + &map_target(T, "a"))))
}

/// Sends a write, waits until the storage has received it, and returns its tag and CmdSN.
fn write(raw: &mut Raw, target: &Target) -> (u32, u32) {
    let write = raw.command(0, 0x80 | WRITE, &write10(0, 8), 4096).data(&pattern(4096, 1));
    raw.send(&write);
    let has = |pdu: &interop::Pdu| matches!(pdu.bhs[32], 0x2a | 0x8a);
    until("the storage has it", || target.requests(op::SCSI).iter().any(has).then_some(()));
    (write.tag(), write.get32(24))
}

/// A host whose write has reached a storage that sends nothing more until the test releases it.
struct StalledWrite {
    lets: Arc<AtomicBool>,
    raw: Raw,
    tag: u32,
    cmd_sn: u32,
    _servers: (Target, Server),
}

fn stalled_write(mode: &str, more: &str) -> StalledWrite {
    let lets = Arc::new(AtomicBool::new(false));
    let target = stalls(&lets);
    let router = router_at(&[&target], mode, more);
    let mut raw = session(router.portal(), T, &[0]);
    let (tag, cmd_sn) = write(&mut raw, &target);
    StalledWrite { lets, raw, tag, cmd_sn, _servers: (target, router) }
}

#[test]
fn abort_response_waits_for_the_end_of_a_stalled_write() {
    for mode in ["block", "passthrough"] {
        let StalledWrite { lets, mut raw, tag, cmd_sn, _servers } = stalled_write(mode, "");
        assert!(
            matches!(raw.get(AFTER_ALL), interop::Received::Nothing),
            "{mode}: the storage may still execute the write"
        );
        let abort = raw.tmf(ABORT_TASK, 0, tag, cmd_sn);
        raw.send(&abort);
        assert!(
            matches!(raw.get(AFTER_ALL), interop::Received::Nothing),
            "{mode}: the write is not aborted yet"
        );
        lets.store(true, SeqCst);
        let answer = raw.recv_for(abort.tag());
        assert_eq!((answer.opcode(), answer.bhs[2]), (op::TMF_RESPONSE, 0), "{mode}: {answer:?}");
        until("it goes on", || (raw.simple(0, &[0; 6]).status == 0).then_some(()));
    }
}

/// It is unknown when the storage ends the write, so hosts must not treat it as aborted.
#[test]
fn functions_are_rejected_while_a_write_may_run_late() {
    for mode in ["block", "passthrough"] {
        let StalledWrite { lets, mut raw, tag, cmd_sn, _servers } = stalled_write(mode, "");
        let abort = raw.tmf(ABORT_TASK, 0, tag, cmd_sn);
        let others = [ABORT_TASK_SET, CLEAR_TASK_SET, LUN_RESET].map(|f| raw.tmf(f, 0, interop::NONE, 0));
        let asked: Vec<_> = [abort].into_iter().chain(others).collect();
        asked.iter().for_each(|pdu| raw.send(pdu));
        for _ in &asked {
            let interop::Received::Pdu(answer) = raw.get(PATIENCE) else { panic!("{mode}: no answer") };
            assert_eq!((answer.opcode(), answer.bhs[2]), (op::TMF_RESPONSE, REJECTED), "{mode}: {answer:?}");
            assert!(asked.iter().any(|pdu| pdu.tag() == answer.tag()), "{mode}: {answer:?}");
        }
        lets.store(true, SeqCst);
        until("it goes on", || (raw.simple(0, &[0; 6]).status == 0).then_some(()));
    }
}

/// The number of requests in full feature phase that this target received on connections after that of the write.
fn came_back(target: &Target) -> usize {
    let seen = target.seen();
    let is_write = |seen: &&interop::script::ReceivedPdu| {
        seen.pdu.opcode() == op::SCSI && matches!(seen.pdu.bhs[32], 0x2a | 0x8a)
    };
    let link = seen.iter().find(is_write).expect("a write").link;
    seen.iter().filter(|seen| seen.link > link && seen.full_feature).count()
}

/// All upstream sessions of a host have one ISID. Within a portal group, a login over the second portal ends the
/// session over the first.
#[test]
fn login_at_the_other_portal_of_a_group_ends_a_write() {
    let lets = Arc::new(AtomicBool::new(false));
    let (first, second) = (stalls(&lets), Script::new().answer("ImmediateData", "Yes").listen());
    let router = router_at(&[&first, &second], "passthrough", "");
    let mut raw = session(router.portal(), T, &[0]);
    let (tag, _) = write(&mut raw, &first);
    let interop::Received::Pdu(answer) = raw.get(PATIENCE) else {
        panic!("the login does not end the write")
    };
    assert_eq!((answer.opcode(), answer.tag()), (op::SCSI_RESPONSE, tag), "{answer:?}");
    lets.store(true, SeqCst);
    // The router pings the storage each second.
    let pings = || second.requests(op::NOP_OUT).len();
    let before = pings();
    until("some seconds have passed", || (pings() >= before + 5).then_some(()));
    assert_eq!(came_back(&first), 0, "a login would end the session over the second portal");
    assert_eq!(raw.simple(0, &[0; 6]).status, 0);
}

#[test]
fn router_with_late_writes_risk_answers_in_time() {
    for mode in ["block", "passthrough"] {
        let StalledWrite { lets, mut raw, tag, _servers, .. } =
            stalled_write(mode, "late_writes = \"risk\"\n");
        let answer = until("an answer, while no login ends", || match raw.get(Duration::from_secs(1)) {
            interop::Received::Pdu(answer) => Some(answer),
            interop::Received::Nothing => None,
            _ => panic!("{mode}: no answer"),
        });
        let is_refused = (answer.opcode(), answer.bhs[3]) == (op::SCSI_RESPONSE, CHECK_CONDITION);
        assert!(is_refused && answer.tag() == tag, "{mode}: {answer:?}");
        lets.store(true, SeqCst);
    }
}

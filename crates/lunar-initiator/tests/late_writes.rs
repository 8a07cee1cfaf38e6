//! Writes of a lost path that the target may still execute, against scripted targets.
#![forbid(unsafe_code)]

mod common;

use common::{WRITE_10, is, run, with_disk};
use interop::script::{HookAction, Script, Target};
use interop::{Pdu, op};
use lunar_block::Backend;
use lunar_initiator::multipath::{LunPath, Multipath, MultipathOptions, PathPolicy};
use lunar_initiator::{Command, Direction, ErrorCode, Url};
use lunar_runtime::Buf;
use lunar_wire::scsi::cdb;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// The time after which a test counts as hung.
const LIMIT: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_millis(300);
/// Detects an unresponsive target quickly, and fails the commands of a lost session at once, as sessions of a
/// multipath LUN do.
const WAITS: &str = "noop_interval=0.2&noop_timeout=0.2&recovery_timeout=0.001&immediate_data=yes";
/// LOGICAL UNIT RESET (RFC 7143 section 11.5.1).
const LUN_RESET: u8 = 5;
/// Function rejected (section 11.6.1).
const REJECTED: u8 = 255;

/// A target that sends nothing once its first session has sent a write, and accepts further logins only when `lets`
/// is set.
fn stalls(lets: &Arc<AtomicBool>) -> Target {
    let (lets, stalled) = (lets.clone(), AtomicBool::new(false));
    let script = Script::new().answer("ImmediateData", "Yes").hook(move |link, pdu| {
        if link.number == 0 {
            stalled.fetch_or(is(pdu, WRITE_10), SeqCst);
            return if stalled.load(SeqCst) { HookAction::Done } else { HookAction::Usual };
        }
        while pdu.opcode() == op::LOGIN && !lets.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        HookAction::Usual
    });
    script.listen()
}

fn filled(byte: u8) -> Buf {
    let mut buf = Buf::zeroed(512);
    buf.fill(byte);
    buf
}

/// The first data byte of each write that a target has received, in order.
fn written(target: &Target) -> Vec<u8> {
    target.requests(op::SCSI).iter().filter(|pdu| is(pdu, WRITE_10)).map(|pdu| pdu.data[0]).collect()
}

/// Joins paths. The first write uses the first path.
async fn joined<const PATHS: usize>(urls: [Url; PATHS]) -> Arc<Multipath> {
    let mut paths: Vec<Arc<dyn LunPath>> = Vec::new();
    for url in urls {
        paths.push(lunar_initiator::open(&url).await.expect("a LUN"));
    }
    let check = Duration::from_millis(200);
    let settings = MultipathOptions::default().with_policy(PathPolicy::Failover).with_check(check);
    Multipath::join(paths, settings).await.expect("one logical unit")
}

fn urls<const PATHS: usize>(targets: [&Target; PATHS], settings: &str) -> [Url; PATHS] {
    targets.map(|target| Url::parse(&target.url(&format!("{WAITS}&{settings}"))).expect("a URL"))
}

async fn logs_in_again(target: &Target) {
    while target.seen().iter().all(|seen| seen.link == 0) {
        compio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn write_is_not_sent_on_another_path_before_the_login() {
    let lets = Arc::new(AtomicBool::new(false));
    let (first, second) = (stalls(&lets), Script::new().answer("ImmediateData", "Yes").listen());
    let urls = urls([&first, &second], "login_timeout=60&fast_io_fail_timeout=60");
    let targets = [Arc::new(first), Arc::new(second)];
    let [first, second] = targets.clone();
    run(LIMIT, move || async move {
        let disk = joined(urls).await;
        let write = |at: u64, byte: u8| {
            let disk = disk.clone();
            compio::runtime::spawn(async move { disk.write(at, filled(byte), false).await.0 })
        };
        let older = write(0, 1);
        logs_in_again(&first).await;
        write(4096, 2)
            .await
            .expect("the task panicked")
            .expect("other blocks can be written on the other path");
        let newer = write(0, 3);
        compio::time::sleep(MOMENT).await;
        assert_eq!(
            (written(&first), written(&second)),
            (vec![1], vec![2]),
            "the target may still execute the write"
        );
        lets.store(true, SeqCst);
        older.await.expect("the task panicked").expect("written after the login");
        newer.await.expect("the task panicked").expect("written after the older write");
        assert!(first.requests(op::TMF).is_empty() && second.requests(op::TMF).is_empty(), "no reset");
    });
    let mut seen = [written(&targets[0]), written(&targets[1])].concat();
    seen.sort_unstable();
    assert_eq!(seen, [1, 1, 2, 3], "the older write is resent");
}

#[test]
fn write_goes_elsewhere_once_a_reset_there_is_answered() {
    let lets = Arc::new(AtomicBool::new(false));
    let reset = Arc::new(AtomicBool::new(false));
    let was_reset = reset.clone();
    let second = Script::new().answer("ImmediateData", "Yes").hook(move |link, pdu| {
        if pdu.opcode() == op::TMF {
            assert_eq!(pdu.bhs[1] & 0x7f, LUN_RESET);
            was_reset.store(true, SeqCst);
        }
        if is(pdu, WRITE_10) && !was_reset.load(SeqCst) {
            link.check_condition(pdu, [5, 0x24, 0]);
            return HookAction::Done;
        }
        HookAction::Usual
    });
    let (first, second) = (stalls(&lets), second.listen());
    let urls = urls([&first, &second], "login_timeout=60&fast_io_fail_timeout=0.5");
    run(LIMIT, move || async move {
        joined(urls).await.write(0, filled(1), false).await.0.expect("written after the reset");
    });
    assert!(reset.load(SeqCst));
    assert_eq!((written(&second), second.requests(op::TMF).len()), (vec![1], 1));
    lets.store(true, SeqCst);
}

#[test]
fn reset_that_a_path_refuses_goes_through_the_next() {
    let lets = Arc::new(AtomicBool::new(false));
    let refuses = Script::new().answer("ImmediateData", "Yes").at(op::TMF, |link, pdu| {
        link.send(Pdu::new(op::TMF_RESPONSE).itt(pdu.tag()).byte(2, REJECTED));
        HookAction::Done
    });
    let (first, second) = (stalls(&lets), refuses.listen());
    let third = Script::new().answer("ImmediateData", "Yes").listen();
    let urls = urls([&first, &second, &third], "login_timeout=0.5&fast_io_fail_timeout=0.5");
    run(LIMIT, move || async move {
        joined(urls)
            .await
            .write(0, filled(1), false)
            .await
            .0
            .expect("written after the third path has reset the LUN");
    });
    assert_eq!([&second, &third].map(|target| target.requests(op::TMF).len()), [1, 1]);
    lets.store(true, SeqCst);
}

#[test]
fn resets_that_all_fail_are_tried_again() {
    let lets = Arc::new(AtomicBool::new(false));
    let resets = AtomicUsize::new(0);
    let second = Script::new().answer("ImmediateData", "Yes").at(op::TMF, move |link, pdu| {
        let code = if resets.fetch_add(1, SeqCst) < 2 { REJECTED } else { 0 };
        link.send(Pdu::new(op::TMF_RESPONSE).itt(pdu.tag()).byte(2, code));
        HookAction::Done
    });
    let (first, second) = (stalls(&lets), second.listen());
    let urls = urls([&first, &second], "login_timeout=0.5&fast_io_fail_timeout=0.5");
    run(LIMIT, move || async move {
        joined(urls).await.write(0, filled(1), false).await.0.expect("written after a successful reset");
    });
    assert_eq!(second.requests(op::TMF).len(), 3);
    lets.store(true, SeqCst);
}

#[test]
fn late_writes_risk_uses_another_path_at_once() {
    let lets = Arc::new(AtomicBool::new(false));
    let (first, second) = (stalls(&lets), Script::new().answer("ImmediateData", "Yes").listen());
    let urls = urls([&first, &second], "login_timeout=60&fast_io_fail_timeout=60&late_writes=risk");
    run(LIMIT, move || async move {
        joined(urls).await.write(0, filled(1), false).await.0.expect("written on the other path");
    });
    assert_eq!((written(&first), written(&second)), (vec![1], vec![1]));
    lets.store(true, SeqCst);
}

#[test]
fn session_that_is_closed_says_what_it_leaves_behind() {
    let lets = Arc::new(AtomicBool::new(false));
    let target = stalls(&lets);
    let settings =
        format!("{WAITS}&login_timeout=60&fast_io_fail_timeout=60&logout_timeout=1&operation_timeout=1");
    let (closed, written) = with_disk(LIMIT, &target, &settings, |lun| async move {
        let other = lun.clone();
        let write = compio::runtime::spawn(async move { other.write(0, filled(1), false).await.0 });
        while lun.session().oldest_orphan(None).await.is_none_or(|waited| waited < Duration::from_secs(2)) {
            compio::time::sleep(Duration::from_millis(50)).await;
        }
        (lun.session().close().await, write.await.expect("the task panicked"))
    });
    let error = closed.expect_err("the target may still execute a write");
    assert!(
        error.code == ErrorCode::ConnectionLost && error.what.contains("writes (1)") && error.hint.is_some(),
        "{error}"
    );
    assert!(written.is_err());
    lets.store(true, SeqCst);
}

#[test]
fn write_that_is_left_behind_goes_on_no_other_path() {
    let lets = Arc::new(AtomicBool::new(false));
    let (first, second) = (stalls(&lets), Script::new().answer("ImmediateData", "Yes").listen());
    let urls = urls([&first, &second], "login_timeout=60&fast_io_fail_timeout=60&logout_timeout=1");
    let target = Arc::new(first);
    let first = target.clone();
    run(LIMIT, move || async move {
        let luns = [lunar_initiator::open(&urls[0]).await, lunar_initiator::open(&urls[1]).await];
        let luns = luns.map(|lun| lun.expect("a LUN"));
        let paths = luns.iter().map(|lun| lun.clone() as Arc<dyn LunPath>).collect();
        let settings = MultipathOptions::default().with_policy(PathPolicy::Failover);
        let disk = Multipath::join(paths, settings).await.expect("one logical unit");
        let write = compio::runtime::spawn(async move { disk.write(0, filled(1), false).await.0 });
        logs_in_again(&first).await;
        luns[0].session().close().await.expect_err("the target may still execute a write");
        assert!(write.await.expect("the task panicked").is_err(), "the write fails without a proof");
    });
    assert!(written(&second).is_empty());
    lets.store(true, SeqCst);
}

#[test]
fn abort_fails_when_its_write_is_left_behind() {
    let lets = Arc::new(AtomicBool::new(false));
    let target = Arc::new(stalls(&lets));
    let settings =
        format!("{WAITS}&login_timeout=60&fast_io_fail_timeout=60&logout_timeout=1&abort_timeout=1");
    let first = target.clone();
    with_disk(LIMIT, &target, &settings, |lun| async move {
        let command = Command::new(0, cdb::write_10(0, 1, false), Direction::Out(filled(1)));
        let write = lun.session().submit(command);
        let (session, id) = (lun.session().clone(), write.id());
        logs_in_again(&first).await;
        let abort = compio::runtime::spawn(async move { session.abort(id).await });
        lun.session().close().await.expect_err("the target may still execute a write");
        assert_eq!(
            abort.await.expect("the task panicked").expect_err("the abort fails without a proof").code,
            ErrorCode::ConnectionLost
        );
        assert_eq!(write.await.0.expect_err("the write fails without a proof").code, ErrorCode::Aborted);
    });
    lets.store(true, SeqCst);
}

/// After the loss, the target moves the session to another portal group. It rejects the first reset.
#[test]
fn write_of_another_portal_group_ends_by_a_reset() {
    let resets = AtomicUsize::new(0);
    let script = Script::new().answer("ImmediateData", "Yes").hook(move |link, pdu| {
        if link.number == 0 {
            return if is(pdu, WRITE_10) { HookAction::Close } else { HookAction::Usual };
        }
        match pdu.opcode() {
            op::LOGIN if pdu.bhs[1] >> 2 & 3 == 0 => {
                let keys = [("TargetPortalGroupTag", "2"), ("AuthMethod", "None")];
                link.send(link.login_response(pdu, 0x81, &keys));
            }
            op::TMF if resets.fetch_add(1, SeqCst) == 0 => {
                link.send(Pdu::new(op::TMF_RESPONSE).itt(pdu.tag()).byte(2, REJECTED));
            }
            _ => return HookAction::Usual,
        }
        HookAction::Done
    });
    let target = script.listen();
    with_disk(
        LIMIT,
        &target,
        &format!("{WAITS}&login_timeout=0.5&fast_io_fail_timeout=0.5"),
        |lun| async move {
            lun.write(0, filled(1), false).await.0.expect("the write is resent");
        },
    );
    let all = target.seen().into_iter().map(|seen| seen.pdu);
    let steps = all.filter(|pdu| pdu.opcode() == op::TMF || is(pdu, WRITE_10));
    let steps: Vec<bool> = steps.map(|pdu| pdu.opcode() == op::TMF).collect();
    assert_eq!(steps, [false, true, true, false], "the write, two resets, and the write again");
    assert!(target.requests(op::TMF).iter().all(|pdu| pdu.bhs[1] & 0x7f == LUN_RESET));
}

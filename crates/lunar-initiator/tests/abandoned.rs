//! Commands whose owners have stopped waiting, and responses that arrive early, against scripted targets.
#![forbid(unsafe_code)]

mod common;

use common::{READ_10, WRITE_10, is, with_disk};
use interop::script::{HookAction, Script, Target};
use interop::{NONE, Pdu, op};
use lunar_block::Backend;
use lunar_initiator::multipath::{LunPath, Multipath, MultipathOptions, PathPolicy};
use lunar_initiator::{Direction, ErrorCode, Lun, Url};
use lunar_runtime::{Buf, Cores};
use lunar_wire::scsi::cdb;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The time after which a test counts as hung.
const LIMIT: Duration = Duration::from_secs(60);
const TEST_UNIT_READY: u8 = 0;

/// A target that executes its first write only when TEST UNIT READY arrives.
fn keeps_first_write(kept: &Arc<Mutex<Option<Pdu>>>) -> Target {
    let late = kept.clone();
    let target = Script::new().answer("ImmediateData", "Yes").hook(move |link, pdu| {
        let mut late = late.lock().expect("an unpoisoned lock");
        if is(pdu, WRITE_10) && late.is_none() {
            *late = Some(pdu.clone());
            return HookAction::Done;
        }
        if is(pdu, TEST_UNIT_READY)
            && link.number == 0
            && let Some(write) = &*late
        {
            link.default_response(write);
        }
        HookAction::Usual
    });
    target.listen()
}

fn filled(byte: u8) -> Buf {
    let mut buf = Buf::zeroed(100);
    buf.fill(byte);
    buf
}

/// The first write is a read-modify-write of a part of a block. Its future is dropped after the WRITE was sent, and
/// the target executes it later. A second write to other bytes of the block must wait: otherwise the late write would
/// undo it.
#[test]
fn abandoned_write_blocks_newer_writes_of_its_block() {
    let kept: Arc<Mutex<Option<Pdu>>> = Arc::default();
    let target = keeps_first_write(&kept);
    with_disk(LIMIT, &target, "command_timeout=60", move |lun| async move {
        write_around(&kept, lun.clone(), &lun).await;
    });
    let disk = target.disk();
    assert!(disk[..100] == [1; 100] && disk[100..200] == [2; 100], "one write has undone the other");
    let reads = target.requests(op::SCSI).iter().filter(|pdu| is(pdu, READ_10)).count();
    assert_eq!(reads, 2);
}

/// The first write is on one path, the second on the other.
#[test]
fn block_is_held_on_all_paths_while_a_dropped_write_goes_on() {
    let kept: Arc<Mutex<Option<Pdu>>> = Arc::default();
    let target = keeps_first_write(&kept);
    let url = Url::parse(&target.url("command_timeout=60")).expect("a URL");
    common::run(LIMIT, move || async move {
        let (first, second) = (lunar_initiator::open(&url).await, lunar_initiator::open(&url).await);
        let (first, second) = (first.expect("a LUN"), second.expect("a LUN"));
        let paths: Vec<Arc<dyn LunPath>> = vec![first.clone(), second];
        let settings = MultipathOptions::default().with_policy(PathPolicy::RoundRobin).with_check(LIMIT);
        let joined = Multipath::join(paths, settings).await.expect("one logical unit");
        write_around(&kept, joined, &first).await;
    });
    let disk = target.disk();
    assert!(disk[..100] == [1; 100] && disk[100..200] == [2; 100], "one write has undone the other");
}

/// Drops a write that the target has received, and writes other bytes of its block.
async fn write_around(kept: &Mutex<Option<Pdu>>, disk: Arc<dyn Backend>, lun: &Lun) {
    let first = compio::time::timeout(Duration::from_millis(500), disk.write(0, filled(1), false));
    assert!(
        first.await.is_err() && kept.lock().expect("an unpoisoned lock").is_some(),
        "the target has the write"
    );
    let other = disk.clone();
    let second = compio::runtime::spawn(async move { other.write(100, filled(2), false).await.0 });
    compio::time::sleep(Duration::from_millis(500)).await;
    lun.perform(cdb::test_unit_ready(), Direction::None).await.0.expect("ready");
    second.await.expect("the task panicked").expect("written");
}

/// The session and the owner of its writes are on different cores. Both writes cover whole blocks, which would
/// otherwise share the range lock.
#[test]
fn newer_write_waits_for_a_dropped_one_of_another_core() {
    let kept: Arc<Mutex<Option<Pdu>>> = Arc::default();
    let target = keeps_first_write(&kept);
    let url = Url::parse(&target.url("command_timeout=60")).expect("a URL");
    let home = Cores::one().expect("an event loop");
    let open = move || async move { lunar_initiator::open(&url).await.expect("a LUN") };
    let lun = home.wait(0, open).expect("an event loop");
    common::run(LIMIT, move || async move {
        let first = compio::time::timeout(Duration::from_millis(500), lun.write(0, block(1), false));
        assert!(
            first.await.is_err() && kept.lock().expect("an unpoisoned lock").is_some(),
            "the target has the write"
        );
        let other = lun.clone();
        let second = compio::runtime::spawn(async move { other.write(0, block(2), false).await.0 });
        compio::time::sleep(Duration::from_millis(500)).await;
        lun.perform(cdb::test_unit_ready(), Direction::None).await.0.expect("ready");
        second.await.expect("the task panicked").expect("written");
    });
    assert!(target.disk()[..512] == [2; 512], "the older write was executed last");
}

fn block(byte: u8) -> Buf {
    let mut buf = Buf::zeroed(512);
    buf.fill(byte);
    buf
}

/// The target responds to a write, stops reading, and keeps sending pings: the connection must be dropped.
#[test]
fn answered_write_with_unread_data_ends_in_time() {
    const LEN: usize = 8 << 20;
    let target = Script::new().answer("InitialR2T", "No").answer("ImmediateData", "Yes");
    let target = target.hook(|link, pdu| {
        if !is(pdu, WRITE_10) || link.number > 0 {
            return HookAction::Usual;
        }
        link.check_condition(pdu, [7, 0x27, 0]);
        let started_at = Instant::now();
        while started_at.elapsed() < Duration::from_secs(30) {
            link.send(Pdu::new(op::NOP_IN).itt(NONE).ttt(NONE));
            std::thread::sleep(Duration::from_millis(200));
        }
        HookAction::Close
    });
    let target = target.listen();
    let settings =
        format!("operation_timeout=2&window=16384&max_burst_length={LEN}&first_burst_length={LEN}");
    let (error, took) = with_disk(LIMIT, &target, &settings, |lun| async move {
        let started_at = Instant::now();
        let many = Direction::Out(Buf::zeroed(LEN));
        let cdb = cdb::write_10(0, (LEN / 512) as u16, false);
        (lun.perform(cdb, many).await.0.expect_err("WRITE PROTECTED"), started_at.elapsed())
    });
    assert_eq!(error.code, ErrorCode::ScsiError);
    assert!(took < Duration::from_secs(15), "{took:?}");
}

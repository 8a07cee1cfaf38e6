//! Commands whose owners wait no longer, and answers that come too early, against scripted targets.
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

/// A test that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);
const TEST_UNIT_READY: u8 = 0;

/// The first write to a target is kept from it until somebody asks whether the unit is ready.
fn keeps_first_write(kept: &Arc<Mutex<Option<Pdu>>>) -> Target {
    let late = kept.clone();
    let target = Script::new().answer("ImmediateData", "Yes").hook(move |link, pdu| {
        let mut late = late.lock().expect("no panic");
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

/// The write of the first one is read, changed, sent, and given up; the target carries it out later. Whoever writes other
/// bytes of the same block meanwhile waits for it: else it would be undone.
#[test]
fn abandoned_write_blocks_newer_writes_of_its_block() {
    let kept: Arc<Mutex<Option<Pdu>>> = Arc::default();
    let target = keeps_first_write(&kept);
    with_disk(LIMIT, &target, "command_timeout=60", move |lun| async move {
        write_around(&kept, lun.clone(), &lun).await;
    });
    let disk = target.disk();
    assert!(disk[..100] == [1; 100] && disk[100..200] == [2; 100], "one has undone the other");
    let reads = target.requests(op::SCSI).iter().filter(|pdu| is(pdu, READ_10)).count();
    assert_eq!(reads, 2);
}

/// The write was on one path, and the next is on the other.
#[test]
fn block_is_held_on_all_paths_while_a_dropped_write_goes_on() {
    let kept: Arc<Mutex<Option<Pdu>>> = Arc::default();
    let target = keeps_first_write(&kept);
    let url = Url::parse(&target.url("command_timeout=60")).expect("a URL");
    common::run(LIMIT, move || async move {
        let (first, second) = (lunar_initiator::open(&url).await, lunar_initiator::open(&url).await);
        let (first, second) = (first.expect("a LUN"), second.expect("a LUN"));
        let ways: Vec<Arc<dyn LunPath>> = vec![first.clone(), second];
        let settings =
            MultipathOptions { policy: PathPolicy::RoundRobin, check: LIMIT, ..MultipathOptions::default() };
        let joined = Multipath::join(ways, settings).await.expect("one unit");
        write_around(&kept, joined, &first).await;
    });
    let disk = target.disk();
    assert!(disk[..100] == [1; 100] && disk[100..200] == [2; 100], "one has undone the other");
}

/// Drops a write that the target has, and writes other bytes of its block.
async fn write_around(kept: &Mutex<Option<Pdu>>, disk: Arc<dyn Backend>, lun: &Lun) {
    let first = compio::time::timeout(Duration::from_millis(500), disk.write(0, filled(1), false));
    assert!(first.await.is_err() && kept.lock().expect("no panic").is_some(), "it is with the target");
    let other = disk.clone();
    let second = compio::runtime::spawn(async move { other.write(100, filled(2), false).await.0 });
    compio::time::sleep(Duration::from_millis(500)).await;
    lun.perform(cdb::test_unit_ready(), Direction::None).await.0.expect("ready");
    second.await.expect("no panic").expect("written");
}

/// The session is on one core, and the owner of its writes on another. Both writes are whole blocks, which share else.
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
        assert!(first.await.is_err() && kept.lock().expect("no panic").is_some(), "it is with the target");
        let other = lun.clone();
        let second = compio::runtime::spawn(async move { other.write(0, block(2), false).await.0 });
        compio::time::sleep(Duration::from_millis(500)).await;
        lun.perform(cdb::test_unit_ready(), Direction::None).await.0.expect("ready");
        second.await.expect("no panic").expect("written");
    });
    assert!(target.disk()[..512] == [2; 512], "the older write came last");
}

fn block(byte: u8) -> Buf {
    let mut buf = Buf::zeroed(512);
    buf.fill(byte);
    buf
}

/// The target answers, reads no more, and goes on saying that it lives: the connection has to be given up.
#[test]
fn answered_write_with_unread_data_ends_in_time() {
    const LEN: usize = 8 << 20;
    let target = Script::new().answer("InitialR2T", "No").answer("ImmediateData", "Yes");
    let target = target.hook(|link, pdu| {
        if !is(pdu, WRITE_10) || link.number > 0 {
            return HookAction::Usual;
        }
        link.check_condition(pdu, [7, 0x27, 0]);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(30) {
            link.send(Pdu::new(op::NOP_IN).itt(NONE).ttt(NONE));
            std::thread::sleep(Duration::from_millis(200));
        }
        HookAction::Close
    });
    let target = target.listen();
    let settings =
        format!("operation_timeout=2&window=16384&max_burst_length={LEN}&first_burst_length={LEN}");
    let (error, took) = with_disk(LIMIT, &target, &settings, |lun| async move {
        let begun = Instant::now();
        let many = Direction::Out(Buf::zeroed(LEN));
        let cdb = cdb::write_10(0, (LEN / 512) as u16, false);
        (lun.perform(cdb, many).await.0.expect_err("it is protected"), begun.elapsed())
    });
    assert_eq!(error.code, ErrorCode::ScsiError);
    assert!(took < Duration::from_secs(15), "{took:?}");
}

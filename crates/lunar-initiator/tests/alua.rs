//! Several paths to one logical unit with ALUA access states, on scripted targets. I/O uses the paths that accept it,
//! without unnecessary delay.
#![forbid(unsafe_code)]

mod common;

use common::{READ_10, is, run, with_disk};
use interop::script::{HookAction, Script, ScriptConnection, Target};
use interop::{Pdu, op};
use lunar_block::{Backend, BackendQueue};
use lunar_initiator::multipath::{LunPath, Multipath, MultipathOptions, PathPolicy, PathState};
use lunar_initiator::{Lun, Url};
use lunar_runtime::Buf;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The time after which a test counts as hung.
const LIMIT: Duration = Duration::from_secs(40);
const TEST_UNIT_READY: u8 = 0;
const INQUIRY: u8 = 0x12;
const MAINTENANCE_IN: u8 = 0xa3;
/// The target port group of the scripted port.
const GROUP: u8 = 7;
/// Access states (SPC-5 table 182). BUSY is not one: it means that the logical unit is busy.
const OPTIMIZED: u8 = 0;
const NON_OPTIMIZED: u8 = 1;
const STANDBY: u8 = 2;
const UNAVAILABLE: u8 = 3;
const TRANSITIONING: u8 = 15;
const BUSY: u8 = 0xff;

/// REPORT TARGET PORT GROUPS data with `count` groups. The last one is the scripted port's, the others are optimized.
fn groups(count: usize, state: u8) -> Vec<u8> {
    let group = |number: u8, state| [state, 0, 0, number, 0, 0, 0, 0];
    let mut list = vec![group(0, OPTIMIZED); count - 1];
    list.push(group(GROUP, state));
    [&(list.len() as u32 * 8).to_be_bytes()[..], &list.concat()].concat()
}

/// Rejects I/O as a port in this state does. None if the state permits I/O.
fn refuse(link: &mut ScriptConnection, pdu: &Pdu, state: u8) -> Option<()> {
    match state {
        STANDBY => link.check_condition(pdu, [2, 0x04, 0x0b]),
        UNAVAILABLE => link.check_condition(pdu, [2, 0x04, 0x0c]),
        TRANSITIONING => link.check_condition(pdu, [2, 0x04, 0x0a]),
        BUSY => {
            let missing = pdu.get32(20);
            let flags = if missing > 0 { 0x82 } else { 0x80 };
            let busy = Pdu::new(op::SCSI_RESPONSE).flags(flags).itt(pdu.tag()).byte(3, 0x08);
            link.send(busy.set32(44, missing));
        }
        _ => return None,
    }
    Some(())
}

/// A disk whose port is in a target port group with this state.
fn answer(link: &mut ScriptConnection, pdu: &Pdu, state: u8, count: usize) -> HookAction {
    match (pdu.bhs[32], pdu.bhs[33] & 1, pdu.bhs[34]) {
        _ if pdu.opcode() != op::SCSI => return HookAction::Usual,
        (INQUIRY, 0, _) => {
            let head = [0, 0, 6, 2, 31, 0x10, 0, 2];
            link.data_in(pdu, &[&head[..], b"SCRIPTEDA disk          0001"].concat());
        }
        (INQUIRY, 1, 0x83) => {
            let (unit, port) = ([1, 3, 0, 8, 0x60, 1, 2, 3, 4, 5, 6, 7], [0x51, 0x95, 0, 4, 0, 0, 0, GROUP]);
            link.data_in(pdu, &[&[0, 0x83, 0, 20][..], &unit, &port].concat());
        }
        (MAINTENANCE_IN, ..) => link.data_in(pdu, &groups(count, if state == BUSY { 0 } else { state })),
        (TEST_UNIT_READY | READ_10, ..) if refuse(link, pdu, state).is_some() => {}
        _ => return HookAction::Usual,
    }
    HookAction::Done
}

/// A scripted port and its state.
struct Port {
    state: Arc<AtomicU8>,
    target: Target,
}

impl Port {
    fn new() -> Port {
        let state = Arc::new(AtomicU8::new(OPTIMIZED));
        let port_state = state.clone();
        let target =
            Script::new().hook(move |link, pdu| answer(link, pdu, port_state.load(SeqCst), 1)).listen();
        Port { state, target }
    }

    fn url(&self) -> Url {
        Url::parse(&self.target.url("recovery_timeout=0.001&transition_timeout=0")).expect("a URL")
    }

    fn reads(&self) -> usize {
        self.target.requests(op::SCSI).iter().filter(|pdu| is(pdu, READ_10)).count()
    }
}

/// A disk with two ports. The first one is used unless the second has a better state.
fn with_both<W: Future<Output = ()> + 'static>(
    ports: &[Port; 2],
    check: Duration,
    work: impl FnOnce(Arc<Multipath>, [Arc<AtomicU8>; 2]) -> W + Send + 'static,
) {
    let (urls, states) = ([ports[0].url(), ports[1].url()], [ports[0].state.clone(), ports[1].state.clone()]);
    run(LIMIT, move || async move {
        let mut paths: Vec<Arc<dyn LunPath>> = Vec::new();
        for url in &urls {
            paths.push(lunar_initiator::open(url).await.expect("a path"));
        }
        let settings = MultipathOptions::default().with_policy(PathPolicy::Failover).with_check(check);
        work(Multipath::join(paths, settings).await.expect("one logical unit"), states).await;
    });
}

/// An interval so long that no periodic check runs.
const NEVER: Duration = Duration::from_secs(3600);

async fn read(disk: &Multipath) {
    disk.read(0, Buf::zeroed(512)).await.0.expect("read");
}

/// The same through a queue, without a future of its own.
async fn read_by(queue: &mut dyn BackendQueue) {
    queue.read(0, 0, Buf::zeroed(512));
    let (_, (result, _)) = poll_fn(|cx| queue.poll_ended(cx)).await;
    result.expect("read");
}

fn states(disk: &Multipath) -> [PathState; 2] {
    [disk.paths()[0].1, disk.paths()[1].1]
}

async fn until(disk: &Multipath, wanted: [PathState; 2]) {
    while states(disk) != wanted {
        compio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// An operation that the first path rejects is retried on the second at once.
#[test]
fn path_that_takes_no_io_is_left_at_once() {
    use PathState::{Optimized, Standby, Transitioning};
    for (code, seen) in [(STANDBY, Standby), (UNAVAILABLE, Standby), (TRANSITIONING, Transitioning)] {
        let ports = [Port::new(), Port::new()];
        with_both(&ports, NEVER, move |disk, [first, _]| async move {
            assert_eq!(states(&disk), [Optimized; 2]);
            first.store(code, SeqCst);
            let started_at = Instant::now();
            let mut queue = disk.clone().queue().expect("a queue");
            read_by(&mut *queue).await;
            read(&disk).await;
            assert!(started_at.elapsed() < Duration::from_secs(5), "{:?}", started_at.elapsed());
            assert_eq!(states(&disk), [seen, Optimized]);
        });
        assert_eq!([ports[0].reads(), ports[1].reads()], [1, 2], "{seen}");
    }
}

/// The logical unit is busy on every path, so the operation is retried on the same one.
#[test]
fn path_over_which_the_unit_is_busy_is_asked_again() {
    let ports = [Port::new(), Port::new()];
    with_both(&ports, NEVER, |disk, [first, _]| async move {
        first.store(BUSY, SeqCst);
        compio::runtime::spawn(async move {
            compio::time::sleep(Duration::from_millis(300)).await;
            first.store(OPTIMIZED, SeqCst);
        })
        .detach();
        read(&disk).await;
    });
    assert!(ports[0].reads() > 2 && ports[1].reads() == 0);
}

#[test]
fn better_path_takes_io_as_soon_as_it_is_seen() {
    use PathState::{NonOptimized, Optimized, Standby};
    let ports = [Port::new(), Port::new()];
    let check = Duration::from_millis(20);
    with_both(&ports, check, |disk, [first, second]| async move {
        first.store(STANDBY, SeqCst);
        second.store(NON_OPTIMIZED, SeqCst);
        until(&disk, [Standby, NonOptimized]).await;
        read(&disk).await;
        first.store(OPTIMIZED, SeqCst);
        until(&disk, [Optimized, NonOptimized]).await;
        read(&disk).await;
        read(&disk).await;
    });
    assert_eq!([ports[0].reads(), ports[1].reads()], [2, 1]);
}

#[test]
fn io_that_no_path_takes_goes_on_soon_after_a_transition() {
    let ports = [Port::new(), Port::new()];
    with_both(&ports, NEVER, |disk, both| async move {
        both.iter().for_each(|state| state.store(TRANSITIONING, SeqCst));
        let (reader, begun) = (disk.clone(), Instant::now());
        let reading = compio::runtime::spawn(async move { read(&reader).await });
        until(&disk, [PathState::Transitioning; 2]).await;
        compio::time::sleep(Duration::from_millis(300)).await;
        both[1].store(NON_OPTIMIZED, SeqCst);
        reading.await.expect("the task panicked");
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert_eq!(states(&disk), [PathState::Transitioning, PathState::NonOptimized]);
    });
    assert_eq!([ports[0].reads(), ports[1].reads()], [1, 2]);
}

#[test]
fn one_path_waits_for_the_end_of_a_transition() {
    let left = AtomicUsize::new(3);
    let target = Script::new().scsi(READ_10, move |link, pdu| {
        if left.load(SeqCst) == 0 {
            return HookAction::Usual;
        }
        left.fetch_sub(1, SeqCst);
        link.check_condition(pdu, [2, 0x04, 0x0a]);
        HookAction::Done
    });
    let target = target.listen();
    with_disk(LIMIT, &target, "", |lun| async move { lun.read(0, Buf::zeroed(512)).await.0 }).expect("read");
}

#[test]
fn session_names_the_response_that_commands_wait_for() {
    let state = Arc::new(AtomicU8::new(BUSY));
    let port_state = state.clone();
    let target = Script::new().scsi(READ_10, move |link, pdu| {
        refuse(link, pdu, port_state.load(SeqCst)).map_or(HookAction::Usual, |()| HookAction::Done)
    });
    let target = target.listen();
    with_disk(LIMIT, &target, "", |lun| async move {
        assert_eq!(lun.session().obstacle(), None);
        let reader = lun.clone();
        let reading = compio::runtime::spawn(async move { reader.read(0, Buf::zeroed(512)).await.0 });
        let named = async |words: &str| {
            while !lun.session().obstacle().is_some_and(|obstacle| obstacle.contains(words)) {
                compio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        named("/0 is busy or not ready: SCSI status 08h").await;
        state.store(TRANSITIONING, SeqCst);
        named(": not ready").await;
        state.store(OPTIMIZED, SeqCst);
        reading.await.expect("the task panicked").expect("read");
        assert_eq!(lun.session().obstacle(), None);
    });
}

/// The result of a path check in this state, by a host that would retry I/O for long.
fn looked_at(script: Script, first: impl FnOnce() + Send + 'static) -> PathState {
    let target = script.listen();
    with_disk(LIMIT, &target, "recovery_timeout=0.001", move |lun: Arc<Lun>| async move {
        first();
        let look = compio::time::timeout(Duration::from_secs(10), lun.check());
        look.await.expect("the check must not wait")
    })
}

#[test]
fn path_check_reports_the_present_state() {
    use PathState::{NonOptimized, Optimized, Standby, Transitioning};
    for (code, seen) in [
        (OPTIMIZED, Optimized),
        (NON_OPTIMIZED, NonOptimized),
        (STANDBY, Standby),
        (TRANSITIONING, Transitioning),
        (BUSY, Optimized),
    ] {
        let state = Arc::new(AtomicU8::new(OPTIMIZED));
        let later = state.clone();
        let script = Script::new().hook(move |link, pdu| answer(link, pdu, state.load(SeqCst), 1));
        assert_eq!(looked_at(script, move || later.store(code, SeqCst)), seen, "{code}");
    }
}

#[test]
fn path_lost_during_report_target_port_groups_is_down() {
    let script = Script::new().hook(|link, pdu| match is(pdu, MAINTENANCE_IN) {
        true => HookAction::Close,
        false => answer(link, pdu, OPTIMIZED, 1),
    });
    assert_eq!(looked_at(script, || ()), PathState::Down);
}

/// The list exceeds the first allocation length. Ports in standby may succeed TEST UNIT READY.
#[test]
fn long_list_of_groups_is_read_to_its_end() {
    let script = Script::new().hook(|link, pdu| match is(pdu, TEST_UNIT_READY) {
        true => HookAction::Usual,
        false => answer(link, pdu, STANDBY, 1000),
    });
    assert_eq!(looked_at(script, || ()), PathState::Standby);
}

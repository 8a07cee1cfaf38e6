mod namespaces;
mod odd_storage;

use super::fence::{Fence, FencePort, reservation};
use super::gate::IoGate;
use super::owner::ReservationOwner;
use super::{FailoverRequest, Pair, PairSpec, Role};
use crate::loops::LoopDetector;
use crate::upstream::{Upstream, UpstreamLu, probe};
use interop::{Peer, Server};
use lunar_block::Backend;
use lunar_initiator::{ErrorCode, Options, Session, Url};
use lunar_runtime::{Buf, Cores};
use lunar_scsi::AccessState;
use lunar_target::{Instance, ScsiError};
use lunar_wire::scsi::Sense;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);
const LEN: usize = 4096;

fn run<W: Future<Output = ()> + 'static>(work: impl FnOnce() -> W + Send + 'static) {
    let with_rate_limit =
        move || async move { compio::time::timeout(LIMIT, work()).await.expect("the test hangs") };
    Cores::one().expect("an event loop").wait(0, with_rate_limit).expect("an event loop");
}

fn server() -> Server {
    server_with("")
}

fn server_with(keys: &str) -> Server {
    Server::start(&format!(
        "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{}\"\n\
         [[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"disk.img\"\nsize = \"16MiB\"\n{keys}",
        interop::TARGET
    ))
}

/// The disk, routed with this reservation key.
async fn disk(url: &Url, key: u64) -> Arc<UpstreamLu> {
    disk_over(vec![url.clone()], key).await
}

/// The same with several paths.
async fn disk_over(urls: Vec<Url>, key: u64) -> Arc<UpstreamLu> {
    let upstream = Upstream { fence: Some(key), ..Upstream::new("r1", "u", urls) };
    let found = probe(&upstream, &LoopDetector::default()).await.expect("a reachable upstream");
    let (lun, what) = found[0].luns.first_key_value().expect("a LUN");
    UpstreamLu::open(&upstream, &found[0].name, *lun, what.clone()).expect("a disk")
}

/// A pair whose peer does not exist.
fn spec(key: u64) -> PairSpec {
    PairSpec {
        router: "r1".into(),
        peer: "127.0.0.1:1".parse().expect("a portal"),
        group: 2,
        preferred: true,
        key,
        seed: format!("router {key}"),
        initiator: None,
        path_loss_timeout: LIMIT,
    }
}

fn pair(spec: PairSpec, before: Option<&Arc<Pair>>) -> Arc<Pair> {
    let before = before.map(|before| before.end());
    Pair::start(spec, true, Arc::new(Instance::new("r1")), before, || {}, |job| job())
}

async fn until(what: impl Fn() -> bool) {
    while !what() {
        compio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// One router of a pair, for a single logical unit.
struct Half {
    disk: Arc<UpstreamLu>,
    gate: Arc<IoGate>,
    fence: Fence,
}

impl Half {
    async fn new(url: &Url, key: u64) -> Half {
        let disk = disk(url, key).await;
        let gate = disk.gate().expect("a gate").clone();
        let port = FencePort { initiator: None, isid: [0x80, 0, 0, 0, 0, key as u8] };
        let fence = Fence::new(&disk, port, key, Duration::ZERO);
        Half { disk, gate, fence }
    }

    async fn take(&mut self, seize: bool) -> Result<(), ErrorCode> {
        self.fence.take(seize).await.map_err(|e| e.code)?;
        for lun in self.disk.luns() {
            self.gate.admit(lun.session(), lun.address()).await.expect("the nexus is admitted");
        }
        self.gate.open();
        Ok(())
    }

    async fn write(&self, byte: u8) -> Result<(), Option<Sense>> {
        let mut buf = Buf::zeroed(LEN);
        buf.fill(byte);
        let written = self.disk.write(0, buf, false).await.0;
        written.map_err(|e| ScsiError::of(&e).and_then(|error| error.sense))
    }

    async fn read(&self) -> u8 {
        let (result, buf) = self.disk.read(0, Buf::zeroed(LEN)).await;
        result.expect("a successful read");
        buf[0]
    }
}

fn url(server: &Server) -> Url {
    lun_of(server.portal(), 0)
}

fn lun_of(portal: impl std::fmt::Display, lun: u16) -> Url {
    Url::parse(&format!("iscsi://{portal}/{}/{lun}", interop::TARGET)).expect("a URL")
}

#[test]
fn preempted_router_cannot_write() {
    run(async || {
        let server = server();
        put_off(&url(&server)).await;
    });
}

#[test]
fn stgt_puts_off_too() {
    let Some(peer) = Peer::tgt() else { return };
    let url = Url::parse(&peer.open("")).expect("a URL");
    run(async move || put_off(&url).await);
}

/// A storage may show another logical unit to the name that holds the reservation.
#[test]
fn reservation_holder_name_must_see_the_same_disk() {
    run(async || {
        let server = server_with(
            "[[target.lun]]\nlun = 1\nbackend = \"memory\"\nsize = \"1MiB\"\n\
             [[target.access]]\ninitiators = [\"iqn.2026-11.x:strange\"]\nluns = { 0 = 1 }\n\
             [[target.access]]\n",
        );
        let mut a = Half::new(&url(&server), 0xa).await;
        let port = |name: &str| FencePort { initiator: Some(name.into()), isid: [0x80, 0, 0, 0, 0, 9] };
        a.fence = Fence::new(&a.disk, port("iqn.2026-11.x:strange"), 0xa, Duration::ZERO);
        assert_eq!(a.take(false).await, Err(ErrorCode::IdentityMismatch));
        a.fence = Fence::new(&a.disk, port("iqn.2026-11.x:fence"), 0xa, Duration::ZERO);
        assert_eq!(a.take(false).await, Ok(()));
        assert_eq!(a.write(1).await, Ok(()));
        let socket = server.dir().join("admin.sock");
        let mut list = std::process::Command::new(interop::lunar_bin());
        let listed = interop::tool::run(list.args(["session", "list", "--socket"]).arg(socket), LIMIT);
        assert!(listed.said.contains("iqn.2026-11.x:fence"), "{}", listed.said);
    });
}

async fn put_off(url: &Url) {
    let (mut a, mut b) = (Half::new(url, 0xa).await, Half::new(url, 0xb).await);
    assert_eq!(a.write(1).await, Err(Some(Sense::NOT_READY_STANDBY)), "no I/O before the takeover");
    assert_eq!(a.take(false).await, Ok(()));
    assert_eq!(a.write(1).await, Ok(()));
    assert_eq!(b.take(false).await, Err(ErrorCode::ReservationConflict), "a held reservation is not free");
    assert_eq!(b.take(true).await, Ok(()));
    assert!(a.gate.is_open(), "the conflict is not known yet");
    assert_eq!(a.write(2).await, Err(Some(Sense::NOT_READY_TRANSITION)));
    assert!(!a.gate.is_open(), "a conflict shuts the gate");
    // Opening the gate again must not help either.
    a.gate.open();
    assert_eq!(a.write(3).await, Err(Some(Sense::NOT_READY_TRANSITION)));
    for lun in a.disk.luns() {
        let before = reservation(lun.session(), lun.address()).await.expect("the reservation");
        let admitted = a.gate.admit(lun.session(), lun.address()).await;
        assert_eq!(admitted.map_err(|e| e.code), Err(ErrorCode::ReservationConflict));
        let after = reservation(lun.session(), lun.address()).await.expect("the reservation");
        assert_eq!(before.generation, after.generation, "a failed admission must not change the generation");
    }
    a.gate.open();
    assert_eq!(a.write(4).await, Err(Some(Sense::NOT_READY_TRANSITION)));
    assert_eq!(b.read().await, 1);
    assert_eq!(b.write(5).await, Ok(()));
    assert_eq!(a.take(true).await, Ok(()));
    assert_eq!((a.read().await, b.write(6).await), (5, Err(Some(Sense::NOT_READY_TRANSITION))));
}

#[test]
fn released_disk_is_free_without_registration() {
    run(async || {
        let server = server();
        let url = url(&server);
        let (mut a, mut b) = (Half::new(&url, 0xa).await, Half::new(&url, 0xb).await);
        assert_eq!(a.take(false).await, Ok(()));
        assert_eq!(a.write(1).await, Ok(()));
        assert!(a.gate.owes());
        assert!(a.disk.flush().await.is_ok());
        a.gate.shut();
        assert!(a.disk.flush().await.is_err(), "writes may not be stable");
        a.fence.release(&a.gate).await.expect("a released reservation");
        assert!(!a.gate.owes() && a.disk.flush().await.is_ok());
        let mut raw = interop::Raw::session(server.portal(), &[]);
        assert_eq!(interop::scsi::read_keys(&mut raw, 0), Vec::<u64>::new());
        assert_eq!(b.take(false).await, Ok(()));
        assert_eq!(b.read().await, 1);
        assert!(a.fence.release(&a.gate).await.is_err(), "the reservation is not ours");
        assert_eq!(b.write(2).await, Ok(()));
    });
}

#[test]
fn restarted_router_takes_back_its_reservation() {
    run(async || {
        let server = server();
        let url = url(&server);
        let mut before = Half::new(&url, 0xa).await;
        assert_eq!(before.take(false).await, Ok(()));
        assert_eq!(before.write(1).await, Ok(()));
        let mut a = Half::new(&url, 0xa).await;
        assert_eq!(a.take(false).await, Ok(()));
        assert_eq!(a.write(2).await, Ok(()));
        assert_eq!(
            before.write(3).await,
            Err(Some(Sense::NOT_READY_TRANSITION)),
            "the earlier instance is preempted"
        );
        let mut raw = interop::Raw::session(server.portal(), &[]);
        assert_eq!(interop::scsi::read_keys(&mut raw, 0), [0xa, 0xa], "the control nexus, and one with data");
        let moved = a.fence.probe().await.expect("the reservation").generation;
        a.fence.heartbeat(&a.gate).await.expect("a heartbeat");
        assert!(a.fence.probe().await.expect("the reservation").generation > moved);
        let session =
            Session::open(url.portal.clone(), interop::TARGET, Options::new(interop::INITIATOR)).await;
        let seen = reservation(&session.expect("a session"), 0).await.expect("the reservation");
        assert_eq!(seen.held.map(|held| (held.key, held.kind)), Some((0xa, 6)));
    });
}

#[test]
fn takeover_waits_for_writes_of_the_former_router() {
    run(async || {
        let server = server_with("filters = [{ kind = \"delay\", write_us = 6000000 }]\n");
        let url = url(&server);
        let (mut a, mut b) = (Half::new(&url, 0xa).await, Half::new(&url, 0xb).await);
        assert_eq!(a.take(false).await, Ok(()));
        assert_eq!(a.read().await, 0);
        let _late = compio::runtime::spawn(async move { a.write(1).await });
        compio::time::sleep(Duration::from_millis(500)).await;
        assert!(b.take(true).await.is_err(), "the takeover must not complete yet");
        // A restarted instance does not know of the attempt.
        b = Half::new(&url, 0xb).await;
        while b.take(true).await.is_err() {}
        let then = b.read().await;
        compio::time::sleep(Duration::from_secs(7)).await;
        assert_eq!(b.read().await, then, "a write of the former router was executed after the takeover");
    });
}

/// The storage sends no response for an aborted command. The command timeout exceeds the time limit of the test.
#[test]
fn write_aborted_by_a_takeover_gets_a_response() {
    run(async || {
        let server = server_with("filters = [{ kind = \"delay\", write_us = 1000000 }]\n");
        let patient = format!("{}?command_timeout=60&operation_timeout=60", url(&server));
        let url = Url::parse(&patient).expect("a URL");
        let (disk, mut b) = (disk(&url, 0xa).await, Half::new(&url, 0xb).await);
        let mut a = ReservationOwner::new(&disk, &spec(0xa)).expect("a gate");
        assert!(a.take(false).await.is_ok());
        a.open().await;
        assert!(disk.read(0, Buf::zeroed(LEN)).await.0.is_ok());
        let gate = disk.gate().expect("a gate").clone();
        let late = compio::runtime::spawn(async move { disk.write(0, Buf::zeroed(LEN), false).await.0 });
        compio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(b.take(true).await, Ok(()));
        assert!(!gate.is_empty(), "the storage has aborted the write");
        a.probe().await;
        let e = late.await.expect("the task").expect_err("an aborted write");
        assert_eq!(ScsiError::of(&e).and_then(|error| error.sense), Some(Sense::NOT_READY_TRANSITION));
        assert!(gate.is_empty() && !gate.is_open());
    });
}

/// The heartbeats show the other router that a takeover is in progress.
#[test]
fn slow_disk_at_takeover_keeps_heartbeat_on_the_others() {
    run(async || {
        let server = server_with(
            "filters = [{ kind = \"delay\", write_us = 6000000 }]\n\
             [[target.lun]]\nlun = 1\nbackend = \"file\"\npath = \"quick.img\"\nsize = \"16MiB\"\n",
        );
        let slow = url(&server);
        let quick = Url::parse(&slow.to_string().replace("/0", "/1")).expect("a URL");
        let mut a = Half::new(&slow, 0xa).await;
        assert_eq!(a.take(false).await, Ok(()));
        let _late = compio::runtime::spawn(async move { a.write(1).await });
        compio::time::sleep(Duration::from_millis(500)).await;
        let disks = [disk(&slow, 0xb).await, disk(&quick, 0xb).await];
        let pair = pair(spec(0xb), None);
        disks.iter().for_each(|disk| pair.add_lu(disk));
        pair.request(FailoverRequest::Failover);
        let mut eye = Half::new(&quick, 0xc).await;
        let mut seen = eye.fence.probe().await.expect("the reservation");
        while seen.held.is_none() {
            compio::time::sleep(Duration::from_millis(100)).await;
            seen = eye.fence.probe().await.expect("the reservation");
        }
        compio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(pair.status().role, Role::Taking, "the takeover of the slow disk must still run");
        assert!(eye.fence.probe().await.expect("the reservation").generation > seen.generation);
    });
}

/// Three sequential requests that each time out would take longer.
const TOGETHER: Duration = Duration::from_secs(5);

#[test]
fn silent_disk_delays_takeover_once_and_gets_no_io_before() {
    run(async || {
        let more = |lun| format!("[[target.lun]]\nlun = {lun}\nbackend = \"memory\"\nsize = \"1MiB\"\n");
        let (there, away) = (server(), server_with(&(1..=3).map(more).collect::<String>()));
        let near = disk(&url(&there), 0xb).await;
        let mut far = Vec::new();
        for lun in 1..=3 {
            far.push(disk(&lun_of(away.portal(), lun), 0xb).await);
        }
        let is_open = |disk: &Arc<UpstreamLu>| disk.gate().is_some_and(|gate| gate.is_open());
        away.pause();
        let pair = pair(spec(0xb), None);
        let started_at = Instant::now();
        far.iter().chain([&near]).for_each(|disk| pair.add_lu(disk));
        until(|| pair.status().role == Role::Active).await;
        assert!(started_at.elapsed() < TOGETHER, "the disks were taken one after the other");
        assert!(is_open(&near) && near.read(0, Buf::zeroed(LEN)).await.0.is_ok());
        assert_eq!(
            pair.access(false),
            AccessState::Transitioning,
            "the ALUA state of disks that are not open"
        );
        for disk in &far {
            let refused =
                disk.write(0, Buf::zeroed(LEN), false).await.0.expect_err("a disk that is not taken");
            assert_eq!(ScsiError::of(&refused).and_then(|error| error.sense), Some(Sense::NOT_READY_STANDBY));
        }
        away.resume();
        until(|| far.iter().all(is_open)).await;
        let mut raw = interop::Raw::session(away.portal(), &[]);
        for (lun, disk) in (1..).zip(&far) {
            raw.clear_attentions(lun);
            assert!(disk.write(0, Buf::zeroed(LEN), false).await.0.is_ok());
            assert!(
                interop::scsi::read_keys(&mut raw, lun).contains(&0xb),
                "the disk is served without a reservation"
            );
        }
        // The end of a pair is concurrent too. A probe may precede it.
        away.pause();
        let (end, started_at) = (pair.end(), Instant::now());
        drop(pair);
        _ = end.recv_async().await;
        assert!(
            started_at.elapsed() < TOGETHER + Duration::from_secs(2),
            "the disks were released one after the other"
        );
    });
}

#[test]
fn silent_path_delays_the_others_only_briefly() {
    run(async || {
        let server = server();
        let relay = interop::Relay::to(server.portal());
        let urls = vec![url(&server), lun_of(relay.address(), 0)];
        let disk = disk_over(urls, 0xa).await;
        let mut a = ReservationOwner::new(&disk, &spec(0xa)).expect("a gate");
        assert!(a.take(false).await.is_ok());
        a.open().await;
        assert!(disk.read(0, Buf::zeroed(LEN)).await.0.is_ok());
        until(|| disk.luns().len() == 2).await;
        relay.silence();
        assert!(a.take(false).await.is_ok());
        let started_at = Instant::now();
        a.open().await;
        assert!(disk.gate().expect("a gate").is_open() && started_at.elapsed() < TOGETHER);
        assert!(disk.read(0, Buf::zeroed(LEN)).await.0.is_ok());
    });
}

#[test]
fn router_preempted_during_registration_admits_no_command() {
    run(async || {
        let server = server();
        let url = url(&server);
        let (disk, mut b) = (disk(&url, 0xa).await, Half::new(&url, 0xb).await);
        let gate = disk.gate().expect("a gate").clone();
        let mut a = ReservationOwner::new(&disk, &spec(0xa)).expect("a gate");
        assert!(a.take(false).await.is_ok());
        assert_eq!(b.take(true).await, Ok(()));
        a.open().await;
        assert!(!gate.is_open() && disk.resets().is_empty());
        assert!(a.take(false).await.is_err() && !a.is_taken, "an earlier reservation does not count");
        assert!(a.take(true).await.is_ok());
        a.open().await;
        assert!(gate.is_open());
        assert!(!disk.resets().is_empty(), "a reset while the peer held it is reported");
        drop(a);
        assert!(!gate.is_open(), "the gate has no owner");
    });
}

#[test]
fn release_of_old_owner_spares_its_successor() {
    run(async || {
        let server = server();
        let url = url(&server);
        let (old, new) = (disk(&url, 0xa).await, disk(&url, 0xa).await);
        let [was, is] = [&old, &new].map(|disk| disk.gate().expect("a gate").clone());
        let pair = pair(spec(0xa), None);
        pair.add_lu(&old);
        until(|| was.is_open()).await;
        pair.add_lu(&new);
        let (shut, opens) = (was.listen(), is.listen());
        let either = lunar_runtime::either(shut, opens);
        assert!(
            compio::time::timeout(Duration::from_secs(1), either).await.is_err(),
            "the old owner must keep serving"
        );
        assert!(was.is_open() && !is.is_open(), "two owners would use the same nexus");
        drop(old);
        until(|| is.is_open()).await;
        let shut = is.listen();
        let shut = compio::time::timeout(Duration::from_secs(2), shut).await;
        assert!(shut.is_err() && is.is_open(), "the reservation was lost");
    });
}

#[test]
fn new_pair_waits_for_release_of_the_old_one() {
    run(async || {
        let server = server();
        let disk = disk(&url(&server), 0xa).await;
        let gate = disk.gate().expect("a gate").clone();
        let before = pair(spec(0xa), None);
        before.add_lu(&disk);
        until(|| gate.is_open()).await;
        let inside = gate.enter();
        let after = pair(PairSpec { group: 3, ..spec(0xa) }, Some(&before));
        after.add_lu(&disk);
        drop(before);
        until(|| !gate.is_open()).await;
        compio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(after.status().role, Role::Standby, "a command of the old pair is in flight");
        drop(inside);
        until(|| gate.is_open()).await;
        let shut = gate.listen();
        let shut = compio::time::timeout(Duration::from_secs(2), shut).await;
        assert!(shut.is_err() && gate.is_open(), "the reservation was lost");
    });
}

#[test]
fn disk_properties_are_read_again_after_a_takeover() {
    run(async || {
        let server = server();
        let url = url(&server);
        let (disk, mut b) = (disk(&url, 0xa).await, Half::new(&url, 0xb).await);
        let mut a = ReservationOwner::new(&disk, &spec(0xa)).expect("a gate");
        assert!(a.take(false).await.is_ok());
        a.open().await;
        assert!(disk.read(0, Buf::zeroed(LEN)).await.0.is_ok());
        let lun = disk.luns()[0].clone();
        let was = lun.properties();
        assert_eq!(b.take(true).await, Ok(()));
        lun.reload().await.expect("the properties");
        assert_ne!(lun.properties(), was, "another initiator cannot read the mode pages");
        assert!(a.take(true).await.is_ok());
        a.open().await;
        assert_eq!(lun.properties(), was);
    });
}

//! Pairs in front of an NVMe namespace.

use super::{LEN, run, spec, until};
use crate::failover::owner::ReservationOwner;
use crate::failover::term::prefix_of;
use crate::loops::LoopDetector;
use crate::upstream::{Upstream, UpstreamLu, probe};
use compio::runtime::JoinHandle;
use interop::{Relay, Server};
use lunar_block::Backend;
use lunar_initiator::ErrorCode;
use lunar_initiator::nvme::{self, NvmeRegistrant, NvmeUrl, ReservationKind};
use lunar_runtime::Buf;
use lunar_target::ScsiError;
use lunar_wire::scsi::Sense;
use std::sync::Arc;
use std::time::Duration;

pub(super) const NQN: &str = "nqn.2026-11.org.example:disks";
/// The reservation of the other router is not known yet.
const TRANSITION: Result<(), Option<Sense>> = Err(Some(Sense::NOT_READY_TRANSITION));

/// A namespace in a file. `keys`: further keys of its configuration.
pub(super) fn server(keys: &str) -> Server {
    server_of(&format!("backend = \"file\"\npath = \"disk.img\"\n{keys}"))
}

fn server_of(keys: &str) -> Server {
    Server::start(&format!(
        "[[portal_group]]\ntag = 1\nportals = [{{ listen = \"127.0.0.1:0\", transport = [\"nvme-tcp\"] }}]\n\
         [[subsystem]]\nnqn = \"{NQN}\"\n[[subsystem.namespace]]\nnsid = 1\nsize = \"16MiB\"\n{keys}"
    ))
}

pub(super) fn url(portal: impl std::fmt::Display) -> NvmeUrl {
    format!("nvme://{portal}/{NQN}/1").parse().expect("a URL")
}

/// One router of a pair, for a single namespace.
pub(super) struct NamespaceRouter {
    pub disk: Arc<UpstreamLu>,
    pub owner: ReservationOwner,
}

impl NamespaceRouter {
    pub async fn new(url: &NvmeUrl, key: u64) -> NamespaceRouter {
        let upstream = Upstream { fence: Some(key), ..Upstream::new("r1", "u", vec![url.clone()]) };
        let found = probe(&upstream, &LoopDetector::default()).await.expect("a reachable upstream");
        let (lun, what) = found[0].luns.first_key_value().expect("a namespace");
        let disk = UpstreamLu::open(&upstream, &found[0].name, *lun, what.clone()).expect("a disk");
        let owner = ReservationOwner::new(&disk, &spec(key)).expect("a gate");
        NamespaceRouter { disk, owner }
    }

    pub async fn take(&mut self, seize: bool) -> Result<(), ErrorCode> {
        self.owner.take(seize).await.map_err(|e| e.code)?;
        self.owner.open().await;
        assert!(self.owner.gate().is_open());
        Ok(())
    }

    pub async fn write(&self, byte: u8) -> Result<(), Option<Sense>> {
        write(&self.disk, byte).await
    }

    pub async fn read(&self) -> u8 {
        let (result, buf) = self.disk.read(0, Buf::zeroed(LEN)).await;
        result.expect("a successful read");
        buf[0]
    }

    /// Takes the namespace of zeros, and starts a write that the storage delays. The task waits for its end.
    pub async fn begin_write(&mut self) -> JoinHandle<Result<(), Option<Sense>>> {
        assert_eq!(self.take(false).await, Ok(()));
        assert_eq!(self.read().await, 0);
        let disk = self.disk.clone();
        let late = compio::runtime::spawn(async move { write(&disk, 1).await });
        compio::time::sleep(Duration::from_millis(500)).await;
        late
    }

    /// Checks that the data stay until a delayed write would have ended.
    pub async fn sees_no_late_write(&self) {
        let then = self.read().await;
        compio::time::sleep(Duration::from_secs(7)).await;
        assert_eq!(self.read().await, then, "a write of the former router was executed after the takeover");
    }
}

pub(super) async fn write(disk: &UpstreamLu, byte: u8) -> Result<(), Option<Sense>> {
    let mut buf = Buf::zeroed(LEN);
    buf.fill(byte);
    let written = disk.write(0, buf, false).await.0;
    written.map_err(|e| ScsiError::of(&e).and_then(|error| error.sense))
}

/// The reservation and the registrants, as another host sees them.
pub(super) async fn registrants(url: &NvmeUrl) -> (Option<ReservationKind>, Vec<NvmeRegistrant>) {
    let namespace = nvme::open(url).await.expect("a namespace");
    let state = namespace.reservations().await.expect("a report");
    (state.kind, state.registrants)
}

#[test]
fn preempted_router_cannot_write_to_the_namespace() {
    run(async || {
        let server = server("");
        let url = url(server.portal());
        let (mut a, mut b) = (NamespaceRouter::new(&url, 0xa).await, NamespaceRouter::new(&url, 0xb).await);
        assert_eq!(a.write(1).await, Err(Some(Sense::NOT_READY_STANDBY)), "no I/O before the takeover");
        assert_eq!(a.take(false).await, Ok(()));
        assert_eq!(a.write(1).await, Ok(()));
        assert_eq!(
            b.take(false).await,
            Err(ErrorCode::ReservationConflict),
            "a held reservation is not free"
        );
        assert_eq!(b.take(true).await, Ok(()));
        let (kind, all) = registrants(&url).await;
        assert_eq!(kind, Some(ReservationKind::ExclusiveAccessRegistrants));
        assert!(all.iter().all(|one| one.key >> 32 == u64::from(prefix_of(0xb))), "{all:x?}");
        assert!(a.owner.gate().is_open(), "the conflict is not known yet");
        assert_eq!(a.write(2).await, TRANSITION);
        assert!(!a.owner.gate().is_open(), "a conflict shuts the gate");
        // Opening the gate again must not help either, with old controllers or with new ones.
        a.owner.gate().open();
        assert_eq!(a.write(3).await, TRANSITION);
        assert_eq!(b.read().await, 1);
        assert_eq!(b.write(5).await, Ok(()));
        assert_eq!(a.take(true).await, Ok(()));
        assert_eq!((a.read().await, b.write(6).await), (5, TRANSITION));
    });
}

/// An earlier process of a router may have left a write on the way. It must not arrive in a later term of this router.
#[test]
fn late_write_of_an_earlier_term_is_not_executed() {
    run(async || {
        let server = server("");
        let relay = Relay::to(server.portal());
        // The storage does not end the controllers of the silent process.
        let far: NvmeUrl =
            format!("{}?keep_alive=0&command_timeout=60&operation_timeout=60", url(relay.address()))
                .parse()
                .expect("a URL");
        let url = url(server.portal());
        let mut old = NamespaceRouter::new(&far, 0xa).await;
        assert_eq!(old.take(false).await, Ok(()));
        assert_eq!(old.write(1).await, Ok(()));
        let held = relay.hold();
        let disk = old.disk.clone();
        let late = compio::runtime::spawn(async move { write(&disk, 2).await });
        until(|| held.waiting() > 0).await;
        let (mut a, mut b) = (NamespaceRouter::new(&url, 0xa).await, NamespaceRouter::new(&url, 0xb).await);
        assert_eq!(b.take(true).await, Ok(()));
        assert_eq!(b.write(5).await, Ok(()));
        assert_eq!(a.take(true).await, Ok(()));
        assert_eq!(a.write(6).await, Ok(()));
        held.open();
        assert_eq!(late.await.expect("the task"), TRANSITION);
        assert_eq!(a.read().await, 6, "a write of an earlier term was executed");
    });
}

#[test]
fn released_namespace_is_free_without_registration() {
    run(async || {
        let server = server("");
        let url = url(server.portal());
        let (mut a, mut b) = (NamespaceRouter::new(&url, 0xa).await, NamespaceRouter::new(&url, 0xb).await);
        assert_eq!(a.take(false).await, Ok(()));
        assert_eq!(a.write(1).await, Ok(()));
        assert!(a.owner.gate().owes());
        a.owner.release().await;
        assert!(!a.owner.gate().owes() && a.disk.flush().await.is_ok());
        assert_eq!(registrants(&url).await, (None, Vec::new()));
        assert_eq!(b.take(false).await, Ok(()));
        assert_eq!(b.read().await, 1);
        assert_eq!(b.write(2).await, Ok(()));
    });
}

#[test]
fn restarted_router_takes_back_its_namespace() {
    run(async || {
        let server = server("");
        let url = url(server.portal());
        let mut before = NamespaceRouter::new(&url, 0xa).await;
        assert_eq!(before.take(false).await, Ok(()));
        assert_eq!(before.write(1).await, Ok(()));
        let mut a = NamespaceRouter::new(&url, 0xa).await;
        assert_eq!(a.take(false).await, Ok(()));
        assert_eq!(a.write(2).await, Ok(()));
        assert_eq!(before.write(3).await, TRANSITION, "the earlier instance is preempted");
        assert_eq!(a.read().await, 2);
        a.owner.probe().await;
        let seen = a.owner.seen.expect("the reservation").generation;
        a.owner.heartbeat().await;
        a.owner.probe().await;
        assert!(a.owner.seen.expect("the reservation").generation > seen);
    });
}

/// A takeover whose completion is lost has no proof that the commands of the former router have ended.
#[test]
fn takeover_of_a_namespace_waits_for_former_writes() {
    run(async || {
        let server = server("filters = [{ kind = \"delay\", write_us = 6000000 }]\n");
        let relay = Relay::to(server.portal());
        let url_of_b = url(relay.address());
        let url = url(server.portal());
        let mut a = NamespaceRouter::new(&url, 0xa).await;
        let _late = a.begin_write().await;
        let mut b = NamespaceRouter::new(&url_of_b, 0xb).await;
        let lost = async {
            compio::time::sleep(Duration::from_millis(500)).await;
            relay.cut();
            std::future::pending().await
        };
        let taken = lunar_runtime::either(async { b.take(true).await }, lost).await;
        assert!(taken.is_err(), "the takeover must not complete yet: {taken:?}");
        // A restarted instance does not know of the attempt.
        let mut b = NamespaceRouter::new(&url, 0xb).await;
        while b.take(true).await.is_err() {}
        b.sees_no_late_write().await;
    });
}

/// A handover whose completion is lost has no proof either, and the hosts with data are registered no more.
#[test]
fn interrupted_release_makes_the_successor_wait() {
    run(async || {
        let server = server("filters = [{ kind = \"delay\", write_us = 6000000 }]\n");
        let url = url(server.portal());
        let (mut a, mut b) = (NamespaceRouter::new(&url, 0xa).await, NamespaceRouter::new(&url, 0xb).await);
        let late = a.begin_write().await;
        // The host has given up the write, and the storage has not.
        drop(late);
        let gate = a.owner.gate().clone();
        until(|| gate.is_empty()).await;
        let time_is_over = async {
            compio::time::sleep(Duration::from_millis(500)).await;
            false
        };
        let release = async {
            a.owner.release().await;
            true
        };
        assert!(!lunar_runtime::either(release, time_is_over).await, "the release must not complete yet");
        assert_eq!(b.take(true).await, Ok(()));
        b.sees_no_late_write().await;
    });
}

/// RESCAP bit 0 is clear.
#[test]
fn namespace_without_persistence_is_taken() {
    run(async || {
        let server = server_of("backend = \"memory\"\n");
        let url = url(server.portal());
        let capabilities = nvme::open(&url).await.expect("a namespace").properties().identify.reservations;
        assert_eq!(capabilities, 0x7e);
        let mut a = NamespaceRouter::new(&url, 0xa).await;
        assert_eq!(a.take(false).await, Ok(()));
        assert_eq!(a.write(1).await, Ok(()));
    });
}

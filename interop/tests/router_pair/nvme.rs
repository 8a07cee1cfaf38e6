//! An NVMe host with a controller at each router. It follows the access states (ANA), as native multipath does.

use crate::{BLOCK, FailoverPair, ROUTED, SLOTS, SOON, path, stamp};
use interop::command::lunar;
use interop::nvme::{NvmeEntry, NvmeHostName, NvmeWire, RawController, WireEvent, pdu};
use interop::routed::until;
use std::time::Instant;

const NQN: &str = "nqn.2026-11.org.example:routed";
/// Connect: the controller is busy, and the host tries again.
const CONNECT_BUSY: u16 = 0x181;
/// States of access.
const OPTIMIZED: u8 = 1;
const INACCESSIBLE: u8 = 3;
/// Type of the statuses that are about the path. Without DNR, the host repeats the command on another path.
const PATH_RELATED: u16 = 0x3;
/// Asynchronous Event Configuration: access states.
const CONFIGURATION: u8 = 0x0b;
const ANA_EVENTS: u32 = 1 << 11;
/// The result of an event of access states.
const ANA_CHANGED: u32 = 0x000c_0302;

/// The subsystem of each router: its namespace is the routed LUN.
pub fn subsystem() -> String {
    format!(
        "[[subsystem]]\nnqn = \"{NQN}\"\n[[subsystem.namespace]]\nnsid = 1\ntarget = \"{ROUTED}\"\nlun = 0\n"
    )
}

/// A controller at a router, with an I/O queue.
struct NvmePath {
    it: RawController,
    queue: NvmeWire,
}

impl NvmePath {
    fn open(world: &FailoverPair, at: usize) -> NvmePath {
        let host = NvmeHostName::new("pair");
        let it = RawController::enabled(world.nvme[at], &host, NQN, 0);
        let queue = it.queue(1);
        NvmePath { it, queue }
    }

    /// The same, unless the subsystem is busy.
    fn try_open(world: &FailoverPair, at: usize) -> Option<NvmePath> {
        let reply = RawController::try_connect(world.nvme[at], &NvmeHostName::new("pair"), NQN);
        assert!(matches!(reply.status, 0 | CONNECT_BUSY), "{reply:x?}");
        (reply.status == 0).then(|| NvmePath::open(world, at))
    }

    /// Identifiers of the namespace.
    fn identifiers(&mut self) -> Vec<u8> {
        self.it.admin.execute(&NvmeEntry::identify(3, 1), &[]).good()
    }
}

/// A host with a path through each router.
struct NvmeMultipath {
    paths: [Option<NvmePath>; 2],
    at: usize,
    done: Vec<u64>,
    generation: u64,
}

impl NvmeMultipath {
    fn open(world: &FailoverPair) -> NvmeMultipath {
        (0..2).for_each(|at| world.serves(at));
        let paths = [0, 1].map(|at| Some(NvmePath::open(world, at)));
        NvmeMultipath { paths, at: 0, done: vec![0; SLOTS as usize], generation: 0 }
    }

    /// Writes each block, and repeats a write on the other path until it succeeds.
    fn write_all(&mut self) {
        self.generation += 1;
        for lba in 0..SLOTS {
            let data = stamp(lba, self.generation);
            let end = Instant::now() + SOON;
            while !self.write(lba, &data) {
                assert!(Instant::now() < end, "no path executes the write");
                self.at = 1 - self.at;
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            self.done[lba as usize] = self.generation;
        }
    }

    fn write(&mut self, lba: u32, data: &[u8]) -> bool {
        let Some(path) = &mut self.paths[self.at] else { return false };
        let reply = path.queue.execute(&NvmeEntry::write(1, lba.into(), 1), data);
        assert!(reply.status == 0 || reply.status >> 8 == PATH_RELATED, "no path error: {reply:x?}");
        reply.status == 0
    }

    /// Checks each block by a path.
    fn check(&mut self, at: usize) {
        let path = self.paths[at].as_mut().expect("a path");
        for (lba, generation) in (0..).zip(&self.done) {
            let data = path.queue.execute(&NvmeEntry::read(1, lba.into(), 1), &[]).good();
            assert!(data[..BLOCK] == stamp(lba, *generation), "LBA {lba}: {:02x?}", &data[..16]);
        }
    }

    fn path(&mut self, at: usize) -> &mut NvmePath {
        self.paths[at].as_mut().expect("a path")
    }

    fn becomes(&mut self, at: usize, state: u8) {
        until(&format!("path {at} gets the state {state}"), || {
            (self.path(at).it.access_state() == Some(state)).then_some(())
        });
    }
}

#[test]
fn nvme_host_sees_one_namespace_with_two_controllers() {
    let world = FailoverPair::start();
    let mut host = NvmeMultipath::open(&world);
    let ids = [0, 1].map(|at| host.path(at).identifiers());
    assert_eq!(ids[0], ids[1], "NGUID and UUID are those of one namespace");
    // Linux rejects a second controller with the identifier of the first.
    let controllers = [0, 1].map(|at| host.path(at).it.id % 31);
    assert_eq!(controllers, [1, 2], "the remainders are those of the portal groups");
    let serials = [0, 1]
        .map(|at| host.path(at).it.admin.execute(&NvmeEntry::identify(1, 0), &[]).good()[4..64].to_vec());
    assert_eq!(serials[0], serials[1], "serial and model");
    host.becomes(0, OPTIMIZED);
    host.becomes(1, INACCESSIBLE);
    let refused = host.path(1).queue.execute(&NvmeEntry::write(1, 0, 1), &stamp(0, 1));
    assert_eq!(refused.status, PATH_RELATED << 8 | 2, "ANA inaccessible, without DNR: {refused:x?}");
    host.write_all();
    host.check(0);
    drop(host);
    let url = format!("nvme://{}/{NQN}/1?host_nqn=nqn.2026-11.org.example:pr", world.nvme[0]);
    for action in ["read-full-status", "report-capabilities"] {
        let (_, err, status) = lunar(&["pr", &url, action]);
        assert!(status != 0 && err.contains("namespace 1 keeps no reservations"), "{action}: {err}");
    }
}

/// Writes of a paused router stay in its socket. They fail after a takeover.
pub fn stall_the_active_router(world: FailoverPair) {
    let mut host = NvmeMultipath::open(&world);
    host.write_all();
    let mut sleeper = host.paths[0].take().expect("a path");
    world.routers[0].pause();
    let late = stamp(0, u64::MAX);
    let write = |lba: u32| NvmeEntry::write(1, lba.into(), 1).in_capsule(BLOCK as u32);
    let stale: Vec<u16> = (0..SLOTS).map(|lba| sleeper.queue.submit(&write(lba), &late)).collect();
    host.write_all();
    assert!(world.is(1, "active") && host.at == 1);
    world.routers[0].resume();
    // The controller may have ended by now, because its host sent no Keep Alive.
    for id in stale {
        match sleeper.queue.get(SOON) {
            WireEvent::Pdu(frame) => {
                assert_eq!(frame.kind(), pdu::RESPONSE, "{frame:x?}");
                // Status Field of the completion (NVMe over TCP section 3.6.2.7).
                let status = frame.get16(8 + 14) >> 1;
                assert!(status != 0, "a router that has lost its role executed write {id}: {frame:x?}");
            }
            _ => break,
        }
    }
    world.becomes(0, "standby");
    host.write_all();
    host.check(1);
}

#[test]
fn nvme_host_follows_the_pair_by_events_without_an_error() {
    let world = FailoverPair::start();
    let mut host = NvmeMultipath::open(&world);
    host.becomes(1, INACCESSIBLE);
    host.write_all();
    let admin = &mut host.path(1).it.admin;
    admin.execute(&NvmeEntry::set_feature(CONFIGURATION, ANA_EVENTS), &[]).is(0);
    let waiting = admin.submit(&NvmeEntry::event(), &[]);
    world.failover(0);
    let event = host.path(1).it.admin.collect(waiting, &[]);
    assert_eq!((event.status, event.result as u32), (0, ANA_CHANGED), "{event:x?}");
    host.write_all();
    host.becomes(1, OPTIMIZED);
    host.becomes(0, INACCESSIBLE);
    assert!(host.at == 1);
    host.check(1);
    world.failover(0);
    host.write_all();
    host.becomes(0, OPTIMIZED);
    host.check(0);
}

#[test]
fn nvme_host_leaves_a_drained_router_of_the_pair() {
    let world = FailoverPair::start();
    let mut host = NvmeMultipath::open(&world);
    host.write_all();
    world.routers[0].said(&["router", "drain", "r1"]);
    let NvmePath { mut it, mut queue } = host.paths[0].take().expect("a path");
    queue.expect_close(SOON);
    it.admin.expect_close(SOON);
    host.write_all();
    assert!(host.at == 1);
    assert!(NvmePath::try_open(&world, 0).is_none(), "a drained router accepts no hosts");
    world.routers[0].said(&["router", "resume", "r1"]);
    host.paths[0] = Some(NvmePath::open(&world, 0));
    host.becomes(0, INACCESSIBLE);
    host.check(1);
}

#[test]
fn nvme_host_keeps_its_data_when_the_active_router_is_killed() {
    kill_the_active_router(FailoverPair::start());
}

pub fn kill_the_active_router(mut world: FailoverPair) {
    let mut host = NvmeMultipath::open(&world);
    host.write_all();
    host.paths[0] = None;
    world.routers[0].kill9();
    host.write_all();
    assert!(world.is(1, "active") && host.at == 1);
    world.routers[0].restart();
    world.becomes(0, "standby");
    // The subsystem is there again as soon as the router has found its LUN: never without its namespace.
    let mut returned = until("the controller returns", || NvmePath::try_open(&world, 0));
    assert!(returned.it.access_state().is_some(), "the namespace is there");
    host.paths[0] = Some(returned);
    host.becomes(0, INACCESSIBLE);
    world.failover(1);
    host.write_all();
    host.becomes(0, OPTIMIZED);
    host.check(0);
    // The other family sees the same data.
    let mut raw = path(&world.routers[0]);
    raw.clear_attentions(0);
    assert_eq!(raw.read_blocks(0, 5, 1), stamp(5, host.done[5]));
}

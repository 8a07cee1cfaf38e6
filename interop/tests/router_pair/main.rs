//! Failover pairs: two routers in front of one storage, by iSCSI or NVMe/TCP, and a host with a path through each. Acknowledged data are
//! kept, whatever happens to the routers. A router that has lost its role writes nothing.
#![forbid(unsafe_code)]

mod nvme;
mod nvme_storage;

use interop::routed::until;
use interop::scsi::{WRITE, read_keys, write10};
use interop::{Raw, Received, Server, TARGET, op};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const BLOCK: usize = 512;
/// Blocks that are written, each with a generation of its own.
const SLOTS: u32 = 32;
/// The name under which the disk is routed.
const ROUTED: &str = "iqn.2026-11.org.example:routed";
/// Time after which a host gives up a path that does not respond.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for one router of the pair to serve, whatever happened to the other.
const SOON: Duration = Duration::from_secs(40);

fn stamp(lba: u32, generation: u64) -> Vec<u8> {
    [&u64::from(lba).to_be_bytes()[..], &generation.to_be_bytes()].concat().repeat(BLOCK / 16)
}

/// The protocol of the routers at the storage.
#[derive(Clone, Copy)]
enum Upstream {
    Iscsi,
    Nvme,
}

/// A target and a pair of routers in front of it; the first is the preferred one.
struct FailoverPair {
    target: Server,
    routers: [Server; 2],
    /// Their portals of NVMe/TCP.
    nvme: [SocketAddr; 2],
}

fn router(upstream: &str, at: usize, ports: [u16; 2], nvme: SocketAddr) -> String {
    let (own, other) = (ports[at], ports[1 - at]);
    format!(
        "[[portal_group]]\ntag = {}\nportals = [\"127.0.0.1:{own}\", {{ listen = \"{nvme}\", transport = [\"nvme-tcp\"] }}]\n\
         {}[router.r1]\npath_loss_timeout_s = 3\n\
         [router.r1.upstream.u]\nurls = [\"{upstream}\"]\n\
         [[router.r1.target]]\nmap = \"target\"\nname = \"{ROUTED}\"\nupstream = \"u\"\naccess = \"all\"\n\
         [router.r1.failover]\npeer = \"127.0.0.1:{other}\"\ngroup = {}\nprefer = {}\n",
        at + 1,
        nvme::subsystem(),
        2 - at,
        at == 0,
    )
}

/// Whether the output of a router contains this text.
fn shows(router: &Server, text: &str) -> bool {
    router.said(&["router", "show", "r1"]).contains(text)
}

fn is(router: &Server, state: &str) -> bool {
    shows(router, &format!("router r1: {state}"))
}

impl FailoverPair {
    fn start() -> FailoverPair {
        FailoverPair::over(Upstream::Iscsi)
    }

    fn over(upstream: Upstream) -> FailoverPair {
        let target = Server::start(&format!(
            "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\", {{ listen = \"127.0.0.1:0\", transport = [\"nvme-tcp\"] }}]\n\
             [[target]]\nname = \"{TARGET}\"\n\
             [[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"disk.img\"\nsize = \"16MiB\"\n{}",
            nvme_storage::subsystem()
        ));
        let storage = match upstream {
            Upstream::Iscsi => format!("iscsi://{}/{TARGET}", target.portal()),
            Upstream::Nvme => nvme_storage::url(&target),
        };
        let ports = [(); 2].map(|()| interop::ports::free());
        let nvme = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], interop::ports::free())));
        let first = Server::start(&router(&storage, 0, ports, nvme[0]));
        // On a busy machine, the second router could take over before the preferred one has found the storage.
        until("the preferred one becomes active", || is(&first, "active").then_some(()));
        let second = Server::start(&router(&storage, 1, ports, nvme[1]));
        let world = FailoverPair { target, routers: [first, second], nvme };
        world.becomes(1, "standby");
        world
    }

    /// Waits until `is` returns true. `what` is the message if that takes too long.
    fn until(&self, what: &str, is: impl Fn() -> bool) {
        let late = Instant::now() + SOON;
        while !is() {
            let logs: String = self.routers.iter().map(Server::log).collect();
            assert!(Instant::now() < late, "{what}\n{logs}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn shows(&self, at: usize, text: &str) -> bool {
        shows(&self.routers[at], text)
    }

    fn is(&self, at: usize, state: &str) -> bool {
        is(&self.routers[at], state)
    }

    fn becomes(&self, at: usize, state: &str) {
        self.until(&format!("router {at} does not become {state}"), || self.is(at, state));
    }

    /// Waits until a router serves the disk.
    fn serves(&self, at: usize) {
        self.until(&format!("router {at} has no LUN"), || self.shows(at, "LUN 0:"));
    }

    /// Requests a switchover, as soon as the other router can take over.
    fn failover(&self, at: usize) {
        self.until("the other cannot take over", || {
            self.routers[at].asked(&["router", "failover", "r1"]).ok()
        });
    }

    fn host(&self) -> MultipathHost {
        (0..2).for_each(|at| self.serves(at));
        MultipathHost {
            paths: [0, 1].map(|at| Some(path(&self.routers[at]))),
            at: 0,
            done: vec![0; SLOTS as usize],
            next: 1,
        }
    }
}

fn path(router: &Server) -> Raw {
    Raw::session(router.portal(), &[("TargetName", ROUTED)])
}

/// The result of a write on a path.
enum PathResult {
    Done,
    /// The path rejected it.
    Refused,
    /// The path does not respond.
    Silent,
    Gone,
}

/// A host with a path through each router. It writes one block at a time, and retries on the other path until that
/// succeeds.
struct MultipathHost {
    paths: [Option<Raw>; 2],
    at: usize,
    /// The last acknowledged generation of each block.
    done: Vec<u64>,
    next: u64,
}

fn send(raw: &mut Raw, lba: u32, data: &[u8]) -> u32 {
    let pdu = raw.command(0, 0x80 | WRITE, &write10(lba, 1), data.len() as u32).data(data);
    raw.send(&pdu);
    pdu.tag()
}

fn ended(raw: &mut Raw, tag: u32, limit: Duration) -> PathResult {
    loop {
        match raw.get(limit) {
            Received::Pdu(pdu) if pdu.opcode() == op::SCSI_RESPONSE && pdu.tag() == tag => {
                return if (pdu.bhs[2], pdu.bhs[3]) == (0, 0) {
                    PathResult::Done
                } else {
                    PathResult::Refused
                };
            }
            Received::Pdu(_) => {}
            Received::Nothing => return PathResult::Silent,
            Received::Closed => return PathResult::Gone,
        }
    }
}

impl MultipathHost {
    /// Writes the next generation of a block.
    fn write(&mut self, lba: u32) {
        let generation = self.next;
        self.next += 1;
        let data = stamp(lba, generation);
        let late = Instant::now() + SOON;
        loop {
            assert!(Instant::now() < late, "no path executes the write");
            let Some(raw) = &mut self.paths[self.at] else {
                self.at = 1 - self.at;
                continue;
            };
            let tag = send(raw, lba, &data);
            match ended(raw, tag, PATIENCE) {
                PathResult::Done => break,
                PathResult::Refused => std::thread::sleep(Duration::from_millis(20)),
                PathResult::Silent | PathResult::Gone => self.paths[self.at] = None,
            }
            self.at = 1 - self.at;
        }
        self.done[lba as usize] = generation;
    }

    fn write_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        let mut lba = 0;
        while Instant::now() < end {
            self.write(lba % SLOTS);
            lba += 7;
        }
    }

    /// Checks that every block has its last acknowledged generation.
    fn check(&self, raw: &mut Raw) {
        for (lba, generation) in (0..).zip(&self.done) {
            let data = raw.read_blocks(0, lba, 1);
            let whole = if *generation == 0 { vec![0; BLOCK] } else { stamp(lba, *generation) };
            assert!(data == whole, "LBA {lba} has not generation {generation}: {:02x?}", &data[..16]);
        }
    }
}

#[test]
fn standby_takes_over_from_a_killed_router() {
    kill_both_in_turn(FailoverPair::start());
}

fn kill_both_in_turn(mut world: FailoverPair) {
    let mut host = world.host();
    host.write_for(Duration::from_millis(500));
    world.routers[0].kill9();
    host.write_for(Duration::from_millis(500));
    assert!(world.is(1, "active") && host.at == 1);
    // The restarted router does not take its role back.
    world.routers[0].restart();
    world.becomes(0, "standby");
    world.serves(0);
    host.paths[0] = Some(path(&world.routers[0]));
    host.write_for(Duration::from_millis(500));
    assert!(world.is(1, "active"));
    world.routers[1].kill9();
    host.write_for(Duration::from_millis(500));
    world.becomes(0, "active");
    host.check(&mut path(&world.routers[0]));
}

#[test]
fn switchover_on_request_keeps_the_data_of_a_writing_host() {
    switch_over_and_back(FailoverPair::start());
}

fn switch_over_and_back(world: FailoverPair) {
    let mut host = world.host();
    host.write_for(Duration::from_millis(300));
    world.failover(0);
    host.write_for(Duration::from_millis(300));
    world.becomes(1, "active");
    world.becomes(0, "standby");
    // The standby router accepts the request too.
    world.failover(0);
    host.write_for(Duration::from_millis(300));
    world.becomes(0, "active");
    world.becomes(1, "standby");
    world.routers[0].said(&["router", "drain", "r1"]);
    host.write_for(Duration::from_millis(300));
    world.becomes(1, "active");
    assert!(world.routers[0].said(&["router", "show", "r1"]).contains("not eligible"));
    world.routers[0].said(&["router", "resume", "r1"]);
    world.routers[0].said(&["router", "eligible", "r1", "off"]);
    assert!(world.routers[0].said(&["router", "show", "r1"]).contains("not eligible"));
    let refused = world.routers[0].asked(&["router", "failover", "r1"]);
    assert!(!refused.ok() && refused.said.contains("not eligible"), "{}", refused.said);
    world.routers[0].said(&["router", "eligible", "r1", "on"]);
    host.write_for(Duration::from_millis(300));
    assert!(world.is(1, "active"), "a healthy active router keeps its role");
    host.check(&mut path(&world.routers[1]));
}

#[test]
fn stalled_router_writes_nothing_after_a_take_over() {
    stall_the_active_router(FailoverPair::start());
}

fn stall_the_active_router(world: FailoverPair) {
    let mut host = world.host();
    host.write_for(Duration::from_millis(300));
    assert!(host.at == 0);
    let mut sleeper = host.paths[0].take().expect("a path");
    world.routers[0].pause();
    // These writes stay in the socket of the paused router.
    let stale: Vec<u32> = (0..SLOTS).map(|lba| send(&mut sleeper, lba, &stamp(lba, u64::MAX))).collect();
    (0..SLOTS).for_each(|lba| host.write(lba));
    assert!(world.is(1, "active"));
    world.routers[0].resume();
    for _ in &stale {
        let Received::Pdu(pdu) = sleeper.get(SOON) else { break };
        let is_good = pdu.opcode() == op::SCSI_RESPONSE && (pdu.bhs[2], pdu.bhs[3]) == (0, 0);
        assert!(!is_good, "a router that has lost its role executed a write: {pdu:?}");
    }
    world.becomes(0, "standby");
    host.write_for(Duration::from_millis(300));
    assert!(world.is(1, "active"));
    host.check(&mut path(&world.routers[1]));
}

#[test]
fn stopped_router_releases_its_role_at_once() {
    stop_both(FailoverPair::start());
}

fn stop_both(mut world: FailoverPair) {
    let mut host = world.host();
    host.write_for(Duration::from_millis(300));
    assert!(world.routers[0].stop().success());
    host.write_for(Duration::from_millis(300));
    assert!(world.is(1, "active"));
    assert!(world.routers[1].stop().success());
    // Neither router has left a session, or a host.
    let mut direct = Raw::session(world.target.portal(), &[]);
    assert_eq!(read_keys(&mut direct, 0), Vec::<u64>::new());
    host.check(&mut direct);
}

/// A switchover would not help, and hosts would notice it.
#[test]
fn pair_waits_for_storage_that_neither_router_reaches() {
    restart_the_storage(FailoverPair::start());
}

fn restart_the_storage(mut world: FailoverPair) {
    let mut host = world.host();
    host.write_for(Duration::from_millis(300));
    world.target.kill9();
    std::thread::sleep(Duration::from_millis(1500));
    world.target.restart();
    host.write_for(Duration::from_millis(1000));
    world.becomes(0, "active");
    assert!(!world.routers[0].log().contains("this router is handing over"), "{}", world.routers[0].log());
    host.check(&mut path(&world.routers[0]));
}

#[test]
fn ineligible_router_without_a_standby_warns() {
    let mut world = FailoverPair::start();
    world.routers[1].kill9();
    world.until("the other is still heard", || !world.routers[0].asked(&["router", "failover", "r1"]).ok());
    assert!(world.is(0, "active"));
    let output = world.routers[0].said(&["router", "eligible", "r1", "off"]);
    assert!(output.contains("no router serves"), "{output}");
}

#[test]
fn drained_router_is_shown_as_drained() {
    let world = FailoverPair::start();
    world.becomes(1, "standby, for");
    world.routers[1].said(&["router", "drain", "r1"]);
    assert!(world.is(1, "standby, draining, for"));
    assert!(world.routers[1].said(&["router", "list"]).contains("  standby, draining  "));
    world.routers[1].said(&["router", "resume", "r1"]);
    assert!(world.is(1, "standby, for"));
}

#[test]
fn standby_rejects_logins_and_names_the_active_router() {
    let world = FailoverPair::start();
    world.serves(1);
    let mut raw = path(&world.routers[1]);
    raw.write_blocks(0, 0, &[1; BLOCK]).check(0x02040b);
    let mut direct = Raw::session(world.target.portal(), &[]);
    const CONFLICT: u8 = 0x18;
    assert_eq!(
        direct.write_blocks(0, 0, &[1; BLOCK]).status,
        CONFLICT,
        "the reservation of the pair rejects other initiators"
    );
    // REPORT TARGET PORT GROUPS: standby through this one, optimized and preferred through the other.
    let late = Instant::now() + SOON;
    loop {
        let reply = raw.read(0, &[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256);
        // The router does not know its peer before the first heartbeat.
        let states = if reply.status == 0 { groups_of(&reply.data) } else { Vec::new() };
        if states.contains(&(2, 2)) && states.contains(&(1, 0x80)) {
            break;
        }
        assert!(Instant::now() < late, "{states:02x?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Tag and state, with PREF, of each group (SPC-5 section 6.36).
fn groups_of(answer: &[u8]) -> Vec<(u8, u8)> {
    let (mut rest, mut groups) = (&answer[4..], Vec::new());
    while rest.len() >= 8 {
        groups.push((rest[3], rest[0]));
        rest = rest.get(8 + 4 * usize::from(rest[7])..).unwrap_or_default();
    }
    groups
}

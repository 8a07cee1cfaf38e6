//! Gateways and hosts on a simulated cluster, with faults. A seed decides all of it.

mod cluster;
mod executor;
mod multipath;
mod server;

use cluster::{BLOCKS, Cluster};
use executor::Executor;
use lunar_wire::scsi::{Status, op};
use multipath::MultipathHost;
use server::{Answer, Server};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Time with faults, and time after the last one, in which all members join again.
const FAULTS: Duration = Duration::from_secs(20);
const END: Duration = Duration::from_secs(75);
const HOSTS: usize = 2;
/// Exclusive access.
const KIND: u8 = 3;

/// PERSISTENT RESERVE OUT with its parameter list.
fn reserve_out(action: u8, key: u64, action_key: u64, flags: u8) -> (Vec<u8>, Vec<u8>) {
    let mut list = [key.to_be_bytes(), action_key.to_be_bytes(), [0; 8]].concat();
    list[20] = flags;
    (vec![op::PERSISTENT_RESERVE_OUT, action, KIND, 0, 0, 0, 0, 0, 24, 0], list)
}

const REGISTER_AND_IGNORE: u8 = 6;
const RESERVE: u8 = 1;
const PREEMPT_AND_ABORT: u8 = 5;
/// Otherwise the reservation ends when all gateways are down at the same time.
const APTPL: u8 = 1;

/// A host that takes the disk from the other one, and writes as long as it has it.
struct Host {
    number: usize,
    executor: Executor,
    servers: Vec<Rc<Server>>,
    /// The number of times that a host took the disk. Each owner writes its own number.
    owners: Rc<Cell<u64>>,
    /// The number of hosts that could take the disk at the end.
    served: Rc<Cell<usize>>,
}

impl Host {
    fn key(number: usize) -> u64 {
        number as u64 + 1
    }

    async fn run(self) {
        while self.executor.now() < FAULTS {
            self.executor.sleep(Duration::from_millis(self.executor.below(1500))).await;
            let choice = self.executor.below(self.servers.len() as u64) as usize;
            if let Some(path) = self.takes_the_disk(choice).await {
                self.owners.set(self.owners.get() + 1);
                self.writes(&path, self.owners.get()).await;
            }
        }
        // At the end, each host can take the disk.
        self.executor
            .sleep(END - Duration::from_secs(10 * (1 + self.number as u64)) - self.executor.now())
            .await;
        // The nexus that still holds it may be that of another path.
        for attempt in 0..20 {
            if self.takes_the_disk(attempt % self.servers.len()).await.is_some() {
                return self.served.set(self.served.get() + 1);
            }
            self.executor.sleep(Duration::from_millis(200)).await;
        }
    }

    /// Takes the disk through one of the paths that work, and returns the path.
    async fn takes_the_disk(&self, choice: usize) -> Option<Rc<Server>> {
        let own = Host::key(self.number);
        let mut paths = Vec::new();
        for server in &self.servers {
            let (cdb, list) = reserve_out(REGISTER_AND_IGNORE, 0, own, APTPL);
            if server.command(self.number, &cdb, Some(&list)).await == Answer::Good {
                paths.push(server.clone());
            }
        }
        let other = Host::key((self.number + 1) % HOSTS);
        let path = paths.get(choice)?.clone();
        let (cdb, list) = reserve_out(PREEMPT_AND_ABORT, own, other, 0);
        match path.command(self.number, &cdb, Some(&list)).await {
            // If the other host had a registration only, the disk is still free.
            Answer::Good => {}
            Answer::Conflict => {}
            Answer::Failed => return None,
        }
        let (cdb, list) = reserve_out(RESERVE, own, 0, 0);
        (path.command(self.number, &cdb, Some(&list)).await == Answer::Good).then_some(path)
    }

    /// Writes, several blocks at a time, until a write fails.
    async fn writes(&self, path: &Rc<Server>, tag: u64) {
        for _ in 0..self.executor.below(10) {
            let also = (self.executor.below(BLOCKS as u64) as usize, path.clone(), self.number);
            self.executor.spawn(None, async move {
                also.1.write(also.2, also.0, tag).await;
            });
            let block = self.executor.below(BLOCKS as u64) as usize;
            if path.write(self.number, block, tag).await != Answer::Good {
                return;
            }
        }
    }
}

/// A host that reads the reservations through a server.
async fn reads(executor: Executor, server: Rc<Server>) {
    while executor.now() < FAULTS {
        executor.sleep(Duration::from_millis(executor.below(2_000))).await;
        server.reads_state(0).await;
    }
}

/// Pauses, cuts and kills servers, one at a time or several.
async fn faults(executor: Executor, cluster: Cluster, servers: Vec<Rc<Server>>) {
    loop {
        executor.sleep(Duration::from_millis(executor.below(10_000))).await;
        if executor.now() > FAULTS {
            return;
        }
        let number = executor.below(servers.len() as u64) as usize;
        let time = Duration::from_millis(match executor.below(4) {
            0 => executor.below(1_000),
            1 | 2 => 5_000 + executor.below(10_000),
            _ => executor.below(30_000),
        });
        match executor.below(10) {
            0..3 => executor.pause(servers[number].process(), time),
            3..5 => cluster.cut(servers[number].process(), time),
            5 => cluster.cut_from_storage(servers[number].process(), time),
            // The storage server of the object is down.
            6 => servers.iter().for_each(|server| cluster.cut_from_storage(server.process(), time)),
            _ => servers[number].kill(),
        }
    }
}

/// The circumstances of a run.
#[derive(Clone, Copy)]
struct Circumstances {
    servers: usize,
    /// Servers are paused, cut and killed, and notifications are lost.
    has_faults: bool,
    /// One member at a time serves the medium.
    is_passive: bool,
}

const FAULTY: Circumstances = Circumstances { servers: 2, has_faults: true, is_passive: false };

/// Passes the medium from one server to another now and then.
async fn moves(executor: Executor, servers: Vec<Rc<Server>>) {
    while executor.now() < FAULTS {
        executor.sleep(Duration::from_millis(executor.below(6_000))).await;
        let by = executor.below(servers.len() as u64) as usize;
        servers[by].activates(executor.below(servers.len() as u64) as usize).await;
    }
}

/// Runs a seed. Returns the violations that it has found.
fn run(seed: u64, Circumstances { servers, has_faults, is_passive }: Circumstances) -> Vec<String> {
    let executor = Executor::new(seed);
    let cluster = Cluster::new(&executor, has_faults, is_passive);
    let servers: Vec<_> =
        (0..servers).map(|number| Server::start(&executor, &cluster, number, servers)).collect();
    let (owners, served) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    for number in 0..HOSTS {
        let (owners, served) = (owners.clone(), served.clone());
        let host = Host { number, executor: executor.clone(), servers: servers.clone(), owners, served };
        executor.spawn(None, host.run());
    }
    let gossip = cluster.clone();
    executor.spawn(None, async move { gossip.gossip().await });
    for server in &servers {
        executor.spawn(None, reads(executor.clone(), server.clone()));
    }
    if is_passive {
        executor.spawn(None, moves(executor.clone(), servers.clone()));
    }
    if has_faults {
        let host = MultipathHost { executor: executor.clone(), servers: servers.clone() };
        executor.spawn(None, host.run());
        executor.spawn(None, faults(executor.clone(), cluster.clone(), servers.clone()));
    }
    executor.run_until(END);
    let mut found = check(&cluster, &servers, served.get());
    if !has_faults && cluster.has_fenced() {
        found.push("a healthy gateway was fenced".into());
    }
    let active = servers.iter().filter(|server| server.is_active()).count();
    if active != if is_passive { 1 } else { servers.len() } {
        found.push(format!("{active} servers are active at the end"));
    }
    executor.end();
    found
}

/// The members have joined again, and have the state of the object.
fn check(cluster: &Cluster, servers: &[Rc<Server>], served: usize) -> Vec<String> {
    let mut faults = cluster.faults();
    let omap = cluster.omap();
    for (number, server) in servers.iter().enumerate() {
        if !server.is_serving() {
            faults.push(format!("server {number} does not serve at the end"));
        }
    }
    let versions: Vec<_> = servers.iter().filter_map(|server| server.version()).collect();
    for server in servers
        .iter()
        .filter(|server| server.version().map(|v| v.to_string().into_bytes()) == omap.get("version").cloned())
    {
        if server.lu().shared_state() != omap["state"] {
            faults.push("a member has another state than the object".into());
        }
    }
    if served < HOSTS {
        faults.push(format!("only {served} hosts could take the disk at the end; versions {versions:?}"));
    }
    faults
}

/// Runs seeds, and prints those that fail.
fn explore(seeds: std::ops::Range<u64>, circumstances: Circumstances) {
    let faults = seeds.map(|seed| (seed, run(seed, circumstances)));
    let failed: Vec<_> = faults.filter(|(_, faults)| !faults.is_empty()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn two_gateways_keep_their_promises_under_faults() {
    explore(0..seeds() / 2, FAULTY);
}

#[test]
fn three_gateways_keep_their_promises_under_faults() {
    explore(1_000_000..1_000_000 + seeds() / 4, Circumstances { servers: 3, ..FAULTY });
}

/// Operations of the medium that take longer than an acknowledgement may.
#[test]
fn slow_writes_fence_no_gateway() {
    explore(2_000_000..2_000_000 + seeds() / 20, Circumstances { has_faults: false, ..FAULTY });
}

#[test]
fn one_gateway_at_a_time_writes_under_faults() {
    let passive = Circumstances { is_passive: true, ..FAULTY };
    explore(3_000_000..3_000_000 + seeds() / 10, passive);
    explore(4_000_000..4_000_000 + seeds() / 10, Circumstances { servers: 3, ..passive });
}

/// The number of seeds of all tests: LUNAR_TEST_SEEDS, or a few.
fn seeds() -> u64 {
    std::env::var("LUNAR_TEST_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(600)
}

/// Whether a status is a reservation conflict.
fn is_conflict(status: Status) -> bool {
    status == Status::ReservationConflict
}

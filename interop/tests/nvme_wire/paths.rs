//! `lunar` over two paths to a namespace, while paths are cut and their access states change. Every block is verified.

use super::NQN;
use interop::command::{CommandOutput, lunar};
use interop::nvme::{NvmeEntry, NvmeHostName, RawController};
use interop::{Raw, Relay, Server, TARGET};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// ASYMMETRIC ACCESS STATE.
const OPTIMIZED: u8 = 0;
const NON_OPTIMIZED: u8 = 1;
const STANDBY: u8 = 2;
const UNAVAILABLE: u8 = 3;
/// The access state "inaccessible" of NVMe, and the status of its commands without DNR.
const INACCESSIBLE: u8 = 3;
const PATH_INACCESSIBLE: u16 = 0x302;
/// Time of a phase of a test: some thousand commands.
const PHASE: Duration = Duration::from_millis(700);

/// A subsystem in two portal groups, each behind a relay.
struct TwoPaths {
    server: Server,
    relays: [Relay; 2],
}

impl TwoPaths {
    fn start() -> TwoPaths {
        let group = |tag: u8| {
            format!(
                "[[portal_group]]\ntag = {tag}\n\
                 portals = [{{ listen = \"127.0.0.1:0\", transport = [\"nvme-tcp\"] }}, \"127.0.0.1:0\"]\n"
            )
        };
        let disks = format!(
            "[[target]]\nname = \"{TARGET}\"\n[[target.lun]]\nlun = 0\nbackend = \"memory\"\nsize = \"64MiB\"\n\
             [[subsystem]]\nnqn = \"{NQN}\"\n[[subsystem.namespace]]\nnsid = 1\ntarget = \"{TARGET}\"\nlun = 0\n"
        );
        let server = Server::start(&[group(1), group(2), disks].concat());
        let relays = [0, 2].map(|at| Relay::to(server.portals()[at]));
        TwoPaths { server, relays }
    }

    /// The URL of both paths.
    fn url(&self) -> String {
        let [first, second] = [0, 1].map(|at| self.relays[at].address());
        format!("nvme://{first}/{NQN}/1?paths={second}")
    }

    /// Writes and verifies blocks at random for this time.
    fn bench(&self, runtime: Duration) -> JoinHandle<CommandOutput> {
        let (url, runtime) = (self.url(), format!("{}ms", runtime.as_millis()));
        thread::spawn(move || {
            let job = ["--verify", "--depth", "16", "--bs", "4k", "--span", "8M", "--runtime", &runtime];
            lunar(&[&["bench", "randwrite", &url], &job[..]].concat())
        })
    }

    /// SET TARGET PORT GROUPS: the states of both portal groups.
    fn set_access(&self, states: [u8; 2]) {
        Raw::session(self.server.portals()[1], &[]).set_access(states);
    }
}

fn must_be_good(bench: JoinHandle<CommandOutput>) {
    let (said, problems, status) = bench.join().expect("no panic");
    assert_eq!(status, 0, "{said}\n{problems}");
    assert!(said.contains("verify"), "the blocks were read again: {said}");
}

#[test]
fn io_goes_on_while_one_path_works() {
    let paths = TwoPaths::start();
    let bench = paths.bench(PHASE * 6);
    for at in [0, 1, 0] {
        thread::sleep(PHASE);
        paths.relays[at].cut();
        thread::sleep(PHASE);
        paths.relays[at].restore();
    }
    must_be_good(bench);
}

#[test]
fn io_follows_the_access_states_of_the_paths() {
    let paths = TwoPaths::start();
    // The first path is no use at the start.
    paths.set_access([STANDBY, OPTIMIZED]);
    let bench = paths.bench(PHASE * 8);
    for states in [[NON_OPTIMIZED, UNAVAILABLE], [UNAVAILABLE, NON_OPTIMIZED], [OPTIMIZED, STANDBY]] {
        thread::sleep(PHASE);
        paths.set_access(states);
    }
    thread::sleep(PHASE);
    // All commands use the first path now.
    paths.relays[1].cut();
    thread::sleep(PHASE);
    must_be_good(bench);
}

/// The command waits while no path is accessible, and continues by the event of the change.
#[test]
fn io_waits_while_no_path_is_accessible() {
    let paths = TwoPaths::start();
    let bench = paths.bench(PHASE * 4);
    thread::sleep(PHASE);
    paths.set_access([UNAVAILABLE, STANDBY]);
    thread::sleep(PHASE);
    paths.set_access([STANDBY, OPTIMIZED]);
    must_be_good(bench);
}

/// Linux removes a disk without capacity. Without DNR, it repeats a command on another path.
#[test]
fn inaccessible_namespace_keeps_its_identity() {
    let paths = TwoPaths::start();
    let mut it = RawController::enabled(paths.server.portals()[0], &NvmeHostName::new("host"), NQN, 0);
    let mut queue = it.queue(1);
    let pages = [(0, 1), (2, 0), (3, 1)].map(|(structure, nsid)| NvmeEntry::identify(structure, nsid));
    let before = pages.map(|page| it.admin.execute(&page, &[]).good());
    for state in [STANDBY, UNAVAILABLE] {
        paths.set_access([state, OPTIMIZED]);
        assert_eq!(pages.map(|page| it.admin.execute(&page, &[]).good()), before);
        assert_eq!(it.access_state(), Some(INACCESSIBLE));
        let zeroes = NvmeEntry::blocks(8, 1, 0, 1);
        for entry in [NvmeEntry::read(1, 0, 1), NvmeEntry::write(1, 0, 1), NvmeEntry::new(0, 1), zeroes] {
            queue.execute(&entry, &[0; 512]).is(PATH_INACCESSIBLE);
        }
    }
    paths.set_access([OPTIMIZED, OPTIMIZED]);
    queue.execute(&NvmeEntry::read(1, 0, 1), &[]).good();
}

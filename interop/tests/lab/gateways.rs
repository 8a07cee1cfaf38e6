//! Two gateways of Ceph RBD, each in its own network namespace, under dm-multipath. One gateway after the other is killed,
//! stopped or cut.

use super::guest::{Scenario, lab_with};
use super::machine::GuestKind;
use interop::ceph::CephCluster;
use interop::gateways::{configuration_at, create_image, create_image_of, lun};
use interop::login::Login;
use interop::namespace::Namespace;
use interop::routed::until;
use interop::tool::Tool;
use interop::{Folder, Server, TARGET};
use std::fmt::Write;
use std::fs;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

const TOOLS: [Tool; 2] =
    [Tool { program: "ip", package: "iproute2" }, Tool { program: "nsenter", package: "util-linux" }];
/// The links of a gateway.
const TO_THE_HOSTS: usize = 0;
const TO_THE_CLUSTER: usize = 1;
/// The image of the file system. The checker has that of `create_image`.
const FILES: &str = "files";
/// The limit of BENCHMARKS.md for the longest gap. It depends on the machine, so it is reported only.
const GAP_LIMIT_S: u64 = 10;
/// A gateway whose process was paused for 5 s ends its sessions.
const BRIEF_STOP: Duration = Duration::from_secs(6);

/// A kind of fault.
struct Fault {
    /// Its name for the scenario. `-briefly`: it is over before hosts use another path.
    name: &'static str,
    what: &'static str,
    begin: fn(&mut Gateway),
    end: fn(&mut Gateway),
}

/// A normal run has the first ones, one of each.
const FAULTS: [Fault; 6] = [
    Fault {
        name: "killed",
        what: "killed (SIGKILL)",
        begin: |gateway| gateway.server.kill9(),
        end: |gateway| gateway.server.restart(),
    },
    Fault {
        name: "stopped",
        what: "stopped (SIGSTOP)",
        begin: |gateway| gateway.server.pause(),
        end: |gateway| gateway.server.resume(),
    },
    Fault {
        name: "cut-from-the-cluster",
        what: "cut from the cluster",
        begin: |gateway| gateway.place.cut(TO_THE_CLUSTER),
        end: |gateway| gateway.place.restore(TO_THE_CLUSTER),
    },
    Fault {
        name: "cut-from-the-hosts",
        what: "cut from the hosts",
        begin: |gateway| gateway.place.cut(TO_THE_HOSTS),
        end: |gateway| gateway.place.restore(TO_THE_HOSTS),
    },
    Fault {
        name: "killed-briefly",
        what: "killed, and started again at once",
        begin: |gateway| gateway.server.restart(),
        end: |_| {},
    },
    Fault {
        name: "stopped-briefly",
        what: "stopped for 6 s",
        begin: |gateway| {
            gateway.server.pause();
            thread::sleep(BRIEF_STOP);
            gateway.server.resume();
        },
        end: |_| {},
    },
];
const NORMAL: usize = 4;

/// A server in its place. The server ends first.
struct Gateway {
    server: Server,
    place: Namespace,
}

impl Gateway {
    fn start(cluster: &CephCluster, place: Namespace, id: u8) -> Gateway {
        let portal = format!("\"{}:0\"", place.address(TO_THE_HOSTS, 2));
        let toml = configuration_at(cluster, id, &portal) + &lun(cluster, 1, FILES);
        let server = Server::start_by(place.command(), Folder::fresh(), &toml);
        let gateway = Gateway { server, place };
        gateway.joined();
        gateway
    }

    /// Waits until it accepts a login.
    fn joined(&self) {
        let portal = self.server.portal();
        until("a path to a gateway", || TcpStream::connect(portal).ok());
        until("a gateway joins", || Login::new().try_on(portal).ok());
    }
}

#[test]
fn multipath_over_two_gateways_outlives_their_faults() {
    let Some(lab) = lab_with(&TOOLS, GuestKind::Plain) else { return };
    let places = match Namespace::new(2).and_then(|one| Ok([one, Namespace::new(2)?])) {
        Ok(places) => places,
        Err(what) => return println!("skipped: needs root with network namespaces: {}", what.trim()),
    };
    let address = places[0].address(TO_THE_CLUSTER, 1);
    places[1].reach(TO_THE_CLUSTER, &address);
    let Some(cluster) = CephCluster::start_at(&address) else { return };
    create_image(&cluster);
    create_image_of(&cluster, FILES, "1G");
    let mut id = 0;
    let mut gateways = places.map(|place| {
        id += 1;
        Gateway::start(&cluster, place, id)
    });
    // `cargo xtask soak gateways` sets the number.
    let count = std::env::var("LUNAR_TEST_FAULTS").map_or(NORMAL, |count| count.parse().expect("a number"));
    let faults: Vec<&Fault> = FAULTS.iter().cycle().take(count).collect();
    let names: Vec<&str> = faults.iter().map(|fault| fault.name).collect();
    let portals = gateways.each_ref().map(|gateway| gateway.server.portal().to_string());
    let variables = [
        ("PORTALS", &*portals.join(" ")),
        ("IQN", TARGET),
        ("FAULTS", &names.join(" ")),
        ("CHECKER", env!("CARGO_BIN_EXE_disk_checker")),
    ];
    let mut scenario = lab.alone("gateways", &variables);
    let (mut gaps, mut counted) = (vec![Vec::new(); FAULTS.len()], 0);
    for (number, fault) in faults.into_iter().enumerate() {
        // Both have each kind of fault in turn.
        let gateway = &mut gateways[(number + number / FAULTS.len()) % 2];
        scenario.when_asked(&format!("fault-{number}"), || (fault.begin)(gateway));
        scenario.when_asked(&format!("mended-{number}"), || {
            (fault.end)(gateway);
            gateway.joined();
        });
        let so_far = gaps_so_far(&mut scenario, number);
        let gap_ms = so_far[counted..].iter().copied().max().unwrap_or(0);
        counted = so_far.len();
        println!("fault {number}: {}: {gap_ms} ms", fault.what);
        gaps[number % FAULTS.len()].push(gap_ms);
    }
    scenario.must_pass();
    println!("{}", table(&gaps));
}

/// The gaps that the checker has written so far, in ms. Its program in the guest appends to the file.
fn gaps_so_far(scenario: &mut Scenario, number: usize) -> Vec<u64> {
    let file = scenario.share().join("gaps");
    let mut text = String::new();
    scenario.when_asked(&format!("counted-{number}"), || {
        text = fs::read_to_string(&file).expect("the checker's file");
    });
    text.lines().map(|gap| gap.parse().expect("a time in ms")).collect()
}

/// The table of BENCHMARKS.md.
fn table(gaps: &[Vec<u64>]) -> String {
    let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1000.0);
    let mut table =
        "| fault of a gateway | faults | longest gap | limit | |\n|---|---|---|---|---|\n".to_owned();
    for (fault, gaps) in FAULTS.iter().zip(gaps) {
        let Some(longest) = gaps.iter().max() else { continue };
        let verdict = if *longest > GAP_LIMIT_S * 1000 { "MISSED" } else { "ok" };
        let (what, count) = (fault.what, gaps.len());
        writeln!(table, "| {what} | {count} | {} | <= {GAP_LIMIT_S} s | {verdict} |", seconds(*longest))
            .expect("a string");
    }
    table
}

//! SPDK as a peer of NVMe/TCP in both roles: its target with Lunar's commands, and its host with Lunar's target. Its programs
//! must be in PATH: docs/testing.md shows how to build them.
#![forbid(unsafe_code)]

use interop::command::{CommandOutput, lunar};
use interop::spdk::{self, NQN, SIZE, Spdk};
use interop::tool::{self, ToolOutput};
use interop::{Folder, Server};
use serde_json::json;
use std::fs;
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

const DIGESTS: &str = "header_digest=crc32c&data_digest=crc32c";
/// Time between two changes while I/O runs.
const PHASE: Duration = Duration::from_millis(700);
const LIMIT: Duration = Duration::from_secs(60);
/// Lunar's own subsystem.
const OURS: &str = "nqn.2026-11.org.example:disks";

fn done((stdout, stderr, status): CommandOutput) -> String {
    assert_eq!(status, 0, "{stdout}{stderr}");
    stdout
}

fn good(arguments: &[&str]) -> String {
    done(lunar(arguments))
}

/// Copies a file to namespace 1 and back, and compares.
fn copies(peer: &Spdk, settings: &str) {
    let dir = Folder::fresh();
    let [source, back] = ["source.img", "back.img"].map(|name| dir.join(name).display().to_string());
    let word = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    fs::write(&source, (0..SIZE / 8).flat_map(word).collect::<Vec<u8>>()).expect("a source");
    good(&["copy", "--verify", "--force", &source, &peer.url(1, settings)]);
    good(&["copy", &peer.url(1, settings), &back]);
    assert!(fs::read(&source).expect("read") == fs::read(&back).expect("read"), "the copy differs");
}

/// Writes blocks at random through both portals for this time, and verifies them.
fn bench(peer: &Spdk, runtime: Duration) -> JoinHandle<CommandOutput> {
    let url = peer.url(1, &format!("paths={}&recovery_timeout=60s", peer.portals()[1]));
    let runtime = format!("{}ms", runtime.as_millis());
    let job = ["--destroy", "--verify", "--depth", "16", "--bs", "4k", "--span", "8M", "--runtime"];
    thread::spawn(move || lunar(&[&["bench", "randwrite", &url], &job[..], &[&runtime]].concat()))
}

fn verified(bench: JoinHandle<CommandOutput>) {
    let (stdout, stderr, status) = bench.join().expect("no panic");
    assert!(status == 0 && (stdout.clone() + &stderr).contains("verified: "), "{stdout}{stderr}");
}

#[test]
fn commands_work_with_spdk() {
    let Some(peer) = Spdk::start(json!({})) else { return };
    let portal = peer.portals()[0];
    let found = good(&["discover", &format!("nvme://{}", peer.discovery())]);
    for portal in peer.portals() {
        assert!(found.lines().any(|line| line.starts_with(&format!("{portal},"))), "{found}");
    }
    let listed = good(&["ls", &format!("nvme://{portal}/{NQN}")]);
    assert!(
        listed.contains("namespace 1: disk, 64 MiB") && listed.contains("namespace 3: disk, 16 MiB"),
        "{listed}"
    );
    assert!(good(&["info", &peer.url(3, "")]).contains("SPDK-7"));
    good(&["doctor", &peer.url(1, DIGESTS)]);
    copies(&peer, "");
    copies(&peer, DIGESTS);
    let (_, error, status) = lunar(&["info", &peer.url(7, "")]);
    assert!(status == 21 && error.contains("no namespace 7"), "{error}");
}

#[test]
fn copy_works_with_each_size_of_capsules_and_commands() {
    for transport in [
        json!({"in_capsule_data_size": 0}),
        json!({"in_capsule_data_size": 16384, "io_unit_size": 16384}),
        json!({"max_queue_depth": 16, "max_io_size": 8192, "io_unit_size": 8192, "max_io_qpairs_per_ctrlr": 1}),
    ] {
        let Some(peer) = Spdk::start(transport) else { return };
        copies(&peer, DIGESTS);
    }
}

#[test]
fn reservation_holds_against_another_host() {
    let Some(peer) = Spdk::start(json!({})) else { return };
    let url = |host: &str| peer.url(3, &format!("host_nqn=nqn.2026-11.org.example:{host}"));
    let (one, other) = (url("one"), url("other"));
    good(&["pr", &one, "register", "reserve", "--new-key", "0xabc", "--type", "we-ro"]);
    let state = good(&["pr", &other, "read-full-status"]);
    assert!(state.contains("key 0x0000000000000abc, holds reservation yes"), "{state}");
    let write = ["bench", "randwrite", &other, "--destroy", "--amount", "4k"];
    let (_, error, status) = lunar(&write);
    assert!(status != 0 && error.contains("reservation conflict"), "{status} {error}");
    let (_, error, status) = lunar(&["pr", &one, "register", "--key", "abc", "--new-key", "def", "--aptpl"]);
    assert!(status == 30 && error.contains("loss of power"), "{status} {error}");
    good(&["pr", &other, "register", "--new-key", "def"]);
    good(&["pr", &other, "preempt", "--key", "def", "--new-key", "abc", "--type", "we-ro"]);
    assert!(!good(&["pr", &one, "read-keys"]).contains("0abc"));
    good(&["pr", &other, "clear", "--key", "def"]);
    good(&write);
}

#[test]
fn commands_move_to_the_listener_that_is_accessible() {
    let Some(peer) = Spdk::start(json!({})) else { return };
    let running = bench(&peer, 6 * PHASE);
    let [first, second] = peer.portals();
    for (portal, state) in
        [(first, "inaccessible"), (second, "non_optimized"), (first, "optimized"), (second, "inaccessible")]
    {
        sleep(PHASE);
        peer.set_access(portal, state);
    }
    verified(running);
}

#[test]
fn killed_target_is_awaited() {
    let Some(mut peer) = Spdk::start(json!({})) else { return };
    let running = bench(&peer, 4 * PHASE);
    sleep(PHASE);
    peer.restart();
    verified(running);
}

#[test]
fn host_and_target_of_spdk_authenticate_each_other() {
    let Some(peer) = Spdk::start(json!({})) else { return };
    let (dir, host) = (Folder::fresh(), "nqn.2026-11.org.example:ann");
    let [own, theirs] = ["host.key", "subsystem.key"].map(|name| dir.join(name).display().to_string());
    good(&["chap", "add", "--nvme", host, "--hash", "sha384", "--output", &own]);
    good(&["chap", "add", "--nvme=subsystem", NQN, "--output", &theirs]);
    for (name, path) in [("host", &own), ("subsystem", &theirs)] {
        peer.call("keyring_file_add_key", json!({"name": name, "path": path}));
    }
    peer.call("nvmf_subsystem_allow_any_host", json!({"nqn": NQN, "allow_any_host": false}));
    let keys = json!({"nqn": NQN, "host": host, "dhchap_key": "host", "dhchap_ctrlr_key": "subsystem"});
    peer.call("nvmf_subsystem_add_host", keys);
    let url = |secret: &str| peer.url(1, &format!("host_nqn={host}&secret_file={secret}"));
    copies(&peer, &format!("host_nqn={host}&secret_file={own}&subsystem_secret_file={theirs}"));
    let (_, error, status) = lunar(&["info", &url(&theirs)]);
    assert!(status == 24 && error.contains("authentication failed"), "{status} {error}");
    assert!(!peer.log().contains("invalid state=failure1"), "a failure is reported once: {}", peer.log());
    let (_, error, status) = lunar(&["info", &peer.url(1, "host_nqn=nqn.2026-11.org.example:bob")]);
    assert!(status == 5 && error.contains("(1h/84h)\n"), "SPDK names no parameter: {status} {error}");
}

/// Runs a program of SPDK's host. It exits with 0 even if it finds no controller.
fn host(server: &Server, program: &str, arguments: &[&str]) -> ToolOutput {
    let mut command = spdk::host(program, server.portals()[0], OURS);
    tool::run(command.args(arguments), LIMIT)
}

#[test]
fn host_of_spdk_reads_and_writes() {
    if !spdk::have(&["spdk_nvme_perf"]) {
        return;
    }
    let server = Server::start(&format!(
        "[[portal_group]]\ntag = 1\nportals = [{{ listen = \"127.0.0.1:0\", transport = [\"nvme-tcp\"] }}]\n\
         [[subsystem]]\nnqn = \"{OURS}\"\n\
         [[subsystem.namespace]]\nnsid = 1\nbackend = \"memory\"\nsize = \"64MiB\"\n\
         [[subsystem.namespace]]\nnsid = 2\nbackend = \"memory\"\nsize = \"64MiB\"\nblock_size = 4096\n"
    ));
    for (size, queues, digests) in [
        ("4096", "1", &[][..]),
        ("4096", "3", &["-H", "-I"]),
        ("131072", "1", &["-I"]),
        ("1048576", "2", &["-H"]),
    ] {
        let job = ["-q", "16", "-w", "randrw", "-M", "50", "-t", "1", "-c", "1", "-k", "1000"];
        let ran = host(&server, "spdk_nvme_perf", &[&job[..], &["-o", size, "-P", queues], digests].concat());
        let is_good = ran.ok() && ran.said.contains("Total  ") && !ran.said.contains("*ERROR*");
        assert!(is_good, "{size} {queues} {digests:?}: {}", ran.said);
    }
}

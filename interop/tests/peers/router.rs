//! The router between programs of other projects: STGT and istgt behind it, QEMU and libiscsi in front of it.

use interop::peer::OPEN;
use interop::scsi::{pattern, read10};
use interop::tool::{self, must};
use interop::{Login, Peer, Server, TARGET, routed};

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::iscsi_test_cu::{TOOL, TestResult, compared, outcome};
use crate::qemu;

/// A router with two portals in front of the disk of a peer, which is LUN 0 of [`TARGET`].
fn before(peer: &Peer, mode: &str) -> Server {
    let url = peer.open("");
    let server = Server::start(&format!(
        "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\", \"127.0.0.1:0\"]\n\
         [router.r1]\nmode = \"{mode}\"\n[router.r1.upstream.a]\nurls = [\"{}\"]\n\
         [[router.r1.target]]\nmap = \"lun\"\nname = \"{TARGET}\"\naccess = \"all\"\n\
         lun = [{{ lun = 0, upstream = \"a\" }}]\n",
        url.trim_end_matches('?')
    ));
    drop(routed::session(&Login::new(), server.portal(), &[0]));
    server
}

/// The URL of the routed LUN at a portal.
fn url(router: &Server, portal: usize) -> String {
    format!("iscsi://{}/{TARGET}/0", router.portals()[portal])
}

fn is_used_by_qemu(peer: &Peer, mode: &str) {
    let router = before(peer, mode);
    let (here, there) = (url(&router, 0), format!("iscsi://{}/{OPEN}/{}", peer.address(), peer.lun()));
    let writes = ["write -P 0x5a 0 8M", "write -P 0x33 1M 64k", "write -z 2M 1M", "flush"];
    let reads = ["read -P 0x5a 0 1M", "read -P 0x33 1M 64k", "read -P 0 2M 1M", "read -P 0x5a 3M 5M"];
    qemu::qemu_io("raw", &here, &[&writes[..], &reads].concat());
    qemu::qemu_io("raw", &there, &reads);
    must("qemu-img", &["compare", "-f", "raw", "-F", "raw", &here, &there]);
}

fn qemu_through(peer: Option<Peer>) {
    if let Some(peer) = peer.filter(|_| tool::have(&qemu::TOOLS)) {
        is_used_by_qemu(&peer, "block");
        is_used_by_qemu(&peer, "passthrough");
    }
}

#[test]
fn qemu_uses_a_disk_of_stgt_through_the_router() {
    qemu_through(Peer::tgt());
}

#[test]
fn qemu_uses_a_disk_of_istgt_through_the_router() {
    qemu_through(Peer::istgt());
}

/// Longer than the interval between two probes of an upstream.
const LOOKS: Duration = Duration::from_secs(90);
/// NOT READY: MANUAL INTERVENTION REQUIRED; after ALUA reports the state, ACCESS STATE UNAVAILABLE.
const OFF_LINE: [u32; 2] = [0x020403, 0x02040c];

/// STGT raises no unit attention for the replacement. The router finds the new disk with its next probe.
#[test]
fn silently_replaced_disk_gets_no_commands() {
    let Some(peer) = Peer::tgt() else { return };
    let router = before(&peer, "block");
    let mut raw = Login::new().on(router.portal());
    raw.clear_attentions(0);
    raw.write_blocks(0, 0, &pattern(512, 1)).good();
    peer.replace_disk();
    let end = Instant::now() + LOOKS;
    let mut sense = 0;
    while !OFF_LINE.contains(&sense) {
        assert!(Instant::now() < end, "the new disk is read instead of the old one: {sense:06x}");
        sleep(Duration::from_secs(1));
        sense = raw.read(0, &read10(0, 1), 512).sense();
    }
    assert!(raw.write_blocks(0, 0, &pattern(512, 2)).status != 0, "the router writes to another disk");
    assert!(router.log().contains("another logical unit"), "{}", router.log());
}

/// The result of a test with a new disk, without a router.
fn direct(start: fn() -> Option<Peer>, name: &str) -> (TestResult, String) {
    let peer = start().expect("the peer was available before");
    let at = |portal| format!("iscsi://{portal}/{OPEN}/{}", peer.lun());
    outcome(name, &[at(peer.address()), at(peer.second())])
}

fn through(start: fn() -> Option<Peer>, mode: &str, name: &str) -> (TestResult, String) {
    let peer = start().expect("the peer was available before");
    let router = before(&peer, mode);
    outcome(name, &[url(&router, 0), url(&router, 1)])
}

/// Test families of what a router could break: data in both directions, residuals, sense, task management,
/// reservations, unit attentions. The router does not forward EXTENDED COPY.
const SPOILABLE: [&str; 18] = [
    "TestUnitReady",
    "Inquiry",
    "ModeSense6",
    "Read10",
    "Read16",
    "Write10",
    "Write16",
    "WriteSame16",
    "Unmap",
    "CompareAndWrite",
    "MultipathIO",
    "PrinReadKeys",
    "ProutRegister",
    "ProutReserve",
    "ProutPreempt",
    "Reserve6",
    "iSCSIResiduals",
    "iSCSITMF",
];
/// Families that targets of other projects finish in time.
const OF_OTHERS: [&str; 7] =
    ["TestUnitReady", "Inquiry", "ModeSense6", "Read10", "Write10", "ReadCapacity16", "iSCSIResiduals"];

/// Test families that do not depend on the properties of the storage's disk.
const IN_BLOCKS: [&str; 10] = [
    "TestUnitReady",
    "Read10",
    "Read16",
    "Write10",
    "Write16",
    "CompareAndWrite",
    "ProutReserve",
    "Reserve6",
    "iSCSIResiduals",
    "iSCSITMF",
];

/// Checks that each test has the same result at the upstream and through the router.
fn assert_same_results_through_router(families: &[&str], start: fn() -> Option<Peer>) {
    if tool::have(&[TOOL]) && start().is_some() {
        compared(families, |name| direct(start, name), |name| through(start, "passthrough", name));
    }
}

#[test]
fn router_passes_iscsi_test_cu_like_lunar() {
    assert_same_results_through_router(&SPOILABLE, || Some(Peer::lunar()));
}

#[test]
fn router_passes_iscsi_test_cu_like_stgt() {
    assert_same_results_through_router(&OF_OTHERS, Peer::tgt);
}

#[test]
fn router_passes_iscsi_test_cu_like_istgt() {
    assert_same_results_through_router(&OF_OTHERS, Peer::istgt);
}

/// In block mode, the router's device server responds, which is Lunar's. So each test must have the same result with
/// a local disk of Lunar and with an upstream disk.
fn assert_passes_in_block_mode(families: &[&str], start: fn() -> Option<Peer>) {
    if tool::have(&[TOOL]) && start().is_some() {
        let own = |name: &str| direct(|| Some(Peer::lunar()), name);
        let elsewhere = |name: &str| match through(start, "block", name) {
            // The upstream disk is not thin, and reports so.
            (TestResult::Skipped, said) if said.contains("fully provisioned") => (TestResult::Passed, said),
            other => other,
        };
        compared(families, own, elsewhere);
    }
}

#[test]
fn block_mode_passes_iscsi_test_cu_over_lunar() {
    assert_passes_in_block_mode(&SPOILABLE, || Some(Peer::lunar()));
}

#[test]
fn block_mode_passes_iscsi_test_cu_over_stgt() {
    assert_passes_in_block_mode(&IN_BLOCKS, Peer::tgt);
}

#[test]
fn block_mode_passes_iscsi_test_cu_over_istgt() {
    assert_passes_in_block_mode(&IN_BLOCKS, Peer::istgt);
}

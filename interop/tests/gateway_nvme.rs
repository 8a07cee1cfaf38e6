//! NVMe hosts of two gateways: controllers of one subsystem, and one state of reservations.
#![forbid(unsafe_code)]

use interop::ceph::CephCluster;
use interop::gateways::{configuration_at, create_image, session, wait_for_join};
use interop::nvme::{DNR, NvmeEntry, NvmeHostName, NvmeWire, RawController};
use interop::reserve::{RESERVATION_CONFLICT, action};
use interop::routed::until;
use interop::scsi::{pattern, reserve_out};
use interop::{Server, TARGET};

const NQN: &str = "nqn.2026-11.org.example:shared";
const CONFLICT: u16 = DNR | 0x83;
const EXCLUSIVE: u32 = 2;
/// States of access.
const OPTIMIZED: u8 = 1;
const INACCESSIBLE: u8 = 3;

fn gateway(cluster: &CephCluster, id: u8) -> Server {
    let portals = "\"127.0.0.1:0\", { listen = \"127.0.0.1:0\", transport = [\"nvme-tcp\"] }";
    let subsystem = format!(
        "[[subsystem]]\nnqn = \"{NQN}\"\n[[subsystem.namespace]]\nnsid = 1\ntarget = \"{TARGET}\"\nlun = 0\n"
    );
    Server::start(&(configuration_at(cluster, id, portals) + &subsystem))
}

/// A controller of a host at a gateway, with an I/O queue.
fn open(server: &Server, host: &str) -> (RawController, NvmeWire) {
    let it = RawController::enabled(server.portals()[1], &NvmeHostName::new(host), NQN, 0);
    let queue = it.queue(1);
    (it, queue)
}

fn register(queue: &mut NvmeWire, key: u64) -> u16 {
    queue.reserve(0x0d, 0, [0, key])
}

/// The keys of a report.
fn keys(queue: &mut NvmeWire) -> Vec<u64> {
    let entry = NvmeEntry::new(0x0e, 1).dword(10, 4096 / 4 - 1).dword(11, 1).on_host(4096);
    let data = queue.execute(&entry, &[]).good();
    let count = usize::from(u16::from_le_bytes([data[5], data[6]]));
    let key = |one: &[u8]| u64::from_le_bytes(one[8..16].try_into().expect("8 bytes"));
    let mut keys: Vec<u64> = data[64..].chunks_exact(64).take(count).map(key).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn nvme_hosts_of_gateways_see_one_disk_and_one_state() {
    let Some(cluster) = CephCluster::start() else { return };
    create_image(&cluster);
    let gateways = [1, 2].map(|id| gateway(&cluster, id));
    gateways.iter().for_each(wait_for_join);
    let [(mut one, mut one_queue), (mut other, mut other_queue)] =
        [open(&gateways[0], "a"), open(&gateways[1], "a")];
    assert_eq!([one.id % 31, other.id % 31], [9, 17], "the tags of their portal groups are 257 and 513");
    let identifiers =
        [&mut one, &mut other].map(|it| it.admin.execute(&NvmeEntry::identify(3, 1), &[]).good());
    assert_eq!(identifiers[0], identifiers[1]);
    // One host is one registrant, by whatever gateway.
    let (_it, mut stranger) = open(&gateways[1], "b");
    assert_eq!(register(&mut one_queue, 0xa), 0);
    assert_eq!(register(&mut stranger, 0xb), 0);
    assert_eq!([keys(&mut one_queue), keys(&mut stranger)], [[0xa, 0xb]; 2]);
    assert_eq!(one_queue.reserve(0x11, EXCLUSIVE << 8, [0xa, 0]), 0, "Acquire");
    let data = pattern(512, 1);
    other_queue.execute(&NvmeEntry::write(1, 0, 1), &data).is(0);
    stranger.execute(&NvmeEntry::write(1, 0, 1), &data).is(CONFLICT);
    // SCSI hosts of the other gateway are excluded too.
    let mut raw = session(&gateways[1], "iqn.2026-11.org.example:a");
    assert_eq!(raw.write_blocks(0, 0, &data).status, RESERVATION_CONFLICT);
    assert_eq!(reserve_out(&mut raw, 0, action::REGISTER, 0, 0, 0xc, 0).status, RESERVATION_CONFLICT);
    // Preempt by the stranger at its own gateway takes effect at the other one.
    assert_eq!(stranger.reserve(0x11, EXCLUSIVE << 8 | 1, [0xb, 0xa]), 0, "Preempt");
    one_queue.execute(&NvmeEntry::write(1, 0, 1), &data).is(CONFLICT);
    assert_eq!(keys(&mut one_queue), [0xb]);
    // A drained gateway is inaccessible, and the other one serves.
    gateways[1].said(&["gateway", "drain", "1"]);
    until("the drained gateway is inaccessible", || (one.access_state() == Some(INACCESSIBLE)).then_some(()));
    assert_eq!(other.access_state(), Some(OPTIMIZED));
    stranger.execute(&NvmeEntry::write(1, 0, 1), &data).is(0);
}

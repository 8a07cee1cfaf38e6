//! The answers of the NVMe/TCP target on the wire to a scripted host, which also breaks the rules.
#![forbid(unsafe_code)]

mod abort;
mod access;
mod authenticate;
mod campaign;
mod connect;
mod copy;
mod corners;
mod data;
mod demands;
mod events;
mod foreign;
mod fused;
mod hostile;
mod limits;
mod paths;
mod pdus;
mod races;
mod reauthenticate;
mod reservations;
mod resets;
mod sizes;
mod suite;
mod tls;

use interop::nvme::{NvmeEntry, NvmeHostName, NvmeWire, RawController};
use interop::{Raw, Server, TARGET};
use std::net::SocketAddr;

/// The subsystem that admits every host. Namespace 1 is LUN 0 of the target (64 MiB), and namespace 2 is LUN 1, whose
/// reads and writes take 0.5 s. LUN 2 is no namespace.
const NQN: &str = "nqn.2026-11.org.example:disks";
/// The subsystem that admits only the host `friend`.
const PRIVATE: &str = "nqn.2026-11.org.example:private";
/// Blocks of namespace 1.
const BLOCKS: u64 = 64 << 11;

/// The configuration with further namespaces of the first subsystem.
fn config(namespaces: &str) -> String {
    format!(
        r#"
[session]
nop_interval_s = 0
[[portal_group]]
tag = 1
portals = [{{ listen = "127.0.0.1:0", transport = ["nvme-tcp"] }}]
[[portal_group]]
tag = 2
portals = ["127.0.0.1:0"]
[[target]]
name = "{TARGET}"
portal_groups = [2]
[[target.lun]]
lun = 0
backend = "memory"
size = "64MiB"
serial = "memory-0"
[[target.lun]]
lun = 1
backend = "memory"
size = "16MiB"
filters = [{{ kind = "delay", read_us = 500000, write_us = 500000 }}]
[[target.lun]]
lun = 2
backend = "memory"
size = "8MiB"
[[subsystem]]
nqn = "{NQN}"
portal_groups = [1]
[[subsystem.namespace]]
nsid = 1
target = "{TARGET}"
lun = 0
[[subsystem.namespace]]
nsid = 2
target = "{TARGET}"
lun = 1
{namespaces}
[[subsystem]]
nqn = "{PRIVATE}"
portal_groups = [1]
allowed_hosts = ["nqn.2026-11.org.example:friend"]
[[subsystem.namespace]]
nsid = 1
backend = "null"
size = "1GiB"
"#
    )
}

fn server() -> Server {
    Server::start(&config(""))
}

/// The portal of NVMe/TCP.
fn portal(server: &Server) -> SocketAddr {
    server.portals()[0]
}

/// A session of iSCSI without unit attentions.
fn iscsi(server: &Server) -> Raw {
    let mut raw = Raw::session(server.portals()[1], &[]);
    raw.clear_attentions(0);
    raw
}

/// An enabled controller of a host.
fn controller(server: &Server, host: &str) -> RawController {
    RawController::enabled(portal(server), &NvmeHostName::new(host), NQN, 0)
}

/// One controller of a host and its first I/O queue.
fn queue(server: &Server, host: &str) -> (RawController, NvmeWire) {
    queue_with(server, host, 0)
}

/// The same with digests.
fn queue_with(server: &Server, host: &str, digests: u8) -> (RawController, NvmeWire) {
    let controller = RawController::enabled(portal(server), &NvmeHostName::new(host), NQN, digests);
    let queue = controller.queue(1);
    (controller, queue)
}

/// Reads blocks of namespace 1.
fn read(queue: &mut NvmeWire, lba: u64, blocks: u16) -> Vec<u8> {
    queue.execute(&NvmeEntry::read(1, lba, blocks), &[]).good()
}

/// Writes blocks of namespace 1.
fn write(queue: &mut NvmeWire, lba: u64, data: &[u8]) {
    queue.execute(&NvmeEntry::write(1, lba, (data.len() / 512) as u16), data).good();
}

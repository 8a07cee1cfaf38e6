//! The storage router: `lunar serve` whose LUNs are those of another `lunar serve`, or of a scripted target.
#![forbid(unsafe_code)]

mod access;
mod block;
mod change;
mod faults;
mod identity;
mod late;
mod loops;
mod mapping;
mod namespaces;
mod nvme;
mod output;
mod pass;
mod pass_parts;
mod restart;

use interop::routed::{session as session_of, until};
use interop::script::lunar;
use interop::scsi::inquiry;
use interop::{Folder, Login, Raw, Server};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Targets of the storage behind the router.
const A: &str = "iqn.2026-11.org.example:a";
const B: &str = "iqn.2026-11.org.example:b";
/// Targets of the router.
const T: &str = "iqn.2026-11.org.example:t";
const U: &str = "iqn.2026-11.org.example:u";

/// The start of every configuration.
const HEAD: &str = "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n";
/// REPORTED LUNS DATA HAS CHANGED.
const LUNS_CHANGED: u32 = 0x063f0e;
const CAPACITY_CHANGED: u32 = 0x062a09;
/// NOT READY, ASYMMETRIC ACCESS STATE TRANSITION.
const TRANSITION: u32 = 0x02040a;
const MANUAL_INTERVENTION: u32 = 0x020403;
const NO_SUCH_LUN: u32 = 0x052500;
const CONFLICT: u8 = 0x18;
/// Login statuses.
const UNAVAILABLE: u16 = 0x0301;
const NOT_FOUND: u16 = 0x0203;
const PATIENCE: Duration = Duration::from_secs(20);

/// A LUN of 8 MiB in a file whose name is its serial number too.
fn disk(lun: u16, name: &str) -> String {
    format!(
        "[[target.lun]]\nlun = {lun}\nbackend = \"file\"\npath = \"{name}.img\"\nsize = \"8MiB\"\nserial = \"{name}\"\n"
    )
}

/// A target with these LUNs.
fn target(name: &str, luns: &str) -> String {
    format!("[[target]]\nname = \"{name}\"\n{luns}")
}

/// Storage: target A with the LUNs 0 and 3, target B with LUN 1.
fn storage() -> Server {
    storage_of(&(target(A, &(disk(0, "a0") + &disk(3, "a3"))) + &target(B, &disk(1, "b1"))))
}

fn storage_of(targets: &str) -> Server {
    Server::start_in(Folder::fresh(), &format!("{HEAD}{targets}"))
}

/// The table of an upstream of router r1.
fn upstream(name: &str, url: &str, keys: &str) -> String {
    format!("[router.r1.upstream.{name}]\nurls = [\"{url}\"]\n{keys}")
}

fn url(server: &Server, rest: &str) -> String {
    format!("iscsi://{}{rest}", server.portal())
}

/// A mapping of router r1 for every initiator.
fn map(keys: &str) -> String {
    format!("[[router.r1.target]]\naccess = \"all\"\n{keys}\n")
}

fn map_target(name: &str, upstream: &str) -> String {
    map(&format!("map = \"target\"\nname = \"{name}\"\nupstream = \"{upstream}\""))
}

/// The configuration of router r1 with these keys, upstreams and mappings.
fn router_text(keys: &str, rest: &str) -> String {
    format!("{HEAD}[router.r1]\n{keys}{rest}")
}

/// Router r1 that serves target A of a storage as T.
fn router_to(upstream_url: &str, keys: &str) -> Server {
    Server::start(&router_text(keys, &(upstream("a", upstream_url, "") + &map_target(T, "a"))))
}

/// A session, as soon as the target shows these LUNs. Their unit attentions are cleared.
fn session(portal: SocketAddr, target: &str, wanted: &[u16]) -> Raw {
    session_of(&Login::new().target(target), portal, wanted)
}

/// The serial number of a LUN (VPD page 80h).
fn serial(raw: &mut Raw, lun: u16) -> String {
    let page = raw.read(lun, &inquiry(Some(0x80), 255), 255).good();
    String::from_utf8_lossy(&page[4..]).trim().to_owned()
}

/// The output of a `lunar` command with `--json` that uses the admin socket.
fn json_output(server: &Server, words: &[&str]) -> Value {
    let text = server.said(&[words, &["--json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// The state of router r1.
fn r1(server: &Server) -> Value {
    json_output(server, &["router", "show", "r1"])["items"][0].clone()
}

/// The ISIDs that a router has recorded for its sessions.
fn isids(router: &Server) -> Vec<String> {
    let text = std::fs::read_to_string(router.dir().join("r1.isids")).unwrap_or_default();
    text.lines().filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect()
}

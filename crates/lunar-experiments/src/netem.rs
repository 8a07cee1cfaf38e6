//! A remote line emulated by the kernel: a network namespace behind a veth pair whose ends delay packets and
//! limit their rate (tc-netem(8)). Needs root, iproute2 and `sch_netem`.

use crate::relay::LinkProfile;
use lunar_bench::CleanupGuard;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, id};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

/// Addresses for benchmarks (RFC 2544 appendix C.2.2): each line uses four of 2^17.
const ADDRESSES: u32 = 0xc612_0000;
const LINES: u32 = 1 << 15;

/// The remote end of a line. Everything is removed on drop.
pub struct FarEnd {
    /// The namespace; also the prefix of the device names.
    name: String,
    /// The address of this end; the remote end has the next one.
    address: u32,
    _cleanup: CleanupGuard,
}

impl FarEnd {
    /// Creates a line.
    ///
    /// # Errors
    /// If the kernel or its tools cannot, or permissions are missing.
    pub fn start(line: &LinkProfile) -> io::Result<FarEnd> {
        static LAID: AtomicU32 = AtomicU32::new(0);
        let number = LAID.fetch_add(1, Ordering::Relaxed);
        let address = ADDRESSES + 4 * (id().wrapping_mul(16).wrapping_add(number) % LINES) + 1;
        let name = format!("lf{}n{number}", id());
        let ((), cleanup) = CleanupGuard::create(|| {
            lay(&name, address, line).inspect_err(|_| take_away(&name))?;
            let name = name.clone();
            Ok::<_, io::Error>(((), move || take_away(&name)))
        })?;
        Ok(FarEnd { name, address, _cleanup: cleanup })
    }

    /// Listens at the remote end.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn listen(&self) -> io::Result<TcpListener> {
        let (place, address) = (format!("/run/netns/{}", self.name), Ipv4Addr::from(self.address + 1));
        // A separate thread, because it cannot leave the namespace.
        let listening = thread::spawn(move || {
            let there = File::open(place)?;
            move_into_link_name_space(there.as_fd(), Some(LinkNameSpaceType::Network))?;
            TcpListener::bind((address, 0))
        });
        listening.join().unwrap_or_else(|_| {
            Err(io::Error::other("the thread that listens in the network namespace panicked"))
        })
    }
}

fn lay(name: &str, address: u32, line: &LinkProfile) -> io::Result<()> {
    let [near, far] = [0, 1].map(|end| Ipv4Addr::from(address + end));
    let held = format!(
        "root netem limit 100000 delay {}us rate {:.0}bit",
        line.delay.as_micros(),
        8.0 * line.bytes_per_s
    );
    tool(&format!("ip netns add {name}"))?;
    tool(&format!("ip link add {name}a type veth peer name {name}b netns {name}"))?;
    tool(&format!("ip addr add {near}/30 dev {name}a"))?;
    tool(&format!("ip -n {name} addr add {far}/30 dev {name}b"))?;
    tool(&format!("tc qdisc add dev {name}a {held}"))?;
    tool(&format!("tc -n {name} qdisc add dev {name}b {held}"))?;
    tool(&format!("ip link set {name}a up"))?;
    tool(&format!("ip -n {name} link set {name}b up"))
}

/// Removes a line. The devices go first: an open connection keeps the namespace for a while.
fn take_away(name: &str) {
    _ = tool(&format!("ip link del {name}a"));
    _ = tool(&format!("ip netns del {name}"));
}

/// Runs a tool of iproute2 in its own process group. Its output is the error.
fn tool(line: &str) -> io::Result<()> {
    let mut words = line.split(' ');
    let program = words.next().unwrap_or_default();
    let result = Command::new(program).args(words).process_group(0).output();
    let output = result.map_err(|e| io::Error::new(e.kind(), format!("cannot run {program}: {e}")))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(io::Error::other(format!(
                "{program} failed: {}",
                said.trim().lines().last().unwrap_or_default()
            )))
        }
    }
}

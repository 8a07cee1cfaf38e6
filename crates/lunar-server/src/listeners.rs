//! Finds the process that listens on an address, from /proc (proc(5), tcp and tcp6 of /proc/net).

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// TCP_LISTEN.
const LISTEN: &str = "0A";

/// Whether these processes own all listeners that prevent a bind of this address. False if no listener is visible.
/// True if this user may not see the sockets of one of the processes.
pub(crate) fn are_of(address: SocketAddr, pids: &[u32]) -> bool {
    if pids.iter().any(|pid| is_closed(*pid)) {
        return true;
    }
    let own: Vec<u64> = pids.iter().flat_map(|pid| sockets_of(*pid)).collect();
    let overlapping = all("/proc/net").filter(|(at, _)| overlap(*at, address));
    let there: Vec<u64> = overlapping.map(|(_, inode)| inode).collect();
    !there.is_empty() && there.iter().all(|inode| own.contains(inode))
}

/// The addresses on which a process listens, in order, as far as this user may see them.
pub fn of_process(pid: u32) -> Vec<SocketAddr> {
    let own = sockets_of(pid);
    let mut addresses: Vec<SocketAddr> =
        all(&format!("/proc/{pid}/net")).filter(|(_, inode)| own.contains(inode)).map(|(at, _)| at).collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

/// The listening sockets in the tables of a folder.
fn all(folder: &str) -> impl Iterator<Item = (SocketAddr, u64)> {
    let tables = ["tcp", "tcp6"].map(|name| std::fs::read_to_string(format!("{folder}/{name}")));
    tables.into_iter().flat_map(|table| {
        let table = table.unwrap_or_default();
        table.lines().filter_map(listener).collect::<Vec<_>>()
    })
}

fn is_closed(pid: u32) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/fd")).is_err_and(|e| e.kind() == ErrorKind::PermissionDenied)
}

/// The inodes of the sockets of a process, as far as this user may see them.
fn sockets_of(pid: u32) -> Vec<u64> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let names = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let inode = |name: &str| name.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok();
    names.filter_map(|name| inode(name.to_str()?)).collect()
}

/// The address and the inode of a listening socket, from a line of the table.
fn listener(line: &str) -> Option<(SocketAddr, u64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (address, port) = words.get(1)?.split_once(':')?;
    let is_listener = words.get(3) == Some(&LISTEN);
    let at = SocketAddr::new(ip(address)?, u16::from_str_radix(port, 16).ok()?);
    is_listener.then_some((at, words.get(9)?.parse().ok()?))
}

/// Parses an address: words of 32 bits in the byte order of this host.
fn ip(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| Some(u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    if hex.len() == 8 {
        return Some(Ipv4Addr::from(word(0)?).into());
    }
    let mut bytes = [0; 16];
    for (n, chunk) in bytes.chunks_exact_mut(4).enumerate() {
        chunk.copy_from_slice(&word(8 * n)?);
    }
    Some(Ipv6Addr::from(bytes).into())
}

/// Whether a listener on one address may prevent a bind of the other. One on `[::]` may accept IPv4 too.
fn overlap(there: SocketAddr, wanted: SocketAddr) -> bool {
    let (a, b) = (there.ip().to_canonical(), wanted.ip().to_canonical());
    let takes_all = |ip: IpAddr, other: IpAddr| ip.is_unspecified() && (ip.is_ipv6() || other.is_ipv4());
    there.port() == wanted.port() && (a == b || takes_all(a, b) || takes_all(b, a))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn listener_is_of_the_process_that_has_it() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(socket) = TcpListener::bind(address) else { continue };
            let at = socket.local_addr().unwrap();
            assert!(are_of(at, &[std::process::id()]), "{at}");
            assert!(of_process(std::process::id()).contains(&at), "{at}");
            let any = if at.is_ipv4() { "0.0.0.0" } else { "::" };
            assert!(are_of(SocketAddr::new(any.parse().unwrap(), at.port()), &[std::process::id()]), "{at}");
            assert!(!are_of(at, &[]), "{at}");
            drop(socket);
            assert!(!of_process(std::process::id()).contains(&at), "{at}");
            assert!(!are_of(at, &[std::process::id()]), "{at}");
        }
    }
}

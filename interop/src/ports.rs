//! Ports for servers that are killed and started again.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that Linux assigns to connections (`ip_local_port_range`). Otherwise a connection of another test, or of
/// a client of the server, could take the port of a server that is down.
const FIRST: u16 = 10_000;
const COUNT: u16 = 20_000;

/// A free port of 127.0.0.1. No other test of this process gets the same port.
pub fn free() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    // Processes that start together have consecutive ids. The factor keeps their ports apart.
    let start = u64::from(std::process::id()) * 7919;
    for _ in 0..COUNT {
        let at = (start + u64::from(TAKEN.fetch_add(1, Ordering::Relaxed))) % u64::from(COUNT);
        let port = FIRST + u16::try_from(at).expect("less than COUNT");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}

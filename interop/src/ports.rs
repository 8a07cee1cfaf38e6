//! Ports for servers that are killed and started again.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that Linux gives to connections (`ip_local_port_range`): while a server is down, no connection of
/// another test, nor one of its own clients to itself, takes its port.
const FIRST: u16 = 10_000;
const COUNT: u16 = 20_000;

/// A port of 127.0.0.1 that is free and that no other test of this process is given.
pub fn free() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    // Processes that start together have neighbouring ids: their ports are far apart.
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

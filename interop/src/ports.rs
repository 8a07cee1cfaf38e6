//! Ports for servers that are killed and started again.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Below the ports that Linux assigns to connections (`ip_local_port_range`). Otherwise a connection of another test, or of
/// a client of the server, could take the port of a server that is down.
const FIRST: u16 = 10_000;
/// Ports that a process reserves at a time.
const BLOCK_LEN: u16 = 100;
const BLOCKS: u16 = 200;

/// The ports that this process has reserved and not yet used.
static RESERVED: Mutex<Range<u16>> = Mutex::new(0..0);

/// A free port of 127.0.0.1. No other test of this machine gets the same port while this process runs.
pub fn free() -> u16 {
    let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(port) = reserved.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()) {
            return port;
        }
        *reserved = reserve_block();
    }
}

/// Locks a block of ports until this process ends. Processes start at different blocks, so that a port is not
/// used again soon.
fn reserve_block() -> Range<u16> {
    let folder = std::env::temp_dir().join("lunar-test-ports");
    std::fs::create_dir_all(&folder).expect("a folder for locks");
    let start = std::process::id() * 79;
    for n in 0..u32::from(BLOCKS) {
        let block = u16::try_from((start + n) % u32::from(BLOCKS)).expect("below BLOCKS");
        let lock = File::create(folder.join(block.to_string())).expect("a lock file");
        if lock.try_lock().is_ok() {
            std::mem::forget(lock); // the kernel unlocks it when the process ends
            let first = FIRST + block * BLOCK_LEN;
            return first..first + BLOCK_LEN;
        }
    }
    panic!("all blocks of ports are locked by other tests");
}

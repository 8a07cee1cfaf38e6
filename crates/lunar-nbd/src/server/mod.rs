//! An NBD server over any backend, on TCP and Unix sockets.
//!
//! A connection belongs to one core. One receive returns many requests, and one vectored send carries their replies.
//! A request that has to wait becomes a task, which replies later.

mod connection;
mod execute;
mod fairness;
mod listen;
mod negotiate;
mod receive;
mod reply;
mod serve;
pub mod testing;

pub use listen::ListenAddress;
pub use serve::{NbdServer, serve};

use lunar_block::{Backend, BackendInfo};
use lunar_proto::nbd::ExportOffer;
use lunar_runtime::Pool;
use lunar_wire::nbd::{MAX_STRING, transmission_flag as flag};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The maximum length of READ and WRITE in bytes.
const MAX_PAYLOAD: u32 = Pool::MAX_BUFFER as u32;
/// The preferred block size in bytes, unless the minimum is larger. It is a page of the page cache.
const PREFERRED: u32 = 4096;
/// The largest block size that the protocol can announce.
const MAX_BLOCK: u32 = 1 << 16;

/// An exported disk.
#[derive(Clone)]
pub struct NbdExport {
    /// The name. A client that requests the default export gets the first one.
    pub name: String,
    /// The backend.
    pub backend: Arc<dyn Backend>,
    /// The logical block size in bytes, a power of two up to 64 KiB. Requests must be multiples of it, and the
    /// capacity is rounded down to it.
    pub block_size: u32,
    /// Rejects writes, even if the backend accepts them.
    pub read_only: bool,
    /// A description; may be empty.
    pub description: String,
}

impl NbdExport {
    fn offer(&self) -> ExportOffer {
        let info = self.backend.info();
        ExportOffer {
            name: self.name.clone(),
            description: self.description.clone(),
            size: info.capacity - info.capacity % u64::from(self.block_size),
            flags: flags(&info, self.read_only),
            block_size: self.block_size,
            preferred: self.block_size.max(PREFERRED),
            max_payload: MAX_PAYLOAD,
        }
    }

    fn check(&self) -> io::Result<()> {
        let wrong = if self.name.len() > MAX_STRING || self.description.len() > MAX_STRING {
            format!("the name or description is longer than {MAX_STRING} bytes")
        } else if !self.block_size.is_power_of_two() || self.block_size > MAX_BLOCK {
            format!("the block size {} is not a power of two up to 64 KiB", self.block_size)
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, format!("export {}: {wrong}", self.name)))
    }
}

fn flags(info: &BackendInfo, read_only: bool) -> u16 {
    let always = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::SEND_CACHE;
    // Backends are coherent: a flush covers the writes of all connections.
    let always = always | flag::CAN_MULTI_CONN;
    if info.read_only || read_only {
        return always | flag::READ_ONLY;
    }
    let trim = if info.unmap { flag::SEND_TRIM } else { 0 };
    always | trim | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO
}

/// The limits of the server.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// The maximum number of simultaneous connections.
    pub connections: usize,
    /// The maximum size of all buffers in bytes, at least 32 MiB.
    pub memory: usize,
    /// The maximum number of requests in flight per connection.
    pub requests: usize,
    /// The time limit of the handshake.
    pub handshake: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        ServerLimits {
            connections: 256,
            memory: 256 << 20,
            requests: 128,
            handshake: Duration::from_secs(30),
        }
    }
}

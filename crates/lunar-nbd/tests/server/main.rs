//! Tests of the NBD server with a raw client and with programs of other projects.
#![forbid(unsafe_code)]

mod client;
mod hostile;
mod late;
mod peers;
mod piped;
mod requests;
mod stop;

use interop::Folder;
use lunar_block::{Backend, BackendKind, BackendSpec};
use lunar_nbd::server::{ListenAddress, NbdExport, NbdServer, ServerLimits, serve};
use lunar_runtime::Cores;
use std::net::SocketAddr;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// A sparse disk in memory.
fn memory(size: u64) -> Arc<dyn Backend> {
    lunar_block::open(&BackendSpec::sized(BackendKind::Memory, size)).expect("a memory backend")
}

fn export(name: &str, backend: Arc<dyn Backend>) -> NbdExport {
    NbdExport { name: name.into(), backend, block_size: 512, read_only: false, description: String::new() }
}

/// A server on two cores, with a TCP and a Unix socket.
struct Server {
    handle: NbdServer,
    dir: Folder,
}

impl Server {
    fn start(exports: Vec<NbdExport>, limits: ServerLimits) -> Server {
        let dir = Folder::fresh();
        let listen = [
            ListenAddress::Tcp("127.0.0.1:0".parse().expect("an address")),
            ListenAddress::Unix(dir.join("nbd.sock")),
        ];
        let cores = Arc::new(Cores::start(&[0, 0]).expect("event loops"));
        Server { handle: serve(&listen, exports, cores, limits).expect("the server starts"), dir }
    }

    fn of(backend: Arc<dyn Backend>) -> Server {
        Server::start(vec![export("disk", backend)], ServerLimits::default())
    }

    fn tcp(&self) -> SocketAddr {
        match &self.handle.addresses()[0] {
            ListenAddress::Tcp(address) => *address,
            ListenAddress::Unix(_) => panic!("the first address is not TCP"),
        }
    }

    /// The URLs of an export, over TCP and over the Unix socket.
    fn urls(&self, export: &str) -> [String; 2] {
        [0, 1].map(|i| self.handle.addresses()[i].url(export))
    }
}

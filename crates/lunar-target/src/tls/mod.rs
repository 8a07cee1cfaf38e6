//! TLS 1.3 with pre-shared keys, for NVMe over TCP (NVMe TCP Transport Specification, section 3.6.1).
//!
//! A relay stands between the TCP socket and the front end. It makes the handshake, and passes the data through a pair of Unix
//! sockets. So the front end and its event loop know no TLS, and a handshake delays no command. The relay has threads of its
//! own, with the async runtime of the API (tokio).

mod client_hello;
mod handshake;
mod pump;
mod record_limit;
mod socket;
#[cfg(test)]
mod tests;

use crate::access::LoginContext;
use crate::session_info::TlsSessionInfo;
use s2n_tls::config::Config;
use socket::RelaySocket;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// Time that a stop of the server waits for the relay. The last data have a second.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// The most threads of the relay.
const MAX_THREADS: usize = 4;
/// Descriptors of a connection beside that of its socket: the pair, and a second one of the socket.
const MORE_DESCRIPTORS: usize = 3;

/// The relay of a server.
pub struct TlsRelay {
    started: OnceLock<(Runtime, Config)>,
    /// Each connection has a clone of the sender after its handshake. None: the server is stopping.
    connected: Mutex<Option<flume::Sender<()>>>,
    all_ended: flume::Receiver<()>,
    /// Each connection has a clone.
    open: Arc<()>,
}

/// A connection after its handshake.
pub struct TlsConnection {
    /// The decrypted data.
    pub stream: UnixStream,
    /// The TCP connection that carries them, which shows whether the host has left.
    pub carrier: OwnedFd,
    /// The negotiated properties.
    pub tls: TlsSessionInfo,
    /// The relay ends when this is dropped.
    pub open: oneshot::Receiver<()>,
}

impl Default for TlsRelay {
    fn default() -> TlsRelay {
        let (connected, all_ended) = flume::bounded(0);
        let connected = Mutex::new(Some(connected));
        TlsRelay { started: OnceLock::new(), connected, all_ended, open: Arc::default() }
    }
}

impl TlsRelay {
    /// Starts the threads, unless they run. The calling thread must not be bound to a CPU: the threads would be, too.
    ///
    /// # Errors
    /// A thread cannot be started, or the library for TLS has no memory.
    pub fn start(&self) -> io::Result<()> {
        if self.started.get().is_none() {
            let cpus = std::thread::available_parallelism().map_or(1, usize::from);
            let config = handshake::config()?;
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(cpus.min(MAX_THREADS)).thread_name("tls").enable_all();
            _ = self.started.set((builder.build()?, config));
        }
        Ok(())
    }

    /// Makes the handshake with a host that may connect at this place. Dropping the future closes the connection.
    ///
    /// # Errors
    /// The reason for the log.
    pub async fn accept(&self, socket: TcpStream, context: LoginContext) -> io::Result<TlsConnection> {
        let (Some((runtime, config)), Some(connected)) = (self.started.get(), self.connected()) else {
            return Err(stopping());
        };
        let (result, received) = oneshot::channel();
        let (config, open) = (config.clone(), self.open.clone());
        runtime.spawn(async move {
            relay(socket, context, config, (connected, result)).await;
            drop(open);
        });
        received.await.unwrap_or_else(|_| Err(io::Error::other("the relay of TLS has ended")))
    }

    /// Descriptors of all connections beside those of their sockets.
    pub fn more_descriptors(&self) -> usize {
        (Arc::strong_count(&self.open) - 1) * MORE_DESCRIPTORS
    }

    fn connected(&self) -> Option<flume::WeakSender<()>> {
        let connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        connected.as_ref().map(flume::Sender::downgrade)
    }

    /// Waits until the last data of all sessions that have ended are sent. New connections are refused.
    pub async fn drained(&self) {
        drop(self.connected.lock().unwrap_or_else(PoisonError::into_inner).take());
        // Relays of sessions that do not end are not waited for.
        _ = compio::time::timeout(DRAIN_TIMEOUT, self.all_ended.recv_async()).await;
    }
}

impl Drop for TlsRelay {
    fn drop(&mut self) {
        if let Some((runtime, _)) = self.started.take() {
            runtime.shutdown_background();
        }
    }
}

fn stopping() -> io::Error {
    io::Error::other("the server is stopping")
}

/// Relays one connection to its end.
async fn relay(
    socket: TcpStream,
    context: LoginContext,
    config: Config,
    (connected, mut result): (flume::WeakSender<()>, oneshot::Sender<io::Result<TlsConnection>>),
) {
    let shaken = async {
        let socket = RelaySocket::new(socket)?;
        let (stream, tls) = handshake::handshake(socket.clone(), context, config).await?;
        let carrier = socket.duplicate()?;
        let (own, front) = UnixStream::pair()?;
        own.set_nonblocking(true)?;
        let connected = connected.upgrade().ok_or_else(stopping)?;
        Ok((connected, (stream, socket, tokio::net::UnixStream::from_std(own)?), (front, carrier), tls))
    };
    let shaken = tokio::select! {
        shaken = shaken => shaken,
        // The time is over, or the slot is lost.
        () = result.closed() => return,
    };
    let (mut over, open) = oneshot::channel();
    match shaken {
        Err(e) => _ = result.send(Err(e)),
        Ok((_connected, (stream, socket, own), (front, carrier), tls)) => {
            _ = result.send(Ok(TlsConnection { stream: front, carrier, tls, open }));
            pump::pump(stream, socket, own, over.closed()).await;
        }
    }
}

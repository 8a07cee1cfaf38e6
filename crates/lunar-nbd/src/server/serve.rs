//! Listeners, their connections, and shutdown.

use super::connection::ServerConnection;
use super::fairness::ConnectionFairness;
use super::listen::{ListenAddress, SocketPath};
use super::negotiate::negotiate;
use super::receive::RequestReceiver;
use super::{NbdExport, ServerLimits};
use event_listener::Event;
use lunar_runtime::{Cores, Listener, LogRateLimit, Pool, Stream, either};
use socket2::{Domain, Socket, TcpKeepalive};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How long connections may take to end at a shutdown.
const STOP: Duration = Duration::from_secs(20);
/// TCP keepalive: the idle time, which is also the interval of probes, and the number of probes.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_RETRIES: u32 = 4;

/// The state shared by all connections.
struct ServerShared {
    exports: Vec<NbdExport>,
    /// The order of connections of each export.
    fairness: Vec<ConnectionFairness>,
    limits: ServerLimits,
    pool: Pool,
    connections: AtomicUsize,
    stopping: AtomicBool,
    /// Notified when the server is stopped, and when a connection ends.
    changed: Event,
    /// Limits the rate of log lines about failed clients.
    ended: LogRateLimit,
}

impl ServerShared {
    async fn until(&self, wanted: impl Fn(&ServerShared) -> bool) {
        loop {
            let changed = self.changed.listen();
            if wanted(self) {
                return;
            }
            changed.await;
        }
    }

    /// Waits until the server is stopped.
    async fn stopped(&self) {
        self.until(|shared| shared.stopping.load(SeqCst)).await;
    }

    fn stop(&self) {
        self.stopping.store(true, SeqCst);
        self.changed.notify(usize::MAX);
    }
}

/// A running server. Dropping it rejects new clients, and lets connected ones finish their requests in flight.
/// [`NbdServer::stop`] also waits for that.
pub struct NbdServer {
    shared: Arc<ServerShared>,
    cores: Arc<Cores>,
    addresses: Vec<ListenAddress>,
    _traces: Vec<SocketPath>,
}

/// Serves exports at the addresses in `listen`, on all of these cores.
///
/// # Errors
/// When an address cannot be bound (the message names it), or an export cannot be offered: a block size that is not a
/// power of two up to 64 KiB, a name or description longer than 4096 bytes, two exports with the same name, or no
/// export at all.
pub fn serve(
    listen: &[ListenAddress],
    exports: Vec<NbdExport>,
    cores: Arc<Cores>,
    limits: ServerLimits,
) -> io::Result<NbdServer> {
    check(&exports)?;
    let bound = listen.iter().map(ListenAddress::bind).collect::<io::Result<Vec<_>>>()?;
    let shared = Arc::new(ServerShared {
        fairness: exports.iter().map(|_| ConnectionFairness::default()).collect(),
        exports,
        pool: Pool::new(limits.memory),
        limits,
        connections: AtomicUsize::new(0),
        stopping: AtomicBool::new(false),
        changed: Event::new(),
        ended: LogRateLimit::default(),
    });
    let (mut addresses, mut traces) = (Vec::new(), Vec::new());
    for (i, (address, socket)) in bound.into_iter().enumerate() {
        if let ListenAddress::Unix(path) = &address {
            traces.push(SocketPath::new(path)?);
        }
        addresses.push(address);
        let (shared, to) = (shared.clone(), cores.clone());
        cores.run_on(i % cores.count(), move || {
            lunar_runtime::spawn(accept(shared, to, socket, i));
        });
    }
    Ok(NbdServer { shared, cores, addresses, _traces: traces })
}

fn check(exports: &[NbdExport]) -> io::Result<()> {
    let wrong = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    for (i, export) in exports.iter().enumerate() {
        export.check()?;
        if exports[..i].iter().any(|other| other.name == export.name) {
            return wrong(format!("two exports have the name {:?}", export.name));
        }
    }
    if exports.is_empty() { wrong("the list of NBD exports is empty".into()) } else { Ok(()) }
}

impl NbdServer {
    /// The bound addresses.
    pub fn addresses(&self) -> &[ListenAddress] {
        &self.addresses
    }

    /// The number of open connections. A connection whose client has gone stays open until its last write ends.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(SeqCst)
    }

    /// The number of connected clients that have selected an export.
    pub fn clients(&self) -> usize {
        self.shared.fairness.iter().map(ConnectionFairness::clients).sum()
    }

    /// Shuts down gracefully: rejects clients and requests, finishes requests in flight, closes the connections, and
    /// flushes every backend. Must not be called on one of the cores.
    ///
    /// # Errors
    /// The error of the last flush that failed.
    pub fn stop(self) -> io::Result<()> {
        self.shared.stop();
        let (result, ended) = flume::bounded(1);
        let shared = self.shared.clone();
        self.cores.run_on(0, move || {
            lunar_runtime::spawn(async move { drop(result.send(wind_down(&shared).await)) });
        });
        ended.recv().unwrap_or_else(|_| Err(io::Error::other("an event loop thread panicked")))
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

async fn wind_down(shared: &ServerShared) -> io::Result<()> {
    let ended = shared.until(|shared| shared.connections.load(SeqCst) == 0);
    if compio::time::timeout(STOP, ended).await.is_err() {
        tracing::warn!(
            clients = shared.connections.load(SeqCst),
            "NBD clients did not disconnect before the time limit"
        );
    }
    let mut result = Ok(());
    for export in &shared.exports {
        if let Err(e) = export.backend.flush().await {
            tracing::error!(export = %export.name, error = %e, "the final flush of an NBD export failed");
            result = Err(e);
        }
    }
    result
}

/// Accepts clients of one listener, and distributes them over the cores, until the server is stopped.
async fn accept(shared: Arc<ServerShared>, cores: Arc<Cores>, socket: Socket, first: usize) {
    let listener = match Listener::new(socket) {
        Ok(listener) => listener,
        Err(e) => return tracing::error!(error = %e, "cannot accept NBD clients on a listening address"),
    };
    let mut next = first;
    loop {
        let accepted = either(async { Some(listener.accept().await) }, async {
            shared.stopped().await;
            None
        });
        match accepted.await {
            None => return,
            Some(Ok((socket, _))) => {
                if let Some(count) = ClientCount::new(&shared) {
                    next = (next + 1) % cores.count();
                    cores.run_on(next, move || lunar_runtime::spawn(serve_one(socket, count)));
                }
            }
            Some(Err(e)) => {
                tracing::error!(error = %e, "cannot accept an NBD client");
                compio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Counts a connection until it is dropped.
struct ClientCount(Arc<ServerShared>);

impl ClientCount {
    fn new(shared: &Arc<ServerShared>) -> Option<ClientCount> {
        // Created before the check, so that dropping it decreases the count again.
        let count = ClientCount(shared.clone());
        let before = shared.connections.fetch_add(1, SeqCst);
        (before < shared.limits.connections && !shared.stopping.load(SeqCst)).then_some(count)
    }
}

impl Drop for ClientCount {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, SeqCst);
        self.0.changed.notify(usize::MAX);
    }
}

/// Serves one client, from the handshake to the end of its connection.
async fn serve_one(socket: Socket, count: ClientCount) {
    let shared = &count.0;
    match serve_client(socket, shared).await {
        Ok(()) => tracing::debug!("NBD client ended"),
        Err(e) => {
            if let Some(left_out) = shared.ended.may(Instant::now()) {
                tracing::info!(error = %e, left_out, "the connection of an NBD client failed");
            }
        }
    }
}

async fn serve_client(socket: Socket, shared: &Arc<ServerShared>) -> io::Result<()> {
    if socket.domain()? != Domain::UNIX {
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        socket.set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_RETRIES))?;
    }
    let stream = Stream::new(socket)?;
    let offers = shared.exports.iter().map(NbdExport::offer).collect();
    let handshake = either(negotiate(&stream, offers), async {
        shared.stopped().await;
        Ok(None)
    });
    let Ok(negotiated) = compio::time::timeout(shared.limits.handshake, handshake).await else {
        return Err(io::ErrorKind::TimedOut.into());
    };
    let Some((agreed, begun)) = negotiated? else { return Ok(()) };
    let export = &shared.exports[agreed.export];
    tracing::debug!(export = %export.name, "NBD client begins");
    let ticket = shared.fairness[agreed.export].join(stream.hangup()?);
    either(ticket.comes(), shared.stopped()).await;
    if ticket.is_over() || shared.stopping.load(SeqCst) {
        return Ok(());
    }
    let pool = shared.pool.share();
    let conn = ServerConnection::new(stream, export.backend.clone(), &agreed.terms, pool, shared.limits);
    let ended = conn.serve(RequestReceiver::new(agreed.terms, begun), &ticket, shared.stopped()).await;
    conn.settle().await;
    drop(ticket);
    conn.leave().await;
    ended.map_err(|e| io::Error::other(e.to_string()))
}

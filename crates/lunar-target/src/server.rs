//! The server: listeners, cores, and reloads of the configuration.

use crate::config::{Portal, PortalGroup, TargetConfig};
use crate::connection_slots::AdmissionError;
use crate::flush_failure::{FlushFailure, flush_all};
use crate::heartbeat;
use crate::initiator_totals::{InitiatorKey, InitiatorTotals};
use crate::rdma_portals;
use crate::registry::SessionMessage;
use crate::server_events::EventTotals;
use crate::server_state::{BoundPortal, ConnectionGuard, ServerState, luns_update};
use crate::session_info::SessionInfo;
use crate::tcp_portals;
use crate::{LogicalUnit, Quiesced};
use lunar_runtime::{Cores, Listener, Stream, descriptors};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval at which media are checked.
const REFRESH: Duration = Duration::from_secs(1);
/// Number of blocked checks above which no new check begins. A core has more threads than that.
const MAX_CHECKS: usize = 32;
/// Maximum number of connections of a portal that wait for room, number of attempts of each, and the interval.
const MAX_WAITING_CONNECTIONS: usize = 64;
const MAX_TRIES: usize = 20;
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Time for which binding an address in use is retried.
const BIND_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that a reload waits for commands of the logical units that it changes.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a stop waits for commands and initiators.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// The use of limited resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerResources {
    /// Connections.
    pub connections: usize,
    /// Of these, connections before login.
    pub connections_before_login: usize,
    /// Bytes of the pool in use.
    pub memory: usize,
    /// CPUs of the event loops, each with the number of its connections.
    pub cores: Vec<(usize, usize)>,
}

/// A running target.
pub struct TargetServer {
    shared: Arc<ServerState>,
    /// The event loop that accepts connections. It is separate, so that connections are accepted even if a core is
    /// stalled.
    entrance: Arc<Cores>,
    cores: Arc<Cores>,
    /// Dropping it ends the acceptance of connections.
    accepting: Mutex<Option<flume::Sender<Infallible>>>,
}

impl TargetServer {
    /// Binds all portals, and serves on these CPUs.
    ///
    /// # Errors
    /// A portal cannot be bound (the message names it), or an event loop cannot be started.
    pub fn start(config: TargetConfig, cpus: &[usize]) -> io::Result<TargetServer> {
        TargetServer::start_with(config, cpus, &mut listen)
    }

    /// As [`TargetServer::start`]; `socket` returns the listening TCP socket of a portal with this address. Instead of
    /// binding one by [`listen`], it may return a socket that another process has bound.
    ///
    /// # Errors
    /// As for [`TargetServer::start`].
    pub fn start_with(
        config: TargetConfig,
        cpus: &[usize],
        socket: &mut dyn FnMut(SocketAddr) -> io::Result<TcpListener>,
    ) -> io::Result<TargetServer> {
        let (portals, sockets) = bind(&config, socket)?;
        let cores = Arc::new(Cores::start(cpus)?);
        descriptors::hold_spares();
        // Create it after the server has opened its own files, which reduce the room for connections.
        let shared = Arc::new(ServerState::new(config, portals));
        shared.warn_of_room();
        let entrance = Arc::new(Cores::one()?);
        let (accepting, end) = flume::bounded(0);
        for (i, socket) in sockets.into_iter().enumerate() {
            let at = i % cores.count();
            if shared.portals[i].transports.by_devices() {
                rdma_portals::listen(&shared, &cores, at, i)?;
            }
            let (shared, to, end) = (shared.clone(), cores.clone(), end.clone());
            let Some(socket) = socket else { continue };
            entrance.run_on(0, move || {
                lunar_runtime::spawn(async move {
                    lunar_runtime::either(accept(shared, to, socket, i), async { _ = end.recv_async().await })
                        .await
                });
            });
        }
        let refreshed = shared.clone();
        cores.run_on(0, move || lunar_runtime::spawn(refresh(refreshed)));
        Ok(TargetServer { shared, entrance, cores, accepting: Mutex::new(Some(accepting)) })
    }

    /// Calls `beat` at once and then in this interval, each time after a round trip through all event loops. If a loop
    /// is blocked, `beat` is not called. It runs in an event loop, so it must not block.
    pub fn heartbeat(&self, interval: Duration, beat: impl Fn() + Send + 'static) {
        let (cores, entrance) = (self.cores.clone(), self.entrance.clone());
        self.cores.run_on(0, move || lunar_runtime::spawn(heartbeat::beat(cores, entrance, interval, beat)));
    }

    /// Accepts no more TCP connections, and closes the listening sockets. If another process has them too, new
    /// connections wait there in their backlogs.
    pub fn stop_accepting(&self) {
        self.accepting.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// The bound portals.
    pub fn portals(&self) -> &[BoundPortal] {
        &self.shared.portals
    }

    /// The sessions, by their handles (in iSCSI TSIH).
    pub fn sessions(&self) -> Vec<(u16, Arc<SessionInfo>)> {
        self.shared.registry.list()
    }

    /// Connections, logins and ends of sessions since the start.
    pub fn events(&self) -> EventTotals {
        self.shared.events.totals()
    }

    /// The counts of initiators since the start, by target and name.
    pub fn initiators(&self) -> BTreeMap<InitiatorKey, InitiatorTotals> {
        self.shared.registry.initiators()
    }

    /// The current use of limited resources.
    pub fn resources(&self) -> ServerResources {
        let shared = &self.shared;
        ServerResources {
            connections: shared.connections(),
            connections_before_login: shared.connections_before_login(),
            memory: shared.pool.used(),
            cores: self.cores.placements(),
        }
    }

    /// The configuration in force.
    pub fn config(&self) -> Arc<TargetConfig> {
        self.shared.config()
    }

    /// Quiesces logical units one after the other, so that they can be changed. From then on they respond with BUSY.
    /// It waits at most ten seconds for running commands.
    ///
    /// # Errors
    /// The failure of a logical unit, with its index in the list. In this case all of them resume.
    pub fn quiesce(&self, units: Vec<Arc<LogicalUnit>>) -> Result<Vec<Quiesced>, (usize, io::Error)> {
        if units.is_empty() {
            return Ok(Vec::new());
        }
        let (result, ended) = flume::bounded(1);
        self.cores.run_on(0, move || {
            lunar_runtime::spawn(async move { drop(result.send(quiesce(&units).await)) });
        });
        ended.recv().unwrap_or_else(|_| Err((0, io::Error::other("the thread of an event loop ended"))))
    }

    /// Replaces the configuration. Sessions continue unless their target or their access to it was removed.
    /// Initiators get unit attentions for changed LUNs. The portals and the memory limit do not change.
    pub fn reload(&self, config: TargetConfig) {
        let config = Arc::new(config);
        self.shared.set_config(config.clone());
        self.shared.warn_of_room();
        self.shared.registry.send_each(|info| luns_update(&config, info));
    }

    /// Asks the sessions of a SCSI routing instance to log out after their commands have ended, and ends those that
    /// do not. This function does not wait.
    pub fn dismiss(&self, instance: &str) {
        self.shared.registry.send_each(|info| {
            let is_there = info
                .instance_session
                .get()
                .is_some_and(|instance_session| instance_session.instance().name == instance);
            is_there.then(|| SessionMessage::Stop { done: flume::bounded(0).0 })
        });
    }

    /// Asks the initiator of a session to log out, and cuts the session if it does not. False: there is no such session.
    pub fn end_session(&self, session_handle: u16) -> bool {
        let Some(meant) = self.shared.registry.find(session_handle) else { return false };
        let end = || SessionMessage::Stop { done: flume::bounded(0).0 };
        self.shared.registry.send_each(|info| std::ptr::eq(info, &*meant).then(end));
        true
    }

    /// Stops the server: it accepts no more commands, finishes those in flight, asks initiators to log out, and
    /// flushes every medium. Then it calls `last`, while the event loops still run.
    ///
    /// # Errors
    /// The media that could not be flushed.
    pub fn stop(self, last: impl FnOnce()) -> Result<(), Vec<FlushFailure>> {
        self.shared.stopping.store(true, SeqCst);
        let (result, ended) = flume::bounded(1);
        let shared = self.shared.clone();
        self.cores.run_on(0, move || {
            lunar_runtime::spawn(async move { drop(result.send(stop_sessions(shared).await)) });
        });
        let result = ended.recv().unwrap_or_else(|_| Err(vec![FlushFailure::event_loop_ended()]));
        last();
        self.entrance.stop();
        self.cores.stop();
        result
    }
}

async fn quiesce(units: &[Arc<LogicalUnit>]) -> Result<Vec<Quiesced>, (usize, io::Error)> {
    let (end, mut quiesced) = (Instant::now() + QUIESCE_TIMEOUT, Vec::new());
    for (i, unit) in units.iter().enumerate() {
        let left = end.saturating_duration_since(Instant::now());
        match compio::time::timeout(left, unit.quiesce()).await {
            Ok(Ok(rests)) => quiesced.push(rests),
            Ok(Err(e)) => return Err((i, e)),
            Err(_) => {
                let e = io::Error::new(
                    io::ErrorKind::TimedOut,
                    "commands of the LUN did not end within 10 seconds",
                );
                return Err((i, e));
            }
        }
    }
    Ok(quiesced)
}

async fn stop_sessions(shared: Arc<ServerState>) -> Result<(), Vec<FlushFailure>> {
    let stopping = shared.registry.broadcast(None, |done| SessionMessage::Stop { done });
    if compio::time::timeout(STOP_TIMEOUT, stopping).await.is_err() {
        tracing::warn!(
            sessions = shared.registry.list().len(),
            "sessions did not end before the server stopped"
        );
    }
    flush_all(&shared.config()).await
}

/// The portals that cannot be bound now, each with the error that a starting server would report. This binds nothing.
pub fn cannot_bind(groups: &[PortalGroup]) -> Vec<(SocketAddr, io::Error)> {
    let portals = groups.iter().flat_map(|group| &group.portals);
    let refused = |portal: &Portal| {
        let address = portal.listen;
        let by_tcp = match portal.transports.by_tcp() {
            true => Listener::can_bind(address).map_err(|e| not_bound(address, e)),
            false => Ok(()),
        };
        let by_devices = || match portal.transports.by_devices() {
            true => rdma_portals::can_listen(address),
            false => Ok(()),
        };
        by_tcp.and_then(|()| by_devices()).err().map(|e| (address, e))
    };
    portals.filter_map(refused).collect()
}

fn not_bound(address: SocketAddr, e: io::Error) -> io::Error {
    lunar_runtime::error::with_context(e, format!("cannot listen on {address}"))
}

/// The bound portals, and the listening sockets of those that use TCP.
fn bind(
    config: &TargetConfig,
    socket: &mut dyn FnMut(SocketAddr) -> io::Result<TcpListener>,
) -> io::Result<(Vec<BoundPortal>, Vec<Option<TcpListener>>)> {
    let (mut bound, mut sockets) = (Vec::new(), Vec::new());
    for (tag, portal) in config.portal_groups.iter().flat_map(|g| g.portals.iter().map(|p| (g.tag, p))) {
        let bind = || socket(portal.listen).map_err(|e| not_bound(portal.listen, e));
        let socket = portal.transports.by_tcp().then(bind).transpose()?;
        let address = socket.as_ref().map_or(Ok(portal.listen), |socket| socket.local_addr())?;
        let advertise = portal.advertise.clone();
        bound.push(BoundPortal { address, tag, advertise, transports: portal.transports });
        sockets.push(socket);
    }
    Ok((bound, sockets))
}

/// Binds the address of a portal. An address in use is retried, because the kernel releases the sockets of a killed
/// process a moment later.
///
/// # Errors
/// Those of bind and listen.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let end = Instant::now() + BIND_TIMEOUT;
    loop {
        match Listener::bind(address) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}

/// Accepts the connections of one portal, and distributes them over the cores: to a core with the fewest connections,
/// and among those to the one where the packets of the connection arrive.
async fn accept(shared: Arc<ServerState>, cores: Arc<Cores>, socket: TcpListener, portal: usize) {
    let listener = match Listener::new(socket) {
        Ok(l) => l,
        Err(e) => return tracing::error!(error = %e, "cannot accept connections on a portal"),
    };
    let waiting = Rc::new(());
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(peer) = peer.as_socket() else { continue };
                if lunar_runtime::stream::is_hung_up(&stream) {
                    // The peer has given up, and slots are for connections that still wait.
                    tracing::debug!(%peer, "a connection was closed before the server accepted it");
                    continue;
                }
                let stream = stream.into();
                let connection =
                    AcceptedConnection { shared: shared.clone(), cores: cores.clone(), stream, peer, portal };
                if ConnectionGuard::has_room(&shared, peer)
                    || Rc::strong_count(&waiting) > MAX_WAITING_CONNECTIONS
                {
                    connection.hand_over();
                } else {
                    let waiting = waiting.clone();
                    lunar_runtime::spawn(async move {
                        connection.wait_for_room().await;
                        drop(waiting);
                    });
                }
            }
            Err(e) => {
                tracing::error!(error = %e, "cannot accept a connection on a portal");
                compio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// An accepted connection.
struct AcceptedConnection {
    shared: Arc<ServerState>,
    cores: Arc<Cores>,
    stream: TcpStream,
    peer: SocketAddr,
    portal: usize,
}

impl AcceptedConnection {
    /// Waits a moment for room. Connections that their peers have closed still count, until the cores notice.
    async fn wait_for_room(self) {
        for _ in 0..MAX_TRIES {
            compio::time::sleep(RETRY_INTERVAL).await;
            if ConnectionGuard::has_room(&self.shared, self.peer) {
                break;
            }
        }
        self.hand_over();
    }

    fn hand_over(self) {
        let AcceptedConnection { shared, cores, stream, peer, portal } = self;
        // Choose the core that receives the packets, because waking another CPU costs more than most commands.
        let admitted = ConnectionGuard::new(&shared, peer, cores.place(Stream::arrives_on(&stream)));
        shared.events.connection(shared.portals[portal].tag, admitted.as_ref().err().copied());
        match admitted {
            Err(AdmissionError::FileDescriptors) => shared.out_of_descriptors(peer),
            Err(reason) => shared.log_closed_before_login(peer, &reason.to_string()),
            Ok(count) => cores.run_on(count.core(), move || {
                lunar_runtime::spawn(tcp_portals::serve(shared, stream, peer, portal, count));
            }),
        }
    }
}

/// Detects media that were resized, deleted or replaced. A check may block, for example on an unreachable file
/// server. A thread therefore runs it, and the next check skips a medium whose check is still running.
pub(crate) async fn refresh(shared: Arc<ServerState>) {
    let mut next = Instant::now();
    let looks = Arc::new(());
    loop {
        next += REFRESH;
        lunar_runtime::sleep_until(next).await;
        if Arc::strong_count(&looks) > MAX_CHECKS {
            continue;
        }
        let (shared, look) = (shared.clone(), looks.clone());
        lunar_runtime::spawn(lunar_runtime::blocking(move || {
            let _look = look;
            check_media(&shared);
            Ok(())
        }));
    }
}

/// Checks each medium that has no check in progress. Stops if the configuration is replaced meanwhile.
fn check_media(shared: &ServerState) {
    let config = shared.config();
    let all = config.targets.iter().flat_map(|(name, t)| t.luns.iter().map(move |(lun, u)| (name, lun, u)));
    for (name, lun, unit) in all {
        if !Arc::ptr_eq(&config, &shared.config()) {
            return;
        }
        let Some(_look) = unit.begin_check() else { continue };
        unit.watch_path(name, *lun);
        if !unit.refresh() {
            continue;
        }
        unit.log_size(name, *lun);
        shared.registry.send_each(|_| Some(SessionMessage::Attention(unit.clone())));
    }
}

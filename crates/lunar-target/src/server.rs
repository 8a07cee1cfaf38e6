//! The server: listeners, cores, and reloads of the configuration.

use crate::access::AccessRules;
use crate::config::{PortalGroup, TargetConfig};
use crate::flush_failure::{FlushFailure, flush_all};
use crate::heartbeat;
use crate::initiator_totals::{InitiatorKey, InitiatorTotals};
use crate::listening::{Listening, PortalCores, PreparedPortals, SocketSource, listen};
use crate::open_portal::BoundPortal;
use crate::registry::SessionMessage;
use crate::server_events::EventTotals;
use crate::server_state::ServerState;
use crate::session_info::SessionInfo;
use crate::{InstanceSession, LogicalUnit, Quiesced, ServedSessions};
use lunar_runtime::{Cores, descriptors};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval at which media are checked.
const REFRESH: Duration = Duration::from_secs(1);
/// Number of blocked checks above which no new check begins. A core has more threads than that.
const MAX_CHECKS: usize = 32;
/// Time that a reload waits for commands of the logical units that it changes.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two looks whether a flush goes on.
const FLUSH_PAUSE: Duration = Duration::from_millis(10);
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
    listening: Mutex<Listening>,
}

impl TargetServer {
    /// Binds all portals, and serves on these CPUs.
    ///
    /// # Errors
    /// A portal cannot be bound (the message names it), or an event loop cannot be started.
    pub fn start(config: TargetConfig, cpus: &[usize]) -> io::Result<TargetServer> {
        TargetServer::start_with(config, cpus, &mut listen)
    }

    /// As [`TargetServer::start`], with another source of sockets than [`listen`].
    ///
    /// # Errors
    /// As for [`TargetServer::start`].
    pub fn start_with(
        config: TargetConfig,
        cpus: &[usize],
        socket: &mut SocketSource<'_>,
    ) -> io::Result<TargetServer> {
        let (cores, entrance) = (Arc::new(Cores::start(cpus)?), Arc::new(Cores::one()?));
        cores.set_busy_poll(config.busy_poll);
        descriptors::hold_spares();
        let groups = config.portal_groups.clone();
        let shared = Arc::new(ServerState::new(config, Arc::default()));
        let server = TargetServer { shared, entrance, cores, listening: Mutex::default() };
        let portals = server.prepare(&groups, socket)?;
        // After the server has opened its own files, which reduce the room for connections.
        server.shared.warn_of_room();
        server.open(portals);
        let refreshed = server.shared.clone();
        server.cores.run_on(0, move || lunar_runtime::spawn(refresh(refreshed)));
        Ok(server)
    }

    /// Binds the portals of these groups that do not listen yet, as [`TargetServer::start_with`] does. Nothing changes
    /// until [`TargetServer::reload`].
    ///
    /// # Errors
    /// A portal cannot be bound. The message names it.
    pub fn prepare(
        &self,
        groups: &[PortalGroup],
        socket: &mut SocketSource<'_>,
    ) -> io::Result<PreparedPortals> {
        let cores = PortalCores { entrance: &self.entrance, cores: &self.cores };
        self.listening().prepare(groups, &self.shared, cores, socket)
    }

    fn open(&self, portals: PreparedPortals) {
        self.shared.set_portals(portals.bound());
        self.listening().replace(portals);
    }

    fn listening(&self) -> MutexGuard<'_, Listening> {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.listening().stop_accepting();
    }

    /// The bound portals.
    pub fn portals(&self) -> Arc<[BoundPortal]> {
        self.shared.portals()
    }

    /// The listening TCP sockets, with the addresses of their portals in the configuration.
    pub fn sockets(&self) -> Vec<(SocketAddr, Arc<TcpListener>)> {
        self.listening().sockets().map(|(listen, socket)| (listen, socket.clone())).collect()
    }

    /// The handles of the sessions that could not log in again with these portal groups.
    pub fn stranded(&self, groups: &[PortalGroup]) -> Vec<u16> {
        let (listening, sessions) = (self.listening(), self.sessions());
        let stranded = sessions.iter().filter(|(_, info)| listening.would_strand(groups, info));
        stranded.map(|(handle, _)| *handle).collect()
    }

    /// The handles of the sessions that other rules of their targets would end. `rules` has them, unless a target is to go.
    pub fn excluded<'a>(&self, rules: impl Fn(&str) -> Option<AccessRules<'a>>) -> Vec<u16> {
        let is_out = |info: &SessionInfo| {
            info.target.as_deref().and_then(&rules).is_some_and(|rules| !rules.admit(info))
        };
        self.sessions().iter().filter(|(_, info)| is_out(info)).map(|(handle, _)| *handle).collect()
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

    /// The sessions, for those who share the state of logical units.
    pub fn served_sessions(&self) -> ServedSessions {
        ServedSessions(self.shared.clone())
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

    /// Flushes the media of a target, however long it takes, while commands may use them. None: `goes_on` became false
    /// before the end.
    ///
    /// # Errors
    /// The media that could not be flushed.
    pub fn flush(&self, target: &str, goes_on: impl Fn() -> bool) -> Option<Result<(), Vec<FlushFailure>>> {
        let (result, ended) = flume::bounded(1);
        let (config, target) = (self.config(), target.to_owned());
        self.cores.run_on(0, move || {
            lunar_runtime::spawn(async move { drop(result.send(flush_all(&config, Some(&target)).await)) });
        });
        loop {
            match ended.recv_timeout(FLUSH_PAUSE) {
                Ok(flushed) => return Some(flushed),
                Err(flume::RecvTimeoutError::Timeout) if goes_on() => {}
                Err(flume::RecvTimeoutError::Timeout) => return None,
                Err(flume::RecvTimeoutError::Disconnected) => {
                    return Some(Err(vec![FlushFailure::event_loop_ended()]));
                }
            }
        }
    }

    /// Replaces the configuration and the portals. Sessions continue unless their target, their access to it or their
    /// portal was removed, or their target port has another identifier. Those of a removed portal are asked to log out.
    /// Initiators get unit attentions for changed LUNs and ports. The memory limit and the busy poll do not change.
    pub fn reload(&self, config: TargetConfig, portals: PreparedPortals) {
        let (before, config) = ((self.config(), self.portals()), Arc::new(config));
        // Before the configuration: a login that begins with the new one must find its portal closed.
        self.open(portals);
        self.shared.set_config(config.clone());
        self.shared.warn_of_room();
        self.shared.registry.send_each(|info| self.shared.luns_update(&config, info));
        self.shared
            .registry
            .send_each(|info| self.shared.end_of_stranded((&before.0, &before.1), &config, info));
    }

    /// Looks at the size of the medium of a logical unit now, and not only at the next of its regular checks. When this returns,
    /// hosts that ask for the size get the new one.
    pub fn look_at_medium(&self, target: &str, number: u16) {
        let config = self.shared.config();
        if let Some(unit) = config.targets.get(target).and_then(|target| target.luns.get(&number)) {
            check_size(&self.shared, (target, number), unit);
        }
    }

    /// Asks the sessions of a SCSI routing instance to log out after their commands have ended, and ends those that
    /// do not. Controllers of subsystems with its LUNs end when their commands have ended. This function does not wait.
    pub fn dismiss(&self, instance: &str) {
        let config = self.config();
        self.shared.registry.send_each(|info| {
            let own = info.instance_session.get().map(InstanceSession::instance);
            let target = info.target.as_ref().and_then(|name| config.targets.get(name));
            let all = own.into_iter().chain(target.into_iter().flat_map(|target| &target.routed_by));
            let is_there = all.into_iter().any(|one| one.name == instance);
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
    shared.tls.drained().await;
    flush_all(&shared.config(), None).await
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
        check_size(shared, (name, *lun), unit);
    }
}

/// Reports a changed size of a medium to hosts, and logs it.
fn check_size(shared: &ServerState, (name, lun): (&str, u16), unit: &Arc<LogicalUnit>) {
    if unit.refresh() {
        unit.log_size(name, lun);
        shared.registry.send_each(|_| Some(SessionMessage::Attention(unit.clone())));
    }
}

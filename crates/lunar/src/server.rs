//! The target server of `lunar serve`.

mod histograms;
mod metrics;
mod process;

use crate::service_manager::PortalSockets;
use lunar_admin::history::{Traffic, of_units};
use lunar_admin::metrics::MetricsReport;
use lunar_admin::{Capacities, Counters, NvmeReport, Parameters, SessionReport, Srp, TlsReport};
use lunar_initiator::nvme::uuid_text;
use lunar_server::config::Config;
use lunar_target::access::AccessRules;
use lunar_target::config::{PortalGroup, RdmaProvider, TargetConfig};
use lunar_target::{
    BoundPortal, FlushFailure, LogicalUnit, OpClass, PreparedPortals, Quiesced, ServedSessions, SessionInfo,
    SessionProtocol, SessionTransport, TlsSessionInfo,
};
use metrics::ServerMetrics;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

/// A running target server. Tests use their own implementation.
pub trait TargetServer: Send + Sync + 'static {
    /// Portals that it listens on.
    fn portals(&self) -> Vec<BoundPortal>;

    /// Quiesces logical units. The error has the index of the unit that could not be quiesced.
    fn rest(&self, units: Vec<Arc<LogicalUnit>>) -> Result<Vec<Quiesced>, (usize, io::Error)>;

    /// Flushes the media of a target. None: `goes_on` became false before the end.
    fn flush(&self, target: &str, goes_on: &dyn Fn() -> bool) -> Option<Result<(), Vec<FlushFailure>>>;

    /// Binds the portals of these groups that do not listen yet. Dropping the result closes them.
    fn prepare(&self, groups: &[PortalGroup]) -> io::Result<PreparedPortals>;

    /// The handles of the sessions that could not log in again with these portal groups.
    fn stranded(&self, _groups: &[PortalGroup]) -> Vec<u16> {
        Vec::new()
    }

    /// The handles of the sessions that the access rules of another configuration would end.
    fn excluded(&self, _new: &Config) -> Vec<u16> {
        Vec::new()
    }

    /// Replaces the configuration and the portals.
    fn reload(&self, setup: TargetConfig, portals: PreparedPortals);

    /// Looks at the size of the medium of a LUN or namespace now, so that hosts see it.
    fn look_at_medium(&self, _target: &str, _number: u16) {}

    /// Asks the initiators of a routing instance to log out.
    fn dismiss(&self, instance: &str);

    /// Asks the initiator of a session to log out. False: there is no such session.
    fn end_session(&self, tsih: u16) -> bool;

    /// All sessions.
    fn sessions(&self) -> Vec<SessionReport>;

    /// The counters of the server.
    fn metrics(&self) -> MetricsReport {
        MetricsReport::default()
    }

    /// The traffic of each logical unit, by its number.
    fn traffic(&self) -> BTreeMap<u64, Traffic> {
        of_units(&self.metrics())
    }

    /// The capacities that hosts see.
    fn capacities(&self) -> Capacities {
        Capacities::new()
    }

    /// The LUNs whose media are missing, in words.
    fn missing_media(&self) -> Vec<String> {
        Vec::new()
    }

    /// The sessions, for the gateways that share its logical units.
    fn served_sessions(&self) -> Option<ServedSessions> {
        None
    }

    /// The number of sessions.
    fn session_count(&self) -> usize;

    /// Calls `beat` in this interval, if all event loops run. It must not block.
    fn heartbeat(&self, interval: Duration, beat: Box<dyn Fn() + Send>);

    /// Accepts no more connections. Those to sockets of the service manager wait for the next server.
    fn stop_accepting(&self);

    /// Shuts down gracefully: rejects new commands, finishes those in flight, closes the sessions, and flushes. Calls `last`
    /// before its event loops end.
    fn stop(&self, last: &dyn Fn()) -> Result<(), Vec<FlushFailure>>;
}

/// The server of this process; None after it is stopped. Its metrics outlive it.
pub struct RunningServer(RwLock<Option<lunar_target::TargetServer>>, ServerMetrics, Mutex<PortalSockets>);

/// Starts the target on these cores, with the sockets of the service manager.
pub fn start(setup: TargetConfig, cores: &[usize], mut sockets: PortalSockets) -> io::Result<RunningServer> {
    let server =
        lunar_target::TargetServer::start_with(setup, cores, &mut |at, own| sockets.socket(at, own))?;
    sockets.start(&server.sockets());
    Ok(RunningServer(RwLock::new(Some(server)), ServerMetrics::start(), Mutex::new(sockets)))
}

impl RunningServer {
    fn server(&self) -> RwLockReadGuard<'_, Option<lunar_target::TargetServer>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn sockets(&self) -> MutexGuard<'_, PortalSockets> {
        self.2.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TargetServer for RunningServer {
    fn sessions(&self) -> Vec<SessionReport> {
        let list = self.server().as_ref().map(lunar_target::TargetServer::sessions).unwrap_or_default();
        let queues = io_queues(&list);
        list.iter()
            .map(|(tsih, info)| SessionReport {
                srp: srp(*tsih, info, &list),
                nvme: nvme(info, &queues),
                ..session(*tsih, info)
            })
            .collect()
    }

    fn metrics(&self) -> MetricsReport {
        self.1.report(self.server().as_ref())
    }

    fn traffic(&self) -> BTreeMap<u64, Traffic> {
        let config = self.server().as_ref().map(lunar_target::TargetServer::config);
        config.as_deref().map(metrics::traffic).unwrap_or_default()
    }

    fn capacities(&self) -> Capacities {
        let config = self.server().as_ref().map(lunar_target::TargetServer::config);
        let targets = config.iter().flat_map(|config| &config.targets);
        let luns = targets.flat_map(|(name, node)| node.luns.iter().map(move |lun| (name, lun)));
        luns.map(|(name, (lun, unit))| ((name.clone(), *lun), unit.lu.capacity())).collect()
    }

    fn missing_media(&self) -> Vec<String> {
        let config = self.server().as_ref().map(lunar_target::TargetServer::config);
        let targets = config.iter().flat_map(|config| &config.targets);
        let luns = targets.flat_map(|(name, node)| node.luns.iter().map(move |lun| (name, lun)));
        let missing = |(name, (lun, unit)): (&String, (&u16, &Arc<LogicalUnit>))| {
            let missing = unit.missing_medium()?;
            Some(format!("LUN {lun} of {name}: {missing}; hint: {}", missing.remedy()))
        };
        luns.filter_map(missing).collect()
    }

    fn served_sessions(&self) -> Option<ServedSessions> {
        self.server().as_ref().map(lunar_target::TargetServer::served_sessions)
    }

    fn session_count(&self) -> usize {
        self.server().as_ref().map_or(0, |server| server.sessions().len())
    }

    fn heartbeat(&self, interval: Duration, beat: Box<dyn Fn() + Send>) {
        if let Some(server) = &*self.server() {
            server.heartbeat(interval, beat);
        }
    }

    fn stop_accepting(&self) {
        if let Some(server) = &*self.server() {
            server.stop_accepting();
        }
    }

    fn dismiss(&self, instance: &str) {
        if let Some(server) = &*self.server() {
            server.dismiss(instance);
        }
    }

    fn end_session(&self, tsih: u16) -> bool {
        self.server().as_ref().is_some_and(|server| server.end_session(tsih))
    }

    fn portals(&self) -> Vec<BoundPortal> {
        self.server().as_ref().map(lunar_target::TargetServer::portals).unwrap_or_default().to_vec()
    }

    fn rest(&self, units: Vec<Arc<LogicalUnit>>) -> Result<Vec<Quiesced>, (usize, io::Error)> {
        self.server().as_ref().map_or(Ok(Vec::new()), |server| server.quiesce(units))
    }

    fn flush(&self, target: &str, goes_on: &dyn Fn() -> bool) -> Option<Result<(), Vec<FlushFailure>>> {
        self.server().as_ref().map_or(Some(Ok(())), |server| server.flush(target, goes_on))
    }

    fn prepare(&self, groups: &[PortalGroup]) -> io::Result<PreparedPortals> {
        let server = self.server();
        let Some(server) = &*server else { return Ok(PreparedPortals::default()) };
        let mut sockets = self.sockets();
        sockets.take_back(&server.sockets());
        server.prepare(groups, &mut |at, own| sockets.socket(at, own))
    }

    fn stranded(&self, groups: &[PortalGroup]) -> Vec<u16> {
        self.server().as_ref().map(|server| server.stranded(groups)).unwrap_or_default()
    }

    fn excluded(&self, new: &Config) -> Vec<u16> {
        let rules = |name: &str| {
            let target = new.target(name)?;
            let subsystem = target.subsystem.as_ref();
            Some(AccessRules {
                list: &target.access,
                secrets: subsystem.map(|subsystem| &subsystem.hosts),
                tls_keys: subsystem.map(|subsystem| &subsystem.tls_keys),
            })
        };
        self.server().as_ref().map(|server| server.excluded(rules)).unwrap_or_default()
    }

    fn reload(&self, setup: TargetConfig, portals: PreparedPortals) {
        if let Some(server) = &*self.server() {
            server.reload(setup, portals);
            self.sockets().settle(&server.sockets());
        }
    }

    fn look_at_medium(&self, target: &str, number: u16) {
        if let Some(server) = &*self.server() {
            server.look_at_medium(target, number);
        }
    }

    fn stop(&self, last: &dyn Fn()) -> Result<(), Vec<FlushFailure>> {
        let server = self.0.write().unwrap_or_else(PoisonError::into_inner).take();
        let stopped = server.map_or(Ok(()), |server| server.stop(last));
        *self.sockets() = PortalSockets::default();
        stopped
    }
}

/// Properties of an SRP channel; `list` has all sessions, in order.
fn srp(tsih: u16, info: &SessionInfo, list: &[(u16, Arc<SessionInfo>)]) -> Option<Srp> {
    let SessionProtocol::Srp(_) = info.protocol else { return None };
    let beside = || list.iter().filter(|(_, other)| other.has_same_ports(info));
    Some(Srp {
        initiator_port: info.initiator.clone(),
        target_port: lunar_target::srp::port_id(info.target.as_deref()?).to_string(),
        channel: beside().filter(|(other, _)| *other <= tsih).count(),
        channels: beside().count(),
    })
}

/// The number of I/O queues of each NVMe controller.
fn io_queues(list: &[(u16, Arc<SessionInfo>)]) -> BTreeMap<u16, usize> {
    let mut queues = BTreeMap::new();
    for (_, info) in list.iter().filter(|(_, info)| info.is_io_queue()) {
        if let SessionProtocol::Nvme(nvme) = info.protocol {
            *queues.entry(nvme.controller).or_default() += 1;
        }
    }
    queues
}

/// Properties of a queue of an NVMe controller, with the numbers of I/O queues by controller.
fn nvme(info: &SessionInfo, queues: &BTreeMap<u16, usize>) -> Option<NvmeReport> {
    let SessionProtocol::Nvme(nvme) = info.protocol else { return None };
    Some(NvmeReport {
        host_id: uuid_text(&nvme.host_id),
        controller: nvme.controller,
        queue: nvme.queue,
        queue_len: nvme.queue_len,
        io_queues: queues.get(&nvme.controller).copied().unwrap_or_default(),
        keep_alive_ms: nvme.keep_alive_ms,
        tls: info.tls.as_ref().map(|TlsSessionInfo { identity, cipher }| TlsReport {
            cipher: cipher.clone(),
            identity: identity.clone(),
        }),
    })
}

/// Name of the protocol with its transport.
fn transport(info: &SessionInfo) -> &'static str {
    match (&info.protocol, info.transport) {
        (SessionProtocol::Iscsi(_), SessionTransport::Tcp) => "TCP",
        (SessionProtocol::Iscsi(_), SessionTransport::Rdma(_)) => "iSER",
        (SessionProtocol::Srp(_), _) => "SRP",
        (SessionProtocol::Nvme(_), _) => "NVMe/TCP",
    }
}

/// Name of the RDMA provider.
fn provider(transport: SessionTransport) -> Option<&'static str> {
    match transport {
        SessionTransport::Tcp => None,
        SessionTransport::Rdma(RdmaProvider::Iwarp) => Some("iwarp"),
        SessionTransport::Rdma(RdmaProvider::Verbs) => Some("verbs"),
    }
}

/// The ISID; zero if the protocol has none.
fn isid(info: &SessionInfo) -> [u8; 6] {
    match &info.protocol {
        SessionProtocol::Iscsi(iscsi) => iscsi.isid,
        SessionProtocol::Srp(_) | SessionProtocol::Nvme(_) => [0; 6],
    }
}

/// The negotiated parameters, if the protocol is iSCSI.
fn parameters(info: &SessionInfo) -> Option<Parameters> {
    match &info.protocol {
        SessionProtocol::Iscsi(iscsi) => Some(Parameters::from(&iscsi.parameters)),
        SessionProtocol::Srp(_) | SessionProtocol::Nvme(_) => None,
    }
}

fn counters(info: &SessionInfo) -> Counters {
    let (counters, totals) = (&info.counters, info.nexuses.totals());
    let timed = [OpClass::Read, OpClass::Write];
    let timed = || timed.iter().filter_map(|class| Some(&totals.latency[*class as usize].as_ref()?.whole));
    Counters {
        commands: counters.commands.get(),
        reads: counters.reads.get(),
        writes: counters.writes.get(),
        read_bytes: counters.read_bytes.get(),
        write_bytes: counters.write_bytes.get(),
        errors: counters.errors.get(),
        in_flight: totals.in_flight,
        timed: timed().flat_map(|latency| latency.buckets).sum(),
        time_us: timed().map(|latency| latency.sum_ns).sum::<u64>() / 1000,
    }
}

/// A session in the form of the admin socket.
fn session(tsih: u16, info: &SessionInfo) -> SessionReport {
    SessionReport {
        tsih,
        initiator: info.initiator.clone(),
        initiator_address: info.address.to_string(),
        target: info.target.clone(),
        portal: info.portal.to_string(),
        portal_group: info.portal_group_tag,
        isid: isid(info).iter().map(|byte| format!("{byte:02x}")).collect(),
        transport: transport(info).into(),
        provider: provider(info.transport).map(str::to_owned),
        srp: None,
        nvme: None,
        session_type: if info.is_discovery() { "Discovery" } else { "Normal" }.into(),
        parameters: parameters(info),
        counters: counters(info),
        connected_s: info.started_at.elapsed().as_secs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_target::{Addresses, IscsiSessionInfo, SrpSessionInfo};

    const TARGET: &str = "iqn.2026-11.org.example:disk";

    fn info(initiator: &str, provider: RdmaProvider) -> Arc<SessionInfo> {
        let address = ([127, 0, 0, 1], 5555).into();
        let addresses = Addresses { local: address, peer: address };
        let protocol = match initiator.parse() {
            Ok(initiator_port) => SessionProtocol::Srp(SrpSessionInfo { initiator_port }),
            Err(_) => SessionProtocol::Iscsi(IscsiSessionInfo::default()),
        };
        let transport = SessionTransport::Rdma(provider);
        Arc::new(SessionInfo::new(initiator.into(), addresses, (Some(TARGET.into()), 1), transport, protocol))
    }

    #[test]
    fn channels_between_two_ports_are_counted() {
        let (one, other) = ("0x00000000000000010000000000000002", "0x00000000000000010000000000000003");
        let list = [
            (3, info(one, RdmaProvider::Iwarp)),
            (4, info(other, RdmaProvider::Verbs)),
            (5, info("iqn.a", RdmaProvider::Verbs)),
            (9, info(one, RdmaProvider::Iwarp)),
        ];
        let sessions: Vec<_> = list.iter().map(|(tsih, info)| srp(*tsih, info, &list)).collect();
        let counts = sessions.iter().map(|srp| srp.as_ref().map(|srp| (srp.channel, srp.channels)));
        assert_eq!(counts.collect::<Vec<_>>(), [Some((1, 2)), Some((1, 1)), None, Some((2, 2))]);
        let negotiated = list.iter().map(|(tsih, info)| session(*tsih, info).parameters.is_some());
        assert_eq!(negotiated.collect::<Vec<_>>(), [false, false, true, false]);
        let names = list.iter().map(|(tsih, info)| session(*tsih, info)).map(|s| (s.transport, s.provider));
        let wanted = [("SRP", "iwarp"), ("SRP", "verbs"), ("iSER", "verbs"), ("SRP", "iwarp")];
        let wanted = wanted.map(|(transport, provider)| (transport.to_owned(), Some(provider.to_owned())));
        assert_eq!(names.collect::<Vec<_>>(), wanted);
        let first = sessions[0].as_ref().unwrap();
        let port = "0x9fb1bf94f00106ed9fb1bf94f00106ed";
        assert_eq!((&*first.initiator_port, &*first.target_port), (one, port));
    }
}

//! The target server of `lunar serve`.

use lunar_admin::{Counters, Parameters, SessionReport, Srp};
use lunar_target::config::{RdmaProvider, TargetConfig};
use lunar_target::{BoundPortal, LogicalUnit, Quiesced, SessionInfo, SessionTransport};
use std::io;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// A running target server. Tests use their own implementation.
pub trait TargetServer: Send + Sync + 'static {
    /// Portals that it listens on.
    fn portals(&self) -> Vec<BoundPortal>;

    /// Quiesces logical units. The error has the index of the unit that could not be quiesced.
    fn rest(&self, units: Vec<Arc<LogicalUnit>>) -> Result<Vec<Quiesced>, (usize, io::Error)>;

    /// Replaces the configuration.
    fn reload(&self, setup: TargetConfig);

    /// Asks the initiators of a routing instance to log out.
    fn dismiss(&self, instance: &str);

    /// All sessions.
    fn sessions(&self) -> Vec<SessionReport>;

    /// Shuts down gracefully: rejects new commands, finishes those in flight, closes the sessions, and flushes. Calls `last`
    /// before its event loops end.
    fn stop(&self, last: &dyn Fn()) -> io::Result<()>;
}

/// The server of this process; None after it is stopped.
pub struct RunningServer(RwLock<Option<lunar_target::TargetServer>>);

/// Starts the target on these cores.
pub fn start(setup: TargetConfig, cores: &[usize]) -> io::Result<RunningServer> {
    Ok(RunningServer(RwLock::new(Some(lunar_target::TargetServer::start(setup, cores)?))))
}

impl RunningServer {
    fn server(&self) -> RwLockReadGuard<'_, Option<lunar_target::TargetServer>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TargetServer for RunningServer {
    fn sessions(&self) -> Vec<SessionReport> {
        let list = self.server().as_ref().map(lunar_target::TargetServer::sessions).unwrap_or_default();
        list.iter()
            .map(|(tsih, info)| SessionReport { srp: srp(*tsih, info, &list), ..session(*tsih, info) })
            .collect()
    }

    fn dismiss(&self, instance: &str) {
        if let Some(server) = &*self.server() {
            server.dismiss(instance);
        }
    }

    fn portals(&self) -> Vec<BoundPortal> {
        self.server().as_ref().map(lunar_target::TargetServer::portals).unwrap_or_default().to_vec()
    }

    fn rest(&self, units: Vec<Arc<LogicalUnit>>) -> Result<Vec<Quiesced>, (usize, io::Error)> {
        self.server().as_ref().map_or(Ok(Vec::new()), |server| server.quiesce(units))
    }

    fn reload(&self, setup: TargetConfig) {
        if let Some(server) = &*self.server() {
            server.reload(setup);
        }
    }

    fn stop(&self, last: &dyn Fn()) -> io::Result<()> {
        let server = self.0.write().unwrap_or_else(PoisonError::into_inner).take();
        server.map_or(Ok(()), |server| server.stop(last))
    }
}

/// Properties of an SRP channel; `list` has all sessions, in order.
fn srp(tsih: u16, info: &SessionInfo, list: &[(u16, Arc<SessionInfo>)]) -> Option<Srp> {
    let SessionTransport::Srp(_) = info.transport else { return None };
    let beside = || list.iter().filter(|(_, other)| other.has_same_ports(info));
    Some(Srp {
        initiator_port: info.initiator.clone(),
        target_port: lunar_target::srp::port_id(info.target.as_deref()?).to_string(),
        channel: beside().filter(|(other, _)| *other <= tsih).count(),
        channels: beside().count(),
    })
}

/// Names of transport and RDMA provider.
fn names(transport: SessionTransport) -> (&'static str, Option<&'static str>) {
    let named = |provider| match provider {
        RdmaProvider::Iwarp => "iwarp",
        RdmaProvider::Verbs => "verbs",
    };
    match transport {
        SessionTransport::Tcp => ("TCP", None),
        SessionTransport::Iser(provider) => ("iSER", Some(named(provider))),
        SessionTransport::Srp(provider) => ("SRP", Some(named(provider))),
    }
}

/// A session in the form of the admin socket.
fn session(tsih: u16, info: &SessionInfo) -> SessionReport {
    let counters = &info.counters;
    let (transport, provider) = names(info.transport);
    let is_srp = matches!(info.transport, SessionTransport::Srp(_));
    SessionReport {
        tsih,
        initiator: info.initiator.clone(),
        initiator_address: info.address.to_string(),
        target: info.target.clone(),
        portal: info.portal.to_string(),
        portal_group: info.tag,
        isid: info.isid.iter().map(|byte| format!("{byte:02x}")).collect(),
        transport: transport.into(),
        provider: provider.map(str::to_owned),
        srp: None,
        session_type: if info.discovery { "Discovery" } else { "Normal" }.into(),
        parameters: (!is_srp).then(|| Parameters::from(&info.parameters)),
        counters: Counters {
            commands: counters.commands.get(),
            reads: counters.reads.get(),
            writes: counters.writes.get(),
            read_bytes: counters.read_bytes.get(),
            write_bytes: counters.write_bytes.get(),
            errors: counters.failures.get(),
        },
        connected_s: info.since.elapsed().as_secs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const TARGET: &str = "iqn.2026-11.org.example:disk";

    fn info(initiator: &str, transport: SessionTransport) -> Arc<SessionInfo> {
        let address = ([127, 0, 0, 1], 5555).into();
        Arc::new(SessionInfo {
            initiator: initiator.into(),
            alias: None,
            address,
            portal: address,
            target: Some(TARGET.into()),
            tag: 1,
            isid: [0; 6],
            cid: 0,
            discovery: false,
            transport,
            user: None,
            parameters: Default::default(),
            since: Instant::now(),
            counters: Default::default(),
            instance_session: Default::default(),
            fence: Default::default(),
            nexuses: Default::default(),
        })
    }

    #[test]
    fn channels_between_two_ports_are_counted() {
        let (one, other) = ("0x00000000000000010000000000000002", "0x00000000000000010000000000000003");
        let iwarp = SessionTransport::Srp(RdmaProvider::Iwarp);
        let list = [
            (3, info(one, iwarp)),
            (4, info(other, SessionTransport::Srp(RdmaProvider::Verbs))),
            (5, info("iqn.a", SessionTransport::Iser(RdmaProvider::Verbs))),
            (9, info(one, iwarp)),
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

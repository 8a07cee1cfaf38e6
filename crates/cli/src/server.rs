//! The target as `lunar serve` runs it.

use control::admin::{Counters, Parameters, Session};
use std::io;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use target::setup::Setup;
use target::{Bound, Info, Resting, Unit};

/// A target that runs.
pub trait Server: Send + Sync + 'static {
    /// Where it listens.
    fn portals(&self) -> Vec<Bound>;

    /// Brings units to rest; the number of the one that does not come to it, and why.
    fn rest(&self, units: Vec<Arc<Unit>>) -> Result<Vec<Resting>, (usize, io::Error)>;

    /// Replaces the configuration.
    fn reload(&self, setup: Setup);

    /// Asks the sessions of a routing instance to leave.
    fn dismiss(&self, instance: &str);

    /// All sessions.
    fn sessions(&self) -> Vec<Session>;

    /// Takes no more commands, finishes those in flight, says goodbye, makes everything stable.
    fn stop(&self) -> io::Result<()>;
}

/// The target of this process, until it is stopped.
pub struct Live(RwLock<Option<target::Server>>);

/// Starts the target on these cores.
pub fn start(setup: Setup, cores: &[usize]) -> io::Result<Live> {
    Ok(Live(RwLock::new(Some(target::Server::start(setup, cores)?))))
}

impl Live {
    fn server(&self) -> RwLockReadGuard<'_, Option<target::Server>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server for Live {
    fn sessions(&self) -> Vec<Session> {
        let list = self.server().as_ref().map(target::Server::sessions).unwrap_or_default();
        list.iter().map(|(tsih, info)| session(*tsih, info)).collect()
    }

    fn dismiss(&self, instance: &str) {
        if let Some(server) = &*self.server() {
            server.dismiss(instance);
        }
    }

    fn portals(&self) -> Vec<Bound> {
        self.server().as_ref().map(target::Server::portals).unwrap_or_default().to_vec()
    }

    fn rest(&self, units: Vec<Arc<Unit>>) -> Result<Vec<Resting>, (usize, io::Error)> {
        self.server().as_ref().map_or(Ok(Vec::new()), |server| server.rest(units))
    }

    fn reload(&self, setup: Setup) {
        if let Some(server) = &*self.server() {
            server.reload(setup);
        }
    }

    fn stop(&self) -> io::Result<()> {
        let server = self.0.write().unwrap_or_else(PoisonError::into_inner).take();
        server.map_or(Ok(()), target::Server::stop)
    }
}

/// A session as it is told.
fn session(tsih: u16, info: &Info) -> Session {
    let counters = &info.counters;
    Session {
        tsih,
        initiator: info.initiator.clone(),
        initiator_address: info.address.to_string(),
        target: info.target.clone(),
        portal: info.portal.to_string(),
        portal_group: info.tag,
        isid: info.isid.iter().map(|byte| format!("{byte:02x}")).collect(),
        session_type: if info.discovery { "Discovery" } else { "Normal" }.into(),
        parameters: Parameters::from(&info.parameters),
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

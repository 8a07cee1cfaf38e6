//! The open logical units. Each stays open while its upstream shows the discovered identity.

use super::{Key, LuAddress, Mode, UpstreamSpec};
use crate::passthrough::HostPath;
use crate::upstream::{Health, PathState, PathStatus, Upstream, UpstreamLu};
use crate::{FoundLun, Hops, passthrough, sg};
use lunar_block::Backend;
use lunar_initiator::{Error, ErrorCode, Url};
use lunar_scsi::PassthroughMode;
use lunar_target::PassthroughLu;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// An open upstream logical unit, by its mode.
#[derive(Clone)]
pub enum RoutedLu {
    /// Block mode: a backend.
    Blocks(Arc<dyn Backend>),
    /// Passthrough mode: forwarded commands.
    Commands(Arc<dyn PassthroughLu>, PassthroughMode),
}

#[derive(Clone)]
enum OpenLu {
    Block(Arc<UpstreamLu>),
    Passthrough(Arc<passthrough::PassthroughUpstream>),
    Device(Arc<sg::Device>),
}

/// The status of an upstream.
#[derive(Clone, Debug)]
pub struct UpstreamStatus {
    /// The name.
    pub name: String,
    /// The URLs or the device, without secrets.
    pub urls: Vec<String>,
    /// The number of discovered logical units.
    pub luns: usize,
    /// The reason why the last probe failed.
    pub obstacle: Option<String>,
    /// The routed logical units.
    pub units: Vec<LuStatus>,
}

/// The status of a routed logical unit.
#[derive(Clone, Debug)]
pub struct LuStatus {
    /// The address.
    pub address: LuAddress,
    /// The health. None if it is known only for each host.
    pub health: Option<Health>,
    /// The paths. In passthrough mode each host has its own.
    pub paths: Vec<HostPath>,
    /// The latency of each hop.
    pub hops: Hops,
}

/// The open logical units by address, with the discovery from which each was opened.
#[derive(Clone, Default)]
pub(super) struct OpenLus(BTreeMap<LuAddress, (FoundLun, OpenLu)>);

impl OpenLus {
    /// Opens a discovered logical unit, or returns the open one. The second value is a new one that must be watched.
    pub fn open(
        &mut self,
        address: &LuAddress,
        spec: &UpstreamSpec,
        found: &FoundLun,
    ) -> Result<(RoutedLu, Option<Arc<UpstreamLu>>), Error> {
        if let Some((was, lu)) = self.0.get(address)
            && was.is_same(found)
            && was.block_size == found.block_size
        {
            return Ok((lu.routed_lu(), None));
        }
        let lu = open(spec, address, found)?;
        let (routed_lu, fresh) = (lu.routed_lu(), lu.remote().cloned());
        self.0.insert(address.clone(), (found.clone(), lu));
        Ok((routed_lu, fresh))
    }

    /// Whether a logical unit is open.
    pub fn leads_to(&self, address: &LuAddress) -> bool {
        self.0.contains_key(address)
    }

    /// Removes the logical units of an upstream that was removed, or whose settings changed.
    pub fn forget(&mut self, key: &Key) {
        self.0.retain(|address, _| address.key() != *key);
    }

    /// The logical units of an instance in block mode.
    pub fn of<'w>(&'w self, router: &'w str) -> impl Iterator<Item = &'w Arc<UpstreamLu>> {
        let mine = self.0.iter().filter(move |(address, _)| address.router == router);
        mine.filter_map(|(_, (_, lu))| lu.remote())
    }

    /// The SCSI device of this host behind an upstream, if one is used.
    pub fn device(&self, key: &Key) -> Option<Arc<sg::Device>> {
        self.0.iter().find_map(|(address, (_, lu))| match lu {
            OpenLu::Device(device) if address.key() == *key => Some(device.clone()),
            _ => None,
        })
    }

    /// The health of a logical unit, if it is known.
    pub fn health(&self, address: &LuAddress) -> Option<Health> {
        Some(self.0.get(address)?.1.remote()?.health())
    }

    /// Whether a logical unit of a failover pair is open for commands.
    pub fn is_open(&self, address: &LuAddress) -> bool {
        let remote = self.0.get(address).and_then(|(_, lu)| lu.remote());
        remote.and_then(|remote| remote.gate()).is_some_and(|gate| gate.is_open())
    }

    pub fn status(&self, key: &Key, spec: &UpstreamSpec, luns: usize) -> UpstreamStatus {
        let mine = self.0.iter().filter(|(address, _)| address.key() == *key);
        let units = mine.map(|(address, (_, lu))| lu.status(address, spec)).collect();
        let obstacle = spec.upstream.obstacle.lock().unwrap_or_else(PoisonError::into_inner).clone();
        UpstreamStatus { name: key.1.clone(), urls: spec.urls(), luns, obstacle, units }
    }
}

fn open(spec: &UpstreamSpec, address: &LuAddress, found: &FoundLun) -> Result<OpenLu, Error> {
    Ok(match &spec.mode {
        Mode::Block => {
            OpenLu::Block(UpstreamLu::open(&spec.upstream, &address.target, address.lun, found.clone())?)
        }
        Mode::Passthrough => OpenLu::Passthrough(Arc::new(passthrough::PassthroughUpstream::new(
            passthrough_spec(&spec.upstream, address, found)?,
        ))),
        Mode::Device(path) => {
            let device = sg::Device::open(path);
            OpenLu::Device(
                device.map_err(|e| Error::new(ErrorCode::NotFound, format!("{}: {e}", path.display())))?,
            )
        }
    })
}

/// Passthrough ends no command: the timeouts of the hosts apply.
const FOREVER: Duration = Duration::from_secs(86_400);

fn passthrough_spec(
    upstream: &Upstream,
    address: &LuAddress,
    found: &FoundLun,
) -> Result<passthrough::PassthroughSpec, Error> {
    let path = |url: &Url| {
        let url = url.at(&address.target, None);
        let mut options = url.options()?;
        let times = &mut options.timeouts;
        (times.command, times.operation) = (FOREVER, FOREVER);
        // With another path, commands do not wait for this one.
        times.recovery = if upstream.urls.count() > 1 { Duration::ZERO } else { upstream.path_loss_timeout };
        Ok((url, options))
    };
    Ok(passthrough::PassthroughSpec {
        router: address.router.clone(),
        upstream: address.upstream.clone(),
        paths: upstream.session_urls()?.iter().map(path).collect::<Result<_, Error>>()?,
        lun: address.lun,
        is_disk: matches!(found.kind, 0 | 5),
        identity: found.designators.clone(),
        path_loss_timeout: upstream.path_loss_timeout,
        rediscover: upstream.rediscover.clone(),
        isids: upstream.isids.clone(),
    })
}

/// The only path to a device of this host. It has no counters.
fn local(location: &str, device: &sg::Device) -> PathStatus {
    let state = if device.is_gone() { PathState::Down } else { PathState::Optimized };
    PathStatus { state: Some(state), ..PathStatus::unused(location) }
}

impl OpenLu {
    fn routed_lu(&self) -> RoutedLu {
        match self {
            OpenLu::Block(remote) => RoutedLu::Blocks(remote.clone()),
            OpenLu::Passthrough(remote) => RoutedLu::Commands(remote.clone(), PassthroughMode::PerNexus),
            OpenLu::Device(device) => RoutedLu::Commands(device.clone(), PassthroughMode::Shared),
        }
    }

    fn remote(&self) -> Option<&Arc<UpstreamLu>> {
        match self {
            OpenLu::Block(remote) => Some(remote),
            OpenLu::Passthrough(_) | OpenLu::Device(_) => None,
        }
    }

    fn status(&self, address: &LuAddress, spec: &UpstreamSpec) -> LuStatus {
        let (paths, hops) = match self {
            OpenLu::Block(remote) => {
                (remote.paths().into_iter().map(|path| (None, path)).collect(), remote.hops())
            }
            OpenLu::Passthrough(remote) => (remote.paths(), remote.hops()),
            OpenLu::Device(device) => {
                (spec.urls().iter().map(|at| (None, local(at, device))).collect(), Hops::default())
            }
        };
        let health = self.remote().map(|remote| remote.health());
        LuStatus { address: address.clone(), health, paths, hops }
    }
}

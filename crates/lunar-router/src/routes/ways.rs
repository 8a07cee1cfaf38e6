//! The ways to logical units, kept open for as long as they are what was found.

use super::{How, Key, Place, Spec};
use crate::pass::HostPath;
use crate::upstream::{Health, PathFacts, Remote, State, Upstream};
use crate::{FoundLun, Hops, pass, sg};
use lunar_block::Backend;
use lunar_initiator::{Error, Kind, Url};
use lunar_scsi::Passes;
use lunar_target::Passage;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The way to a logical unit.
#[derive(Clone)]
pub enum Opened {
    /// Blocks.
    Blocks(Arc<dyn Backend>),
    /// Commands as they are, and which.
    Commands(Arc<dyn Passage>, Passes),
}

#[derive(Clone)]
enum Way {
    Block(Arc<Remote>),
    Pass(Arc<pass::Remote>),
    Device(Arc<sg::Device>),
}

/// An upstream, as it is told.
#[derive(Clone, Debug)]
pub struct UpstreamFacts {
    /// Its name.
    pub name: String,
    /// Where it is, without secrets.
    pub places: Vec<String>,
    /// Logical units that were found.
    pub luns: usize,
    /// Why it could not be seen the last time.
    pub obstacle: Option<String>,
    /// Those that are routed.
    pub units: Vec<UnitFacts>,
}

/// A routed logical unit, as it is told.
#[derive(Clone, Debug)]
pub struct UnitFacts {
    /// Where it is.
    pub place: Place,
    /// How it is; None where that is not known before a host asks.
    pub health: Option<Health>,
    /// Its paths. On the pass path each host has its own.
    pub paths: Vec<HostPath>,
    /// Where the time of its commands goes.
    pub hops: Hops,
}

/// All ways, by where they lead.
#[derive(Clone, Default)]
pub(super) struct Ways(BTreeMap<Place, (FoundLun, Way)>);

impl Ways {
    /// The way to a logical unit as it was found; and what is new of it, to be attended to.
    pub fn open(
        &mut self,
        place: &Place,
        spec: &Spec,
        found: &FoundLun,
    ) -> Result<(Opened, Option<Arc<Remote>>), Error> {
        if let Some((was, way)) = self.0.get(place)
            && was.is_same(found)
            && was.block_size == found.block_size
        {
            return Ok((way.opened(), None));
        }
        let way = open(spec, place, found)?;
        let (opened, fresh) = (way.opened(), way.remote().cloned());
        self.0.insert(place.clone(), (found.clone(), way));
        Ok((opened, fresh))
    }

    /// There is a way to a logical unit.
    pub fn leads_to(&self, place: &Place) -> bool {
        self.0.contains_key(place)
    }

    /// An upstream is not used any more, or in another way.
    pub fn forget(&mut self, key: &Key) {
        self.0.retain(|place, _| place.key() != *key);
    }

    /// The logical units behind an instance that are storage.
    pub fn of<'w>(&'w self, router: &'w str) -> impl Iterator<Item = &'w Arc<Remote>> {
        let mine = self.0.iter().filter(move |(place, _)| place.router == router);
        mine.filter_map(|(_, (_, way))| way.remote())
    }

    /// The SCSI device of this host behind an upstream, if one is used.
    pub fn device(&self, key: &Key) -> Option<Arc<sg::Device>> {
        self.0.iter().find_map(|(place, (_, way))| match way {
            Way::Device(device) if place.key() == *key => Some(device.clone()),
            _ => None,
        })
    }

    /// How a logical unit is, where that is known.
    pub fn health(&self, place: &Place) -> Option<Health> {
        Some(self.0.get(place)?.1.remote()?.health())
    }

    /// Whether a logical unit of a failover pair is open for commands.
    pub fn is_open(&self, place: &Place) -> bool {
        let remote = self.0.get(place).and_then(|(_, way)| way.remote());
        remote.and_then(|remote| remote.guard()).is_some_and(|guard| guard.is_open())
    }

    pub fn facts(&self, key: &Key, spec: &Spec, luns: usize) -> UpstreamFacts {
        let mine = self.0.iter().filter(|(place, _)| place.key() == *key);
        let units = mine.map(|(place, (_, way))| way.facts(place, spec)).collect();
        let obstacle = spec.upstream.obstacle.lock().unwrap_or_else(PoisonError::into_inner).clone();
        UpstreamFacts { name: key.1.clone(), places: spec.places(), luns, obstacle, units }
    }
}

fn open(spec: &Spec, place: &Place, found: &FoundLun) -> Result<Way, Error> {
    Ok(match &spec.how {
        How::Block => Way::Block(Remote::open(&spec.upstream, &place.target, place.lun, found.clone())?),
        How::Pass => Way::Pass(Arc::new(pass::Remote::new(carried(&spec.upstream, place, found)?))),
        How::Device(path) => {
            let device = sg::Device::open(path);
            Way::Device(device.map_err(|e| Error::new(Kind::NotFound, format!("{}: {e}", path.display())))?)
        }
    })
}

/// Who only carries commands does not end them: how long they may take is for hosts to say.
const FOREVER: Duration = Duration::from_secs(86_400);

fn carried(upstream: &Upstream, place: &Place, found: &FoundLun) -> Result<pass::Spec, Error> {
    let path = |url: &Url| {
        let url = url.at(&place.target, None);
        let mut options = url.options()?;
        let times = &mut options.timeouts;
        (times.command, times.operation) = (FOREVER, FOREVER);
        // Where there is another path, commands do not wait for this one.
        times.recovery = if upstream.urls.len() > 1 { Duration::ZERO } else { upstream.hold };
        Ok((url, options))
    };
    Ok(pass::Spec {
        router: place.router.clone(),
        upstream: place.upstream.clone(),
        paths: upstream.ways()?.iter().map(path).collect::<Result<_, Error>>()?,
        lun: place.lun,
        is_disk: matches!(found.kind, 0 | 5),
        identity: found.designators.clone(),
        hold: upstream.hold,
        again: upstream.again.clone(),
        ports: upstream.ports.clone(),
    })
}

/// The only path to a device of this host, whose commands nobody counts.
fn local(place: &str, device: &sg::Device) -> PathFacts {
    let state = if device.is_gone() { State::Down } else { State::Optimized };
    PathFacts { state: Some(state), ..PathFacts::unused(place) }
}

impl Way {
    fn opened(&self) -> Opened {
        match self {
            Way::Block(remote) => Opened::Blocks(remote.clone()),
            Way::Pass(remote) => Opened::Commands(remote.clone(), Passes::Own),
            Way::Device(device) => Opened::Commands(device.clone(), Passes::Shared),
        }
    }

    fn remote(&self) -> Option<&Arc<Remote>> {
        match self {
            Way::Block(remote) => Some(remote),
            Way::Pass(_) | Way::Device(_) => None,
        }
    }

    fn facts(&self, place: &Place, spec: &Spec) -> UnitFacts {
        let (paths, hops) = match self {
            Way::Block(remote) => {
                (remote.paths().into_iter().map(|path| (None, path)).collect(), remote.hops())
            }
            Way::Pass(remote) => (remote.paths(), remote.hops()),
            Way::Device(device) => {
                (spec.places().iter().map(|at| (None, local(at, device))).collect(), Hops::default())
            }
        };
        let health = self.remote().map(|remote| remote.health());
        UnitFacts { place: place.clone(), health, paths, hops }
    }
}

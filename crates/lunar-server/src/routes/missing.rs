//! Mapped LUNs that were not found.

use super::{is_seen, number, there};
use crate::config::router::{From, Map, Reach};
use crate::config::{Config, RouterConfig};
use lunar_admin::router::LunHealth;
use lunar_router::Found;
use lunar_router::routes::LuAddress;

/// A mapped LUN that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The target that maps it.
    pub target: String,
    /// Its LUN in that target.
    pub lun: u16,
    /// Its source.
    pub address: LuAddress,
    /// `awaited`: the upstream was never reached. `not found`: the upstream has no such LUN. `not served`: the LUN
    /// cannot be served, for a reason in the log.
    pub why: LunHealth,
}

/// The mapped LUNs of a router that are missing in an expanded configuration.
pub fn missing(router: &RouterConfig, whole: &Config, found: &Found) -> Vec<Missing> {
    let is_there = |name: &str, number: u16| {
        let mut mine = whole.targets.iter().filter(|target| target.router.as_ref() == Some(&router.name));
        mine.any(|target| target.name == name && target.luns.contains_key(&number))
    };
    let mapped = router.targets.iter().filter_map(|mapping| match &mapping.map {
        Map::Lun { name, luns } => Some((name, luns)),
        Map::Transparent { .. } | Map::Target { .. } => None,
    });
    let all = mapped.flat_map(|(name, luns)| luns.iter().map(move |(number, from)| (name, *number, from)));
    all.filter(|(name, number, _)| !is_there(name, *number))
        .filter_map(|(name, number, from)| absent(router, (name.as_str(), number), from, found))
        .collect()
}

fn absent(router: &RouterConfig, (target, lun): (&str, u16), from: &From, found: &Found) -> Option<Missing> {
    let upstream = router.upstreams.get(&from.upstream)?;
    let behind = number(upstream, from)?;
    let name = match upstream.reach() {
        Reach::Target(name) | Reach::Lun(name, _) => name,
        Reach::Portal | Reach::Local => "",
    };
    let is_found = || there(router, &from.upstream, upstream.reach(), found)?.luns.get(&behind);
    let why = match (is_seen(router, &from.upstream, found), is_found()) {
        (false, _) => LunHealth::Awaited,
        (true, None) => LunHealth::NotFound,
        (true, Some(_)) => LunHealth::NotServed,
    };
    let address = LuAddress {
        router: router.name.clone(),
        upstream: from.upstream.clone(),
        target: name.into(),
        lun: behind,
    };
    Some(Missing { target: target.into(), lun, address, why })
}

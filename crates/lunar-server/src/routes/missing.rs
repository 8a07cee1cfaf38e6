//! Mapped LUNs that were not found.

use super::{BlockModeRefusal, LAST_LUN, is_seen, number, refusal, there};
use crate::config::router::{From, Map, Reach};
use crate::config::{Config, RouterConfig, iscsi_name};
use lunar_admin::router::LunHealth;
use lunar_router::routes::LuAddress;
use lunar_router::{Found, FoundLun, FoundTarget};

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
    /// Why block mode cannot serve it, if that is the reason.
    pub refusal: Option<BlockModeRefusal>,
}

/// The mapped LUNs of a router that are missing in an expanded configuration. A mapping of a target or a portal has the
/// LUNs that were found there.
pub fn missing(router: &RouterConfig, whole: &Config, found: &Found) -> Vec<Missing> {
    let is_there = |name: &str, number: u16| {
        let mut mine = whole.targets.iter().filter(|target| target.router.as_ref() == Some(&router.name));
        mine.any(|target| target.name == name && target.luns.contains_key(&number))
    };
    let all = router.targets.iter().flat_map(|mapping| match &mapping.map {
        Map::Lun { name, luns } => {
            let one = |(number, from): (&u16, &From)| absent(router, (name.as_str(), *number), from, found);
            luns.iter().filter_map(one).collect()
        }
        Map::Target { name, upstream } => {
            let reach = router.upstreams.get(upstream).map(|upstream| upstream.reach());
            let there = reach.and_then(|reach| there(router, upstream, reach, found));
            there.map_or(Vec::new(), |there| refused(router, upstream, name, there))
        }
        Map::Transparent { upstream } => {
            let there = found.targets(&router.name, upstream).iter();
            let servable = there.filter(|there| iscsi_name(&there.name).is_ok());
            servable.flat_map(|there| refused(router, upstream, &there.name, there)).collect()
        }
    });
    all.filter(|missing| !is_there(&missing.target, missing.lun)).collect()
}

/// The LUNs of an upstream target that block mode cannot serve, as LUNs of `target`.
fn refused(router: &RouterConfig, upstream: &str, target: &str, there: &FoundTarget) -> Vec<Missing> {
    let Some(config) = router.upstreams.get(upstream) else { return Vec::new() };
    let one = |(number, lun): (&u16, &FoundLun)| {
        let refusal = Some(refusal(config, lun)?);
        let address = LuAddress {
            router: router.name.clone(),
            upstream: upstream.into(),
            target: there.name.clone(),
            lun: *number,
        };
        Some(Missing { target: target.into(), lun: *number, address, why: LunHealth::NotServed, refusal })
    };
    there.luns.iter().filter(|(number, _)| **number <= LAST_LUN).filter_map(one).collect()
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
    let refusal = is_found().and_then(|lun| refusal(upstream, lun));
    Some(Missing { target: target.into(), lun, address, why, refusal })
}

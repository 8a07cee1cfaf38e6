//! Expands the mappings of routers to targets, by the discoveries at their upstreams.

mod missing;

pub use lunar_router::{Found, FoundLun, FoundTarget};
pub use missing::{Missing, missing};

use crate::config::router::{
    Failover, From, Map, Mode, Reach, RemoteAddress, RemoteUrl, RouterTarget, UpstreamConfig, UpstreamPolicy,
    UpstreamSource,
};
use crate::config::{self, Config, LunConfig, RouterConfig, Share, Source, Target, iscsi_name};
use crate::{Diagnostic, identity};
use lunar_initiator::multipath;
use lunar_router::failover;
use lunar_router::namespaces::is_subsystem;
use lunar_router::routes::{self, LuAddress, UpstreamSpec};
use lunar_router::upstream::{Upstream, UpstreamUrls};
use lunar_scsi::PeripheralDeviceType;
use lunar_target::config::AccessRule;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The last LUN of a single level (SAM-5 section 4.7).
const LAST_LUN: u16 = 16383;

/// Adds the targets that the routers make of the discoveries in `found`, and removes those of an earlier expansion. A
/// LUN that was not found is omitted. A target with a configured name exists even without LUNs.
///
/// # Errors
/// When two targets would have the same name.
pub fn expand(config: &Config, found: &Found) -> Result<Config, Vec<Diagnostic>> {
    expanded(config, found, false)
}

/// As [`expand`], soon after a start. Returning hosts would treat a LUN that is not rediscovered yet as removed, so a
/// target is offline until all of its upstreams were reached.
///
/// # Errors
/// As those of [`expand`].
pub fn expand_early(config: &Config, found: &Found) -> Result<Config, Vec<Diagnostic>> {
    expanded(config, found, true)
}

fn expanded(config: &Config, found: &Found, is_early: bool) -> Result<Config, Vec<Diagnostic>> {
    let mut whole = config.clone();
    whole.targets.retain(|target| target.router.is_none());
    whole.awaited = awaited(config, found);
    let own = whole
        .targets
        .iter()
        .map(|target| (target.name.clone(), "a [[target]] of the configuration".to_owned()));
    let (mut owners, mut problems): (BTreeMap<String, String>, _) = (own.collect(), Vec::new());
    let (mut disks, mut awaiting) = (BTreeMap::new(), BTreeSet::new());
    let mappings =
        config.routers.iter().flat_map(|router| router.targets.iter().map(move |one| (router, one)));
    // Configured names have priority over the names of upstream targets.
    let (chosen, others): (Vec<_>, Vec<_>) = mappings.partition(|(_, mapping)| mapping.map.name().is_some());
    for (router, mapping) in chosen.into_iter().chain(others) {
        let owner = owner(router, mapping);
        for (name, luns) in made(router, mapping, found) {
            let luns = shared(router, luns);
            if let Some(first) = owners.get(&name) {
                let problem = collision(&name, first, &owner);
                // A conflict of an upstream target's name must not affect other targets.
                match mapping.map.name() {
                    Some(_) => problems.push(problem),
                    None => tracing::error!("{problem}"),
                }
                continue;
            }
            owners.insert(name.clone(), owner.clone());
            warn_of_twins(&name, &luns, &mut disks);
            let depth = depth(&luns, found);
            let is_awaited = is_awaited(router, mapping, found);
            if is_awaited {
                awaiting.insert(name.clone());
            }
            let offline = (luns.is_empty() || is_early) && is_awaited;
            whole.targets.push(Target { offline, ..target(router, mapping, name, luns, depth) });
        }
    }
    settle_subsystems(&mut whole, &awaiting);
    if problems.is_empty() { Ok(whole) } else { Err(problems) }
}

/// Lets subsystems wait for the routed LUNs that are their namespaces, so that hosts that connect again keep their disks. The
/// targets in `awaiting` may get further LUNs. Warns of LUNs that cannot be namespaces.
fn settle_subsystems(whole: &mut Config, awaiting: &BTreeSet<String>) {
    let luns = |target: &Target| (target.name.clone(), target.luns.clone());
    let all: BTreeMap<String, Arc<BTreeMap<u16, LunConfig>>> = whole.targets.iter().map(luns).collect();
    let is_awaited = |(name, number): &(String, u16)| match all.get(name) {
        Some(luns) => !luns.contains_key(number) && awaiting.contains(name),
        None => !whole.awaited.is_empty(),
    };
    for target in &mut whole.targets {
        let Some(subsystem) = &mut target.subsystem else { continue };
        subsystem.is_awaited = subsystem.shared.values().any(is_awaited);
        for (nsid, (name, number)) in &subsystem.shared {
            let lun = all.get(name).and_then(|luns| luns.get(number));
            if let Some(why) = lun.and_then(config::unfit) {
                tracing::warn!("namespace {nsid} of {} is not served: {why}", target.name);
            }
        }
    }
}

/// Whether a mapping still waits for an upstream. A host that logs in again after a restart of the router must not
/// lose its disk. So until the upstream is reached, its login is rejected with 03/01, and the host retries.
fn is_awaited(router: &RouterConfig, mapping: &RouterTarget, found: &Found) -> bool {
    let is_local = |upstream: &str| {
        router.upstreams.get(upstream).is_some_and(|u| matches!(u.source, UpstreamSource::Local(_)))
    };
    mapping
        .map
        .upstreams()
        .into_iter()
        .any(|upstream| !is_local(upstream) && !is_seen(router, upstream, found))
}

/// Whether an upstream was reached at least once.
fn is_seen(router: &RouterConfig, upstream: &str, found: &Found) -> bool {
    found.0.contains_key(&(router.name.clone(), upstream.to_owned()))
}

/// The portal groups of routers that do not know the names of their targets yet. Logins to unknown targets there are
/// rejected with 03/01, so that hosts retry.
fn awaited(config: &Config, found: &Found) -> BTreeSet<u16> {
    let is_awaited = |router: &&RouterConfig| {
        let mut unnamed = router.targets.iter().filter(|mapping| mapping.map.name().is_none());
        unnamed.any(|mapping| is_awaited(router, mapping, found))
    };
    config.routers.iter().filter(is_awaited).flat_map(|router| router.portal_groups.iter().copied()).collect()
}

/// The first LUN that serves a disk.
struct FirstLun {
    address: String,
    /// Whether this target keeps its reservations.
    is_block: bool,
    /// Whether it is a namespace, which does not support passthrough.
    is_namespace: bool,
}

/// Warns about LUNs that serve the disk of another LUN.
fn warn_of_twins(target: &str, luns: &BTreeMap<u16, LunConfig>, disks: &mut BTreeMap<Vec<u8>, FirstLun>) {
    twins(target, luns, disks).iter().for_each(|twin| tracing::warn!("{twin}"));
}

/// The LUNs that share a disk. If both are passthrough, the disk itself keeps the reservations of both.
fn twins(
    target: &str,
    luns: &BTreeMap<u16, LunConfig>,
    disks: &mut BTreeMap<Vec<u8>, FirstLun>,
) -> Vec<String> {
    let mut twins = Vec::new();
    for (number, lun) in luns {
        let Some(found) = lun.found.as_ref().filter(|found| !found.designators.is_empty()) else { continue };
        let address = format!("LUN {number} of {target}");
        let is_namespace = lun.source.lu_address().is_some_and(|from| is_subsystem(&from.target));
        let own = FirstLun { address, is_block: lun.is_block, is_namespace };
        let first = match disks.entry(found.designators.clone()) {
            Entry::Occupied(first) => first.into_mut(),
            Entry::Vacant(new) => {
                new.insert(own);
                continue;
            }
        };
        if first.is_block || own.is_block {
            let hint = match first.is_namespace || own.is_namespace {
                true => "remove one of them: mode = \"passthrough\" does not exist for NVMe upstreams",
                false => "set mode = \"passthrough\" for both",
            };
            twins.push(format!(
                "{} and {} are the same disk: a reservation on one does not apply to the other; hint: {hint}",
                first.address, own.address
            ));
        }
        if own.is_block {
            *first = own;
        }
    }
    twins
}

/// The owner of a target name, for a message.
fn owner(router: &RouterConfig, mapping: &RouterTarget) -> String {
    match &mapping.map {
        Map::Transparent { upstream } => {
            format!("a target of the upstream {upstream} of router {}", router.name)
        }
        Map::Target { .. } | Map::Lun { .. } => format!("a target of router {}", router.name),
    }
}

fn collision(name: &str, first: &str, second: &str) -> Diagnostic {
    Diagnostic::new(
        format!("duplicate target name {name}: {first}, and {second}"),
        "rename one of them with map = \"target\"; list the portals of one storage in the `urls` of one upstream",
    )
}

/// Sets the rate limit of the router on all LUNs.
fn shared(router: &RouterConfig, luns: BTreeMap<u16, LunConfig>) -> BTreeMap<u16, LunConfig> {
    let RouterConfig { iops, bytes_per_s, .. } = *router;
    let limited = iops > 0 || bytes_per_s > 0;
    let share = limited.then(|| Share { router: router.name.clone(), iops, bytes_per_s });
    luns.into_iter().map(|(number, lun)| (number, LunConfig { share: share.clone(), ..lun })).collect()
}

/// The smallest command window of the upstreams, so that no command of a host waits in the router.
fn depth(luns: &BTreeMap<u16, LunConfig>, found: &Found) -> Option<u32> {
    let places = luns.values().filter_map(|lun| lun.source.lu_address());
    let there = places.filter_map(|address| {
        found.targets(&address.router, &address.upstream).iter().find(|there| there.name == address.target)
    });
    there.map(|there| there.window).filter(|window| *window > 0).min()
}

/// An entry that admits no initiator.
fn admits_none() -> AccessRule {
    AccessRule { deny: true, ..AccessRule::default() }
}

fn target(
    router: &RouterConfig,
    mapping: &RouterTarget,
    name: String,
    luns: BTreeMap<u16, LunConfig>,
    depth: Option<u32>,
) -> Target {
    Target {
        luns: Arc::new(luns),
        access: if mapping.access.none { vec![admits_none()] } else { mapping.access.entries.clone() },
        router: Some(router.name.clone()),
        depth,
        ..Target::new(name, router.portal_groups.clone())
    }
}

/// The targets of a mapping, by name, with their LUNs.
fn made(
    router: &RouterConfig,
    mapping: &RouterTarget,
    found: &Found,
) -> BTreeMap<String, BTreeMap<u16, LunConfig>> {
    match &mapping.map {
        Map::Transparent { upstream } => {
            let there = found.targets(&router.name, upstream).iter().filter(|there| is_servable(there));
            // Of duplicate names, the first counts.
            there.rev().map(|there| (there.name.clone(), all(router, upstream, there))).collect()
        }
        Map::Target { name, upstream } => {
            let there =
                router.upstreams.get(upstream).and_then(|u| there(router, upstream, u.reach(), found));
            let luns = there.map(|there| all(router, upstream, there)).unwrap_or_default();
            BTreeMap::from([(name.clone(), luns)])
        }
        Map::Lun { name, luns } => {
            let one = |(number, from): (&u16, &From)| Some((*number, one(router, from, found)?));
            BTreeMap::from([(name.clone(), luns.iter().filter_map(one).collect())])
        }
    }
}

/// Whether the name of an upstream target can be served: it also becomes the name of a folder here.
fn is_servable(there: &FoundTarget) -> bool {
    let good = iscsi_name(&there.name);
    if let Err(invalid) = &good {
        tracing::warn!(
            "a target of an upstream is not served: {}; hint: {}",
            invalid.what,
            "rename the target with map = \"target\""
        );
    }
    good.is_ok()
}

/// The target of an upstream, if it was found.
fn there<'f>(
    router: &RouterConfig,
    upstream: &str,
    reach: Reach<'_>,
    found: &'f Found,
) -> Option<&'f FoundTarget> {
    let name = match reach {
        Reach::Portal => return None,
        Reach::Target(name) | Reach::Lun(name, _) => name,
        Reach::Local => "",
    };
    found.targets(&router.name, upstream).iter().find(|there| there.name == name)
}

/// All LUNs of a target, with unchanged numbers.
fn all(router: &RouterConfig, upstream: &str, there: &FoundTarget) -> BTreeMap<u16, LunConfig> {
    let luns = there.luns.keys().filter(|number| **number <= LAST_LUN);
    luns.filter_map(|number| Some((*number, routed(router, upstream, there, *number)?))).collect()
}

/// The LUN of a composed target.
fn one(router: &RouterConfig, from: &From, found: &Found) -> Option<LunConfig> {
    let upstream = router.upstreams.get(&from.upstream)?;
    if let UpstreamSource::Local(source) = &upstream.source {
        return Some(local(upstream, source));
    }
    let there = there(router, &from.upstream, upstream.reach(), found)?;
    routed(router, &from.upstream, there, number(upstream, from)?)
}

/// The upstream LUN of a mapped LUN.
fn number(upstream: &UpstreamConfig, from: &From) -> Option<u16> {
    match (upstream.reach(), from.lun) {
        (Reach::Target(_), Some(number)) | (Reach::Lun(_, number), None) => Some(number),
        (Reach::Local, None) => Some(0),
        _ => None,
    }
}

/// A disk of this host, which needs no discovery.
fn local(upstream: &UpstreamConfig, source: &Source) -> LunConfig {
    let lun = LunConfig::new(source.clone(), PeripheralDeviceType::Disk);
    LunConfig {
        vendor: upstream.vendor.clone().unwrap_or(lun.vendor),
        product: upstream.product.clone().unwrap_or(lun.product),
        serial: upstream.serial.clone(),
        is_upstream: true,
        ..lun
    }
}

/// The definition of a found LUN; None if it was not found, or cannot be served.
fn routed(router: &RouterConfig, name: &str, there: &FoundTarget, number: u16) -> Option<LunConfig> {
    let (upstream, found) = (router.upstreams.get(name)?, there.luns.get(&number)?);
    let source = Source::Routed(LuAddress {
        router: router.name.clone(),
        upstream: name.to_owned(),
        target: there.name.clone(),
        lun: number,
    });
    if refusal(upstream, found).is_some() {
        return None;
    }
    // A failover does not transfer the reservations of hosts.
    let reservable = router.failover.is_none();
    let is_block = upstream.mode == Mode::Block;
    Some(LunConfig { reservable, is_block, ..as_found(upstream, found, source) })
}

/// The reason why block mode cannot serve a logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockModeRefusal {
    /// The reason, as a sentence without an end.
    pub why: String,
    /// True for a storage array controller, which some targets have besides their disks.
    pub is_controller: bool,
}

/// The reason why an upstream in block mode cannot serve a logical unit.
fn refusal(upstream: &UpstreamConfig, found: &FoundLun) -> Option<BlockModeRefusal> {
    let why = not_blocks(found).filter(|_| upstream.mode == Mode::Block)?;
    Some(BlockModeRefusal { why, is_controller: found.kind == STORAGE_ARRAY_CONTROLLER })
}

fn not_blocks(found: &FoundLun) -> Option<String> {
    match found.kind {
        STORAGE_ARRAY_CONTROLLER => Some("the LUN is a storage array controller (device type 0ch)".into()),
        DISK | CD if is_block_size(found.block_size) => None,
        DISK | CD => Some(format!("the LUN has blocks of {} bytes", found.block_size)),
        kind => Some(format!("the LUN has device type {kind:02x}h, neither a disk nor a CD")),
    }
}

/// Peripheral device types (SPC-5 section 6.6.2).
const DISK: u8 = 0;
const CD: u8 = 5;
const STORAGE_ARRAY_CONTROLLER: u8 = 0x0c;

fn is_block_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && (512..=65536).contains(&bytes)
}

fn as_found(upstream: &UpstreamConfig, found: &FoundLun, source: Source) -> LunConfig {
    let lun = LunConfig::new(
        source,
        if found.kind == CD { PeripheralDeviceType::CdRom } else { PeripheralDeviceType::Disk },
    );
    let block_size = Some(found.block_size).filter(|bytes| is_block_size(*bytes)).unwrap_or(lun.block_size);
    let physical = found.physical_block_size;
    // READ CAPACITY reports the ratio of both as an exponent of four bits (SBC-4 section 5.16.2).
    let is_ratio = physical.is_power_of_two() && (block_size..=block_size << 15).contains(&physical);
    LunConfig {
        block_size,
        physical_block_size: if is_ratio { physical } else { block_size },
        read_only: found.read_only,
        removable: found.removable,
        thin: found.thin,
        vendor: upstream.vendor.clone().unwrap_or_else(|| text(&found.vendor, 8)),
        product: upstream.product.clone().unwrap_or_else(|| text(&found.product, 16)),
        serial: upstream.serial.clone().or_else(|| serial(found)),
        // A changed capacity does not make it another LUN.
        found: Some(Box::new(FoundLun { revision: text(&found.revision, 4), capacity: 0, ..found.clone() })),
        ..lun
    }
}

/// The serial number as reported, with leading spaces, because hosts compare all of it.
fn serial(found: &FoundLun) -> Option<String> {
    let padded = String::from_utf8(found.padded_serial.clone()).unwrap_or_default();
    let is_whole = text(&padded, MAX_SERIAL) == padded && padded.trim() == found.serial;
    let serial = if is_whole { padded } else { text(&found.serial, MAX_SERIAL) };
    (!serial.trim().is_empty()).then_some(serial)
}

/// The maximum length of a serial number that the device server reports.
const MAX_SERIAL: usize = 200;

/// The printable ASCII characters of a text from an upstream, cut to a length.
fn text(text: &str, max: usize) -> String {
    text.chars().filter(|c| matches!(c, ' '..='~')).take(max).collect()
}

/// The upstreams of a configuration.
pub fn specs(config: &Config) -> Vec<UpstreamSpec> {
    let of = |router: &RouterConfig| -> Vec<UpstreamSpec> {
        router.upstreams.iter().filter_map(|(name, upstream)| spec(router, name, upstream)).collect()
    };
    config.routers.iter().flat_map(of).collect()
}

/// The upstream to probe; None for a disk of this host, which needs no probe.
fn spec(router: &RouterConfig, name: &str, upstream: &UpstreamConfig) -> Option<UpstreamSpec> {
    let (urls, written, mode) = match &upstream.source {
        UpstreamSource::Local(_) => return None,
        UpstreamSource::Sg { path } => {
            (UpstreamUrls::Scsi(Vec::new()), Vec::new(), routes::Mode::Device(path.clone()))
        }
        UpstreamSource::Remote { urls } => {
            let mode = if upstream.mode == Mode::Passthrough {
                routes::Mode::Passthrough
            } else {
                routes::Mode::Block
            };
            (parsed(urls), urls.iter().map(|url| url.secret_text().to_owned()).collect(), mode)
        }
    };
    let policy = match upstream.policy {
        UpstreamPolicy::Failover => multipath::PathPolicy::Failover,
        UpstreamPolicy::RoundRobin => multipath::PathPolicy::RoundRobin,
        UpstreamPolicy::LeastQueue | UpstreamPolicy::Alua => multipath::PathPolicy::LeastQueue,
    };
    let known = Upstream::new(&router.name, name, urls);
    let (path_loss_timeout, identity) = (router.path_loss_timeout, upstream.identity.clone());
    let fence = router.failover.as_ref().map(|pair| key(router, pair));
    Some(UpstreamSpec {
        upstream: Upstream { policy, path_loss_timeout, identity, fence, ..known },
        written,
        mode,
    })
}

/// The URLs of an upstream. All have the same protocol.
fn parsed(urls: &[RemoteUrl]) -> UpstreamUrls {
    let (mut scsi, mut nvme) = (Vec::new(), Vec::new());
    for url in urls {
        match &url.address {
            RemoteAddress::Scsi(url) => scsi.push((**url).clone()),
            RemoteAddress::Nvme(url) => nvme.push(url.clone()),
        }
    }
    if nvme.is_empty() { scsi.into() } else { nvme.into() }
}

/// The failover pairs of a configuration.
pub fn pairs(config: &Config) -> Vec<failover::PairSpec> {
    let one = |router: &RouterConfig| {
        let pair = router.failover.as_ref()?;
        Some(failover::PairSpec {
            router: router.name.clone(),
            peer: pair.peer.clone(),
            group: pair.group,
            preferred: pair.is_preferred,
            key: key(router, pair),
            seed: seed(router),
            initiator: pair.initiator.clone(),
            path_loss_timeout: router.path_loss_timeout,
        })
    };
    config.routers.iter().filter_map(one).collect()
}

/// A text that differs between a router and its peer even on one host, because their portal groups differ.
fn seed(router: &RouterConfig) -> String {
    format!("{} {} {:?}", lunar_runtime::host::name(), router.name, router.portal_groups)
}

/// The reservation key: the configured one, or one derived from the host name, the instance and its portal groups.
fn key(router: &RouterConfig, pair: &Failover) -> u64 {
    pair.key.unwrap_or_else(|| identity::key(&seed(router)))
}

/// The targets that use each upstream of an expanded configuration.
pub fn users(config: &Config) -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut users: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    for router in &config.routers {
        for name in router.upstreams.keys() {
            users.insert((router.name.clone(), name.clone()), BTreeSet::new());
        }
        // Includes mappings without a discovery: a loop must be detected before it is used.
        for mapping in &router.targets {
            let Some(name) = mapping.map.name() else { continue };
            for upstream in mapping.map.upstreams() {
                users.entry((router.name.clone(), upstream.into())).or_default().insert(name.into());
            }
        }
    }
    for target in &config.targets {
        for address in target.luns.values().filter_map(|lun| lun.source.lu_address()) {
            let key = (address.router.clone(), address.upstream.clone());
            users.entry(key).or_default().insert(target.name.clone());
        }
    }
    users
}

#[cfg(test)]
mod tests;

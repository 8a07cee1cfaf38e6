//! `[router.NAME]`: a SCSI routing instance, with its upstreams, mappings and failover pair.

mod failover;
mod mapping;
mod remote_url;
mod upstream;

pub use super::access::Grant;
pub use failover::Failover;
pub(super) use remote_url::OwnSubsystems;
pub use remote_url::{RemoteAddress, RemoteUrl};
pub(super) use upstream::is_uuid;
pub use upstream::{Reach, UpstreamConfig, UpstreamPolicy, UpstreamSource};

use super::access::AccessLists;
use super::lun::UniqueValues;
use super::portal::PortalGroups;
use lunar_config::Section;
use lunar_config::{Diagnostics, InvalidValue, invalid, nearest};
use lunar_target::config::{Portal, PortalGroup};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// A SCSI routing instance.
#[derive(Clone, Debug)]
pub struct RouterConfig {
    /// Its name.
    pub name: String,
    /// Tags of the portal groups of its targets.
    pub portal_groups: Vec<u16>,
    /// Whether it has its own portals, which serve nothing else.
    pub has_own_portals: bool,
    /// How long commands wait for an unreachable upstream.
    pub path_loss_timeout: Duration,
    /// Limit of sessions with all of its targets; None: the limit of the server.
    pub max_sessions: Option<usize>,
    /// Operations a second of all its LUNs together; 0 is no limit.
    pub iops: u64,
    /// Bytes a second of all its LUNs together; 0 is no limit.
    pub bytes_per_s: u64,
    /// Its upstreams, by name.
    pub upstreams: BTreeMap<String, UpstreamConfig>,
    /// Its mappings.
    pub targets: Vec<RouterTarget>,
    /// The other router of a failover pair.
    pub failover: Option<Failover>,
}

/// How commands are routed to an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The device server of this target executes them, and reads and writes blocks.
    Block,
    /// CDBs are forwarded unchanged.
    Passthrough,
}

/// A mapping, and the initiators that may use its targets.
#[derive(Clone, Debug)]
pub struct RouterTarget {
    /// The mapping.
    pub map: Map,
    /// The initiators that may use its targets.
    pub access: Grant,
}

/// A mapping of logical units of upstreams to LUNs of targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Map {
    /// Each target of a portal under its own name, with the same LUNs.
    Transparent {
        /// The upstream: a portal.
        upstream: String,
    },
    /// A target under a configured name, with the same LUNs.
    Target {
        /// iSCSI name.
        name: String,
        /// The upstream: a target.
        upstream: String,
    },
    /// Any LUNs under any numbers.
    Lun {
        /// iSCSI name.
        name: String,
        /// The source of each LUN.
        luns: BTreeMap<u16, From>,
    },
}

/// The source of a mapped LUN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct From {
    /// The upstream: a LUN, a device of this host, or with `lun` a target.
    pub upstream: String,
    /// LUN of that target; None: the upstream is one LUN.
    pub lun: Option<u16>,
}

impl Mode {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Block => "block",
            Mode::Passthrough => "passthrough",
        }
    }
}

impl Map {
    /// Its name in files.
    pub fn kind(&self) -> &'static str {
        match self {
            Map::Transparent { .. } => "transparent",
            Map::Target { .. } => "target",
            Map::Lun { .. } => "lun",
        }
    }

    /// The name of its target; None: the names are those of the upstream.
    pub fn name(&self) -> Option<&str> {
        match self {
            Map::Transparent { .. } => None,
            Map::Target { name, .. } | Map::Lun { name, .. } => Some(name),
        }
    }

    /// The upstreams that it uses.
    pub fn upstreams(&self) -> Vec<&str> {
        match self {
            Map::Transparent { upstream } | Map::Target { upstream, .. } => vec![upstream],
            Map::Lun { luns, .. } => luns.values().map(|from| from.upstream.as_str()).collect(),
        }
    }
}

/// The objects that routers may refer to, and the unique values that they share with targets.
pub(super) struct Context<'a> {
    pub(super) lists: &'a AccessLists,
    pub(super) base: &'a Path,
    pub(super) own: &'a OwnSubsystems,
    pub(super) unique: &'a mut UniqueValues,
}

/// A router whose portal group is not assigned yet.
struct RouterDraft {
    router: RouterConfig,
    portals: Option<Vec<Portal>>,
    listen_at: Option<Range<usize>>,
    tag: Option<(u16, Range<usize>)>,
    peer_group_at: Option<Range<usize>>,
}

/// Reads all `[router.NAME]`. Their portals become portal groups.
pub(super) fn routers(
    p: &mut Diagnostics<'_>,
    root: &mut Section<'_>,
    mut around: Context<'_>,
    groups: &mut PortalGroups,
) -> Vec<RouterConfig> {
    let sections = root.named(p, "router", "[router.NAME]");
    let drafts = sections.into_iter().map(|(name, at, s)| router(p, name, &at, s, &mut around, groups));
    let drafts: Vec<RouterDraft> = drafts.collect();
    if groups.is_default && !drafts.is_empty() {
        let is_used = root.find("target").is_some() || drafts.iter().any(|draft| draft.portals.is_none());
        without_default(p, &drafts, is_used, groups);
    }
    let (shared, chosen) = (groups.tags(), drafts.iter().filter_map(|draft| Some(draft.tag.as_ref()?.0)));
    let chosen: Vec<u16> = chosen.collect();
    let routers = drafts.into_iter().map(|draft| placed(p, draft, &shared, &chosen, groups));
    let (routers, peer_groups): (Vec<RouterConfig>, Vec<_>) = routers.unzip();
    failover::check_groups(p, &routers, &peer_groups, &groups.tags());
    routers
}

/// Removes the default portal if no target uses it. Reports a router whose tag or address conflicts with it.
fn without_default(
    p: &mut Diagnostics<'_>,
    drafts: &[RouterDraft],
    is_used: bool,
    groups: &mut PortalGroups,
) {
    if !is_used {
        return groups.list.clear();
    }
    let Some(default) = groups.list.first() else { return };
    let listens = default.portals.first().map(|portal| portal.listen);
    for draft in drafts {
        let hint = "add [[portal_group]] for the targets that have no portals of their own";
        if let Some((_, at)) = draft.tag.as_ref().filter(|(tag, _)| *tag == default.tag) {
            p.add(at, format!("portal group {} already belongs to the default portal", default.tag), hint);
        }
        let same = draft.portals.iter().flatten().any(|portal| Some(portal.listen) == listens);
        if let (true, Some(address), Some(at)) = (same, listens, &draft.listen_at) {
            p.add(at, format!("the default portal already uses {address}"), hint);
        }
    }
}

/// The router with its portal group, and the position of its peer's group.
fn placed(
    p: &mut Diagnostics<'_>,
    draft: RouterDraft,
    shared: &[u16],
    chosen: &[u16],
    groups: &mut PortalGroups,
) -> (RouterConfig, Option<Range<usize>>) {
    let RouterDraft { mut router, portals, tag, peer_group_at, listen_at } = draft;
    router.portal_groups = match portals {
        Some(portals) => {
            let default = default_tag(&router.name);
            let is_taken = tag.is_none() && (groups.has(default) || chosen.contains(&default));
            if let (true, Some(at)) = (is_taken, listen_at) {
                let what = format!("the tag of the portals of router {} is taken: {default}", router.name);
                p.add(&at, what, "choose another one: `portal_group` of the router");
            }
            let tag = tag.map_or(default, |(tag, _)| tag);
            groups.list.push(PortalGroup { tag, portals });
            vec![tag]
        }
        None => shared.to_vec(),
    };
    (router, peer_group_at)
}

/// The tag of a router's own portals. It depends on the name of the router only, because hosts know the target port by it:
/// other routers and portal groups come and go. It suits SRP.
fn default_tag(name: &str) -> u16 {
    const FIRST: u16 = 0x4000;
    // FNV-1a.
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    FIRST + (hash ^ hash >> 16) as u16 % FIRST
}

fn router(
    p: &mut Diagnostics<'_>,
    name: &str,
    at: &Range<usize>,
    mut s: Section<'_>,
    around: &mut Context<'_>,
    groups: &mut PortalGroups,
) -> RouterDraft {
    s.renamed(&[("path", "mode"), ("hold_s", "path_loss_timeout_s"), ("pair", "failover")]);
    let listen_at = s.find("listen").map(|value| value.span());
    let portals = groups.portals(p, &mut s, "listen");
    let tag = tag(p, &mut s, listen_at.is_some(), groups);
    let mode = s.parsed(p, "mode", mode).unwrap_or(Mode::Block);
    let mut router = RouterConfig {
        name: name.into(),
        portal_groups: Vec::new(),
        has_own_portals: listen_at.is_some(),
        path_loss_timeout: s
            .time(p, "path_loss_timeout_s", Duration::ZERO..=MAX_PATH_LOSS_TIMEOUT)
            .unwrap_or(PATH_LOSS_TIMEOUT),
        max_sessions: s.number(p, "max_sessions", 1..=65535),
        iops: s.number(p, "iops", 0..=1_000_000_000).unwrap_or(0),
        bytes_per_s: s.size(p, "bytes_per_s", 0..=1 << 50).unwrap_or(0),
        upstreams: BTreeMap::new(),
        targets: Vec::new(),
        failover: None,
    };
    let upstreams = Upstreams::read(p, &mut s, mode, around);
    if upstreams.0.is_empty() {
        p.add(at, format!("the router {name} has no upstream"), format!("add [router.{name}.upstream.a]"));
    }
    router.targets = mapping::targets(p, &mut s, &upstreams, around);
    if s.find("target").is_none() {
        let hint = format!("add [[router.{name}.target]] with a map");
        p.add(at, format!("the router {name} has no target"), hint);
    }
    let section = s.find("failover").is_some().then(|| s.section(p, "failover", "[router.NAME.failover]"));
    let (failover, peer_group_at) =
        section.map(|section| failover::failover(p, section, &upstreams)).unwrap_or_default();
    s.done(p);
    router.failover = failover;
    router.upstreams = upstreams.good();
    RouterDraft {
        router,
        portals: portals.or(listen_at.as_ref().map(|_| Vec::new())),
        listen_at,
        tag,
        peer_group_at,
    }
}

/// The upper limit, because initiators time out earlier.
const MAX_PATH_LOSS_TIMEOUT: Duration = Duration::from_secs(300);
const PATH_LOSS_TIMEOUT: Duration = Duration::from_secs(8);

/// The tag of the router's own portals.
fn tag(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    has_portals: bool,
    groups: &mut PortalGroups,
) -> Option<(u16, Range<usize>)> {
    let at = s.find("portal_group")?.span();
    if !has_portals {
        p.add(&at, "`portal_group` requires portals of the router", "add `listen`, or remove `portal_group`");
    }
    let tag = s.number(p, "portal_group", 1..=65535)?;
    groups.tags.first(p, tag, &at);
    Some((tag, at))
}

fn mode(text: &str) -> Result<Mode, InvalidValue> {
    let hint = match text {
        "block" => return Ok(Mode::Block),
        "passthrough" => return Ok(Mode::Passthrough),
        "pass" => "\"pass\" was renamed: write \"passthrough\"",
        _ => "write \"block\" or \"passthrough\"",
    };
    invalid(format!("unknown mode \"{}\"", text.escape_debug()), hint)
}

/// The upstreams of a router and the positions of their names; None for an invalid one, which is reported already.
struct Upstreams(BTreeMap<String, (Option<UpstreamConfig>, Range<usize>)>);

impl Upstreams {
    fn read(p: &mut Diagnostics<'_>, s: &mut Section<'_>, mode: Mode, around: &mut Context<'_>) -> Upstreams {
        let sections = s.named(p, "upstream", "[router.NAME.upstream.NAME]");
        let read = |(name, at, s): (&str, Range<usize>, Section<'_>)| {
            (name.to_owned(), (upstream::upstream(p, s, mode, around), at))
        };
        Upstreams(sections.into_iter().map(read).collect())
    }

    /// The upstream that a section names, with its name and position.
    fn named<'a>(
        &'a self,
        p: &mut Diagnostics<'_>,
        s: &mut Section<'_>,
    ) -> Option<(&'a str, Option<&'a UpstreamConfig>, Range<usize>)> {
        if s.find("upstream").is_none() {
            s.missing(p, "upstream", "the name of an upstream");
        }
        let (name, at) = s.text(p, "upstream")?;
        if let Some((name, (upstream, _))) = self.0.get_key_value(name) {
            return Some((name, upstream.as_ref(), at));
        }
        let hint = match nearest(name, self.0.keys().map(String::as_str)) {
            Some(meant) => format!("did you mean \"{}\"?", meant.escape_debug()),
            None => "add [router.NAME.upstream.NAME] with this name".to_string(),
        };
        p.add(&at, format!("unknown upstream \"{}\"", name.escape_debug()), hint);
        None
    }

    fn good(self) -> BTreeMap<String, UpstreamConfig> {
        self.0.into_iter().filter_map(|(name, (upstream, _))| Some((name, upstream?))).collect()
    }
}

#[cfg(test)]
mod tests;

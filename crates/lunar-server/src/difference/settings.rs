//! A configuration as a map: its parts, and each of their settings as text.

use crate::config::router::{Map, RouterConfig, RouterTarget, UpstreamConfig, UpstreamSource};
use crate::config::{Config, Filter, LunConfig, Source, Target};
use lunar_proto::duration;
use lunar_proto::size;
use lunar_runtime::CoreSelection;
use lunar_target::config::{
    AccessRule, AllowedDigests, ChapAccount, DiscoveryConfig, IpNetwork, PortalGroup, SessionConfig,
    TargetLimits,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// A setting.
#[derive(Clone, Debug, Default)]
pub(super) struct Setting {
    /// Its name: the key in the file, if it has one.
    pub(super) key: &'static str,
    /// Its value.
    pub(super) shown: String,
    /// A part of the value that is compared but never shown.
    pub(super) hidden: Vec<u8>,
}

/// A part of a configuration, in the order of the report.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConfigPart {
    Server,
    Limits,
    Session,
    Discovery,
    Group(u16),
    Target(String),
    Lun(String, u16),
    Router(String),
    Upstream(String, String),
    Mapping(String, String),
    Behind(String, String, u16),
}

impl ConfigPart {
    /// The name of the part, preceded by those of its parents.
    pub(super) fn names(&self) -> Vec<String> {
        match self {
            ConfigPart::Server => vec!["server".into()],
            ConfigPart::Limits => vec!["limits".into()],
            ConfigPart::Session => vec!["session".into()],
            ConfigPart::Discovery => vec!["discovery".into()],
            ConfigPart::Group(tag) => vec![format!("portal group {tag}")],
            ConfigPart::Target(name) => vec![format!("target {name}")],
            ConfigPart::Lun(name, lun) => vec![format!("target {name}"), format!("LUN {lun}")],
            ConfigPart::Router(name) => vec![format!("router {name}")],
            ConfigPart::Upstream(router, name) => {
                vec![format!("router {router}"), format!("upstream {name}")]
            }
            ConfigPart::Mapping(router, name) => vec![format!("router {router}"), name.clone()],
            ConfigPart::Behind(router, name, lun) => {
                vec![format!("router {router}"), name.clone(), format!("LUN {lun}")]
            }
        }
    }

    /// Whether a change takes effect only at the next start.
    pub(super) fn needs_restart(&self) -> bool {
        matches!(self, ConfigPart::Server | ConfigPart::Group(_))
    }
}

/// All parts of a configuration. The first setting of each describes it.
pub(super) struct ConfigSettings(pub(super) BTreeMap<ConfigPart, Vec<Setting>>);

impl ConfigSettings {
    /// The parts of a configuration, without the targets that result from routers.
    pub(super) fn of(config: &Config) -> ConfigSettings {
        let server = &config.server;
        let server = vec![
            setting("cores", cores(&server.cores)),
            setting("state_dir", path(server.state_dir.as_deref())),
            setting("admin_socket", path(server.admin_socket.as_deref())),
        ];
        let mut settings = BTreeMap::from([
            (ConfigPart::Server, server),
            (ConfigPart::Limits, limits(&config.limits, config.max_registrants)),
            (ConfigPart::Session, session(&config.session)),
            (ConfigPart::Discovery, discovery(&config.discovery)),
        ]);
        settings
            .extend(config.portal_groups.iter().map(|group| (ConfigPart::Group(group.tag), portals(group))));
        for one in config.targets.iter().filter(|target| target.router.is_none()) {
            settings.insert(ConfigPart::Target(one.name.clone()), target(one));
            settings
                .extend(one.luns.iter().map(|(n, unit)| (ConfigPart::Lun(one.name.clone(), *n), lun(unit))));
        }
        config.routers.iter().for_each(|one| router(one, &mut settings));
        ConfigSettings(settings)
    }
}

fn setting(key: &'static str, shown: impl ToString) -> Setting {
    Setting { key, shown: shown.to_string(), hidden: Vec::new() }
}

fn path(path: Option<&Path>) -> String {
    path.map_or(String::new(), |path| path.display().to_string())
}

fn option<T: ToString>(value: &Option<T>) -> String {
    value.as_ref().map_or(String::new(), T::to_string)
}

fn list<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(", ")
}

fn cores(cores: &CoreSelection) -> String {
    match cores {
        CoreSelection::All => "all".into(),
        CoreSelection::Count(count) => count.to_string(),
        CoreSelection::List(cores) => format!("{},", list(cores)),
    }
}

/// A duration as in a file: whole seconds are a number.
fn seconds(time: Duration) -> String {
    match time.subsec_nanos() {
        0 => time.as_secs().to_string(),
        _ => duration::show(time),
    }
}

fn size(bytes: usize) -> String {
    size::show(bytes as u64)
}

fn limits(l: &TargetLimits, max_registrants: usize) -> Vec<Setting> {
    vec![
        setting("connections", l.connections),
        setting("connections_before_login", l.connections_before_login),
        setting("login_timeout_s", seconds(l.login_timeout)),
        setting("sessions", l.sessions),
        setting("sessions_per_initiator", l.sessions_per_initiator),
        setting("discovery_sessions", l.discovery_sessions),
        setting("discovery_timeout_s", seconds(l.discovery_timeout)),
        setting("commands_per_session", l.commands_per_session),
        setting("text_bytes", size(l.text_bytes)),
        setting("memory", size(l.memory)),
        setting("registrants", max_registrants),
    ]
}

fn session(s: &SessionConfig) -> Vec<Setting> {
    vec![
        setting("initial_r2t", s.initial_r2t),
        setting("immediate_data", s.immediate_data),
        setting("max_recv_data_segment_length", s.max_recv_data_segment_length),
        setting("max_burst_length", s.max_burst_length),
        setting("first_burst_length", s.first_burst_length),
        setting("max_outstanding_r2t", s.max_outstanding_r2t),
        setting("default_time2wait", s.default_time2wait),
        setting("default_time2retain", s.default_time2retain),
        setting("header_digest", digests(&s.header_digest)),
        setting("data_digest", digests(&s.data_digest)),
        setting("nop_interval_s", seconds(s.nop_interval.unwrap_or_default())),
        setting("nop_timeout_s", seconds(s.nop_timeout)),
        setting("data_out_timeout_s", seconds(s.data_out_timeout)),
        setting("chap_algorithms", list(s.chap_algorithms.iter().map(|algorithm| algorithm.name()))),
    ]
}

fn digests(digests: &AllowedDigests) -> String {
    let names = [("None", digests.none), ("CRC32C", digests.crc32c)];
    list(names.into_iter().filter(|(_, allowed)| *allowed).map(|(name, _)| name))
}

fn discovery(d: &DiscoveryConfig) -> Vec<Setting> {
    vec![
        setting("enabled", !d.disabled),
        users("chap", d.chap.as_deref()),
        users("mutual", d.mutual.as_slice().into()),
    ]
}

/// Users by name. None, which admits all users, is shown as empty.
fn users(key: &'static str, users: Option<&[ChapAccount]>) -> Setting {
    let users = users.unwrap_or_default();
    let secrets =
        users.iter().flat_map(|user| [&(user.secret.len() as u64).to_be_bytes()[..], &user.secret].concat());
    Setting { key, shown: list(users.iter().map(|user| &user.name)), hidden: secrets.collect() }
}

fn portals(group: &PortalGroup) -> Vec<Setting> {
    let shown = group.portals.iter().map(|portal| {
        let advertised =
            portal.advertise.as_ref().map_or(String::new(), |address| format!(" advertised as {address}"));
        let by_rdma = portal.transports.by_rdma();
        let carries = if by_rdma { format!(" for {}", portal.transports) } else { String::new() };
        format!("{}{advertised}{carries}", portal.listen)
    });
    vec![setting("portals", list(shown))]
}

fn target(t: &Target) -> Vec<Setting> {
    let redirects = t.redirects.iter().map(|r| {
        let how = if r.permanent { ", for good" } else { "" };
        format!("portal group {} to {}{how}", r.portal_group, r.to)
    });
    vec![
        setting("alias", option(&t.alias)),
        setting("portal_groups", list(&t.portal_groups)),
        setting("redirect", list(redirects)),
        setting("offline", t.offline),
        users("mutual", t.mutual.as_slice().into()),
        access(&t.access),
    ]
}

/// An access list in evaluation order.
fn access(entries: &[AccessRule]) -> Setting {
    let mut all = Setting { key: "access", ..Setting::default() };
    let mut shown = Vec::new();
    for entry in entries {
        let users = users("chap", entry.chap.as_deref());
        all.hidden.extend((users.hidden.len() as u64).to_be_bytes());
        all.hidden.extend(users.hidden);
        shown.push(who(entry, &users.shown));
    }
    all.shown = shown.join("; ");
    all
}

/// The initiators that an entry admits, and their LUNs.
fn who(entry: &AccessRule, chap: &str) -> String {
    let network = |network: &IpNetwork| format!("{}/{}", network.address, network.bits);
    let mut parts = vec![list(&entry.initiators), list(entry.networks.iter().map(network))];
    if entry.chap.is_some() {
        parts.push(format!("as {chap}"));
    }
    if let Some(luns) = &entry.luns {
        parts.push(format!(
            "LUNs {}",
            list(luns.iter().map(|(seen, of_target)| format!("{seen} = {of_target}")))
        ));
    }
    let flags = [(entry.read_only, "read-only"), (entry.aen, "with events")];
    parts.extend(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, word)| word.to_owned()));
    parts.retain(|part| !part.is_empty());
    if parts.is_empty() { "everybody".into() } else { parts.join(" ") }
}

fn lun(l: &LunConfig) -> Vec<Setting> {
    vec![
        setting("source", &l.source),
        setting("kind", format!("{:?}", l.kind).to_lowercase()),
        setting("block_size", block_size(l)),
        setting("physical_block_size", l.physical_block_size),
        setting("read_only", l.read_only),
        setting("removable", l.removable),
        setting("write_cache", l.write_cache),
        setting("direct", l.direct),
        setting("format", if l.raw { "raw" } else { "" }),
        setting("on_missing_file", l.on_missing_file.name()),
        setting("thin", l.thin),
        setting("serial", option(&l.serial)),
        setting("vendor", &l.vendor),
        setting("product", &l.product),
        setting("filters", list(l.filters.iter().map(filter))),
    ]
}

fn block_size(l: &LunConfig) -> String {
    match l.source {
        Source::Device { .. } if !l.has_block_size => "that of the device".into(),
        _ => l.block_size.to_string(),
    }
}

fn filter(filter: &Filter) -> String {
    match filter {
        Filter::Stats => "stats".into(),
        Filter::Delay { read_us, write_us } => {
            format!("delay of reads {read_us} us, of writes {write_us} us")
        }
        Filter::Rate { iops, bytes_per_s } => format!("rate {iops} a second, {bytes_per_s} bytes a second"),
        Filter::Error { rate, op } => format!("error in {rate} of each {op:?}").to_lowercase(),
    }
}

fn router(r: &RouterConfig, settings: &mut BTreeMap<ConfigPart, Vec<Setting>>) {
    let failover = r.failover.as_ref().map(|pair| {
        let preferred = if pair.is_preferred { ", this one preferred" } else { "" };
        let key = pair.key.map_or(String::new(), |key| format!(", key {key:#x}"));
        let name = pair.initiator.as_ref().map_or(String::new(), |name| format!(", reserved as {name}"));
        format!("peer {} in portal group {}{preferred}{key}{name}", pair.peer, pair.group)
    });
    let own = vec![
        setting("portal_groups", list(&r.portal_groups)),
        setting("path_loss_timeout_s", seconds(r.path_loss_timeout)),
        setting("max_sessions", option(&r.max_sessions)),
        setting("iops", r.iops),
        setting("bytes_per_s", r.bytes_per_s),
        setting("failover", option(&failover)),
    ];
    settings.insert(ConfigPart::Router(r.name.clone()), own);
    let upstreams =
        r.upstreams.iter().map(|(name, u)| (ConfigPart::Upstream(r.name.clone(), name.clone()), upstream(u)));
    settings.extend(upstreams);
    r.targets.iter().for_each(|one| mapping(r, one, settings));
}

fn upstream(u: &UpstreamConfig) -> Vec<Setting> {
    let hidden = match &u.source {
        UpstreamSource::Remote { urls } => {
            urls.iter().flat_map(|url| url.secret_text().bytes().chain([0])).collect()
        }
        UpstreamSource::Local(_) | UpstreamSource::Sg { .. } => Vec::new(),
    };
    let shown = match &u.source {
        UpstreamSource::Remote { urls } => list(urls),
        UpstreamSource::Local(_) | UpstreamSource::Sg { .. } => u.place(),
    };
    vec![
        Setting { key: "source", shown, hidden },
        setting("mode", u.mode.name()),
        setting("policy", u.policy.name()),
        setting("identity", option(&u.identity)),
        setting("vendor", option(&u.vendor)),
        setting("product", option(&u.product)),
        setting("serial", option(&u.serial)),
    ]
}

/// A mapping, named after its target, or else after its upstream.
fn mapping(router: &RouterConfig, one: &RouterTarget, settings: &mut BTreeMap<ConfigPart, Vec<Setting>>) {
    let name = match &one.map {
        Map::Transparent { upstream } => format!("targets of {upstream}"),
        Map::Target { name, .. } | Map::Lun { name, .. } => format!("target {name}"),
    };
    let upstream = match &one.map {
        Map::Transparent { upstream } | Map::Target { upstream, .. } => upstream.as_str(),
        Map::Lun { .. } => "",
    };
    let own = vec![
        setting("map", one.map.kind()),
        setting("upstream", upstream),
        setting("access", one.access.names.join(", ")),
        Setting { key: "entries of its access lists", ..access(&one.access.entries) },
    ];
    settings.insert(ConfigPart::Mapping(router.name.clone(), name.clone()), own);
    if let Map::Lun { luns, .. } = &one.map {
        settings.extend(luns.iter().map(|(number, from)| {
            let behind = match from.lun {
                Some(lun) => format!("LUN {lun} of upstream {}", from.upstream),
                None => format!("upstream {}", from.upstream),
            };
            (ConfigPart::Behind(router.name.clone(), name.clone(), *number), vec![setting("source", behind)])
        }));
    }
}

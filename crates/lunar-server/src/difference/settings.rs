//! A configuration as a map: its parts, and each of their settings as text. Each structure is destructured without
//! `..`, so that a new field does not compile until it is shown here.

use crate::config::router::{
    Failover, From, Grant, Map, RouterConfig, RouterTarget, UpstreamConfig, UpstreamSource,
};
use crate::config::{
    Config, Filter, GatewayConfig, IdentityKeys, LunConfig, NONE, ServerConfig, SubsystemConfig, Target, hex,
};
use lunar_api::https::{CredentialFiles, HttpsSettings};
use lunar_initiator::nvme::uuid_text;
use lunar_proto::duration;
use lunar_proto::size;
use lunar_runtime::CoreSelection;
use lunar_target::config::{
    AccessRule, AllowedDigests, ChapAccount, DiscoveryConfig, GivenNamespaceIds, IpNetwork, LoginRedirect,
    NvmeSecret, NvmeTlsKey, Portal, PortalGroup, SessionConfig, TargetLimits,
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
    /// Whether a change takes effect only at the next start.
    pub(super) needs_restart: bool,
}

/// A part of a configuration, in the order of the report.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConfigPart {
    Server,
    Gateway,
    Api,
    Limits,
    Session,
    Discovery,
    Group(u16),
    Disk(String),
    Target(String),
    Lun(String, u16),
    Subsystem(String),
    Namespace(String, u16),
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
            ConfigPart::Gateway => vec!["gateway".into()],
            ConfigPart::Api => vec!["api".into()],
            ConfigPart::Limits => vec!["limits".into()],
            ConfigPart::Session => vec!["session".into()],
            ConfigPart::Discovery => vec!["discovery".into()],
            ConfigPart::Group(tag) => vec![format!("portal group {tag}")],
            ConfigPart::Disk(name) => vec![format!("disk {name}")],
            ConfigPart::Target(name) => vec![format!("target {name}")],
            ConfigPart::Lun(name, lun) => vec![format!("target {name}"), format!("LUN {lun}")],
            ConfigPart::Subsystem(nqn) => vec![format!("subsystem {nqn}")],
            ConfigPart::Namespace(nqn, nsid) => vec![format!("subsystem {nqn}"), format!("namespace {nsid}")],
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
        match self {
            ConfigPart::Server | ConfigPart::Gateway => true,
            ConfigPart::Api
            | ConfigPart::Group(_)
            | ConfigPart::Limits
            | ConfigPart::Session
            | ConfigPart::Discovery
            | ConfigPart::Disk(_)
            | ConfigPart::Target(_)
            | ConfigPart::Lun(..)
            | ConfigPart::Subsystem(_)
            | ConfigPart::Namespace(..)
            | ConfigPart::Router(_)
            | ConfigPart::Upstream(..)
            | ConfigPart::Mapping(..)
            | ConfigPart::Behind(..) => false,
        }
    }
}

/// The parts of a configuration, without the LUNs that another one has too. The first setting of each describes it.
pub(super) struct ConfigSettings(pub(super) BTreeMap<ConfigPart, Vec<Setting>>);

impl ConfigSettings {
    /// The parts of a configuration, without the targets that result from routers.
    pub(super) fn of(config: &Config, other: &Config) -> ConfigSettings {
        let Config {
            server: of_server,
            api: of_api,
            gateway: of_gateway,
            limits: of_limits,
            max_registrants,
            session: of_session,
            discovery: of_discovery,
            portal_groups,
            disks,
            targets,
            routers,
            // These result from discovery.
            awaited: _,
            // The rules of a list are shown where a target or mapping uses them.
            access_lists: _,
            // The same settings may stand in other files.
            sources: _,
        } = config;
        let mut settings = BTreeMap::from([
            (ConfigPart::Server, server(of_server)),
            (ConfigPart::Limits, limits(of_limits, *max_registrants)),
            (ConfigPart::Session, session(of_session)),
            (ConfigPart::Discovery, discovery(of_discovery)),
        ]);
        settings.extend(of_gateway.iter().map(|one| (ConfigPart::Gateway, gateway(one))));
        settings.extend(of_api.iter().map(|one| (ConfigPart::Api, api(one))));
        settings.extend(portal_groups.iter().map(group));
        settings.extend(disks.iter().map(|(name, disk)| (ConfigPart::Disk(name.clone()), lun(disk))));
        // A server may have thousands of LUNs, and most changes affect one.
        let others: BTreeMap<_, _> = other.targets.iter().map(|one| (&one.name, one)).collect();
        let own = targets.iter().filter(|one| one.router.is_none());
        own.for_each(|one| target(one, others.get(&one.name).copied(), &mut settings));
        routers.iter().for_each(|one| router(one, &mut settings));
        ConfigSettings(settings)
    }
}

fn setting(key: &'static str, shown: impl ToString) -> Setting {
    Setting { key, shown: shown.to_string(), ..Setting::default() }
}

fn path(path: Option<&Path>) -> String {
    path.map_or(String::new(), |path| path.display().to_string())
}

fn gateway(GatewayConfig { group, id, pool }: &GatewayConfig) -> Vec<Setting> {
    vec![setting("group", group), setting("id", id), setting("pool", option(pool))]
}

fn option<T: ToString>(value: &Option<T>) -> String {
    value.as_ref().map_or(String::new(), T::to_string)
}

fn digits(bytes: &Option<Vec<u8>>) -> String {
    bytes.as_deref().map_or_else(String::new, hex)
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

fn server(
    ServerConfig { cores: on, busy_poll, state_dir, admin_socket, metrics }: &ServerConfig,
) -> Vec<Setting> {
    vec![
        setting("cores", cores(on)),
        setting("busy_poll_us", busy_poll.as_micros().to_string()),
        setting("state_dir", path(state_dir.as_deref())),
        setting("admin_socket", path(admin_socket.as_deref())),
        setting("metrics", metrics.map_or_else(String::new, |address| address.to_string())),
    ]
}

/// With the certificate and the names of the tokens: their files may have another content.
fn api(HttpsSettings { listen, files, credentials }: &HttpsSettings) -> Vec<Setting> {
    let CredentialFiles { certificate, key, tokens, client_ca, client_writers } = files;
    let with = |file: &Path, content: String| format!("{} ({content})", file.display());
    let names = tokens.as_deref().map_or(String::new(), |file| with(file, credentials.tokens()));
    let [of_tokens, of_clients] = credentials.hidden();
    vec![
        setting("listen", list(listen)),
        setting("certificate_file", with(certificate, credentials.certificate())),
        setting("key_file", path(Some(key))),
        Setting { hidden: of_tokens, ..setting("token_file", names) },
        Setting { hidden: of_clients, ..setting("client_ca_file", path(client_ca.as_deref())) },
        setting("client_writers", list(client_writers)),
    ]
}

fn limits(limits: &TargetLimits, max_registrants: usize) -> Vec<Setting> {
    let TargetLimits {
        connections,
        connections_before_login,
        login_timeout,
        sessions,
        sessions_per_initiator,
        discovery_sessions,
        discovery_timeout,
        commands_per_session,
        text_bytes,
        memory,
    } = limits;
    vec![
        setting("connections", connections),
        setting("connections_before_login", connections_before_login),
        setting("login_timeout_s", seconds(*login_timeout)),
        setting("sessions", sessions),
        setting("sessions_per_initiator", sessions_per_initiator),
        setting("discovery_sessions", discovery_sessions),
        setting("discovery_timeout_s", seconds(*discovery_timeout)),
        setting("commands_per_session", commands_per_session),
        setting("text_bytes", size(*text_bytes)),
        Setting { needs_restart: true, ..setting("memory", size(*memory)) },
        setting("registrants", max_registrants),
    ]
}

fn session(session: &SessionConfig) -> Vec<Setting> {
    let SessionConfig {
        initial_r2t,
        immediate_data,
        max_recv_data_segment_length,
        max_burst_length,
        first_burst_length,
        max_outstanding_r2t,
        default_time2wait,
        default_time2retain,
        header_digest,
        data_digest,
        nop_interval,
        nop_timeout,
        data_out_timeout,
        chap_algorithms,
    } = session;
    vec![
        setting("initial_r2t", initial_r2t),
        setting("immediate_data", immediate_data),
        setting("max_recv_data_segment_length", max_recv_data_segment_length),
        setting("max_burst_length", max_burst_length),
        setting("first_burst_length", first_burst_length),
        setting("max_outstanding_r2t", max_outstanding_r2t),
        setting("default_time2wait", default_time2wait),
        setting("default_time2retain", default_time2retain),
        setting("header_digest", digests(header_digest)),
        setting("data_digest", digests(data_digest)),
        setting("nop_interval_s", seconds(nop_interval.unwrap_or_default())),
        setting("nop_timeout_s", seconds(*nop_timeout)),
        setting("data_out_timeout_s", seconds(*data_out_timeout)),
        setting("chap_algorithms", list(chap_algorithms.iter().map(|algorithm| algorithm.name()))),
    ]
}

fn digests(AllowedDigests { none, crc32c }: &AllowedDigests) -> String {
    let names = [("None", none), ("CRC32C", crc32c)];
    list(names.into_iter().filter(|(_, allowed)| **allowed).map(|(name, _)| name))
}

fn discovery(DiscoveryConfig { disabled, chap, mutual, nvme_referrals }: &DiscoveryConfig) -> Vec<Setting> {
    vec![
        setting("enabled", !disabled),
        users("chap", chap.as_deref()),
        users("mutual", mutual.as_slice().into()),
        setting("nvme_referrals", list(nvme_referrals)),
    ]
}

/// Users by name. None, which admits all users, is shown as empty.
fn users(key: &'static str, users: Option<&[ChapAccount]>) -> Setting {
    let users = users.unwrap_or_default();
    let secret = |ChapAccount { name: _, secret }: &ChapAccount| {
        [&(secret.len() as u64).to_be_bytes()[..], secret].concat()
    };
    let (shown, hidden) =
        (list(users.iter().map(|user| &user.name)), users.iter().flat_map(secret).collect());
    Setting { key, shown, hidden, ..Setting::default() }
}

fn group(PortalGroup { tag, portals }: &PortalGroup) -> (ConfigPart, Vec<Setting>) {
    let shown = portals.iter().map(|Portal { listen, advertise, transports }| {
        let advertised =
            advertise.as_ref().map_or(String::new(), |address| format!(" advertised as {address}"));
        let carries =
            if transports.by_rdma() || transports.tls { format!(" for {transports}") } else { String::new() };
        format!("{listen}{advertised}{carries}")
    });
    (ConfigPart::Group(*tag), vec![setting("portals", list(shown))])
}

/// The settings of a target and of its LUNs that differ from those of `other`.
fn target(target: &Target, other: Option<&Target>, settings: &mut BTreeMap<ConfigPart, Vec<Setting>>) {
    let Target {
        name,
        alias,
        portal_groups,
        relative_ports,
        redirects,
        offline,
        standby,
        state_dir,
        mutual,
        luns,
        access: rules,
        subsystem,
        // The mappings of a router set `router` and `depth`.
        router: _,
        depth: _,
    } = target;
    let redirects = redirects.iter().map(|LoginRedirect { portal_group_tag, to, permanent }| {
        let how = if *permanent { ", for good" } else { "" };
        format!("portal group {portal_group_tag} to {to}{how}")
    });
    let numbers = relative_ports.iter().map(|(tag, number)| format!("{tag} = {number}"));
    let own = vec![
        setting("alias", option(alias)),
        setting("portal_groups", list(portal_groups)),
        setting("relative_ports", list(numbers)),
        setting("redirect", list(redirects)),
        setting("offline", offline),
        setting("standby", standby),
        setting("state_dir", path(state_dir.as_deref())),
        users("mutual", mutual.as_slice().into()),
        admitted(rules, subsystem.is_some()),
    ];
    let own = own.into_iter().chain(subsystem.iter().flat_map(of_subsystem)).collect();
    let is_same = |number: &u16, unit: &LunConfig| {
        other.is_some_and(|other| {
            other.luns.get(number) == Some(unit) && other.given_ids(*number) == target.given_ids(*number)
        })
    };
    let differ = luns.iter().filter(|(number, unit)| !is_same(number, unit));
    let Some(subsystem) = subsystem else {
        settings.insert(ConfigPart::Target(name.clone()), own);
        settings.extend(differ.map(|(number, unit)| (ConfigPart::Lun(name.clone(), *number), shown(unit))));
        return;
    };
    settings.insert(ConfigPart::Subsystem(name.clone()), own);
    let mut namespace = |nsid: u16, mut unit: Vec<Setting>| {
        let ids = given_ids(target.given_ids(nsid));
        // Its SCSI designator of this name cannot be set.
        unit.retain(|setting| setting.key != "eui64");
        settings.insert(ConfigPart::Namespace(name.clone(), nsid), unit.into_iter().chain(ids).collect());
    };
    differ.for_each(|(nsid, unit)| namespace(*nsid, shown(unit)));
    for (nsid, (target, lun)) in &subsystem.shared {
        namespace(*nsid, vec![setting("disk", format!("LUN {lun} of {target}"))]);
    }
}

/// An identifier as in a file: zeros mean that there is none.
fn or_none(id: &[u8], shown: String) -> String {
    if id.iter().all(|byte| *byte == 0) { NONE.into() } else { shown }
}

/// The identifiers that are given to a namespace.
fn given_ids(GivenNamespaceIds { uuid, nguid, eui64 }: GivenNamespaceIds) -> [Setting; 3] {
    [
        setting("uuid", uuid.map_or_else(String::new, |id| or_none(&id, uuid_text(&id)))),
        setting("nguid", nguid.map_or_else(String::new, |id| or_none(&id, hex(&id)))),
        setting("eui64", digits(&eui64.map(Vec::from))),
    ]
}

/// The settings that only an NVMe subsystem has.
fn of_subsystem(subsystem: &SubsystemConfig) -> [Setting; 5] {
    // The namespaces are parts of their own.
    let SubsystemConfig { serial, model, shared: _, given_ids: _, hosts, secret, tls_keys, is_awaited: _ } =
        subsystem;
    let keys = |keys: &mut dyn Iterator<Item = &NvmeTlsKey>| {
        keys.flat_map(|one| one.key.to_text().as_bytes().to_vec()).collect()
    };
    let secrets = |secrets: Vec<&NvmeSecret>| {
        secrets.iter().flat_map(|one| one.secret.to_text().as_bytes().to_vec()).collect()
    };
    let with = |key, shown, hidden| Setting { key, shown, hidden, ..Setting::default() };
    [
        setting("serial", option(serial)),
        setting("model", option(model)),
        with("host", list(hosts.keys()), secrets(hosts.values().collect())),
        with("secret_file", option(&secret.as_ref().map(|_| "a secret")), secrets(secret.iter().collect())),
        with("tls_key_file", list(tls_keys.keys()), keys(&mut tls_keys.values())),
    ]
}

/// The hosts that a subsystem or a target admits: without a rule, all of them.
fn admitted(rules: &[AccessRule], is_subsystem: bool) -> Setting {
    let mut hosts = access(rules);
    let is_unlimited = |rule: &AccessRule| rule.initiators.is_empty() && rule.networks.is_empty();
    match rules {
        [] => hosts.shown = if is_subsystem { "all hosts" } else { "everybody" }.into(),
        [rule] if is_subsystem && rule.deny => hosts.shown = "no host".into(),
        [rule] if is_subsystem && is_unlimited(rule) => hosts.shown.insert_str(0, "all hosts "),
        _ => {}
    }
    hosts
}

/// An access list in evaluation order.
fn access(entries: &[AccessRule]) -> Setting {
    let mut all = Setting { key: "access", ..Setting::default() };
    let mut shown = Vec::new();
    for entry in entries {
        let accounts =
            [users("chap", entry.chap.as_deref()), users("mutual", entry.mutual.as_slice().into())];
        for users in &accounts {
            all.hidden.extend((users.hidden.len() as u64).to_be_bytes());
            all.hidden.extend(&users.hidden);
        }
        shown.push(who(entry, &accounts[0].shown));
    }
    all.shown = shown.join("; ");
    all
}

/// The initiators that an entry admits, and their LUNs.
fn who(entry: &AccessRule, users: &str) -> String {
    let AccessRule {
        initiators,
        networks,
        portals,
        deny,
        chap,
        mutual,
        luns,
        read_only,
        read_only_luns,
        aen,
    } = entry;
    let network = |IpNetwork { address, bits }: &IpNetwork| format!("{address}/{bits}");
    let mut parts = vec![list(initiators), list(networks.iter().map(network))];
    if !portals.is_empty() {
        parts.push(format!("at {}", list(portals.iter().map(network))));
    }
    if chap.is_some() {
        parts.push(format!("as {users}"));
    }
    parts.extend(mutual.iter().map(|mutual| format!("mutual {}", mutual.name)));
    if let Some(luns) = luns {
        parts.push(format!(
            "LUNs {}",
            list(luns.iter().map(|(seen, of_target)| format!("{seen} = {of_target}")))
        ));
    }
    if !read_only_luns.is_empty() {
        parts.push(format!("read-only LUNs {}", list(read_only_luns)));
    }
    let flags = [(read_only, "read-only"), (aen, "with events")];
    parts.extend(flags.into_iter().filter(|(is_set, _)| **is_set).map(|(_, word)| word.to_owned()));
    parts.retain(|part| !part.is_empty());
    let who = if parts.is_empty() { "everybody".into() } else { parts.join(" ") };
    if *deny { format!("not {who}") } else { who }
}

/// The settings of a LUN: the name of its disk, or its own definition.
fn shown(unit: &LunConfig) -> Vec<Setting> {
    match &unit.disk {
        Some(disk) => vec![setting("disk", disk)],
        None => lun(unit),
    }
}

fn lun(lun: &LunConfig) -> Vec<Setting> {
    let LunConfig {
        source,
        kind,
        block_size: _,
        has_block_size: _,
        physical_block_size,
        read_only,
        removable,
        write_cache,
        direct,
        zero_copy,
        raw,
        on_missing_file,
        thin,
        serial,
        identity: IdentityKeys { naa, eui64, t10_id, scsi_name, designators },
        vendor,
        product,
        revision,
        filters,
        disk: _,
        // The command line or a router sets these, and not a key of the LUN.
        state_name: _,
        // The target shows it.
        state_dir: _,
        found: _,
        reservable: _,
        is_block: _,
        is_upstream: _,
        share: _,
    } = lun;
    vec![
        setting("source", source),
        setting("kind", format!("{kind:?}").to_lowercase()),
        setting("block_size", block_size(lun)),
        setting("physical_block_size", physical_block_size),
        setting("read_only", read_only),
        setting("removable", removable),
        setting("write_cache", write_cache),
        setting("direct", direct),
        setting("zero_copy", zero_copy),
        setting("format", if *raw { "raw" } else { "" }),
        setting("on_missing_file", on_missing_file.name()),
        setting("thin", thin),
        setting("serial", option(serial)),
        setting("naa", digits(naa)),
        setting("eui64", digits(eui64)),
        setting("t10_id", option(t10_id)),
        setting("scsi_name", option(scsi_name)),
        setting("designators", digits(designators)),
        setting("vendor", vendor),
        setting("product", product),
        setting("revision", option(revision)),
        setting("filters", list(filters.iter().map(filter))),
    ]
}

fn block_size(l: &LunConfig) -> String {
    match l.source.has_own_block_size() && !l.has_block_size {
        true => "that of the device".into(),
        false => l.block_size.to_string(),
    }
}

fn filter(filter: &Filter) -> String {
    match filter {
        Filter::Stats => "stats".into(),
        Filter::Delay { read_us, write_us } => {
            format!("delay of reads {read_us} µs, of writes {write_us} µs")
        }
        Filter::Rate { iops, bytes_per_s } => format!("rate {iops} a second, {bytes_per_s} bytes a second"),
        Filter::Error { rate, op } => format!("error in {rate} of each {op:?}").to_lowercase(),
    }
}

fn router(router: &RouterConfig, settings: &mut BTreeMap<ConfigPart, Vec<Setting>>) {
    let RouterConfig {
        name,
        portal_groups,
        // The portal groups show it.
        has_own_portals: _,
        path_loss_timeout,
        max_sessions,
        iops,
        bytes_per_s,
        upstreams,
        targets,
        failover: pair,
    } = router;
    let own = vec![
        setting("portal_groups", list(portal_groups)),
        setting("path_loss_timeout_s", seconds(*path_loss_timeout)),
        setting("max_sessions", option(max_sessions)),
        setting("iops", iops),
        setting("bytes_per_s", bytes_per_s),
        setting("failover", option(&pair.as_ref().map(failover))),
    ];
    settings.insert(ConfigPart::Router(name.clone()), own);
    let part = |upstream: &String| ConfigPart::Upstream(name.clone(), upstream.clone());
    settings.extend(upstreams.iter().map(|(name, one)| (part(name), upstream(one))));
    targets.iter().for_each(|one| mapping(name, one, settings));
}

fn failover(Failover { peer, group, is_preferred, key, initiator }: &Failover) -> String {
    let preferred = if *is_preferred { ", this one preferred" } else { "" };
    let key = key.map_or(String::new(), |key| format!(", key {key:#x}"));
    let name = initiator.as_ref().map_or(String::new(), |name| format!(", reserved as {name}"));
    format!("peer {peer} in portal group {group}{preferred}{key}{name}")
}

fn upstream(upstream: &UpstreamConfig) -> Vec<Setting> {
    let UpstreamConfig { source, mode, policy, identity, vendor, product, serial } = upstream;
    let hidden = match source {
        UpstreamSource::Remote { urls } => {
            urls.iter().flat_map(|url| url.secret_text().bytes().chain([0])).collect()
        }
        UpstreamSource::Local(_) | UpstreamSource::Sg { .. } => Vec::new(),
    };
    let shown = match source {
        UpstreamSource::Remote { urls } => list(urls),
        UpstreamSource::Local(_) | UpstreamSource::Sg { .. } => upstream.location(),
    };
    vec![
        Setting { key: "source", shown, hidden, ..Setting::default() },
        setting("mode", mode.name()),
        setting("policy", policy.name()),
        setting("identity", option(identity)),
        setting("vendor", option(vendor)),
        setting("product", option(product)),
        setting("serial", option(serial)),
    ]
}

/// A mapping, named after its target, or else after its upstream.
fn mapping(router: &str, mapping: &RouterTarget, settings: &mut BTreeMap<ConfigPart, Vec<Setting>>) {
    let RouterTarget { map, access: Grant { names, none: _, entries } } = mapping;
    let name = match map {
        Map::Transparent { upstream } => format!("targets of {upstream}"),
        Map::Target { name, .. } | Map::Lun { name, .. } => format!("target {name}"),
    };
    let upstream = match map {
        Map::Transparent { upstream } | Map::Target { upstream, .. } => upstream.as_str(),
        Map::Lun { .. } => "",
    };
    let own = vec![
        setting("map", map.kind()),
        setting("upstream", upstream),
        setting("access", names.join(", ")),
        Setting { key: "entries of its access lists", ..access(entries) },
    ];
    settings.insert(ConfigPart::Mapping(router.to_owned(), name.clone()), own);
    if let Map::Lun { luns, .. } = map {
        settings.extend(luns.iter().map(|(number, From { upstream, lun })| {
            let behind = match lun {
                Some(lun) => format!("LUN {lun} of upstream {upstream}"),
                None => format!("upstream {upstream}"),
            };
            (ConfigPart::Behind(router.to_owned(), name.clone(), *number), vec![setting("source", behind)])
        }));
    }
}

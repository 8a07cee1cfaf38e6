//! `[discovery]` and `[[portal_group]]`.

use super::chap::ChapUsers;
use super::value::listen;
use lunar_config::advertised_address;
use lunar_config::{Diagnostics, InvalidValue, invalid};
use lunar_config::{Section, UniqueKeys, Value, kind};
use lunar_target::config::{DiscoveryConfig, Portal, PortalGroup, PortalProtocol, RdmaProvider, Transports};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;

/// Reads `[discovery]`.
pub(super) fn discovery(p: &mut Diagnostics<'_>, mut s: Section<'_>, users: &ChapUsers) -> DiscoveryConfig {
    let disabled = !s.flag(p, "enabled", true);
    let chap = users.list(p, &mut s, "chap");
    let mutual = users.one(p, &mut s, "mutual");
    users.refuse_shared(p, &mutual, chap.iter().flatten());
    let nvme_referrals = s.parsed_list(p, "nvme_referrals", advertised_address).unwrap_or_default();
    s.done(p);
    let chap = chap.map(|users| users.into_iter().map(|(user, _)| user).collect());
    DiscoveryConfig { disabled, chap, mutual: mutual.map(|(user, _)| user), nvme_referrals }
}

/// The portal groups of a file, and the values that must be unique among them.
pub(super) struct PortalGroups {
    pub(super) list: Vec<PortalGroup>,
    /// Whether the file has none, so that the list holds the default group.
    pub(super) is_default: bool,
    pub(super) tags: UniqueKeys<u16>,
    addresses: UniqueKeys<SocketAddr>,
}

/// All `[[portal_group]]`; without any, one on the loopback address.
pub(super) fn portal_groups(p: &mut Diagnostics<'_>, root: &mut Section<'_>) -> PortalGroups {
    let sections = root.sections(p, "portal_group", "[[portal_group]]");
    let (mut tags, mut addresses) = (UniqueKeys::new("portal group tag"), UniqueKeys::new("the address"));
    let is_default = sections.is_empty();
    let list = match is_default {
        true => vec![PortalGroup { tag: 1, portals: vec![default_portal()] }],
        false => {
            let group = |s| portal_group(p, s, &mut tags, &mut addresses);
            sections.into_iter().filter_map(group).collect()
        }
    };
    PortalGroups { list, is_default, tags, addresses }
}

fn default_portal() -> Portal {
    Portal::tcp(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), super::PORT))
}

impl PortalGroups {
    /// The tags of all groups so far.
    pub(super) fn tags(&self) -> Vec<u16> {
        self.list.iter().map(|group| group.tag).collect()
    }

    /// The portals that a section lists under `key`; None if it has no such key.
    pub(super) fn portals(
        &mut self,
        p: &mut Diagnostics<'_>,
        s: &mut Section<'_>,
        key: &'static str,
    ) -> Option<Vec<Portal>> {
        let (values, at) = s.list(p, key)?;
        if values.is_empty() {
            p.add(&at, format!("`{key}` is empty"), "remove the key, or write [\"127.0.0.1:3260\"]");
        }
        Some(values.into_iter().filter_map(|value| portal(p, key, value, &mut self.addresses)).collect())
    }

    /// Whether a group has this tag.
    pub(super) fn has(&self, tag: u16) -> bool {
        self.list.iter().any(|group| group.tag == tag)
    }
}

fn portal_group(
    p: &mut Diagnostics<'_>,
    mut s: Section<'_>,
    tags: &mut UniqueKeys<u16>,
    addresses: &mut UniqueKeys<SocketAddr>,
) -> Option<PortalGroup> {
    let tag_value = s.find("tag");
    // The relative target port identifier is derived from the tag and must not be 0.
    let tag: Option<u16> = s.number(p, "tag", 1..=65535);
    let tag_at = tag_value.map(|value| value.span());
    match (&tag_at, tag) {
        (Some(at), Some(tag)) => _ = tags.first(p, tag, at),
        (None, _) => s.missing(p, "tag", "1"),
        _ => {}
    }
    let list = s.list(p, "portals");
    match &list {
        Some((values, at)) if values.is_empty() => no_portals(p, at),
        None if s.find("portals").is_none() => s.missing(p, "portals", "[\"127.0.0.1:3260\"]"),
        _ => {}
    }
    let values = list.map(|(values, _)| values).unwrap_or_default();
    let portals: Vec<Portal> =
        values.into_iter().filter_map(|value| portal(p, "portals", value, addresses)).collect();
    s.done(p);
    let has_srp = portals.iter().any(|portal| portal.transports.protocol == PortalProtocol::Srp);
    if let (Some(at), Some(tag), true) = (&tag_at, tag, has_srp) {
        check_for_srp(p, tags, tag, at);
    }
    Some(PortalGroup { tag: tag?, portals })
}

/// Reports portals that overlap: one on the unspecified address and one on the same port of the same family.
fn check_overlap(
    p: &mut Diagnostics<'_>,
    address: SocketAddr,
    addresses: &UniqueKeys<SocketAddr>,
    at: &Range<usize>,
) {
    let overlaps = |other: &&SocketAddr| {
        let is_same_port = other.port() == address.port() && other.is_ipv4() == address.is_ipv4();
        let has_all = other.ip().is_unspecified() || address.ip().is_unspecified();
        **other != address && is_same_port && has_all
    };
    if let Some(other) = addresses.all().find(overlaps) {
        let what = format!("the portals {other} and {address} overlap");
        p.add(at, what, "keep one of them: the unspecified address covers every address of this host");
    }
}

/// Reports a tag that SRP cannot use: the highest bit distinguishes the relative port identifier of SRP.
fn check_for_srp(p: &mut Diagnostics<'_>, tags: &mut UniqueKeys<u16>, tag: u16, at: &Range<usize>) {
    const SRP: u16 = 0x8000;
    if tag & SRP != 0 {
        p.add(
            at,
            "the portal group has an SRP portal, but a tag of 32768 or more",
            "set a `tag` below 32768",
        );
    } else {
        // Reserves the port identifier.
        tags.first(p, tag | SRP, at);
    }
}

fn no_portals(p: &mut Diagnostics<'_>, at: &Range<usize>) {
    p.add(at, "the portal group has no portal", "add portals = [\"127.0.0.1:3260\"]");
}

/// The transports of a portal; TCP only by default.
fn transports(p: &mut Diagnostics<'_>, s: &mut Section<'_>) -> Transports {
    const KEY: &str = "transport";
    let written = s.find(KEY);
    let named = s.parsed_list(p, KEY, transport);
    let provider_at = s.find("provider").map(|value| value.span());
    let provider = s.parsed(p, "provider", provider).unwrap_or_default();
    let count = named.as_ref().map_or(0, Vec::len);
    let is_known = written.is_none_or(|v| v.get_ref().as_array().is_some_and(|array| array.len() == count));
    let named = named.unwrap_or_else(|| vec![PortalTransport::Tcp]);
    let has = |what| named.contains(&what);
    let iser = has(PortalTransport::Iser);
    let mut others = named.iter().map(|name| name.protocol()).filter(|one| *one != PortalProtocol::Iscsi);
    let protocol = others.next().unwrap_or(PortalProtocol::Iscsi);
    let tcp = has(PortalTransport::Tcp) || protocol.is_nvme();
    let tls_at = s.find("tls").map(|value| value.span());
    let tls = s.parsed(p, "tls", tls).unwrap_or_default();
    let transports = Transports { protocol, tcp, iser, provider, tls };
    // An unknown word may stand for any transport, so the combination is not checked.
    if let (Some(value), true) = (written, is_known)
        && let Some((what, hint)) = wrong_together(&named)
    {
        p.add(&value.span(), what, hint);
    } else if let (Some(at), true, false) = (provider_at, is_known, transports.by_rdma()) {
        p.add(
            &at,
            "`provider` requires an RDMA transport, which this portal does not have",
            "remove `provider`, or add transport = [\"tcp\", \"iser\"] or [\"srp\"]",
        );
    } else if let (Some(at), true, false) = (tls_at, is_known, protocol.is_nvme()) {
        p.add(
            &at,
            "`tls` requires NVMe/TCP, which this portal does not have",
            "remove `tls`, or set transport = [\"nvme-tcp\"] or [\"nvme-discovery\"]",
        );
    }
    transports
}

/// The fault in a combination of transports, and the fix.
fn wrong_together(named: &[PortalTransport]) -> Option<(&'static str, &'static str)> {
    let is_twice = |(n, one)| named[..n].contains(one);
    if named.is_empty() {
        Some(("`transport` is empty", "write [\"tcp\"], [\"tcp\", \"iser\"], [\"srp\"] or [\"nvme-tcp\"]"))
    } else if named.iter().enumerate().any(is_twice) {
        Some(("`transport` has a duplicate", "remove the duplicate"))
    } else if named.len() > 1 && named.iter().any(|one| one.protocol() != PortalProtocol::Iscsi) {
        Some((
            "\"srp\", \"nvme-tcp\" and \"nvme-discovery\" exclude other transports in one portal",
            "add a separate portal with another port for each of them",
        ))
    } else {
        None
    }
}

/// Whether hosts must begin with TLS.
fn tls(text: &str) -> Result<bool, InvalidValue> {
    match text {
        "required" => Ok(true),
        _ => invalid(
            format!("unknown value \"{}\" of `tls`", text.escape_debug()),
            "write \"required\", or remove `tls` for a portal without TLS",
        ),
    }
}

fn provider(text: &str) -> Result<RdmaProvider, InvalidValue> {
    match text {
        "iwarp" => Ok(RdmaProvider::Iwarp),
        "verbs" => Ok(RdmaProvider::Verbs),
        _ => invalid(
            format!("unknown RDMA provider \"{}\"", text.escape_debug()),
            "write \"iwarp\" (software, over TCP) or \"verbs\" (an RDMA device that has the address)",
        ),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PortalTransport {
    Tcp,
    Iser,
    Srp,
    NvmeTcp,
    NvmeDiscovery,
}

impl PortalTransport {
    fn protocol(self) -> PortalProtocol {
        match self {
            PortalTransport::Tcp | PortalTransport::Iser => PortalProtocol::Iscsi,
            PortalTransport::Srp => PortalProtocol::Srp,
            PortalTransport::NvmeTcp => PortalProtocol::NvmeTcp,
            PortalTransport::NvmeDiscovery => PortalProtocol::NvmeDiscovery,
        }
    }
}

fn transport(text: &str) -> Result<PortalTransport, InvalidValue> {
    match text {
        "tcp" => Ok(PortalTransport::Tcp),
        "iser" => Ok(PortalTransport::Iser),
        "srp" => Ok(PortalTransport::Srp),
        "nvme-tcp" => Ok(PortalTransport::NvmeTcp),
        "nvme-discovery" => Ok(PortalTransport::NvmeDiscovery),
        _ => invalid(
            format!("unknown transport \"{}\"", text.escape_debug()),
            "write \"tcp\" (iSCSI over TCP), \"iser\" (iSCSI over RDMA), \"srp\" (SRP), \"nvme-tcp\" (NVMe over TCP) or \
             \"nvme-discovery\" (the discovery of NVMe over TCP)",
        ),
    }
}

fn portal(
    p: &mut Diagnostics<'_>,
    key: &str,
    value: Value<'_>,
    addresses: &mut UniqueKeys<SocketAddr>,
) -> Option<Portal> {
    let portal = if let Some(text) = value.get_ref().as_str() {
        Portal::tcp(p.check(&value.span(), listen(text, Transports::TCP))?)
    } else if let Some(table) = value.get_ref().as_table() {
        let mut s = Section::of("a portal", table, value.span());
        if s.find("listen").is_none() {
            s.missing(p, "listen", "\"127.0.0.1:3260\"");
        }
        let transports = transports(p, &mut s);
        let address = s.parsed(p, "listen", |text| listen(text, transports));
        let advertise = s.parsed(p, "advertise", advertised_address);
        s.done(p);
        Portal { listen: address?, advertise, transports }
    } else {
        kind(
            p,
            key,
            value,
            "a list of addresses",
            "write \"127.0.0.1:3260\" or { listen = ..., advertise = ..., transport = [...] }",
        );
        return None;
    };
    // Port 0 selects any free port, so it never conflicts.
    if portal.listen.port() != 0 && addresses.first(p, portal.listen, &value.span()) {
        check_overlap(p, portal.listen, addresses, &value.span());
    }
    Some(portal)
}

//! Portal groups. Those that a target names are carried over, with their redirects and the access to discovery.

use super::CtldImport;
use super::access::CtldAccess;
use super::file::{CtldKey, all, value};
use crate::common::every_address;
use crate::portals::PortalSets;
use crate::{Discovery, NewPortal, NewTransport};
use std::collections::BTreeSet;
use std::net::{Ipv6Addr, SocketAddr};

/// The portal group of a target that names none.
pub(super) const DEFAULT: &str = "default";
/// The tag of the first portal group without one: the default group.
const FIRST_TAG: u16 = 256;

/// A portal group that targets use.
#[derive(Debug)]
pub(super) struct CtldPortals<'a> {
    pub(super) name: &'a str,
    place: String,
    keys: &'a [CtldKey],
    /// Its tags.
    pub(super) tags: BTreeSet<u16>,
    /// The address to which it redirects logins.
    pub(super) redirect: Option<String>,
    discovery: &'a str,
}

impl CtldImport {
    /// Adds the portal groups that targets use.
    pub(super) fn portal_groups<'a>(&mut self, keys: &'a [CtldKey]) -> Vec<CtldPortals<'a>> {
        let used = used(keys);
        let own = all(keys, "portal-group").find(|group| group.word(0) == DEFAULT);
        let first = own.map_or((DEFAULT, "the default".to_owned(), &[][..], false), |group| {
            (DEFAULT, group.place(), &group.block[..], true)
        });
        let named = all(keys, "portal-group").filter(|group| group.word(0) != DEFAULT);
        let named = named.map(|group| (group.word(0), group.place(), &group.block[..], true));
        let (mut sets, mut groups, mut olds) = (PortalSets::default(), Vec::new(), Vec::new());
        let mut free = FIRST_TAG;
        for (name, place, keys, is_defined) in std::iter::once(first).chain(named) {
            let tag = value(keys, "tag").and_then(|tag| tag.parse().ok()).filter(|tag| *tag > 0);
            let tag = tag.unwrap_or_else(|| {
                let tag = free;
                free = free.saturating_add(1);
                tag
            });
            let is_foreign = all(keys, "foreign").next().is_some();
            if is_foreign {
                self.0.notes.lost(&place, format!("portal group {name}: the portals of another node"));
            } else if !used.contains(name) {
                if is_defined {
                    self.0.notes.lost(&place, format!("portal group {name}, which no target names"));
                }
            } else {
                let own = if is_defined { self.portals(keys) } else { every_address(false).into() };
                sets.add(Some(tag), own);
                olds.push(tag);
                groups.push(self.group(name, place, keys));
            }
        }
        let tags = self.0.portal_groups(&mut sets, "portal-group");
        for ((group, tags), old) in groups.iter_mut().zip(tags).zip(olds) {
            group.tags = tags;
            if group.tags != BTreeSet::from([old]) && !group.tags.is_empty() {
                let shown = group.tags.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
                let what = format!(
                    "portal group {}: its tag {old} becomes {shown}, which hosts see as other target port groups",
                    group.name
                );
                self.0.notes.changed(&group.place, what);
            }
        }
        groups
    }

    fn group<'a>(&mut self, name: &'a str, place: String, keys: &'a [CtldKey]) -> CtldPortals<'a> {
        let redirect = all(keys, "redirect").next().map(|key| key.word(0).to_owned());
        for key in keys {
            let what = format!("portal group {name}: {}", key.shown());
            match key.key.as_str() {
                "listen" | "listen-iser" | "tag" | "discovery-auth-group" => {}
                "redirect" => self.0.notes.changed(
                    key.place(),
                    format!("{what}: a host is redirected after its login, if the target admits it"),
                ),
                "discovery-filter" if key.word(0) == "portal-name" => {}
                "discovery-filter" => self.0.notes.changed(
                    key.place(),
                    format!("{what}: a host discovers the targets whose access entries match it"),
                ),
                "offload" => self.0.notes.changed(key.place(), format!("{what}, which Lunar does not use")),
                _ => self.0.notes.lost(key.place(), what),
            }
        }
        let discovery = value(keys, "discovery-auth-group").unwrap_or(DEFAULT);
        CtldPortals { name, place, keys, tags: BTreeSet::new(), redirect, discovery }
    }

    fn portals(&mut self, keys: &[CtldKey]) -> Vec<NewPortal> {
        let mut portals: Vec<NewPortal> = Vec::new();
        for key in keys.iter().filter(|key| matches!(key.key.as_str(), "listen" | "listen-iser")) {
            match listen(key.word(0)) {
                Some(listen) => portals
                    .push(NewPortal { listen, transport: NewTransport::iscsi(key.key == "listen-iser") }),
                None => self
                    .0
                    .notes
                    .lost(key.place(), format!("the portal {:?}, which is no address", key.word(0))),
            }
        }
        portals
    }

    /// Carries over the access to discovery, which all portals of Lunar share.
    pub(super) fn discovery(&mut self, keys: &[CtldKey], groups: &[CtldPortals<'_>]) {
        let mut groups = groups.iter().filter(|group| group.redirect.is_none());
        let Some(first) = groups.next() else { return };
        let place = |group: &CtldPortals<'_>| {
            all(group.keys, "discovery-auth-group").next().map_or(group.place.clone(), CtldKey::place)
        };
        let mut discovery = match self.auth_group(keys, first.discovery, &place(first)) {
            CtldAccess::Denied => Discovery { disabled: true, ..Discovery::default() },
            CtldAccess::Entry(entry) if entry.initiators.is_empty() && entry.networks.is_empty() => {
                Discovery { disabled: false, chap: entry.chap, mutual: entry.mutual }
            }
            CtldAccess::Entry(_) => {
                let what = format!(
                    "discovery for some hosts, with auth group {}: it is disabled for all hosts",
                    first.discovery
                );
                self.0.notes.lost(place(first), what);
                Discovery { disabled: true, ..Discovery::default() }
            }
        };
        if let Some(other) = groups.find(|group| group.discovery != first.discovery) {
            let what = format!(
                "discovery, which portal groups {} and {} permit to other hosts: it is disabled at all portals",
                first.name, other.name
            );
            self.0.notes.lost(place(other), what);
            discovery = Discovery { disabled: true, ..Discovery::default() };
        }
        self.0.configuration.discovery = discovery;
    }
}

/// The names of the portal groups that targets use.
fn used(keys: &[CtldKey]) -> BTreeSet<&str> {
    all(keys, "target").flat_map(|target| groups_of(target).map(|(name, _)| name)).collect()
}

/// The portal groups of a target, each with the auth group that replaces that of the target. A target without portal
/// groups and other ports uses the default group.
pub(super) fn groups_of(target: &CtldKey) -> impl Iterator<Item = (&str, Option<&CtldKey>)> {
    let is_default = target.block.iter().all(|key| !matches!(key.key.as_str(), "portal-group" | "port"));
    let named = all(&target.block, "portal-group").map(|key| (key.word(0), Some(key)));
    named.chain(is_default.then_some((DEFAULT, None)))
}

/// Whether hosts can be redirected to an address: a host name or an address, and a port if it is not 3260.
pub(super) fn is_address(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    let is_host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')),
    };
    is_host && host.len() <= 255 && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// An address with its port.
fn listen(text: &str) -> Option<String> {
    let is_bare = text.ends_with(']') || !text.contains(':');
    let text = if is_bare { format!("{text}:3260") } else { text.to_owned() };
    text.parse::<SocketAddr>().ok().map(|address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirect_has_a_host_and_a_port() {
        for text in ["192.0.2.1", "[2001:db8::1]:3261", "[2001:db8::1]", "filer.example.org:3260"] {
            assert!(is_address(text), "{text}");
        }
        for text in ["", ":3260", "2001:db8::1", "filer:0", "a b", "[x]"] {
            assert!(!is_address(text), "{text}");
        }
    }

    #[test]
    fn portal_without_a_port_has_that_of_iscsi() {
        let shown = |text| listen(text).unwrap_or_default();
        assert_eq!(shown("0.0.0.0"), "0.0.0.0:3260");
        assert_eq!(shown("[::]"), "[::]:3260");
        assert_eq!(shown("[2001:db8::1]:3261"), "[2001:db8::1]:3261");
        assert_eq!(listen("filer"), None);
    }
}

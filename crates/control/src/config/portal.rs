//! `[discovery]` and `[[portal_group]]`.

use super::chap::Users;
use super::reader::{Once, Section, Value, kind};
use super::value::{listen, told};
use crate::problem::Problems;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use target::setup::{Discovery, Portal, PortalGroup};

/// Who may discover.
pub(super) fn discovery(p: &mut Problems<'_>, mut s: Section<'_>, users: &Users) -> Discovery {
    let disabled = !s.flag(p, "enabled", true);
    let chap = users.list(p, &mut s, "chap");
    let mutual = users.one(p, &mut s, "mutual");
    users.refuse_shared(p, &mutual, chap.iter().flatten());
    s.done(p);
    let chap = chap.map(|users| users.into_iter().map(|(user, _)| user).collect());
    Discovery { disabled, chap, mutual: mutual.map(|(user, _)| user) }
}

/// All portal groups; without any, one on the loopback address.
pub(super) fn portal_groups(p: &mut Problems<'_>, root: &mut Section<'_>) -> Vec<PortalGroup> {
    let sections = root.sections(p, "portal_group", "[[portal_group]]");
    if sections.is_empty() {
        let listen = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), super::PORT);
        return vec![PortalGroup { tag: 1, portals: vec![Portal { listen, advertise: None }] }];
    }
    let mut tags = Once::new("portal group tag");
    let mut addresses = Once::new("the address");
    sections.into_iter().filter_map(|s| portal_group(p, s, &mut tags, &mut addresses)).collect()
}

fn portal_group(
    p: &mut Problems<'_>,
    mut s: Section<'_>,
    tags: &mut Once<u16>,
    addresses: &mut Once<SocketAddr>,
) -> Option<PortalGroup> {
    let tag_value = s.find("tag");
    // 0 cannot be a relative target port identifier, which is made of the tag.
    let tag: Option<u16> = s.number(p, "tag", 1..=65535);
    match (tag_value, tag) {
        (Some(value), Some(tag)) => _ = tags.first(p, tag, &value.span()),
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
    let portals: Vec<Portal> = values.into_iter().filter_map(|value| portal(p, value, addresses)).collect();
    s.done(p);
    Some(PortalGroup { tag: tag?, portals })
}

fn no_portals(p: &mut Problems<'_>, at: &Range<usize>) {
    p.add(at, "the portal group has no portal", "add portals = [\"127.0.0.1:3260\"]");
}

fn portal(p: &mut Problems<'_>, value: Value<'_>, addresses: &mut Once<SocketAddr>) -> Option<Portal> {
    let portal = if let Some(text) = value.get_ref().as_str() {
        Portal { listen: p.check(&value.span(), listen(text))?, advertise: None }
    } else if let Some(table) = value.get_ref().as_table() {
        let mut s = Section::of("a portal", table, value.span());
        if s.find("listen").is_none() {
            s.missing(p, "listen", "\"127.0.0.1:3260\"");
        }
        let address = s.parsed(p, "listen", listen);
        let advertise = s.parsed(p, "advertise", told);
        s.done(p);
        Portal { listen: address?, advertise }
    } else {
        kind(
            p,
            "portals",
            value,
            "a list of addresses",
            "write \"127.0.0.1:3260\" or { listen = ..., advertise = ... }",
        );
        return None;
    };
    // Port 0 means any free port: it never collides.
    if portal.listen.port() != 0 {
        addresses.first(p, portal.listen, &value.span());
    }
    Some(portal)
}

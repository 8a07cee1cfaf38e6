//! `[router.NAME.failover]`: the other router of a failover pair.

use super::{Mode, RouterConfig, UpstreamSource, Upstreams};
use lunar_config::Section;
use lunar_config::iscsi_name;
use lunar_config::{Diagnostics, InvalidValue, invalid};
use lunar_initiator::{Portal, PortalAddress};
use std::ops::Range;

/// A failover pair from the view of one of its routers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failover {
    /// A portal of the peer.
    pub peer: Portal,
    /// The peer's portal group tag.
    pub group: u16,
    /// Whether this router is the preferred one while both are usable.
    pub is_preferred: bool,
    /// Its reservation key at the upstreams (SPC-5 section 5.13.3); None: derived from the host name and the
    /// instance.
    pub key: Option<u64>,
    /// The initiator name that holds the reservations; None: that of the upstream sessions.
    pub initiator: Option<String>,
}

/// Reads the section. Returns the pair and the position of the peer's portal group.
pub(super) fn failover(
    p: &mut Diagnostics<'_>,
    mut s: Section<'_>,
    upstreams: &Upstreams,
) -> (Option<Failover>, Option<Range<usize>>) {
    for (key, example) in [("peer", "\"192.0.2.9:3260\""), ("group", "2")] {
        if s.find(key).is_none() {
            s.missing(p, key, example);
        }
    }
    let peer = s.parsed(p, "peer", portal);
    let group_at = s.find("group").map(|value| value.span());
    let group = s.number(p, "group", 1..=65535);
    let is_preferred = s.flag(p, "prefer", false);
    // 0 is not a valid key.
    let key = s.number(p, "key", 1..=u64::MAX);
    let initiator = s.parsed(p, "initiator", iscsi_name);
    fits(p, &s, upstreams);
    s.done(p);
    let failover =
        peer.zip(group).map(|(peer, group)| Failover { peer, group, is_preferred, key, initiator });
    (failover, group_at)
}

fn portal(text: &str) -> Result<Portal, InvalidValue> {
    let hint = "write a host name or an address, and a port: 192.0.2.9:3260 or [2001:db8::9]:3260";
    match PortalAddress::parse(text) {
        Ok(PortalAddress { host, port, portal_group_tag: None }) => Ok(Portal { host, port }),
        Ok(_) => invalid(
            format!("portal \"{}\": portal group tag not allowed", text.escape_debug()),
            "write the tag as `group`",
        ),
        Err(why) => invalid(format!("portal \"{}\": {why}", text.escape_debug()), hint),
    }
}

/// Checks the upstreams: both routers must reach the same disks, and use reservations to exclude each other.
fn fits(p: &mut Diagnostics<'_>, s: &Section<'_>, upstreams: &Upstreams) {
    for (name, (upstream, _)) in &upstreams.0 {
        let Some(upstream) = upstream else { continue };
        if upstream.mode != Mode::Block {
            let what = format!(
                "the upstream {name} has mode = \"passthrough\", and failover requires mode = \"block\""
            );
            p.add(&s.at, what, "remove [router.NAME.failover], or write mode = \"block\"");
        } else if !matches!(upstream.source, UpstreamSource::Remote { .. }) {
            let what = format!(
                "the upstream {name} is local to this host, and failover requires storage that both routers reach"
            );
            p.add(&s.at, what, "remove [router.NAME.failover], or write `urls`");
        }
    }
}

/// Checks that the portals of both routers have different tags, because they are different ports of one target (SPC-5
/// section 5.18).
pub(super) fn check_groups(
    p: &mut Diagnostics<'_>,
    routers: &[RouterConfig],
    at: &[Option<Range<usize>>],
    own: &[u16],
) {
    for (router, at) in routers.iter().zip(at) {
        let Some((pair, at)) = router.failover.as_ref().zip(at.as_ref()) else { continue };
        if own.contains(&pair.group) {
            let what = format!("this server has a portal group with the tag of the peer: {}", pair.group);
            p.add(at, what, "use different portal group tags on the two routers");
        }
    }
}

//! `[[router.NAME.target]]`: maps logical units of upstreams to LUNs of a target.

use super::{Context, From, Map, Mode, Reach, RouterTarget, UpstreamConfig, Upstreams};
use crate::config::target::LUN_RANGE;
use lunar_config::iscsi_name;
use lunar_config::{Diagnostics, InvalidValue, unknown};
use lunar_config::{Section, UniqueKeys};
use std::collections::BTreeMap;
use std::ops::Range;

/// The kinds of mappings, and the keys of each.
const MAPS: [(&str, &[&str]); 3] =
    [("transparent", &["upstream"]), ("target", &["name", "upstream"]), ("lun", &["name", "lun"])];

/// The upstreams and LUNs that are mapped already.
struct UsedUpstreams {
    upstreams: UniqueKeys<String>,
    luns: UniqueKeys<String>,
}

/// Reads all `[[router.NAME.target]]` of a router.
pub(super) fn targets(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    upstreams: &Upstreams,
    around: &mut Context<'_>,
) -> Vec<RouterTarget> {
    let mut served = UsedUpstreams {
        upstreams: UniqueKeys::new("the mapping of upstream"),
        luns: UniqueKeys::new("the LUN of upstream"),
    };
    let sections = s.sections(p, "target", "[[router.NAME.target]]");
    sections.into_iter().filter_map(|s| target(p, s, upstreams, around, &mut served)).collect()
}

fn target(
    p: &mut Diagnostics<'_>,
    mut s: Section<'_>,
    upstreams: &Upstreams,
    around: &mut Context<'_>,
    served: &mut UsedUpstreams,
) -> Option<RouterTarget> {
    let access = around.lists.grant(p, &mut s);
    let kind = kind(p, &mut s);
    let name = name(p, &mut s, kind.unwrap_or("transparent"), around);
    let map = match kind {
        Some("transparent") => {
            whole(p, &mut s, upstreams, served, Reach::Portal).map(|upstream| Map::Transparent { upstream })
        }
        Some("target") => whole(p, &mut s, upstreams, served, Reach::Target(""))
            .zip(name)
            .map(|(upstream, name)| Map::Target { name, upstream }),
        Some(_) => {
            let luns = luns(p, &mut s, upstreams, served);
            name.map(|name| Map::Lun { name, luns })
        }
        None => None,
    };
    // Without a valid kind, the keys of all kinds count as known.
    ["upstream", "lun"].iter().for_each(|key| _ = s.find(key));
    s.done(p);
    map.map(|map| RouterTarget { map, access })
}

/// The kind of mapping. Reports keys that do not belong to it.
fn kind(p: &mut Diagnostics<'_>, s: &mut Section<'_>) -> Option<&'static str> {
    if s.find("map").is_none() {
        s.missing(p, "map", "\"transparent\" (or \"target\", \"lun\")");
    }
    let (text, at) = s.text(p, "map")?;
    let Some((name, keys)) = MAPS.into_iter().find(|(name, _)| *name == text) else {
        let all = "write \"transparent\", \"target\" or \"lun\"";
        let InvalidValue { what, hint, .. } = unknown("map", text, MAPS.map(|(name, _)| name), all);
        p.add(&at, what, hint);
        return None;
    };
    for key in ["name", "upstream", "lun"] {
        if let (Some(value), false) = (s.find(key), keys.contains(&key)) {
            let hint = format!("the keys of this map are `{}`", keys.join("` and `"));
            p.add(&value.span(), format!("`{key}` does not fit map = \"{name}\""), hint);
        }
    }
    Some(name)
}

/// The name of the target, which must be unique.
fn name(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    kind: &str,
    around: &mut Context<'_>,
) -> Option<String> {
    let Some(value) = s.find("name") else {
        if kind != "transparent" {
            s.missing(p, "name", "\"iqn.2026-11.org.example:disks\"");
        }
        return None;
    };
    let name = s.parsed(p, "name", iscsi_name)?;
    around.unique.names.first(p, name.clone(), &value.span());
    Some(name)
}

/// The upstream of a mapping that maps all of its LUNs.
fn whole(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    upstreams: &Upstreams,
    served: &mut UsedUpstreams,
    wanted: Reach<'_>,
) -> Option<String> {
    let (name, upstream, at) = upstreams.named(p, s)?;
    let upstream = upstream?;
    if upstream.reach().name() != wanted.name() {
        misfit(p, (name, upstream), &at, wanted.name());
        return None;
    }
    if upstream.mode == Mode::Block {
        served.upstreams.first(p, name.into(), &at);
    }
    Some(name.into())
}

fn misfit(
    p: &mut Diagnostics<'_>,
    (name, upstream): (&str, &UpstreamConfig),
    at: &Range<usize>,
    wanted: &str,
) {
    let hint = match upstream.reach() {
        Reach::Portal => "use map = \"transparent\" for a portal",
        Reach::Target(_) => {
            "use map = \"target\" for a target, or map = \"lun\" and `from` for a LUN of the target"
        }
        Reach::Lun(..) | Reach::Local => "use map = \"lun\" for a LUN",
    };
    p.add(
        at,
        format!("the upstream {name} is {}, but the mapping requires {wanted}", upstream.reach().name()),
        hint,
    );
}

/// The LUNs of a composed target.
fn luns(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    upstreams: &Upstreams,
    served: &mut UsedUpstreams,
) -> BTreeMap<u16, From> {
    let (mut luns, mut once) = (BTreeMap::new(), UniqueKeys::new("LUN"));
    match s.find("lun") {
        None => s.missing(p, "lun", "[{ lun = 0, upstream = \"a\" }]"),
        Some(value) if value.get_ref().as_array().is_some_and(|list| list.is_empty()) => {
            p.add(&value.span(), "the target has no LUN", "write lun = [{ lun = 0, upstream = \"a\" }]");
        }
        Some(_) => {}
    }
    for mut s in s.sections(p, "lun", "lun = [{ lun = 0, upstream = \"a\" }]") {
        let at = s.find("lun").map_or(s.at.clone(), |value| value.span());
        if s.find("lun").is_none() {
            s.missing(p, "lun", "0");
        }
        let number: Option<u16> = s.number(p, "lun", LUN_RANGE);
        let from = from(p, &mut s, upstreams, served);
        if let Some(number) = number
            && once.first(p, number, &at)
        {
            luns.extend(from.map(|from| (number, from)));
        }
        s.done(p);
    }
    luns
}

/// The source of a mapped LUN.
fn from(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    upstreams: &Upstreams,
    served: &mut UsedUpstreams,
) -> Option<From> {
    let from_at = s.find("from").map(|value| value.span());
    let lun: Option<u16> = s.number(p, "from", LUN_RANGE);
    let (name, upstream, at) = upstreams.named(p, s)?;
    let upstream = upstream?;
    match (upstream.reach(), &from_at) {
        (Reach::Portal, _) => misfit(p, (name, upstream), &at, "a LUN, or a target and `from`"),
        (Reach::Target(_), None) => p.add(
            &at,
            format!("the upstream {name} is a target, but `from` does not name a LUN"),
            "add from = 0",
        ),
        (Reach::Lun(..) | Reach::Local, Some(from_at)) => {
            p.add(
                from_at,
                format!("the upstream {name} is a LUN, and `from` applies only to a target"),
                "remove `from`",
            );
        }
        _ => {}
    }
    // With two LUNs for one disk, each device server would ignore the reservations of the other.
    if upstream.mode == Mode::Block || upstream.reach() == Reach::Local {
        let what = lun.map_or(name.to_owned(), |lun| format!("{name}, from {lun},"));
        served.luns.first(p, what, &at);
    }
    Some(From { upstream: name.into(), lun })
}

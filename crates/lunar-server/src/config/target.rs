//! `[[target]]` with its logical units and its access list.

use super::chap::{ChapUsers, NamedUser, SecretSource};
use super::disk::{self, Disks};
use super::lun::{LunConfig, UniqueValues, lun};
use super::relative_ports::relative_ports;
use super::standby::{self, Kept};
use super::value::network;
use lunar_config::{Diagnostics, invalid};
use lunar_config::{Section, UniqueKeys, Value, kind, number, table};
use lunar_config::{advertised_address, iscsi_name, pattern, plain_text};
use lunar_target::config::{AccessRule, LoginRedirect, PortalGroup};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The objects that a target may refer to.
pub(super) struct Context<'a> {
    pub(super) users: &'a ChapUsers,
    pub(super) tags: &'a [u16],
    pub(super) groups: &'a [PortalGroup],
    pub(super) disks: &'a Disks,
    pub(super) base: &'a Path,
    pub(super) source: SecretSource<'a>,
}

/// LUNs of a single level (SAM-5 section 4.7).
pub(super) const LUN_RANGE: std::ops::RangeInclusive<u64> = 0..=16383;

/// All `[[target]]`.
pub(super) fn targets(
    p: &mut Diagnostics<'_>,
    root: &mut Section<'_>,
    around: &Context<'_>,
    unique: &mut UniqueValues,
) -> Vec<super::Target> {
    let sections = root.sections(p, "target", "[[target]]");
    sections.into_iter().filter_map(|s| target(p, s, around, unique)).collect()
}

fn target(
    p: &mut Diagnostics<'_>,
    mut s: Section<'_>,
    around: &Context<'_>,
    unique: &mut UniqueValues,
) -> Option<super::Target> {
    if s.find("name").is_none() {
        s.missing(p, "name", "\"iqn.2026-11.org.example:disks\"");
    }
    let name = s.parsed(p, "name", iscsi_name);
    if let (Some(name), Some(value)) = (&name, s.find("name")) {
        unique.names.first(p, name.clone(), &value.span());
    }
    let alias = s.parsed(p, "alias", |text| plain_text(text, "an alias"));
    let portal_groups = tags(p, &mut s, around.tags).unwrap_or_else(|| around.tags.to_vec());
    let relative_ports = relative_ports(p, &mut s, &portal_groups, around.groups);
    let redirects = redirects(p, &mut s, &portal_groups);
    let offline = s.flag(p, "offline", false);
    let standby = s.flag(p, "standby", false);
    let state_dir = standby::state_dir(p, &mut s, standby, around.base);
    let mutual = around.users.one(p, &mut s, "mutual");
    let kept = Kept { is_standby: standby, state_dir: &state_dir };
    let (luns, numbers) = luns(p, &mut s, around, unique, kept);
    let access = access_list(p, &mut s, around.users, &mutual, &numbers);
    s.done(p);
    let mutual = mutual.map(|(user, _)| user);
    Some(super::Target {
        alias,
        relative_ports,
        redirects,
        offline,
        standby,
        state_dir,
        mutual,
        luns: Arc::new(luns),
        access,
        ..super::Target::new(name?, portal_groups)
    })
}

/// Reads the portal groups that a target names.
pub(super) fn tags(p: &mut Diagnostics<'_>, s: &mut Section<'_>, known: &[u16]) -> Option<Vec<u16>> {
    let (values, at) = s.list(p, "portal_groups")?;
    if values.is_empty() {
        p.add(
            &at,
            "the target is in no portal group",
            "name a portal group, or leave `portal_groups` out for all",
        );
    }
    let mut tags: Vec<u16> =
        values.into_iter().filter_map(|value| tag(p, "portal_groups", value, known)).collect();
    tags.sort_unstable();
    tags.dedup();
    Some(tags)
}

fn tag(p: &mut Diagnostics<'_>, key: &str, value: Value<'_>, known: &[u16]) -> Option<u16> {
    number(p, key, value, 1..=65535).and_then(|tag| known_tag(p, &value.span(), tag, known))
}

/// The tag if it is known.
pub(super) fn known_tag(p: &mut Diagnostics<'_>, at: &Range<usize>, tag: u16, known: &[u16]) -> Option<u16> {
    if !known.contains(&tag) {
        let shown = known.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
        // If no portal group is valid, their problems are reported already.
        if !known.is_empty() {
            p.add(at, format!("unknown portal group {tag}"), format!("portal groups are {shown}"));
        }
        return None;
    }
    Some(tag)
}

fn redirects(p: &mut Diagnostics<'_>, s: &mut Section<'_>, known: &[u16]) -> Vec<LoginRedirect> {
    let mut once = UniqueKeys::new("the redirect of portal group");
    let values = s.list(p, "redirect").map(|(values, _)| values).unwrap_or_default();
    let mut redirects = Vec::new();
    for value in values {
        let Some(mut s) = table(p, "redirect", "redirect = [{ ... }]", value) else { continue };
        let portal_group_tag = s.find("portal_group").and_then(|value| tag(p, "portal_group", value, known));
        let to = s.parsed(p, "to", advertised_address);
        let permanent = s.flag(p, "permanent", false);
        for (key, example) in [("portal_group", "1"), ("to", "\"192.0.2.9:3260\"")] {
            if s.find(key).is_none() {
                s.missing(p, key, example);
            }
        }
        if let (Some(portal_group_tag), Some(to)) = (portal_group_tag, to) {
            once.first(p, portal_group_tag, &s.at);
            redirects.push(LoginRedirect { portal_group_tag, to, permanent });
        }
        s.done(p);
    }
    redirects
}

/// Reads the logical units. Also returns all LUN numbers, including those of invalid ones.
fn luns(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    around: &Context<'_>,
    unique: &mut UniqueValues,
    kept: Kept<'_>,
) -> (BTreeMap<u16, LunConfig>, Vec<u16>) {
    let mut luns = BTreeMap::new();
    let mut numbers = Vec::new();
    let mut once = UniqueKeys::new("LUN");
    let mut shown = UniqueKeys::new("disk");
    for mut s in s.sections(p, "lun", "[[target.lun]]") {
        let number_value = s.find("lun");
        if number_value.is_none() {
            s.missing(p, "lun", "0");
        }
        let number: Option<u16> = s.number(p, "lun", LUN_RANGE);
        let what = match s.find("disk") {
            Some(value) => disk::named(p, &mut s, around.disks, &mut shown, &value.span()),
            None => lun(p, &mut s, around.base, unique),
        };
        let what = what.and_then(|lun| kept.lun(p, &s.at, lun));
        if let (Some(value), Some(number)) = (number_value, number) {
            numbers.push(number);
            if once.first(p, number, &value.span()) {
                what.into_iter().for_each(|what| _ = luns.insert(number, what));
            }
        }
        s.done(p);
    }
    (luns, numbers)
}

fn access_list(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    users: &ChapUsers,
    mutual: &Option<NamedUser>,
    numbers: &[u16],
) -> Vec<AccessRule> {
    let mut list = Vec::new();
    for mut s in s.sections(p, "access", "[[target.access]]") {
        let rule = access_rule(p, &mut s, users, mutual);
        let (luns, aen) = (lun_map(p, &mut s, numbers), s.flag(p, "aen", false));
        let rule = AccessRule { luns, aen, ..rule };
        unseen_luns(p, &mut s, &rule, numbers);
        list.push(rule);
        s.done(p);
    }
    list
}

/// Reads the keys that access entries of targets and of routers have. `mutual`: the account of the target.
pub(super) fn access_rule(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    users: &ChapUsers,
    mutual: &Option<NamedUser>,
) -> AccessRule {
    let chap = users.list(p, s, "chap");
    let own = users.one(p, s, "mutual");
    users.refuse_shared(p, if own.is_some() { &own } else { mutual }, chap.iter().flatten());
    let account = |(user, _): NamedUser| user;
    let deny = s.flag(p, "deny", false);
    if deny {
        no_effect(p, s);
    }
    AccessRule {
        initiators: not_empty(p, s, "initiators", pattern),
        networks: not_empty(p, s, "networks", network),
        portals: not_empty(p, s, "portals", network),
        deny,
        chap: chap.map(|users| users.into_iter().map(account).collect()),
        mutual: own.map(account),
        luns: None,
        read_only: !has_list(s) && s.flag(p, "read_only", false),
        read_only_luns: if has_list(s) { read_only_luns(p, s) } else { BTreeSet::new() },
        aen: false,
    }
}

/// Whether `read_only` is a list of LUNs.
fn has_list(s: &mut Section<'_>) -> bool {
    s.find("read_only").is_some_and(|value| value.get_ref().is_array())
}

fn read_only_luns(p: &mut Diagnostics<'_>, s: &mut Section<'_>) -> BTreeSet<u16> {
    let (values, _) = s.list(p, "read_only").unwrap_or_default();
    values.into_iter().filter_map(|value| number(p, "read_only", value, LUN_RANGE)).collect()
}

/// Reports read-only LUNs that the initiators do not see: a wrong number would leave a LUN writable.
fn unseen_luns(p: &mut Diagnostics<'_>, s: &mut Section<'_>, rule: &AccessRule, numbers: &[u16]) {
    let is_seen = |lun: &u16| rule.luns.as_ref().map_or(numbers.contains(lun), |luns| luns.contains_key(lun));
    let Some(value) = s.find("read_only") else { return };
    for lun in rule.read_only_luns.iter().filter(|lun| !is_seen(lun)) {
        let what = format!("`read_only` lists LUN {lun}, which these initiators do not see");
        p.add(&value.span(), what, "use the LUN numbers of the initiators, as in `luns`");
    }
}

/// Reports settings of initiators that are denied access.
fn no_effect(p: &mut Diagnostics<'_>, s: &mut Section<'_>) {
    for key in ["chap", "mutual", "luns", "read_only", "aen"] {
        if let Some(value) = s.find(key) {
            let what = format!("`{key}` has no effect in an entry with deny = true");
            p.add(&value.span(), what, format!("remove `{key}` or `deny`"));
        }
    }
}

/// Rejects an empty list. A missing list matches everything, and an empty one would seem to match nothing.
pub(super) fn not_empty<T>(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    key: &'static str,
    parse: impl Fn(&str) -> Result<T, lunar_config::InvalidValue>,
) -> Vec<T> {
    if let Some(value) = s.find(key)
        && value.get_ref().as_array().is_some_and(|array| array.is_empty())
    {
        p.add(&value.span(), format!("`{key}` is empty"), "remove the key to match all");
    }
    s.parsed_list(p, key, parse).unwrap_or_default()
}

/// Reads a LUN map from initiator LUN to target LUN. A list maps each number to itself.
fn lun_map(p: &mut Diagnostics<'_>, s: &mut Section<'_>, numbers: &[u16]) -> Option<BTreeMap<u16, u16>> {
    let value = s.find("luns")?;
    let mut map = BTreeMap::new();
    if let Some(array) = value.get_ref().as_array() {
        for value in array.iter() {
            map.extend(lun_of_target(p, value, numbers).map(|lun| (lun, lun)));
        }
    } else if let Some(table) = value.get_ref().as_table() {
        for (key, value) in table {
            let seen = p.check(&key.span(), lun_number(key.get_ref()));
            let of_target = lun_of_target(p, value, numbers);
            if let (Some(seen), Some(of_target)) = (seen, of_target)
                && map.insert(seen, of_target).is_some()
            {
                p.add(&key.span(), format!("LUN {seen} is mapped twice"), "remove one of them");
            }
        }
    } else {
        kind(p, "luns", value, "a map or a list of LUNs", "write luns = { 0 = 0, 5 = 1 } or luns = [0, 1]");
    }
    Some(map)
}

/// The key of a LUN map.
fn lun_number(text: &str) -> Result<u16, lunar_config::InvalidValue> {
    match text.parse::<u16>() {
        Ok(lun) if LUN_RANGE.contains(&u64::from(lun)) => Ok(lun),
        _ => invalid(format!("\"{}\" is not a LUN", text.escape_debug()), "use a number from 0 to 16383"),
    }
}

fn lun_of_target(p: &mut Diagnostics<'_>, value: Value<'_>, numbers: &[u16]) -> Option<u16> {
    let lun: u16 = number(p, "luns", value, LUN_RANGE)?;
    if !numbers.contains(&lun) {
        let shown = numbers.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
        let hint = if numbers.is_empty() {
            "add [[target.lun]], or remove the LUN from the access entry".into()
        } else {
            format!("the target has LUN {shown}")
        };
        p.add(&value.span(), format!("the target has no LUN {lun}"), hint);
        return None;
    }
    Some(lun)
}

//! Hosts of a group: patterns of initiator names with `*` and `?`, and `!` before a pattern that must not match. With
//! `per_portal_acl`, `#` and a pattern of the portal's address follow the name.

use super::ScstImport;
use super::file::ScstEntry;
use crate::{Access, NewTarget};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

/// A pattern.
#[derive(Clone)]
pub(super) struct ScstPattern {
    /// The pattern as it stands in the file, without `!`.
    text: String,
    /// The pattern of names.
    name: String,
    /// Addresses and networks of the portals; empty: all.
    portals: Vec<String>,
}

impl fmt::Display for ScstPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl ScstPattern {
    /// An entry for these hosts, without rights.
    pub(super) fn entry(&self) -> Access {
        Access { initiators: vec![self.name.clone()], portals: self.portals.clone(), ..Access::default() }
    }

    /// Whether a host may match both patterns.
    pub(super) fn overlaps(&self, other: &ScstPattern) -> bool {
        overlap(&self.text, &other.text)
    }

    /// The pattern of a text without `!`. `only`: the portal of a target with one portal.
    fn parse(text: &str, is_per_portal: bool, only: Option<&str>) -> Result<ScstPattern, &'static str> {
        let (name, portal) = match text.split_once('#') {
            Some((name, portal)) if is_per_portal => (name, portal),
            // A name in SCST ends with the address of the portal then.
            None if is_per_portal && !text.ends_with('*') => return Err(NO_NAME),
            _ => (text, "*"),
        };
        if !is_pattern(name) {
            return Err(NO_NAME);
        }
        let portals = if only == Some(portal) { Some(Vec::new()) } else { portals(portal) };
        let portals =
            portals.ok_or("the portal is no address and no network, so these hosts cannot log in")?;
        Ok(ScstPattern { text: text.into(), name: name.into(), portals })
    }
}

const NO_NAME: &str = "no initiator name can match";

/// The patterns of a group.
#[derive(Default)]
pub(super) struct ScstHosts {
    /// Hosts that match one of these are in the group.
    pub(super) names: Vec<ScstPattern>,
    /// Hosts that may be in the group, and cannot log in.
    pub(super) elsewhere: Vec<ScstPattern>,
    /// Hosts that do not match this pattern are in the group.
    pub(super) except: Option<ScstPattern>,
}

impl ScstHosts {
    /// Entries for the names, without rights. Names with the same portals share an entry.
    pub(super) fn entries(&self) -> Vec<Access> {
        let mut entries: Vec<Access> = Vec::new();
        for one in &self.names {
            match entries.iter_mut().find(|entry| entry.portals == one.portals) {
                Some(entry) => entry.initiators.push(one.name.clone()),
                None => entries.push(one.entry()),
            }
        }
        let mut merged: Vec<Access> = Vec::new();
        for entry in entries {
            let has_portals = !entry.portals.is_empty();
            let same = |other: &&mut Access| has_portals && other.initiators == entry.initiators;
            match merged.iter_mut().find(same).filter(|other| !other.portals.is_empty()) {
                Some(other) => other.portals.extend(entry.portals),
                None => merged.push(entry),
            }
        }
        merged
    }

    /// All patterns that name hosts.
    pub(super) fn all(&self) -> impl Iterator<Item = &ScstPattern> {
        self.names.iter().chain(&self.elsewhere)
    }
}

impl ScstImport {
    /// Reads the patterns of a group.
    pub(super) fn hosts(&mut self, target: &NewTarget, entry: &ScstEntry, group: &ScstEntry) -> ScstHosts {
        let mut hosts = ScstHosts::default();
        let is_per_portal = entry.flag("per_portal_acl") == Some(true);
        let allowed: Vec<&str> = entry.all("allowed_portal").map(ScstEntry::arg).collect();
        let only = allowed.first().copied().filter(|_| allowed.len() == 1);
        for initiator in group.all("INITIATOR") {
            let text = initiator.arg().to_lowercase();
            let bare = text.strip_prefix('!');
            let why = match (ScstPattern::parse(bare.unwrap_or(&text), is_per_portal, only), bare) {
                (Ok(pattern), None) => {
                    hosts.names.push(pattern);
                    continue;
                }
                (Ok(pattern), Some(_)) if hosts.except.is_none() => {
                    hosts.except = Some(pattern);
                    continue;
                }
                // Hosts that the entry would miss must not get the LUNs of others.
                (Ok(_), Some(_)) => {
                    hosts.elsewhere.extend(hosts.except.clone());
                    "hosts that may be in the group cannot log in"
                }
                (Err(why), None) if why == NO_NAME => why,
                (Err(_), Some(_)) => {
                    hosts.elsewhere.push(everywhere("*"));
                    "hosts that may be in the group cannot log in"
                }
                (Err(why), None) => {
                    hosts.elsewhere.push(everywhere(text.split('#').next().unwrap_or_default()));
                    why
                }
            };
            let what = format!("{}: INITIATOR {text}: {why}", target.name);
            self.imported.notes.lost(initiator.place(), what);
        }
        hosts
    }
}

/// A pattern for all portals.
fn everywhere(name: &str) -> ScstPattern {
    ScstPattern { text: format!("{name}*"), name: name.into(), portals: Vec::new() }
}

/// The addresses and networks that a pattern of addresses matches; empty: all. `*` may stand for the last octets. None:
/// no list expresses it.
pub(super) fn portals(pattern: &str) -> Option<Vec<String>> {
    if pattern == "*" {
        return Some(Vec::new());
    }
    if let Ok(address) = pattern.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Some(vec![address.to_string()]);
    }
    let parts: Vec<&str> = pattern.split('.').collect();
    let octets: Vec<u8> = parts.iter().map_while(|part| part.parse().ok()).collect();
    let rest = &parts[octets.len()..];
    let is_network = (1..4).contains(&octets.len()) && parts.len() <= 4 && !rest.is_empty();
    if !is_network || rest.iter().any(|part| *part != "*") {
        return None;
    }
    let mut address = [0; 4];
    address[..octets.len()].copy_from_slice(&octets);
    Some(vec![format!("{}/{}", Ipv4Addr::from(address), octets.len() * 8)])
}

/// Whether a name in lower case can be a pattern of Lunar.
fn is_pattern(text: &str) -> bool {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | ':' | '_' | '*' | '?');
    !text.is_empty() && text.chars().all(fits) && !text.starts_with("0x")
}

/// Whether a name may match two patterns.
fn overlap(a: &str, b: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // row[j]: whether the first i characters of `a` and the first j of `b` can be the same text.
    let mut row: Vec<bool> = (0..=b.len()).map(|j| b[..j].iter().all(|c| *c == '*')).collect();
    for c in &a {
        let mut next = vec![row[0] && *c == '*'];
        for (j, d) in b.iter().enumerate() {
            let is_one = *c == '?' || *d == '?' || c == d;
            let both = match *c == '*' || *d == '*' {
                true => next[j] || row[j + 1],
                false => is_one && row[j],
            };
            next.push(both);
        }
        row = next;
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_of_portals_becomes_networks() {
        for (pattern, networks) in [
            ("*", Some(vec![])),
            ("192.0.2.10", Some(vec!["192.0.2.10"])),
            ("[2001:db8::1]", Some(vec!["2001:db8::1"])),
            ("10.0.0.*", Some(vec!["10.0.0.0/24"])),
            ("10.*", Some(vec!["10.0.0.0/8"])),
            ("10.1.*.*", Some(vec!["10.1.0.0/16"])),
            ("10.0.0.?", None),
            ("10.*.0.1", None),
            ("10.0", None),
            ("10.0.0.0.*", None),
            ("2001:db8::*", None),
            ("*.1", None),
            ("", None),
        ] {
            let networks = networks.map(|all| all.into_iter().map(String::from).collect());
            assert_eq!(portals(pattern), networks, "{pattern}");
        }
    }

    #[test]
    fn overlap_is_symmetric_and_sees_wildcards() {
        for (a, b, expected) in [
            ("iqn.a", "iqn.a", true),
            ("iqn.a", "iqn.b", false),
            ("iqn.*", "iqn.a", true),
            ("iqn.*:x", "iqn.a:*", true),
            ("*", "", true),
            ("", "?", false),
            ("a?c", "ab*", true),
            ("a*c", "b*", false),
            ("esx-*", "esx-?-spare", true),
            ("*ab", "*ba", false),
            ("*a*", "*b*", true),
        ] {
            assert_eq!((overlap(a, b), overlap(b, a)), (expected, expected), "{a} {b}");
        }
    }
}

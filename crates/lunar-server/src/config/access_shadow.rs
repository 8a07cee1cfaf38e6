//! Access entries that never apply, because an earlier one matches the same initiators: the first match decides.

use super::{Config, Target};
use lunar_target::access::matches_pattern;
use lunar_target::config::{AccessRule, IpNetwork};

/// A fault of an access entry.
pub(super) struct EntryFault<'c> {
    pub(super) target: &'c str,
    pub(super) entry: &'c AccessRule,
    pub(super) line: String,
}

/// One line for each finding.
pub fn access_shadow(config: &Config) -> Vec<String> {
    shadowed(config).map(|fault| fault.line).collect()
}

/// The entries that never apply.
pub(super) fn shadowed(config: &Config) -> impl Iterator<Item = EntryFault<'_>> {
    config.targets.iter().flat_map(|Target { name, access, .. }| {
        access.iter().enumerate().filter_map(move |(at, entry)| {
            let first = access[..at].iter().position(|before| covers(before, entry))?;
            let line = format!(
                "access entry {at} of {name} never applies: entry {first} matches the same initiators first; hint: \
                 remove entry {at}, or put it before entry {first}"
            );
            Some(EntryFault { target: name, entry, line })
        })
    })
}

/// Whether an entry matches each initiator that another one matches. In doubt false.
fn covers(entry: &AccessRule, other: &AccessRule) -> bool {
    let all = ["*".to_owned()];
    let names: &[String] = if other.initiators.is_empty() { &all } else { &other.initiators };
    let has_name = |name: &String| entry.initiators.iter().any(|pattern| includes(pattern, name));
    let by_name = entry.initiators.is_empty() || names.iter().all(has_name);
    by_name
        && covers_networks(&entry.networks, &other.networks)
        && covers_networks(&entry.portals, &other.portals)
}

/// Whether networks contain each address of other networks. No networks are all.
pub(super) fn covers_networks(networks: &[IpNetwork], others: &[IpNetwork]) -> bool {
    let within = |one: &IpNetwork| networks.iter().any(|n| n.bits <= one.bits && n.contains(one.address));
    networks.is_empty() || !others.is_empty() && others.iter().all(within)
}

/// Whether a pattern matches each name that another pattern matches. As a name, `*` of the other pattern is one character,
/// which only `*` may match.
fn includes(pattern: &str, other: &str) -> bool {
    matches_pattern(pattern, other) && !(other.contains('*') && pattern.contains('?'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn lines(entries: &[&str]) -> Vec<String> {
        let list: String = entries.iter().map(|entry| format!("[[target.access]]\n{entry}\n")).collect();
        let source = format!("[[target]]\nname = \"iqn.2026-11.org.example:a\"\n{list}");
        access_shadow(&parse(&source, "t.toml".as_ref()).map_err(|list| list[0].to_string()).unwrap())
    }

    #[test]
    fn entry_behind_one_that_covers_it_is_reported() {
        for (first, second) in [
            ("", "initiators = [\"iqn.a\"]"),
            ("deny = true", ""),
            ("initiators = [\"iqn.*\"]", "initiators = [\"iqn.a:*\", \"iqn.b\"]"),
            ("initiators = [\"*\"]", ""),
            ("initiators = [\"iqn.?\"]", "initiators = [\"iqn.?\"]"),
            ("portals = [\"192.0.2.0/24\"]", "portals = [\"192.0.2.1\"]"),
            ("networks = [\"192.0.0.0/16\"]", "initiators = [\"iqn.a\"]\nnetworks = [\"192.0.2.0/24\"]"),
        ] {
            let [line] = &lines(&[first, second])[..] else { panic!("{first}, {second}") };
            let start = "access entry 1 of iqn.2026-11.org.example:a never applies: entry 0 matches ";
            assert!(line.starts_with(start), "{line}");
        }
        let all = lines(&[
            "initiators = [\"iqn.b\"]",
            "",
            "networks = [\"192.0.2.0/24\"]",
            "initiators = [\"iqn.b\"]",
        ]);
        assert_eq!(all.len(), 2, "{all:?}");
        assert!(
            all[1].contains("entry 3 of") && all[1].contains("entry 0 matches"),
            "the first of them: {all:?}"
        );
    }

    #[test]
    fn entry_that_matches_more_is_not_reported() {
        for (first, second) in [
            ("initiators = [\"iqn.a\"]", ""),
            ("initiators = [\"iqn.a\"]", "initiators = [\"iqn.a\", \"iqn.b\"]"),
            ("initiators = [\"iqn.?\"]", "initiators = [\"iqn.*\"]"),
            ("initiators = [\"iqn.a*\"]", "initiators = [\"iqn.*\"]"),
            ("networks = [\"192.0.2.0/24\"]", "initiators = [\"iqn.a\"]"),
            ("networks = [\"192.0.2.0/24\"]", "networks = [\"192.0.0.0/16\"]"),
            ("initiators = [\"iqn.a\"]\nnetworks = [\"192.0.2.0/24\"]", "initiators = [\"iqn.a\"]"),
            ("portals = [\"192.0.2.1\"]", "initiators = [\"iqn.a\"]"),
            ("portals = [\"192.0.2.1\"]", "portals = [\"192.0.2.0/24\"]"),
        ] {
            assert_eq!(lines(&[first, second]), [""; 0], "{first}, {second}");
        }
    }
}

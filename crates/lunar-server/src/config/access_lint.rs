//! Finds access entries that never apply. SRP has no users, so an entry with `chap` admits no initiator over SRP.

use super::Config;
use super::access_shadow::covers_networks;
use lunar_target::access::matches_pattern;
use lunar_target::config::{AccessRule, PortalProtocol};

/// Prefix of SRP initiator ports in place of iSCSI names.
const PORT: &str = "0x";

/// One line for each finding.
pub fn access_lint(config: &Config) -> Vec<String> {
    let groups = config.portal_groups.iter();
    let has_srp = |tags: &[u16]| {
        let of_target = groups.clone().filter(|group| tags.contains(&group.tag));
        of_target.flat_map(|group| &group.portals).any(|p| p.transports.protocol == PortalProtocol::Srp)
    };
    let own = config.targets.iter().map(|t| (t.name.clone(), has_srp(&t.portal_groups), &t.access));
    let routed = config.routers.iter().flat_map(|router| {
        let has_srp = has_srp(&router.portal_groups);
        router.targets.iter().map(move |target| {
            let name = target.map.name().map_or_else(|| format!("router {}", router.name), str::to_owned);
            (name, has_srp, &target.access.entries)
        })
    });
    own.chain(routed).flat_map(|(name, has_srp, list)| of(&name, has_srp, list)).collect()
}

fn of(name: &str, has_srp: bool, list: &[AccessRule]) -> Vec<String> {
    if !has_srp {
        return Vec::new();
    }
    if !list.is_empty() && list.iter().all(|entry| entry.chap.is_some() || entry.deny) {
        return vec![format!(
            "no host can use {name} over SRP: SRP has no CHAP users, and each access entry has `chap`. Add an entry \
             without `chap` for SRP ports (0x and 32 hexadecimal digits)"
        )];
    }
    let behind = list.iter().enumerate().filter(|(_, entry)| entry.chap.is_none() && !entry.deny);
    behind.filter_map(|(n, entry)| shadowed(name, n, entry, &list[..n])).collect()
}

/// Reports an entry for SRP ports that an earlier entry makes unreachable.
fn shadowed(name: &str, n: usize, entry: &AccessRule, before: &[AccessRule]) -> Option<String> {
    let shuts = |port: &String| {
        let first = before.iter().position(|one| covers(one, port, entry))?;
        before[first].chap.is_some().then(|| (port.clone(), first))
    };
    let (port, first) = entry.initiators.iter().filter(|port| port.starts_with(PORT)).find_map(shuts)?;
    Some(format!(
        "access entry {n} of {name} never applies to {port}: entry {first} matches first, and requires `chap`, \
         which SRP lacks. Move entry {n} before entry {first}"
    ))
}

/// Whether the entry matches every initiator with this name that another entry matches.
fn covers(entry: &AccessRule, name: &str, other: &AccessRule) -> bool {
    let by_name =
        entry.initiators.is_empty() || entry.initiators.iter().any(|pattern| matches_pattern(pattern, name));
    by_name
        && covers_networks(&entry.networks, &other.networks)
        && covers_networks(&entry.portals, &other.portals)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    const PORT: &str = "0x00000000000000010000000000000002";

    fn warnings(carries: &str, entries: &[&str]) -> Vec<String> {
        let list: String = entries.iter().map(|entry| format!("[[target.access]]\n{entry}\n")).collect();
        let source = format!(
            "[[portal_group]]\ntag = 1\nportals = [{{ listen = \"[::1]:5555\", transport = [\"{carries}\"] }}]\n\
             [[target]]\nname = \"iqn.2026-11.org.example:a\"\n{list}"
        );
        let folder = crate::config::tests::Folder::new("shut-out");
        folder.file("ann", "a secret of ann", 0o600);
        let source = format!("{source}[[chap_user]]\nname = \"ann\"\nsecret_file = \"ann\"\n");
        let config = parse(&source, &folder.0.join("t.toml")).map_err(|list| list[0].to_string());
        access_lint(&config.unwrap_or_else(|e| panic!("{e}")))
    }

    #[test]
    fn port_behind_a_chap_entry_is_reported() {
        let port = format!("initiators = [\"iqn.x\", \"{PORT}\"]");
        let near = format!("{port}\nnetworks = [\"192.0.2.0/24\"]");
        for (first, second, is_reported) in [
            ("chap = [\"ann\"]", &port, true),
            ("chap = [\"ann\"]\ninitiators = [\"0x*\"]", &port, true),
            ("chap = [\"ann\"]\nnetworks = [\"192.0.0.0/16\"]", &near, true),
            ("chap = [\"ann\"]\nnetworks = [\"192.0.2.128/25\"]", &near, false),
            ("chap = [\"ann\"]\nnetworks = [\"192.0.0.0/16\"]", &port, false),
            ("chap = [\"ann\"]\ninitiators = [\"iqn.*\"]", &port, false),
            ("read_only = true", &port, false),
        ] {
            let lines = warnings("srp", &[first, second]);
            assert_eq!(!lines.is_empty(), is_reported, "{first}, {second}: {lines:?}");
            let start = format!(
                "access entry 1 of iqn.2026-11.org.example:a never applies to {PORT}: entry 0 matches first"
            );
            assert!(lines.iter().all(|line| line.starts_with(&start)), "{lines:?}");
        }
        let chap = "chap = [\"ann\"]";
        assert!(warnings("srp", &[&port, chap]).is_empty(), "matches first");
        assert!(warnings("srp", &[&port, chap, &port]).is_empty(), "the first of them decides");
        assert!(warnings("iser", &[chap, &port]).is_empty(), "no portal accepts SRP");
    }

    #[test]
    fn srp_target_with_only_chap_entries_is_reported() {
        let warnings_over = |carries| warnings(carries, &["chap = [\"ann\"]"]).concat();
        assert!(
            warnings_over("srp").starts_with("no host can use iqn.2026-11.org.example:a over SRP"),
            "{}",
            warnings_over("srp")
        );
        assert_eq!(warnings_over("iser"), "");
        assert!(warnings("srp", &[]).is_empty(), "everybody may");
    }
}

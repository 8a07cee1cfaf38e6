//! Portals and targets with more or fewer users than a reader of the configuration may expect.

use super::Config;
use lunar_target::config::{AccessRule, Portal};
use std::net::{IpAddr, SocketAddr};

/// One line for each portal that accepts only IPv6 on all addresses, and for each target that other hosts reach
/// without an access list and without CHAP.
pub fn exposed(config: &Config) -> Vec<String> {
    let portals = || config.portal_groups.iter().flat_map(|group| &group.portals);
    let all: Vec<SocketAddr> = portals().map(|portal| portal.listen).collect();
    let alone = all.iter().filter(|address| takes_ipv6_alone(address, &all));
    let alone = alone.map(|address| {
        let port = address.port();
        format!("the portal {address} accepts only IPv6; hint: for IPv4 hosts, add the portal 0.0.0.0:{port}")
    });
    let open = config.targets.iter().filter(|target| is_open(&target.access)).filter(|target| {
        let groups = config.portal_groups.iter().filter(|group| target.portal_groups.contains(&group.tag));
        groups.flat_map(|group| &group.portals).any(is_for_other_hosts)
    });
    let open = open.map(|target| {
        let name = &target.name;
        format!(
            "every host that reaches a portal can use {name}; hint: add [[target.access]] with initiators, networks or \
             chap"
        )
    });
    alone.chain(open).collect()
}

/// Whether this is an all-IPv6 address without an IPv4 portal on the same port.
fn takes_ipv6_alone(address: &SocketAddr, all: &[SocketAddr]) -> bool {
    let beside = |other: &SocketAddr| other.is_ipv4() && other.port() == address.port();
    address.is_ipv6() && address.ip().is_unspecified() && !all.iter().any(beside)
}

/// Whether there is no access list, or an entry admits every host without CHAP.
fn is_open(access: &[AccessRule]) -> bool {
    let admits_all = |entry: &AccessRule| {
        !entry.deny && has_all_names(entry) && has_all_networks(entry) && entry.chap.is_none()
    };
    access.is_empty() || access.iter().any(admits_all)
}

/// Whether the entry matches all names, or all names of the usual form.
fn has_all_names(entry: &AccessRule) -> bool {
    let is_all =
        |pattern: &String| pattern.trim_matches('*').is_empty() || pattern.eq_ignore_ascii_case("iqn.*");
    entry.initiators.is_empty() || entry.initiators.iter().any(is_all)
}

/// Whether the entry matches all addresses of an IP version.
fn has_all_networks(entry: &AccessRule) -> bool {
    entry.networks.is_empty() || entry.networks.iter().any(|network| network.bits == 0)
}

fn is_for_other_hosts(portal: &Portal) -> bool {
    match portal.listen.ip().to_canonical() {
        IpAddr::V4(ip) => !ip.is_loopback(),
        IpAddr::V6(ip) => !ip.is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use super::exposed;
    use crate::config::parse;

    fn lines(portals: &str, access: &str) -> Vec<String> {
        let source = format!(
            "[[portal_group]]\ntag = 1\nportals = [{portals}]\n[[target]]\nname = \"iqn.2026-11.org.example:a\"\n{access}"
        );
        exposed(&parse(&source, "t.toml".as_ref()).map_err(|list| list[0].to_string()).unwrap())
    }

    const LISTED: &str = "[[target.access]]\nnetworks = [\"192.0.2.0/24\"]\n";

    #[test]
    fn target_open_beyond_loopback_is_reported() {
        let open = "every host that reaches a portal can use iqn.2026-11.org.example:a";
        for portals in ["\"0.0.0.0:3260\"", "\"192.0.2.1:3260\"", "\"[2001:db8::1]:3260\""] {
            assert!(lines(portals, "")[0].starts_with(open), "{portals}");
            assert!(
                lines(portals, "[[target.access]]\nread_only = true\n")[0].starts_with(open),
                "{portals}"
            );
            assert!(lines(portals, LISTED).is_empty(), "{portals}");
        }
        assert!(lines("\"127.0.0.1:3260\", \"[::1]:3260\"", "").is_empty());
    }

    #[test]
    fn access_entry_for_everybody_is_reported_as_none() {
        let entry = |keys: &str| lines("\"0.0.0.0:3260\"", &format!("[[target.access]]\n{keys}\n")).len();
        for all in [
            "initiators = [\"*\"]",
            "initiators = [\"iqn.1994-05.com.example:a\", \"iqn.*\"]",
            "networks = [\"0.0.0.0/0\"]",
            "initiators = [\"*\"]\nnetworks = [\"::/0\"]",
        ] {
            assert_eq!(entry(all), 1, "{all}");
        }
        for some in [
            "initiators = [\"iqn.1994-05.com.example:*\"]",
            "initiators = [\"*\"]\nnetworks = [\"192.0.2.0/24\"]",
            "initiators = [\"iqn.1994-05.com.example:a\"]\nnetworks = [\"0.0.0.0/0\"]",
        ] {
            assert_eq!(entry(some), 0, "{some}");
        }
    }

    #[test]
    fn ipv6_wildcard_without_ipv4_is_reported() {
        assert!(lines("\"[::]:3260\"", LISTED)[0].contains("accepts only IPv6"));
        assert!(lines("\"[::]:3260\", \"0.0.0.0:3260\"", LISTED).is_empty());
        assert_eq!(lines("\"[::]:3260\", \"0.0.0.0:3261\"", LISTED).len(), 1);
    }
}

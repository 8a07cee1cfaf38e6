//! Portals and targets with more or fewer users than a reader of the configuration may expect.

use super::router::Map;
use super::{Config, Target};
use lunar_target::config::{AccessRule, Portal};
use std::net::{IpAddr, SocketAddr};

/// How the hosts of a subsystem are limited: it has no access entries.
pub(super) const SUBSYSTEM_HINT: &str = "add allowed_hosts, networks or [[subsystem.host]]";

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
    let open = config.targets.iter().filter(|target| is_open(&target.access));
    let open = open.filter(|target| reaches_other_hosts(config, &target.portal_groups)).map(|target| {
        let name = &target.name;
        let why = match target.access.iter().position(admits_all) {
            _ if target.subsystem.is_some() => format!("; hint: {SUBSYSTEM_HINT}"),
            Some(at) => format!(": access entry {at} admits all; hint: give it initiators, networks or chap"),
            None => "; hint: add [[target.access]] with initiators, networks or chap".to_owned(),
        };
        format!("every host that reaches a portal can use {name}{why}")
    });
    alone.chain(open).chain(routed(config)).collect()
}

/// One line for each target of a router that other hosts reach without an access list and without CHAP.
fn routed(config: &Config) -> impl Iterator<Item = String> {
    let routers = config.routers.iter().filter(|router| reaches_other_hosts(config, &router.portal_groups));
    let targets = routers.flat_map(|router| router.targets.iter().map(move |target| (router, target)));
    let open = targets.filter(|(_, target)| !target.access.none && is_open(&target.access.entries));
    open.map(|(router, target)| {
        let name = match &target.map {
            Map::Transparent { upstream } => format!("the targets of {upstream} through router {}", router.name),
            Map::Target { name, .. } | Map::Lun { name, .. } => name.clone(),
        };
        format!(
            "every host that reaches a portal can use {name}; hint: add [access.NAME] with initiators, networks or \
             chap, and name it in `access`"
        )
    })
}

/// Whether one of these portal groups has a portal beyond this host.
fn reaches_other_hosts(config: &Config, tags: &[u16]) -> bool {
    let groups = config.portal_groups.iter().filter(|group| tags.contains(&group.tag));
    groups.flat_map(|group| &group.portals).any(is_for_other_hosts)
}

/// Whether this is an all-IPv6 address without an IPv4 portal on the same port.
fn takes_ipv6_alone(address: &SocketAddr, all: &[SocketAddr]) -> bool {
    let beside = |other: &SocketAddr| other.is_ipv4() && other.port() == address.port();
    address.is_ipv6() && address.ip().is_unspecified() && !all.iter().any(beside)
}

/// Whether there is no access list, or an entry admits every host without CHAP.
pub fn is_open(access: &[AccessRule]) -> bool {
    access.is_empty() || access.iter().any(admits_all)
}

/// Whether an entry admits every host without CHAP. At a portal of loopback there is only this host.
pub(super) fn admits_all(entry: &AccessRule) -> bool {
    let at_loopback =
        !entry.portals.is_empty() && entry.portals.iter().all(|portal| portal.address.is_loopback());
    !entry.deny && !at_loopback && has_all_names(entry) && has_all_networks(entry) && entry.chap.is_none()
}

/// Whether other hosts reach no portal of a target.
pub(super) fn is_for_this_host_alone(config: &Config, target: &Target) -> bool {
    !reaches_other_hosts(config, &target.portal_groups)
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
        for keys in ["", "read_only = true\n", "allowed_hosts = [\"*\"]\n", "networks = [\"0.0.0.0/0\"]\n"] {
            let both = format!("{LISTED}[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\n{keys}");
            let [subsystem] = &lines("\"0.0.0.0:3260\"", &both)[..] else { panic!("one line") };
            let expected = "example:a; hint: add allowed_hosts, networks or [[subsystem.host]]";
            assert!(subsystem.ends_with(expected), "{keys}: {subsystem}");
        }
    }

    #[test]
    fn access_entry_for_everybody_is_reported_as_none() {
        let entry = |keys: &str| lines("\"0.0.0.0:3260\"", &format!("[[target.access]]\n{keys}\n")).len();
        for all in [
            "initiators = [\"*\"]",
            "initiators = [\"iqn.1994-05.com.example:a\", \"iqn.*\"]",
            "networks = [\"0.0.0.0/0\"]",
            "initiators = [\"*\"]\nnetworks = [\"::/0\"]",
            "portals = [\"127.0.0.1\", \"192.0.2.1\"]",
        ] {
            assert_eq!(entry(all), 1, "{all}");
        }
        for some in [
            "initiators = [\"iqn.1994-05.com.example:*\"]",
            "initiators = [\"*\"]\nnetworks = [\"192.0.2.0/24\"]",
            "portals = [\"127.0.0.0/8\", \"::1\"]",
            "initiators = [\"iqn.1994-05.com.example:a\"]\nnetworks = [\"0.0.0.0/0\"]",
        ] {
            assert_eq!(entry(some), 0, "{some}");
        }
    }

    #[test]
    fn target_of_a_router_open_beyond_loopback_is_reported() {
        let routed = |portal: &str, access: &str| {
            let source = format!(
                "[[portal_group]]\ntag = 1\nportals = [\"{portal}:3260\"]\n[access.some]\n\
                 networks = [\"192.0.2.0/24\"]\n[access.any]\ninitiators = [\"*\"]\n[router.r1.upstream.u]\n\
                 urls = [\"iscsi://192.0.2.20/iqn.2026-11.org.example:far\"]\n[[router.r1.target]]\nmap = \"target\"\n\
                 name = \"iqn.2026-11.org.example:b\"\nupstream = \"u\"\naccess = {access}\n"
            );
            exposed(&parse(&source, "t.toml".as_ref()).map_err(|list| list[0].to_string()).unwrap())
        };
        for access in ["\"all\"", "[\"any\"]"] {
            let open = routed("0.0.0.0", access);
            assert!(
                open[0].starts_with("every host that reaches a portal can use iqn.2026-11.org.example:b")
            );
            assert!(routed("127.0.0.1", access).is_empty(), "{access}");
        }
        for access in ["\"none\"", "[\"some\"]"] {
            assert!(routed("0.0.0.0", access).is_empty(), "{access}");
        }
    }

    #[test]
    fn ipv6_wildcard_without_ipv4_is_reported() {
        assert!(lines("\"[::]:3260\"", LISTED)[0].contains("accepts only IPv6"));
        assert!(lines("\"[::]:3260\", \"0.0.0.0:3260\"", LISTED).is_empty());
        assert_eq!(lines("\"[::]:3260\", \"0.0.0.0:3261\"", LISTED).len(), 1);
    }
}

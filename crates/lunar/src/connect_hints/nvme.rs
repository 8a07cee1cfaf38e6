//! The part of the banner for NVMe/TCP hosts.

use super::{MAX_LUNS, MAX_TARGETS, describe, local, public};
use lunar_proto::percent;
use lunar_server::config::{Config, Target};
use lunar_target::BoundPortal;
use lunar_target::config::PortalProtocol;
use std::collections::BTreeSet;
use std::fmt::{self, Write};

fn subsystems(config: &Config) -> impl Iterator<Item = &Target> {
    config.targets.iter().filter(|target| target.subsystem.is_some())
}

/// The subsystems with their namespaces.
pub fn listed(config: &Config) -> String {
    let mut text = String::new();
    for target in subsystems(config) {
        _ = writeln!(text, "\n{}{}", target.name, if target.offline { ", offline" } else { "" });
        let own = target.luns.iter().map(|(nsid, lun)| (*nsid, describe(lun)));
        let shared = target.subsystem.iter().flat_map(|subsystem| &subsystem.shared);
        let shared = shared.map(|(nsid, (name, lun))| (*nsid, format!("LUN {lun} of {name}")));
        let mut all: Vec<(u16, String)> = own.chain(shared).collect();
        all.sort();
        for (nsid, what) in all.iter().take(MAX_LUNS) {
            _ = writeln!(text, "  namespace {nsid}: {what}");
        }
        if all.len() > MAX_LUNS {
            _ = writeln!(text, "  and {} more", all.len() - MAX_LUNS);
        }
    }
    text
}

/// A host that a subsystem names.
struct NamedHost<'a> {
    nqn: &'a str,
    has_secret: bool,
    has_tls_key: bool,
}

/// Commands of nvme-cli: a discovery, and a connect for each subsystem that a host can use.
pub fn commands(config: &Config, portals: &[BoundPortal]) -> String {
    let lines = discovery(config, portals).into_iter().chain(online(config).filter_map(|target| {
        let (portal, host) = entrance(target, portals, |_| true)?;
        let (address, tls) = (address(portal), tls(portal));
        let host = host.map_or(String::new(), |host| {
            format!(" -q {}{}", host.nqn, if host.has_secret { " -S SECRET" } else { "" })
        });
        Some(format!("  nvme connect -t tcp {address} -n {}{host}{tls}\n", target.name))
    }));
    let lines: String = lines.collect();
    if lines.is_empty() { lines } else { format!("NVMe/TCP (as root):\n{lines}") }
}

/// The first namespace of each subsystem that commands of Lunar can use.
pub fn urls(config: &Config, portals: &[BoundPortal]) -> String {
    let lines: String = online(config)
        .filter_map(|target| {
            let (url, host) = url(target, portals, public)?;
            let host = host.map_or(String::new(), |host| format!("?host_nqn={host}&secret_file=SECRET_FILE"));
            Some(format!("  {url}{host}\n"))
        })
        .collect();
    if lines.is_empty() { lines } else { format!("URL of NVMe/TCP:\n{lines}") }
}

/// The first namespace of the first subsystem with namespaces, for clients on this host.
pub fn local_url(config: &Config, portals: &[BoundPortal]) -> Option<String> {
    let here = |portal: &BoundPortal| local(portal.address).to_string();
    // Without a host: the command brings its own name and secret.
    subsystems(config)
        .filter(|target| !target.offline)
        .find_map(|target| url(target, portals, here))
        .map(|url| url.0)
}

/// The URL of the first namespace, and the host that must prove itself; `place` returns the address of a portal.
fn url<'a>(
    target: &'a Target,
    portals: &[BoundPortal],
    place: impl Fn(&BoundPortal) -> String,
) -> Option<(String, Option<&'a str>)> {
    let shared = target.subsystem.iter().flat_map(|subsystem| subsystem.shared.keys());
    let nsid = target.luns.keys().chain(shared).min()?;
    // Lunar's own initiator has no TLS.
    let (portal, host) = entrance(target, portals, |portal| !portal.transports.tls)?;
    let name = fmt::from_fn(|f| percent::encode(f, &target.name, |c| percent::is_plain(c) && c != '/'));
    Some((format!("nvme://{}/{name}/{nsid}", place(portal)), host.map(|host| host.nqn)))
}

/// The subsystems with commands.
fn online(config: &Config) -> impl Iterator<Item = &Target> {
    subsystems(config).filter(|target| !target.offline).take(MAX_TARGETS)
}

/// The command of a discovery.
fn discovery(config: &Config, portals: &[BoundPortal]) -> Option<String> {
    if config.discovery.disabled {
        return None;
    }
    // Without its name, a host would see no subsystem that admits named hosts only.
    let host = online(config).next().and_then(|target| entrance(target, portals, |_| true)?.1);
    let suits =
        |portal: &BoundPortal| !portal.transports.tls || host.as_ref().is_some_and(|host| host.has_tls_key);
    let of = |protocol| portals.iter().find(|portal| portal.transports.protocol == protocol && suits(portal));
    let portal = of(PortalProtocol::NvmeDiscovery).or_else(|| of(PortalProtocol::NvmeTcp))?;
    let host = host.as_ref().map_or(String::new(), |host| format!(" -q {}", host.nqn));
    Some(format!("  nvme discover -t tcp {}{}{host}\n", address(portal), tls(portal)))
}

/// The first portal that suits the first possible host. A host with a key needs TLS, and no other host can use it. None as
/// the host: any host may connect.
fn entrance<'a, 'p>(
    target: &'a Target,
    portals: &'p [BoundPortal],
    is_usable: fn(&BoundPortal) -> bool,
) -> Option<(&'p BoundPortal, Option<NamedHost<'a>>)> {
    let named = named_hosts(target);
    let is_closed = !target.access.is_empty() && target.access.iter().all(|rule| rule.deny);
    let any = (named.is_empty() && !is_closed).then_some(None);
    named.into_iter().map(Some).chain(any).find_map(|host| {
        let has_tls_key = host.as_ref().is_some_and(|host| host.has_tls_key);
        let suits = |portal: &&BoundPortal| {
            portal.transports.protocol == PortalProtocol::NvmeTcp
                && portal.transports.tls == has_tls_key
                && target.portal_groups.contains(&portal.tag)
        };
        portals.iter().filter(suits).find(|portal| is_usable(portal)).map(|portal| (portal, host))
    })
}

/// The hosts of a subsystem that admits named hosts only, by name.
fn named_hosts(target: &Target) -> Vec<NamedHost<'_>> {
    let Some(subsystem) = &target.subsystem else { return Vec::new() };
    let names: BTreeSet<&String> = subsystem.hosts.keys().chain(subsystem.tls_keys.keys()).collect();
    let host = |nqn: &'_ String| (subsystem.hosts.contains_key(nqn), subsystem.tls_keys.contains_key(nqn));
    let named = names.into_iter().map(|nqn| (nqn, host(nqn)));
    named.map(|(nqn, (has_secret, has_tls_key))| NamedHost { nqn, has_secret, has_tls_key }).collect()
}

/// The address of a portal as options of nvme-cli.
fn address(portal: &BoundPortal) -> String {
    let text = public(portal);
    let (host, port) = text.rsplit_once(':').unwrap_or((&text, "4420"));
    format!("-a {} -s {port}", host.trim_matches(['[', ']']))
}

/// The option of nvme-cli for a portal with TLS.
fn tls(portal: &BoundPortal) -> &'static str {
    if portal.transports.tls { " --tls" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_target::config::{DhChapSecret, NvmeSecret, NvmeTlsKey, TlsKey, Transports};

    fn bound(address: &str, transports: Transports) -> BoundPortal {
        BoundPortal { address: address.parse().expect("an address"), tag: 1, advertise: None, transports }
    }

    #[test]
    fn banner_has_a_discovery_and_a_connect() {
        let source = "[[target]]\nname = \"iqn.2026-11.org.example:a\"\n[[target.lun]]\nlun = 0\nbackend = \"null\"\n\
            size = \"1G\"\n[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\n[[subsystem.namespace]]\nnsid = 1\n\
            target = \"iqn.2026-11.org.example:a\"\nlun = 0\n";
        let config = lunar_server::config::parse(source, "t.toml".as_ref()).expect("a configuration");
        let io = bound("[::1]:4420", Transports::NVME_TCP);
        let discovery = bound("192.0.2.7:8009", Transports::NVME_DISCOVERY);
        let listing = "\nnqn.2026-11.org.example:a\n  namespace 1: LUN 0 of iqn.2026-11.org.example:a\n";
        assert_eq!(listed(&config), listing);
        let expected = "NVMe/TCP (as root):\n  nvme discover -t tcp -a 192.0.2.7 -s 8009\n  \
                        nvme connect -t tcp -a ::1 -s 4420 -n nqn.2026-11.org.example:a\n";
        assert_eq!(commands(&config, &[io.clone(), discovery]), expected);
        let url = "nvme://[::1]:4420/nqn.2026-11.org.example:a/1";
        assert_eq!(urls(&config, std::slice::from_ref(&io)), format!("URL of NVMe/TCP:\n  {url}\n"));
        assert_eq!(local_url(&config, std::slice::from_ref(&io)).as_deref(), Some(url));
        assert!(commands(&config, &[io]).contains("discover -t tcp -a ::1 -s 4420\n"));
        // No host has a key.
        let tls = bound("[::1]:4420", Transports { tls: true, ..Transports::NVME_TCP });
        assert_eq!(commands(&config, &[tls]), "");
        assert_eq!(commands(&config, &[bound("192.0.2.7:3260", Transports::TCP)]), "");
    }

    #[test]
    fn banner_names_a_host_where_only_named_ones_may_connect() {
        let source = "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\n[[subsystem.namespace]]\nnsid = 1\n\
            backend = \"null\"\nsize = \"1G\"\n";
        let mut config = lunar_server::config::parse(source, "t.toml".as_ref()).expect("a configuration");
        let subsystem = config.targets[0].subsystem.as_mut().expect("a subsystem");
        let secret = DhChapSecret::generate(None).expect("random numbers");
        let host = "nqn.2026-11.org.example:h".to_owned();
        subsystem.hosts.insert(host, NvmeSecret { secret, file: "h.key".into() });
        let text = commands(&config, &[bound("[::1]:4420", Transports::NVME_TCP)]);
        for part in ["-s 4420 -q nqn.2026-11.org.example:h\n", ":a -q nqn.2026-11.org.example:h -S SECRET\n"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let url = "nvme://[::1]:4420/nqn.2026-11.org.example:a/1?host_nqn=nqn.2026-11.org.example:h&secret_file=SECRET_FILE";
        let text = urls(&config, &[bound("[::1]:4420", Transports::NVME_TCP)]);
        assert!(text.ends_with(&format!("  {url}\n")), "{text}");
    }

    #[test]
    fn banner_names_the_portal_that_suits_the_host() {
        let source = "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\n";
        let mut config = lunar_server::config::parse(source, "t.toml".as_ref()).expect("a configuration");
        let (host, name) = ("nqn.2026-11.org.example:h", config.targets[0].name.clone());
        let key = NvmeTlsKey::new(TlsKey::of_key([7; 32]), "h.tls".into(), host, &name).expect("a key");
        let subsystem = config.targets[0].subsystem.as_mut().expect("a subsystem");
        subsystem.tls_keys.insert(host.to_owned(), key);
        let plain = bound("[::1]:21950", Transports::NVME_TCP);
        let tls = bound("[::1]:21952", Transports { tls: true, ..Transports::NVME_TCP });
        let text = commands(&config, &[plain.clone(), tls.clone()]);
        let discover = "nvme discover -t tcp -a ::1 -s 21950 -q nqn.2026-11.org.example:h\n";
        let connect = "-s 21952 -n nqn.2026-11.org.example:a -q nqn.2026-11.org.example:h --tls\n";
        assert!(text.contains(discover) && text.contains(connect), "{text}");
        assert!(commands(&config, &[tls]).contains("nvme discover -t tcp -a ::1 -s 21952 --tls -q"));
        assert!(!commands(&config, &[plain]).contains("nvme connect"));
    }

    #[test]
    fn banner_has_no_connect_where_no_host_is_allowed() {
        let source = "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\nallowed_hosts = []\n";
        let config = lunar_server::config::parse(source, "t.toml".as_ref()).expect("a configuration");
        let text = commands(&config, &[bound("[::1]:4420", Transports::NVME_TCP)]);
        assert!(!text.contains("nvme connect"), "{text}");
    }
}

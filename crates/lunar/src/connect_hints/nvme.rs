//! The part of the banner for NVMe/TCP hosts.

use super::{MAX_LUNS, MAX_TARGETS, advertised_address, describe, public};
use lunar_server::config::{Config, Target};
use lunar_target::BoundPortal;
use lunar_target::config::PortalProtocol;
use std::fmt::Write;

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

/// Commands of nvme-cli: a discovery, and a connect for each subsystem.
pub fn commands(config: &Config, portals: &[BoundPortal]) -> String {
    let of = |protocol| portals.iter().find(move |portal| portal.transports.protocol == protocol);
    let Some(discovery) = of(PortalProtocol::NvmeDiscovery).or(of(PortalProtocol::NvmeTcp)) else {
        return String::new();
    };
    let mut text = "NVMe/TCP (as root):\n".to_owned();
    if !config.discovery.disabled {
        // Without its name, a host would see no subsystem that admits named hosts only.
        let first = subsystems(config).find(|target| !target.offline);
        let host = first.and_then(named_host).map_or(String::new(), |(host, _)| format!(" -q {host}"));
        _ = writeln!(text, "  nvme discover -t tcp {}{}{host}", address(discovery), tls(discovery));
    }
    for target in subsystems(config).filter(|target| !target.offline).take(MAX_TARGETS) {
        let offers = |portal: &&BoundPortal| {
            portal.transports.protocol == PortalProtocol::NvmeTcp
                && target.portal_groups.contains(&portal.tag)
        };
        if let Some(portal) = portals.iter().find(offers) {
            let (address, tls) = (address(portal), tls(portal));
            let host = named_host(target).map_or(String::new(), |(host, has_secret)| {
                format!(" -q {host}{}", if has_secret { " -S SECRET" } else { "" })
            });
            _ = writeln!(text, "  nvme connect -t tcp {address} -n {}{host}{tls}", target.name);
        }
    }
    text
}

/// The first host of a subsystem that admits named hosts only, and whether it has a secret.
fn named_host(target: &Target) -> Option<(&str, bool)> {
    let subsystem = target.subsystem.as_ref()?;
    let first = subsystem.hosts.keys().chain(subsystem.tls_keys.keys()).min()?;
    Some((first, subsystem.hosts.contains_key(first)))
}

/// The address of a portal as options of nvme-cli.
fn address(portal: &BoundPortal) -> String {
    let text = if portal.advertise.is_some() { advertised_address(portal) } else { public(portal) };
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
    use lunar_target::config::{DhChapSecret, NvmeSecret, Transports};

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
        assert!(commands(&config, &[io]).contains("discover -t tcp -a ::1 -s 4420\n"));
        let tls = bound("[::1]:4420", Transports { tls: true, ..Transports::NVME_TCP });
        let text = commands(&config, &[tls]);
        assert_eq!(text.matches(" --tls\n").count(), 2, "{text}");
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
    }
}

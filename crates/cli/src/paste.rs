//! What `lunar serve` prints when it serves: where it listens, and lines to paste.

use control::config::router::Map;
use control::config::{Config, Lun};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use target::Bound;
use target::srp::port_id;

/// No more LUNs of a target are listed.
const LISTED: usize = 8;

/// The first LUN as a client on this host reaches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// ADDR:PORT.
    pub portal: String,
    /// iSCSI name of the target.
    pub target: String,
    /// `iscsi://ADDR:PORT/IQN/LUN`; `iser://` if the portal carries nothing else.
    pub url: String,
    /// `iser://ADDR:PORT/IQN/LUN`, where the portal carries that.
    pub iser: Option<String>,
    /// `srp://ADDR:PORT/ID_EXT/LUN`, where a portal for SRP has a target.
    pub srp: Option<String>,
}

/// The first LUN of the first target that has one, by the first portal for iSCSI that tells of it.
pub fn reach(config: &Config, portals: &[Bound]) -> Option<Reach> {
    let target = config.targets.iter().find(|target| !target.luns.is_empty())?;
    let lun = target.luns.keys().next()?;
    let leads_there = |p: &&Bound| !p.transports.srp && target.portal_groups.contains(&p.tag);
    let Bound { address, transports, .. } = portals.iter().find(leads_there)?;
    let portal = local(*address).to_string();
    let provider = if transports.by_devices() { "?provider=verbs" } else { "" };
    let iser = transports.iser.then(|| format!("iser://{portal}/{}/{lun}{provider}", target.name));
    let tcp = transports.tcp.then(|| format!("iscsi://{portal}/{}/{lun}", target.name));
    let url = tcp.or_else(|| iser.clone())?;
    let srp = ways_by_srp(config, portals).into_iter().next().map(|way| way.url);
    Some(Reach { portal, target: target.name.clone(), url, iser, srp })
}

/// Where a client on this host connects to: an unspecified address cannot be connected to everywhere.
fn local(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// All that is printed, with `ready` at its end.
pub fn banner(config: &Config, portals: &[Bound]) -> String {
    let mut text = String::new();
    for Bound { address, tag, transports, .. } in portals {
        let what = if transports.by_rdma() { format!(", for {transports}") } else { String::new() };
        _ = writeln!(text, "listening on {address}, portal group {tag}{what}");
    }
    for target in &config.targets {
        _ = writeln!(text, "\n{}", target.name);
        for (number, lun) in target.luns.iter().take(LISTED) {
            _ = writeln!(text, "  LUN {number}: {}", describe(lun));
        }
        if target.luns.len() > LISTED {
            _ = writeln!(text, "  and {} more", target.luns.len() - LISTED);
        }
    }
    text += &reach(config, portals).map(|reach| lines(&reach)).unwrap_or_default();
    text + &srp(config, portals) + "\nready\n"
}

/// Lines to paste that lead to the first LUN.
fn lines(reach: &Reach) -> String {
    let Reach { url, iser, .. } = reach;
    let mut text = format!("\nURL:\n  {url}\n");
    let is_tcp = Some(url) != iser.as_ref();
    if is_tcp {
        iser.iter().for_each(|iser| _ = writeln!(text, "  {iser}"));
        text += &format!("Linux (as root):\n{}", open_iscsi(reach, ""));
    }
    if iser.is_some() {
        // open-iscsi has an interface of this name.
        text += &format!("Linux over iSER (as root):\n{}", open_iscsi(reach, " -I iser"));
    }
    // It has no iSER.
    if is_tcp {
        _ = writeln!(text, "QEMU:\n  qemu-img info {url}");
    }
    text
}

/// Lines for open-iscsi, by the interface that an option names.
fn open_iscsi(Reach { portal, target, .. }: &Reach, interface: &str) -> String {
    format!(
        "  iscsiadm -m discovery -t sendtargets -p {portal}{interface}\n  \
         iscsiadm -m node -T {target} -p {portal}{interface} --login\n"
    )
}

/// A way to a target by SRP.
struct BySrp {
    url: String,
    /// For Linux hosts.
    line: String,
    target: String,
}

/// What leads to targets by SRP, once for each portal and target.
fn ways_by_srp(config: &Config, portals: &[Bound]) -> Vec<BySrp> {
    let mut ways = Vec::new();
    for portal in portals.iter().filter(|portal| portal.transports.srp) {
        let provider = if portal.transports.by_devices() { "?provider=verbs" } else { "" };
        for (name, lun) in targets_of(config, portal.tag).into_iter().take(LISTED) {
            let (id, here) = (port_id(name).guid(), local(portal.address));
            let lun = lun.map(|lun| format!("/{lun}")).unwrap_or_default();
            ways.push(BySrp {
                url: format!("srp://{here}/{id:016x}{lun}{provider}"),
                line: format!("id_ext={id:016x},ioc_guid={id:016x},dest={}", told_address(portal)),
                target: name.to_owned(),
            });
        }
    }
    ways
}

/// Where other hosts find a portal.
fn told_address(portal: &Bound) -> String {
    match &portal.advertise {
        Some(told) if told.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']')) => told.clone(),
        Some(told) => format!("{told}:{}", portal.address.port()),
        None => local(portal.address).to_string(),
    }
}

fn srp(config: &Config, portals: &[Bound]) -> String {
    let ways = ways_by_srp(config, portals);
    if ways.is_empty() {
        return String::new();
    }
    // Identifiers do not tell which target they are of; a shell does not mind.
    let whose = |way: &BySrp| if ways.len() > 1 { format!("    # {}", way.target) } else { String::new() };
    let urls: String = ways.iter().map(|way| format!("  {}{}\n", way.url, whose(way))).collect();
    let lines: String = ways.iter().map(|way| format!("  {}\n", way.line)).collect();
    format!(
        "URL of SRP:\n{urls}SRP, to /sys/class/infiniband_srp/srp-DEVICE-PORT/add_target (as root):\n{lines}"
    )
}

/// Names of the targets of a portal group that have LUNs, with the first of these; routers' whose LUNs are told upstream
/// have none here, and those whose names are, are not among them.
fn targets_of(config: &Config, tag: u16) -> Vec<(&str, Option<u16>)> {
    let own = config.targets.iter().filter(|target| target.portal_groups.contains(&tag));
    let own = own.filter_map(|target| Some((target.name.as_str(), Some(*target.luns.keys().next()?))));
    let routers = config.routers.iter().filter(|router| router.portal_groups.contains(&tag));
    let routed = routers.flat_map(|router| &router.targets).filter_map(|target| match &target.map {
        Map::Transparent { .. } => None,
        Map::Target { name, .. } => Some((name.as_str(), None)),
        Map::Lun { name, luns } => Some((name.as_str(), luns.keys().next().copied())),
    });
    own.chain(routed).collect()
}

fn describe(lun: &Lun) -> String {
    let what = &lun.source;
    if lun.read_only { format!("{what}, read-only") } else { what.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use target::setup::Transports;

    const SOURCE: &str = "[[portal_group]]\ntag = 1\nportals = [\"0.0.0.0:0\"]\n[[portal_group]]\ntag = 2\n\
        portals = [\"[::1]:0\"]\n[[target]]\nname = \"iqn.2026-11.org.example:a\"\n[[target]]\n\
        name = \"iqn.2026-11.org.example:b\"\nportal_groups = [2]\n[[target.lun]]\nlun = 3\nbackend = \"null\"\n\
        size = \"1T\"\nread_only = true\n";

    fn bound(address: &str, tag: u16, transports: Transports) -> Bound {
        Bound { address: address.parse().unwrap(), tag, advertise: None, transports }
    }

    fn portals() -> Vec<Bound> {
        vec![bound("0.0.0.0:3260", 1, Transports::TCP), bound("[::1]:4000", 2, Transports::TCP)]
    }

    #[test]
    fn a_portal_for_srp_is_told_with_the_port_of_each_target() {
        let config = control::config::parse(SOURCE, "t.toml".as_ref()).unwrap();
        let portals = [bound("[::1]:5555", 2, Transports::SRP)];
        assert_eq!(reach(&config, &portals), None);
        let text = banner(&config, &portals);
        let line = "\n  id_ext=21c2f69f0bcae0f6,ioc_guid=21c2f69f0bcae0f6,dest=[::1]:5555\n";
        assert!(text.starts_with("listening on [::1]:5555, portal group 2, for SRP\n"), "{text}");
        assert!(text.contains(line), "{text}");
        assert!(
            text.contains("\nURL of SRP:\n  srp://[::1]:5555/21c2f69f0bcae0f6/3\nSRP, to /sys/"),
            "{text}"
        );
        let verbs = Transports { provider: target::setup::Provider::Verbs, ..Transports::SRP };
        let text = banner(&config, &[bound("[::1]:5555", 2, verbs)]);
        assert!(text.contains("/21c2f69f0bcae0f6/3?provider=verbs\n"), "{text}");
        assert!(
            text.starts_with("listening on [::1]:5555, portal group 2, for SRP by RDMA devices\n"),
            "{text}"
        );
    }

    #[test]
    fn each_way_by_srp_is_told_with_its_target_and_where_others_find_it() {
        let config = control::config::parse(SOURCE, "t.toml".as_ref()).unwrap();
        let told = |advertise: &str| Bound {
            advertise: Some(advertise.into()),
            ..bound("[::1]:5555", 2, Transports::SRP)
        };
        let text = banner(&config, &[told("192.0.2.9"), told("[2001:db8::9]:6666")]);
        for dest in ["192.0.2.9:5555", "[2001:db8::9]:6666"] {
            assert!(text.contains(&format!(",dest={dest}\n")), "{text}");
        }
        let url = "\n  srp://[::1]:5555/21c2f69f0bcae0f6/3    # iqn.2026-11.org.example:b\n";
        assert!(text.contains(url), "{text}");
    }

    #[test]
    fn targets_of_routers_are_told_over_srp_by_the_names_that_they_have_here() {
        let source = "[[portal_group]]\ntag = 1\nportals = [{ listen = \"[::1]:0\", transport = [\"srp\"] }]\n\
            [router.r1.upstream.u]\nurls = [\"iscsi://[::1]/iqn.2026-11.org.example:far\"]\n\
            [[router.r1.target]]\nmap = \"target\"\nname = \"iqn.2026-11.org.example:b\"\nupstream = \"u\"\n\
            access = \"all\"\n";
        let config = control::config::parse(source, "t.toml".as_ref()).unwrap();
        let text = banner(&config, &[bound("[::1]:5555", 1, Transports::SRP)]);
        assert!(text.contains("\n  srp://[::1]:5555/21c2f69f0bcae0f6\nSRP, to"), "{text}");
    }

    #[test]
    fn the_banner() {
        let config = control::config::parse(SOURCE, "t.toml".as_ref()).unwrap();
        assert_eq!(
            banner(&config, &portals()),
            "listening on 0.0.0.0:3260, portal group 1\nlistening on [::1]:4000, portal group 2\n\n\
             iqn.2026-11.org.example:a\n\niqn.2026-11.org.example:b\n  LUN 3: null, 1 TiB, read-only\n\n\
             URL:\n  iscsi://[::1]:4000/iqn.2026-11.org.example:b/3\n\
             Linux (as root):\n  iscsiadm -m discovery -t sendtargets -p [::1]:4000\n  \
             iscsiadm -m node -T iqn.2026-11.org.example:b -p [::1]:4000 --login\n\
             QEMU:\n  qemu-img info iscsi://[::1]:4000/iqn.2026-11.org.example:b/3\n\nready\n"
        );
    }

    #[test]
    fn a_portal_tells_of_what_it_carries() {
        let config = control::config::parse(SOURCE, "t.toml".as_ref()).unwrap();
        let both = Transports { iser: true, ..Transports::TCP };
        let told = |transports| banner(&config, &[bound("[::1]:4000", 2, transports)]);
        let text = told(both);
        let urls = "URL:\n  iscsi://[::1]:4000/iqn.2026-11.org.example:b/3\n  \
                    iser://[::1]:4000/iqn.2026-11.org.example:b/3\n";
        assert!(text.contains(urls) && text.contains("qemu-img"), "{text}");
        assert!(text.starts_with("listening on [::1]:4000, portal group 2, for TCP and iSER\n"), "{text}");
        let plain = "Linux (as root):\n  iscsiadm -m discovery -t sendtargets -p [::1]:4000\n";
        let over_iser = "Linux over iSER (as root):\n  \
                         iscsiadm -m discovery -t sendtargets -p [::1]:4000 -I iser\n";
        assert!(text.contains(plain) && text.contains(over_iser), "{text}");
        let text = told(Transports { tcp: false, ..both });
        assert!(text.contains("URL:\n  iser://[::1]:4000/iqn.2026-11.org.example:b/3\nLinux"), "{text}");
        assert!(text.starts_with("listening on [::1]:4000, portal group 2, for iSER\n"), "{text}");
        assert!(text.contains("-p [::1]:4000 -I iser --login\n\nready") && !text.contains(plain), "{text}");
    }

    #[test]
    fn a_command_is_told_each_way() {
        let config = control::config::parse(SOURCE, "t.toml".as_ref()).unwrap();
        let both = Transports { iser: true, ..Transports::TCP };
        let told = reach(&config, &[bound("[::1]:4000", 2, both), bound("[::1]:5555", 2, Transports::SRP)]);
        let told = told.unwrap();
        let name = "iqn.2026-11.org.example:b/3";
        assert_eq!(told.url, format!("iscsi://[::1]:4000/{name}"));
        assert_eq!(told.iser, Some(format!("iser://[::1]:4000/{name}")));
        assert_eq!(told.srp.as_deref(), Some("srp://[::1]:5555/21c2f69f0bcae0f6/3"));
    }

    #[test]
    fn an_unspecified_address_is_reached_by_loopback() {
        let source = SOURCE.replace("portal_groups = [2]", "portal_groups = [1]");
        let config = control::config::parse(&source, "t.toml".as_ref()).unwrap();
        assert_eq!(reach(&config, &portals()).unwrap().portal, "127.0.0.1:3260");
        assert_eq!(local("[::]:1".parse().unwrap()).to_string(), "[::1]:1");
    }
}

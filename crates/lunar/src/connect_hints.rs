//! The banner of `lunar serve`: listening addresses, LUNs, and commands that connect clients.

mod nvme;

use lunar_proto::chap::Algorithm;
use lunar_server::config::router::Map;
use lunar_server::config::{Config, LunConfig, Target};
use lunar_target::BoundPortal;
use lunar_target::config::PortalProtocol;
use lunar_target::srp::port_id;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Limit of listed LUNs per target.
const MAX_LUNS: usize = 8;
/// Limit of targets with commands for clients.
const MAX_TARGETS: usize = 8;

/// URLs of a LUN for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClientUrls {
    /// ADDR:PORT.
    portal: String,
    /// iSCSI name of the target.
    target: String,
    /// `iscsi://ADDR:PORT/IQN/LUN`; `iser://` if the portal supports only iSER.
    url: String,
    /// `iser://ADDR:PORT/IQN/LUN`, if the portal supports iSER.
    iser: Option<String>,
    /// `srp://ADDR:PORT/ID_EXT/LUN`, if an SRP portal has a target.
    srp: Option<String>,
    /// CHAP user, if the target requires CHAP.
    user: Option<String>,
}

/// The first LUN of the first target with LUNs, at the first iSCSI portal of that target, for clients on this host.
fn client_urls(config: &Config, portals: &[BoundPortal]) -> Option<ClientUrls> {
    let target = iscsi_targets(config).find(|target| !target.luns.is_empty())?;
    let here = |bound: &BoundPortal| local(bound.address).to_string();
    let srp = srp_hints(config, portals, here).into_iter().next().map(|hint| hint.url);
    // Without a CHAP user: the --run command brings its own credentials.
    Some(ClientUrls { srp, ..target_urls(target, portals, None, here)? })
}

/// The environment of the `--run` command. Empty: the server has no LUN and no namespace that the command could use.
pub fn environment(config: &Config, portals: &[BoundPortal]) -> Vec<(&'static str, String)> {
    let of_lun = client_urls(config, portals).map(|ClientUrls { portal, url, iser, srp, .. }| {
        [
            ("LUNAR_URL", Some(url)),
            ("LUNAR_PORTAL", Some(portal)),
            ("LUNAR_ISER_URL", iser),
            ("LUNAR_SRP_URL", srp),
        ]
    });
    let all = of_lun.into_iter().flatten().chain([("LUNAR_NVME_URL", nvme::local_url(config, portals))]);
    all.filter_map(|(name, value)| Some((name, value?))).collect()
}

/// The targets that are no NVMe subsystems.
fn iscsi_targets(config: &Config) -> impl Iterator<Item = &Target> {
    config.targets.iter().filter(|target| target.subsystem.is_none())
}

/// The first LUN of a target for a CHAP user; `place` returns the address of a portal.
fn target_urls(
    target: &Target,
    portals: &[BoundPortal],
    user: Option<String>,
    place: fn(&BoundPortal) -> String,
) -> Option<ClientUrls> {
    let lun = target.luns.keys().next()?;
    let bound = portals.iter().find(|bound| leads_to(target, bound))?;
    let (portal, transports) = (place(bound), bound.transports);
    let at = user.as_deref().map_or(portal.clone(), |user| format!("{user}@{portal}"));
    let verbs = transports.by_devices().then_some("provider=verbs");
    let secret = user.is_some().then_some("password_file=SECRET_FILE");
    let keys = |list: [Option<&str>; 2]| {
        let keys: Vec<&str> = list.into_iter().flatten().collect();
        if keys.is_empty() { String::new() } else { format!("?{}", keys.join("&")) }
    };
    let iser = transports.iser.then(|| format!("iser://{at}/{}/{lun}{}", target.name, keys([verbs, secret])));
    let tcp = transports.tcp.then(|| format!("iscsi://{at}/{}/{lun}{}", target.name, keys([None, secret])));
    let url = tcp.or_else(|| iser.clone())?;
    Some(ClientUrls { portal, target: target.name.clone(), url, iser, srp: None, user })
}

/// Whether the portal accepts iSCSI logins to this target.
fn leads_to(target: &Target, bound: &BoundPortal) -> bool {
    bound.transports.protocol == PortalProtocol::Iscsi && target.portal_groups.contains(&bound.tag)
}

/// A CHAP user of a target that requires CHAP from every initiator.
fn chap_user(target: &Target) -> Option<String> {
    let mut users = target.access.iter().filter(|entry| !entry.deny).map(|entry| entry.chap.as_ref());
    let first = users.next()??.first()?.name.clone();
    users.all(|users| users.is_some()).then_some(first)
}

/// The address for clients on this host: loopback for an unspecified address, which not every client can connect to.
fn local(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// The address for other hosts. An unspecified address is replaced by the source address of the default route.
fn public(bound: &BoundPortal) -> String {
    match (&bound.advertise, bound.address) {
        (None, address) if address.ip().is_unspecified() => {
            anywhere(outgoing(address).unwrap_or_else(|| local(address)))
        }
        _ => advertised_address(bound),
    }
}

/// An address in the form for other hosts: the zone of a link-local one is the name of their own interface (RFC 4007).
fn anywhere(address: SocketAddr) -> String {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
            format!("[{}%INTERFACE]:{}", v6.ip(), v6.port())
        }
        _ => address.to_string(),
    }
}

/// The source address of the default route; None without such a route. Sends no packet.
fn outgoing(address: SocketAddr) -> Option<SocketAddr> {
    // Documentation addresses (RFC 5737, RFC 3849) follow the default route.
    let far: SocketAddr = if address.is_ipv4() { "192.0.2.1:9" } else { "[2001:db8::1]:9" }.parse().ok()?;
    let socket = UdpSocket::bind(SocketAddr::new(address.ip(), 0)).ok()?;
    socket.connect(far).ok()?;
    let own = socket.local_addr().ok()?.ip();
    (!own.is_unspecified()).then(|| SocketAddr::new(own, address.port()))
}

/// The banner. Its last line is `ready`.
pub fn banner(config: &Config, portals: &[BoundPortal]) -> String {
    let mut text = String::new();
    for BoundPortal { address, tag, transports, .. } in portals {
        let is_named = transports.by_rdma() || transports.protocol.is_nvme();
        let what = if is_named { format!(", for {transports}") } else { String::new() };
        _ = writeln!(text, "listening on {address}, portal group {tag}{what}");
    }
    for target in iscsi_targets(config) {
        _ = writeln!(text, "\n{}{}", target.name, if target.standby { ", on standby" } else { "" });
        for (number, lun) in target.luns.iter().take(MAX_LUNS) {
            _ = writeln!(text, "  LUN {number}: {}", describe(lun));
        }
        if target.luns.len() > MAX_LUNS {
            _ = writeln!(text, "  and {} more", target.luns.len() - MAX_LUNS);
        }
    }
    for router in &config.routers {
        for target in &router.targets {
            _ = writeln!(text, "\n{}", routed(&target.map, &router.name));
        }
    }
    text += &nvme::listed(config);
    // An offline target rejects each login.
    let served = iscsi_targets(config).filter(|target| !target.offline && !target.standby);
    let reached = served.filter_map(|target| {
        let by = |portals: &[BoundPortal]| target_urls(target, portals, chap_user(target), public);
        Some((by(portals)?, by(&of_other_version(target, portals))))
    });
    let (reached, others): (Vec<ClientUrls>, Vec<Option<ClientUrls>>) = reached.take(MAX_TARGETS).unzip();
    text += &lines(config, &reached, &others.into_iter().flatten().collect::<Vec<_>>());
    text + &srp(config, portals)
        + &nvme::urls(config, portals)
        + &nvme::commands(config, portals)
        + "\nready\n"
}

/// The targets of a mapping.
fn routed(map: &Map, router: &str) -> String {
    match map {
        Map::Transparent { upstream } => format!("targets of {upstream}, by router {router}"),
        Map::Target { name, upstream } => format!("{name}\n  LUNs of {upstream}, by router {router}"),
        Map::Lun { name, luns } => {
            let count = luns.len();
            format!("{name}\n  {count} LUN{}, by router {router}", if count == 1 { "" } else { "s" })
        }
    }
}

/// If the first portal of a target listens on all addresses of an IP version: the portals that do so for the other version.
fn of_other_version(target: &Target, portals: &[BoundPortal]) -> Vec<BoundPortal> {
    let Some(first) = portals.iter().find(|bound| leads_to(target, bound)) else { return Vec::new() };
    let takes_all = |bound: &BoundPortal| bound.advertise.is_none() && bound.address.ip().is_unspecified();
    let is_other =
        |bound: &&BoundPortal| takes_all(bound) && bound.address.is_ipv4() != first.address.is_ipv4();
    if takes_all(first) { portals.iter().filter(is_other).cloned().collect() } else { Vec::new() }
}

/// Commands that connect to the first LUN of each target; `others`: the same LUNs by the other IP version.
fn lines(config: &Config, reached: &[ClientUrls], others: &[ClientUrls]) -> String {
    if reached.is_empty() {
        return String::new();
    }
    let is_tcp = |reach: &&ClientUrls| Some(&reach.url) != reach.iser.as_ref();
    let by_tcp: Vec<&ClientUrls> = reached.iter().filter(is_tcp).collect();
    let by_iser: Vec<&ClientUrls> = reached.iter().filter(|reach| reach.iser.is_some()).collect();
    let urls = |reach: &ClientUrls| {
        let iser = reach.iser.iter().filter(|iser| **iser != reach.url);
        iser.fold(format!("  {}\n", reach.url), |text, iser| text + &format!("  {iser}\n"))
    };
    let other = |reach: &ClientUrls| others.iter().find(|other| other.target == reach.target);
    let both = |reach: &ClientUrls| urls(reach) + &other(reach).map(urls).unwrap_or_default();
    let mut text = "\nURL:\n".to_owned() + &reached.iter().map(both).collect::<String>();
    // A host that logs in at both addresses sees one LUN as two disks.
    if let Some((first, other)) = reached.iter().find_map(|reach| Some((reach, other(reach)?))) {
        text += &format!("Use {} or {}: both belong to the same portal group\n", first.portal, other.portal);
    }
    if !by_tcp.is_empty() {
        text += &format!("Linux (as root):\n{}", open_iscsi(config, &by_tcp, ""));
    }
    if !by_iser.is_empty() {
        // `iser` is a predefined interface of open-iscsi.
        text += &format!("Linux over iSER (as root):\n{}", open_iscsi(config, &by_iser, " -I iser"));
    }
    // QEMU does not support iSER.
    let images: String = by_tcp.iter().map(|reach| qemu(config, reach)).collect();
    if images.is_empty() { text } else { text + "QEMU:\n" + &images }
}

/// A command for QEMU. It accepts a secret only in the URL, and its library supports only MD5 for CHAP.
fn qemu(config: &Config, ClientUrls { url, user, target, .. }: &ClientUrls) -> String {
    let Some(user) = user else { return format!("  qemu-img info {url}\n") };
    if !has_md5(config) {
        return format!(
            "  # {target}: QEMU supports only MD5 for CHAP, and `chap_algorithms` has no \"md5\"\n"
        );
    }
    let plain = url.split('?').next().unwrap_or(url);
    let with_secret = plain.replacen(&format!("{user}@"), &format!("{user}%SECRET@"), 1);
    format!("  qemu-img info \"{with_secret}\"\n")
}

fn has_md5(config: &Config) -> bool {
    config.session.chap_algorithms.contains(&Algorithm::Md5)
}

/// Commands for open-iscsi: one discovery for each portal, one login for each target. `interface`: an option, or empty.
/// If discovery is disabled or requires CHAP, a command creates the node record instead.
fn open_iscsi(config: &Config, reached: &[&ClientUrls], interface: &str) -> String {
    let can_discover = !config.discovery.disabled && config.discovery.chap.is_none();
    let mut text = String::new();
    for (n, ClientUrls { portal, target, user, .. }) in reached.iter().enumerate() {
        let node = format!("  iscsiadm -m node -T {target} -p {portal}{interface}");
        if !can_discover {
            _ = writeln!(text, "{node} -o new");
        } else if reached[..n].iter().all(|before| before.portal != *portal) {
            _ = writeln!(text, "  iscsiadm -m discovery -t sendtargets -p {portal}{interface}");
        }
        for (key, value) in user.iter().flat_map(|user| chap_settings(config, user)) {
            _ = writeln!(text, "{node} -o update -n node.session.auth.{key} -v {value}");
        }
        _ = writeln!(text, "{node} --login");
    }
    text
}

/// Settings of open-iscsi for a CHAP user. Its default is to offer MD5 only.
fn chap_settings(config: &Config, user: &str) -> Vec<(&'static str, String)> {
    let names = config.session.chap_algorithms.iter().map(|algorithm| algorithm.name().to_uppercase());
    let algorithms = (!has_md5(config)).then(|| ("chap_algs", names.collect::<Vec<_>>().join(",")));
    let basic = [("authmethod", "CHAP".into()), ("username", user.into()), ("password", "SECRET".into())];
    basic.into_iter().chain(algorithms).collect()
}

/// Address of a target over SRP.
struct SrpHint {
    url: String,
    /// The line for `add_target` of Linux hosts.
    line: String,
    target: String,
}

/// SRP addresses, one for each portal and target; `place` returns the address of a portal.
fn srp_hints(config: &Config, portals: &[BoundPortal], place: fn(&BoundPortal) -> String) -> Vec<SrpHint> {
    let mut hints = Vec::new();
    for portal in portals.iter().filter(|portal| portal.transports.protocol == PortalProtocol::Srp) {
        let provider = if portal.transports.by_devices() { "?provider=verbs" } else { "" };
        for (name, lun) in targets_of(config, portal.tag).into_iter().take(MAX_LUNS) {
            let (id, at) = (port_id(name).guid(), place(portal));
            let lun = lun.map(|lun| format!("/{lun}")).unwrap_or_default();
            hints.push(SrpHint {
                url: format!("srp://{at}/{id:016x}{lun}{provider}"),
                line: format!("id_ext={id:016x},ioc_guid={id:016x},dest={at}"),
                target: name.to_owned(),
            });
        }
    }
    hints
}

/// The address that a portal advertises to other hosts.
fn advertised_address(portal: &BoundPortal) -> String {
    match &portal.advertise {
        Some(advertised) if advertised.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']')) => {
            advertised.clone()
        }
        Some(advertised) => format!("{advertised}:{}", portal.address.port()),
        None => anywhere(local(portal.address)),
    }
}

fn srp(config: &Config, portals: &[BoundPortal]) -> String {
    let hints = srp_hints(config, portals, public);
    if hints.is_empty() {
        return String::new();
    }
    // Identifiers do not show the name of their target: add it as a shell comment.
    let whose =
        |hint: &SrpHint| if hints.len() > 1 { format!("    # {}", hint.target) } else { String::new() };
    let urls: String = hints.iter().map(|hint| format!("  {}{}\n", hint.url, whose(hint))).collect();
    let lines: String = hints.iter().map(|hint| format!("  {}\n", hint.line)).collect();
    format!(
        "URL of SRP:\n{urls}SRP, write to /sys/class/infiniband_srp/srp-DEVICE-PORT/add_target (as root):\n{lines}"
    )
}

/// Targets of a portal group, each with its first LUN. A target of a router has None if the upstream determines its LUNs.
/// Targets whose names the upstream determines are left out.
fn targets_of(config: &Config, tag: u16) -> Vec<(&str, Option<u16>)> {
    // SRP has no CHAP.
    let is_open = |target: &&Target| !target.offline && !target.standby && chap_user(target).is_none();
    let own = iscsi_targets(config).filter(|target| target.portal_groups.contains(&tag)).filter(is_open);
    let own = own.filter_map(|target| Some((target.name.as_str(), Some(*target.luns.keys().next()?))));
    let routers = config.routers.iter().filter(|router| router.portal_groups.contains(&tag));
    let routed = routers.flat_map(|router| &router.targets).filter_map(|target| match &target.map {
        Map::Transparent { .. } => None,
        Map::Target { name, .. } => Some((name.as_str(), None)),
        Map::Lun { name, luns } => Some((name.as_str(), luns.keys().next().copied())),
    });
    own.chain(routed).collect()
}

fn describe(lun: &LunConfig) -> String {
    let what = &lun.source;
    if lun.read_only { format!("{what}, read-only") } else { what.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_target::config::Transports;

    const SOURCE: &str = "[[portal_group]]\ntag = 1\nportals = [\"0.0.0.0:0\"]\n[[portal_group]]\ntag = 2\n\
        portals = [\"[::1]:0\"]\n[[target]]\nname = \"iqn.2026-11.org.example:a\"\n[[target]]\n\
        name = \"iqn.2026-11.org.example:b\"\nportal_groups = [2]\n[[target.lun]]\nlun = 3\nbackend = \"null\"\n\
        size = \"1T\"\nread_only = true\n";

    fn bound(address: &str, tag: u16, transports: Transports) -> BoundPortal {
        BoundPortal { address: address.parse().unwrap(), tag, advertise: None, transports }
    }

    fn portals() -> Vec<BoundPortal> {
        vec![bound("0.0.0.0:3260", 1, Transports::TCP), bound("[::1]:4000", 2, Transports::TCP)]
    }

    #[test]
    fn banner_lists_srp_port_of_each_target() {
        let config = lunar_server::config::parse(SOURCE, "t.toml".as_ref()).unwrap();
        let portals = [bound("[::1]:5555", 2, Transports::SRP)];
        assert_eq!(client_urls(&config, &portals), None);
        let text = banner(&config, &portals);
        let line = "\n  id_ext=21c2f69f0bcae0f6,ioc_guid=21c2f69f0bcae0f6,dest=[::1]:5555\n";
        assert!(text.starts_with("listening on [::1]:5555, portal group 2, for SRP\n"), "{text}");
        assert!(text.contains(line), "{text}");
        assert!(
            text.contains("\nURL of SRP:\n  srp://[::1]:5555/21c2f69f0bcae0f6/3\nSRP, write to /sys/"),
            "{text}"
        );
        let verbs = Transports { provider: lunar_target::config::RdmaProvider::Verbs, ..Transports::SRP };
        let text = banner(&config, &[bound("[::1]:5555", 2, verbs)]);
        assert!(text.contains("/21c2f69f0bcae0f6/3?provider=verbs\n"), "{text}");
        assert!(
            text.starts_with("listening on [::1]:5555, portal group 2, for SRP by RDMA devices\n"),
            "{text}"
        );
    }

    #[test]
    fn banner_lists_each_srp_portal_per_target() {
        let config = lunar_server::config::parse(SOURCE, "t.toml".as_ref()).unwrap();
        let advertising = |advertise: &str| BoundPortal {
            advertise: Some(advertise.into()),
            ..bound("[::1]:5555", 2, Transports::SRP)
        };
        let text = banner(&config, &[advertising("192.0.2.9"), advertising("[2001:db8::9]:6666")]);
        for dest in ["192.0.2.9:5555", "[2001:db8::9]:6666"] {
            assert!(text.contains(&format!(",dest={dest}\n")), "{text}");
        }
        let url = "\n  srp://192.0.2.9:5555/21c2f69f0bcae0f6/3    # iqn.2026-11.org.example:b\n";
        assert!(text.contains(url), "{text}");
    }

    #[test]
    fn banner_names_an_srp_address_that_other_hosts_reach() {
        let config = lunar_server::config::parse(SOURCE, "t.toml".as_ref()).unwrap();
        let any = bound("0.0.0.0:5555", 2, Transports::SRP);
        let (text, at) = (banner(&config, std::slice::from_ref(&any)), public(&any));
        assert!(text.contains(&format!("  srp://{at}/21c2f69f0bcae0f6/3\n")), "{text}");
        assert!(text.contains(&format!(",dest={at}\n")), "{text}");
    }

    #[test]
    fn banner_lists_router_targets_over_srp() {
        let source = "[[portal_group]]\ntag = 1\nportals = [{ listen = \"[::1]:0\", transport = [\"srp\"] }]\n\
            [router.r1.upstream.u]\nurls = [\"iscsi://[::1]/iqn.2026-11.org.example:far\"]\n\
            [[router.r1.target]]\nmap = \"target\"\nname = \"iqn.2026-11.org.example:b\"\nupstream = \"u\"\n\
            access = \"all\"\n";
        let config = lunar_server::config::parse(source, "t.toml".as_ref()).unwrap();
        let text = banner(&config, &[bound("[::1]:5555", 1, Transports::SRP)]);
        assert!(text.contains("\n  srp://[::1]:5555/21c2f69f0bcae0f6\nSRP, write to"), "{text}");
        assert!(text.contains("\niqn.2026-11.org.example:b\n  LUNs of u, by router r1\n"), "{text}");
    }

    #[test]
    fn banner_lists_portals_luns_and_commands() {
        let config = lunar_server::config::parse(SOURCE, "t.toml".as_ref()).unwrap();
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

    /// The configuration of an open target a and a target b with CHAP, with more sections before them.
    fn guarded(case: &str, more: &str) -> Config {
        let folder = std::env::temp_dir().join(format!("lunar-paste-{case}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let secret = folder.join("ann.secret");
        std::fs::write(&secret, "sixteen bytes ok").unwrap();
        std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let lun = "[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1G\"\n";
        let source = format!(
            "{more}[[chap_user]]\nname = \"ann\"\nsecret_file = \"ann.secret\"\n\
             [[target]]\nname = \"iqn.2026-11.org.example:a\"\n{lun}\
             [[target]]\nname = \"iqn.2026-11.org.example:b\"\n{lun}[[target.access]]\nchap = [\"ann\"]\n"
        );
        let config = lunar_server::config::parse(&source, &folder.join("t.toml"));
        std::fs::remove_dir_all(&folder).unwrap();
        config.map_err(|list| list[0].to_string()).unwrap()
    }

    #[test]
    fn banner_has_lines_for_every_target_and_its_chap_user() {
        let config = guarded("chap", "");
        let portals = [bound("192.0.2.7:3260", 1, Transports::TCP)];
        let text = banner(&config, &portals);
        let b = "iqn.2026-11.org.example:b -p 192.0.2.7:3260";
        for line in [
            "URL:\n  iscsi://192.0.2.7:3260/iqn.2026-11.org.example:a/0\n",
            "iscsi://ann@192.0.2.7:3260/iqn.2026-11.org.example:b/0?password_file=SECRET_FILE\n",
            &format!("iscsiadm -m node -T {b} -o update -n node.session.auth.username -v ann\n"),
            &format!("iscsiadm -m node -T {b} -o update -n node.session.auth.password -v SECRET\n"),
            &format!("iscsiadm -m node -T {b} --login\n"),
            "qemu-img info \"iscsi://ann%SECRET@192.0.2.7:3260/iqn.2026-11.org.example:b/0\"\n",
        ] {
            assert_eq!(text.matches(line).count(), 1, "{line}{text}");
        }
        assert_eq!(text.matches("-m discovery").count(), 1, "{text}");
        assert!(!text.contains("sixteen"), "{text}");
        assert_eq!(client_urls(&config, &portals).unwrap().user, None);
    }

    #[test]
    fn banner_has_the_chap_user_beside_an_entry_that_denies() {
        let mut config = guarded("deny", "");
        let denies = lunar_target::config::AccessRule { deny: true, ..Default::default() };
        config.targets[1].access.insert(0, denies);
        let text = banner(&config, &[bound("192.0.2.7:3260", 1, Transports::TCP)]);
        assert!(
            text.contains("iscsi://ann@192.0.2.7:3260/iqn.2026-11.org.example:b/0?password_file="),
            "{text}"
        );
    }

    #[test]
    fn banner_without_md5_has_no_command_that_needs_it() {
        let config = guarded("md5", "[session]\nchap_algorithms = [\"sha3-256\", \"sha1\"]\n");
        let text = banner(&config, &[bound("192.0.2.7:3260", 1, Transports::TCP)]);
        let why =
            "  # iqn.2026-11.org.example:b: QEMU supports only MD5 for CHAP, and `chap_algorithms` has no";
        for line in [why, "qemu-img info iscsi://", "node.session.auth.chap_algs -v SHA3-256,SHA1\n"] {
            assert_eq!(text.matches(line).count(), 1, "{line}{text}");
        }
        assert_eq!(text.matches("qemu-img").count(), 1, "{text}");
    }

    #[test]
    fn banner_has_no_discovery_where_it_is_not_open() {
        let portals = [bound("192.0.2.7:3260", 1, Transports::TCP)];
        for (case, closed) in [("off", "enabled = false"), ("by-chap", "chap = [\"ann\"]")] {
            let text = banner(&guarded(case, &format!("[discovery]\n{closed}\n")), &portals);
            let new = "  iscsiadm -m node -T iqn.2026-11.org.example:a -p 192.0.2.7:3260 -o new\n";
            assert!(text.contains(new) && !text.contains("-m discovery"), "{text}");
        }
    }

    #[test]
    fn banner_has_no_line_for_a_target_that_is_offline() {
        let mut config = guarded("offline", "");
        config.targets[0].offline = true;
        let text = banner(&config, &[bound("192.0.2.7:3260", 1, Transports::TCP)]);
        assert!(!text.contains("example:a/0") && text.contains("example:b/0"), "{text}");
    }

    #[test]
    fn banner_has_no_line_by_srp_for_a_target_with_chap() {
        let text = banner(&guarded("srp", ""), &[bound("192.0.2.7:5555", 1, Transports::SRP)]);
        assert_eq!(text.matches("id_ext=").count(), 1, "{text}");
    }

    #[test]
    fn link_local_address_has_the_interface_of_the_reader() {
        let bound = bound("[fe80::1%3]:3260", 1, Transports::TCP);
        assert_eq!(public(&bound), "[fe80::1%INTERFACE]:3260");
    }

    #[test]
    fn banner_names_an_address_that_other_hosts_reach() {
        let any = bound("0.0.0.0:3260", 1, Transports::TCP);
        let own = outgoing(any.address).unwrap_or_else(|| local(any.address));
        assert_eq!(public(&any), own.to_string());
        assert!(!own.ip().is_unspecified());
        assert_eq!(
            public(&BoundPortal { advertise: Some("disks.example".into()), ..any }),
            "disks.example:3260"
        );
    }

    #[test]
    fn banner_names_an_address_of_each_ip_version() {
        let source = SOURCE.replace("portal_groups = [2]", "portal_groups = [1]");
        let config = lunar_server::config::parse(&source, "t.toml".as_ref()).unwrap();
        let (v6, v4) = (bound("[::]:3260", 1, Transports::TCP), bound("0.0.0.0:3260", 1, Transports::TCP));
        let text = banner(&config, &[v6.clone(), v4.clone()]);
        for portal in [public(&v6), public(&v4)] {
            assert!(text.contains(&format!("  iscsi://{portal}/iqn.2026-11.org.example:b/3\n")), "{text}");
        }
        assert!(text.contains(&format!("Use {} or {}:", public(&v6), public(&v4))), "{text}");
        assert_eq!(text.matches("--login").count(), 1, "{text}");
        assert!(!banner(&config, &[v4]).contains("Use "));
    }

    #[test]
    fn banner_lists_transports_of_a_portal() {
        let config = lunar_server::config::parse(SOURCE, "t.toml".as_ref()).unwrap();
        let both = Transports { iser: true, ..Transports::TCP };
        let banner_over = |transports| banner(&config, &[bound("[::1]:4000", 2, transports)]);
        let text = banner_over(both);
        let urls = "URL:\n  iscsi://[::1]:4000/iqn.2026-11.org.example:b/3\n  \
                    iser://[::1]:4000/iqn.2026-11.org.example:b/3\n";
        assert!(text.contains(urls) && text.contains("qemu-img"), "{text}");
        assert!(text.starts_with("listening on [::1]:4000, portal group 2, for TCP and iSER\n"), "{text}");
        let plain = "Linux (as root):\n  iscsiadm -m discovery -t sendtargets -p [::1]:4000\n";
        let over_iser = "Linux over iSER (as root):\n  \
                         iscsiadm -m discovery -t sendtargets -p [::1]:4000 -I iser\n";
        assert!(text.contains(plain) && text.contains(over_iser), "{text}");
        let text = banner_over(Transports { tcp: false, ..both });
        assert!(text.contains("URL:\n  iser://[::1]:4000/iqn.2026-11.org.example:b/3\nLinux"), "{text}");
        assert!(text.starts_with("listening on [::1]:4000, portal group 2, for iSER\n"), "{text}");
        assert!(text.contains("-p [::1]:4000 -I iser --login\n\nready") && !text.contains(plain), "{text}");
    }

    #[test]
    fn banner_lists_urls_of_each_transport() {
        let config = lunar_server::config::parse(SOURCE, "t.toml".as_ref()).unwrap();
        let both = Transports { iser: true, ..Transports::TCP };
        let urls =
            client_urls(&config, &[bound("[::1]:4000", 2, both), bound("[::1]:5555", 2, Transports::SRP)]);
        let urls = urls.unwrap();
        let name = "iqn.2026-11.org.example:b/3";
        assert_eq!(urls.url, format!("iscsi://[::1]:4000/{name}"));
        assert_eq!(urls.iser, Some(format!("iser://[::1]:4000/{name}")));
        assert_eq!(urls.srp.as_deref(), Some("srp://[::1]:5555/21c2f69f0bcae0f6/3"));
    }

    #[test]
    fn unspecified_address_is_reached_by_loopback() {
        let source = SOURCE.replace("portal_groups = [2]", "portal_groups = [1]");
        let config = lunar_server::config::parse(&source, "t.toml".as_ref()).unwrap();
        assert_eq!(client_urls(&config, &portals()).unwrap().portal, "127.0.0.1:3260");
        assert_eq!(local("[::]:1".parse().unwrap()).to_string(), "[::1]:1");
    }
}

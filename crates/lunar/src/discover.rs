//! `lunar discover`: lists the targets of a portal and their addresses.

use crate::client::{self, ClientArgs, json_list, run};
use crate::exit::{Exit, Failure};
use crate::output;
use clap::Args;
use lunar_initiator::nvme::discovery::{self, DiscoveryEntry, DiscoveryKind, SecureChannel, TransportKind};
use lunar_initiator::nvme::{self, NvmeUrl, SubsystemAddress};
use lunar_initiator::{DiscoveredTarget, Portal};
use serde::Serialize;
use std::fmt::Write;
use utoipa::ToSchema;

const EXAMPLES: &str = "\
Examples:
  lunar discover 127.0.0.1
  lunar discover [::1]:3260
  lunar discover iscsi://ann@192.0.2.10?password_file=ann.secret
  lunar discover iser://192.0.2.10
  lunar discover nvme://192.0.2.10
  lunar discover 192.0.2.10 --json

Output: one line per target and portal, ADDRESS:PORT,TAG TARGET. Discovery does not report the transport of a
portal: a portal that accepts only iSER is listed like the others. With nvme://, a target is a subsystem, TAG is the identifier
of its port, and the default port is 8009. TLS behind it shows that hosts must use TLS at the portal.";

/// Arguments of `lunar discover`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Discover {
    /// HOST[:PORT], or a URL: iscsi://HOST[:PORT][?KEY=VALUE&...], an iser:// URL (SRP has no discovery), or
    /// nvme://HOST[:PORT][/NQN] of a discovery service
    #[arg(value_name = "PORTAL|URL")]
    portal: String,

    #[command(flatten)]
    common: ClientArgs,
}

/// A target in JSON.
#[derive(Serialize, ToSchema)]
#[schema(as = DiscoveredTarget)]
pub struct TargetEntry {
    pub target: String,
    pub portals: Vec<PortalEntry>,
}

/// One of its portals.
#[derive(Serialize, ToSchema)]
#[schema(as = DiscoveredPortal)]
pub struct PortalEntry {
    pub host: String,
    pub port: u16,
    pub tag: Option<u16>,
    /// Whether NVMe hosts must use TLS there; null for iSCSI, whose discovery does not report it.
    pub tls_required: Option<bool>,
}

/// The text to print.
///
/// # Errors
/// [`Exit::NotFound`] when the portal reports no target; those of discovery.
pub fn discover(args: Discover) -> Result<String, Failure> {
    if nvme::is_url(&args.portal) {
        return discover_subsystems(args);
    }
    let url = client::url(&args.portal)?;
    let options = url.options()?;
    let portal = url.portal.clone();
    let found =
        run(args.common, move || async move { Ok(lunar_initiator::discover(portal, &options).await?) })?;
    if found.is_empty() {
        return Err(none(&url.portal));
    }
    if args.common.json {
        let entries: Vec<TargetEntry> = found.into_iter().map(|one| entry(&url.portal, one)).collect();
        return json_list(&entries);
    }
    Ok(found.into_iter().map(|one| lines(&entry(&url.portal, one))).collect())
}

/// As [`discover`], at an NVMe discovery service.
fn discover_subsystems(args: Discover) -> Result<String, Failure> {
    let url: NvmeUrl = args.portal.parse()?;
    of_one_service(&url)?;
    let options = url.options()?;
    let subsystem = url.subsystem.unwrap_or_else(discovery::well_known);
    let address = SubsystemAddress { portal: url.portal, subsystem };
    let asked = address.clone();
    let found =
        run(args.common, move || async move { Ok(discovery::discover_referred(&address, &options).await?) })?;
    let subsystems = subsystems(found);
    if subsystems.is_empty() {
        return Err(no_subsystem(&asked.portal));
    }
    if args.common.json {
        return json_list(&subsystems);
    }
    Ok(subsystems.iter().map(lines).collect())
}

/// Checks that a URL names one discovery service. Services may know different subsystems, so none stands for another.
///
/// # Errors
/// When it has several paths.
pub fn of_one_service(url: &NvmeUrl) -> Result<(), Failure> {
    if url.paths().len() == 1 {
        return Ok(());
    }
    let what = format!("{}: `paths=` does not apply to a discovery service", url.plain());
    let hint = "ask each service by a command of its own, or add the name of a subsystem: nvme://HOST/NQN?paths=HOST";
    Err(Failure::new(Exit::Invalid, what, hint))
}

/// The subsystems that are reachable over TCP, each with its portals. A note on stderr reports other entries.
pub fn subsystems(found: Vec<DiscoveryEntry>) -> Vec<TargetEntry> {
    let mut targets: Vec<TargetEntry> = Vec::new();
    for one in found {
        let name = one.subsystem.to_string();
        let port = one.service.trim().parse().ok();
        match (one.kind, one.transport, port) {
            (DiscoveryKind::Current, ..) => {}
            (DiscoveryKind::Subsystem, TransportKind::Tcp, Some(port)) => {
                let tls_required = Some(requires_tls(one.secure, one.security));
                let host = one.address.trim().into();
                let portal = PortalEntry { host, port, tag: Some(one.port), tls_required };
                match targets.iter_mut().find(|target| target.target == name) {
                    Some(target) => target.portals.push(portal),
                    None => targets.push(TargetEntry { target: name, portals: vec![portal] }),
                }
            }
            (kind, transport, _) => output::stderr_line(format_args!(
                "note: {name} at {}:{} is left out: {kind:?} over {transport:?}",
                one.address, one.service
            )),
        }
    }
    targets
}

/// Whether a portal demands TLS: by TREQ, or else by the security that it has (SECTYPE).
fn requires_tls(secure: SecureChannel, security: u8) -> bool {
    match secure {
        SecureChannel::Required => true,
        SecureChannel::NotRequired => false,
        SecureChannel::Unspecified => security != 0,
    }
}

/// The error for a portal without targets.
pub fn none(portal: &Portal) -> Failure {
    let hint = "check the access list of the target, which may require another initiator name (initiator=IQN) or a CHAP user";
    Failure::new(Exit::NotFound, format!("the portal {portal} shows no target to this initiator"), hint)
}

/// The error for a discovery service without subsystems.
pub fn no_subsystem(portal: &Portal) -> Failure {
    let hint = "check which hosts the subsystems allow, and name another host with host_nqn= in the URL";
    let what = format!("the discovery service at {portal} shows no subsystem to this host");
    Failure::new(Exit::NotFound, what, hint)
}

/// A target without an address is at the portal of the request.
fn entry(asked: &Portal, found: DiscoveredTarget) -> TargetEntry {
    let mut portals: Vec<PortalEntry> = found
        .addresses
        .into_iter()
        .map(|p| PortalEntry { host: p.host, port: p.port, tag: p.portal_group_tag, tls_required: None })
        .collect();
    if portals.is_empty() {
        portals.push(PortalEntry {
            host: asked.host.clone(),
            port: asked.port,
            tag: None,
            tls_required: None,
        });
    }
    TargetEntry { target: found.name, portals }
}

/// The format of iscsiadm. A portal that demands TLS has a word more.
fn lines(entry: &TargetEntry) -> String {
    let mut text = String::new();
    for place in &entry.portals {
        let portal = Portal { host: place.host.clone(), port: place.port };
        let tag = place.tag.map_or("-1".to_owned(), |tag| tag.to_string());
        let tls = if place.tls_required == Some(true) { " TLS" } else { "" };
        _ = writeln!(text, "{portal},{tag} {}{tls}", entry.target);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portals_of_subsystems_show_whether_they_demand_tls() {
        let at = |service: &str, secure, security| DiscoveryEntry {
            transport: TransportKind::Tcp,
            family: discovery::AddressFamily::V4,
            kind: DiscoveryKind::Subsystem,
            secure,
            without_flow_control: false,
            port: 1,
            controller: 0xffff,
            admin_queue_len: 32,
            subsystem: discovery::well_known(),
            address: "192.0.2.1".into(),
            service: service.into(),
            security,
        };
        let found = subsystems(vec![
            at("1", SecureChannel::Required, 2),
            at("2", SecureChannel::NotRequired, 2),
            at("3", SecureChannel::Unspecified, 2),
            at("4", SecureChannel::Unspecified, 0),
        ]);
        let name = discovery::DISCOVERY_NQN;
        let line = |port, tls| format!("192.0.2.1:{port},1 {name}{tls}\n");
        let wanted = [line(1, " TLS"), line(2, ""), line(3, " TLS"), line(4, "")].concat();
        assert_eq!(found.iter().map(lines).collect::<String>(), wanted);
        let shown = serde_json::to_value(&found).expect("JSON");
        let tls = [0, 1].map(|at| shown[0]["portals"][at]["tls_required"].as_bool());
        assert_eq!(tls, [Some(true), Some(false)], "{shown}");
    }

    #[test]
    fn lines_are_those_of_iscsiadm() {
        let asked = Portal { host: "::1".into(), port: 3260 };
        let addresses = ["10.0.0.1:3260,1", "[fe80::1]:4000,2"]
            .map(|a| lunar_initiator::PortalAddress::parse(a).unwrap());
        let found =
            DiscoveredTarget { name: "iqn.2026-11.org.example:a".into(), addresses: addresses.into() };
        assert_eq!(
            lines(&entry(&asked, found)),
            "10.0.0.1:3260,1 iqn.2026-11.org.example:a\n[fe80::1]:4000,2 iqn.2026-11.org.example:a\n"
        );
        let bare = DiscoveredTarget { name: "iqn.2026-11.org.example:b".into(), addresses: Vec::new() };
        assert_eq!(lines(&entry(&asked, bare)), "[::1]:3260,-1 iqn.2026-11.org.example:b\n");
    }
}

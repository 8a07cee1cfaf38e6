//! The discovery log page: the subsystems that admit a host, at the portals that offer them, and other discovery services.

use super::admin_state::AdminState;
use super::limits::DYNAMIC_CONTROLLER;
use crate::access::LoginContext;
use crate::config::{PortalProtocol, TargetNode};
use crate::open_portal::BoundPortal;
use lunar_wire::nvme::{
    AddressFamily, DISCOVERY_NQN, DiscoveryEntry, DiscoveryHeader, DiscoveryKind, Nqn, SecureChannel,
    TransportKind,
};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;

/// The security type of TLS 1.3 (TSAS of TCP).
const TLS_13: u8 = 2;
/// Entries of the admin queue.
const ADMIN_QUEUE_LEN: u16 = 32;
/// The port of a discovery service without another one (NVMe/TCP transport specification section 3.1.1).
const DISCOVERY_PORT: u16 = 8009;

/// The whole page for the host of a discovery controller.
pub fn page(state: &AdminState) -> Vec<u8> {
    let shared = state.shared();
    // The counter first: a change in between shows by another counter at the next read.
    let generation = shared.generation.load(Relaxed);
    let entries = entries(state);
    let mut page = DiscoveryHeader { generation, entries: entries.len() as u64 }.encode().to_vec();
    entries.iter().for_each(|entry| page.extend(entry.encode()));
    page
}

fn entries(state: &AdminState) -> Vec<DiscoveryEntry> {
    let (shared, own) = (state.shared(), state.context());
    let context = LoginContext { config: shared.config(), ..own.clone() };
    let (portals, local, host) = (shared.portals(), state.local(), &state.controller().host().name);
    let visible = |target: &&TargetNode| {
        target.subsystem.is_some() && !target.offline && context.is_visible(target, host)
    };
    let at = |target: &TargetNode| {
        // A host with a key needs TLS, and no other host can use it: its other attempts would all fail.
        let needs_tls = target.rules().demand_tls_of(host);
        let offers = |portal: &&BoundPortal| {
            portal.transports.protocol == PortalProtocol::NvmeTcp
                && portal.transports.tls == needs_tls
                && target.portal_groups.contains(&portal.tag)
        };
        let one = |portal: &BoundPortal| entry(&target.name, DiscoveryKind::Subsystem, portal, local);
        portals.iter().filter(offers).filter_map(one).collect::<Vec<_>>()
    };
    let own_portal = portals.iter().find(|portal| {
        let (is_nvme, at) = (portal.transports.protocol.is_nvme(), portal.address);
        is_nvme && at.port() == local.port() && (at.ip().is_unspecified() || at.ip() == local.ip())
    });
    let current = own_portal.and_then(|portal| entry(DISCOVERY_NQN, DiscoveryKind::Current, portal, local));
    let subsystems = context.config.targets.values().filter(visible).flat_map(at);
    let referrals = context.config.discovery.nvme_referrals.iter().filter_map(|to| referral(to));
    current.into_iter().chain(subsystems).chain(referrals).collect()
}

/// The entry of another discovery service, which has no portal here.
fn referral(to: &str) -> Option<DiscoveryEntry> {
    // A referral says nothing about the security of its service.
    entry_at((DISCOVERY_NQN, DiscoveryKind::Referral), host_and_port(to, DISCOVERY_PORT))
}

fn entry(
    subsystem: &str,
    kind: DiscoveryKind,
    portal: &BoundPortal,
    local: SocketAddr,
) -> Option<DiscoveryEntry> {
    let secure = if portal.transports.tls { SecureChannel::Required } else { SecureChannel::Unspecified };
    let security = if portal.transports.tls { TLS_13 } else { 0 };
    let entry = entry_at((subsystem, kind), address(portal, local)?)?;
    Some(DiscoveryEntry { port: portal.tag, secure, security, ..entry })
}

/// An entry without a portal of this server.
fn entry_at(
    (subsystem, kind): (&str, DiscoveryKind),
    (address, service): (String, String),
) -> Option<DiscoveryEntry> {
    let is_v6 = address.parse().is_ok_and(|ip: IpAddr| ip.is_ipv6());
    Some(DiscoveryEntry {
        transport: TransportKind::Tcp,
        family: if is_v6 { AddressFamily::V6 } else { AddressFamily::V4 },
        kind,
        secure: SecureChannel::Unspecified,
        without_flow_control: true,
        port: 0,
        controller: DYNAMIC_CONTROLLER,
        admin_queue_len: ADMIN_QUEUE_LEN,
        subsystem: Nqn::new(subsystem).ok()?,
        address,
        service,
        security: 0,
    })
}

/// The address of a portal for a host that came to `local`. A portal that listens on every address is shown with the address
/// that the host has reached. None: that address has the other IP version.
fn address(portal: &BoundPortal, local: SocketAddr) -> Option<(String, String)> {
    let port = portal.address.port();
    match &portal.advertise {
        Some(advertised) => Some(host_and_port(advertised, port)),
        None if !portal.address.ip().is_unspecified() => {
            Some((portal.address.ip().to_string(), port.to_string()))
        }
        None if portal.address.is_ipv4() != local.is_ipv4() => None,
        None => Some((local.ip().to_canonical().to_string(), port.to_string())),
    }
}

/// The parts of `host[:port]`.
fn host_and_port(text: &str, default_port: u16) -> (String, String) {
    let with_port = text.rsplit_once(':').filter(|(host, port)| {
        !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) && !is_bare_v6(host, text)
    });
    let (host, port) =
        with_port.map_or((text, default_port.to_string()), |(host, port)| (host, port.to_owned()));
    (host.trim_matches(['[', ']']).to_owned(), port)
}

/// Whether the text is an IPv6 address without brackets, whose last colon separates no port.
fn is_bare_v6(host: &str, text: &str) -> bool {
    host.contains(':') && !text.starts_with('[')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Transports;

    #[test]
    fn discovery_shows_the_address_that_hosts_can_reach() {
        let at = |text: &str| text.parse().expect("an address");
        for (advertise, bound, local, expected) in [
            (None, "192.0.2.1:4420", "192.0.2.9:1", Some(("192.0.2.1", "4420"))),
            (None, "0.0.0.0:4420", "192.0.2.9:1", Some(("192.0.2.9", "4420"))),
            (None, "0.0.0.0:4420", "[2001:db8::9]:1", None),
            (Some("storage.example"), "0.0.0.0:4420", "192.0.2.9:1", Some(("storage.example", "4420"))),
            (Some("10.0.2.2:5000"), "0.0.0.0:4420", "192.0.2.9:1", Some(("10.0.2.2", "5000"))),
            (Some("[2001:db8::1]:5000"), "[::]:4420", "[::1]:1", Some(("2001:db8::1", "5000"))),
            (Some("2001:db8::1"), "[::]:4420", "[::1]:1", Some(("2001:db8::1", "4420"))),
        ] {
            let advertise = advertise.map(str::to_owned);
            let portal =
                BoundPortal { address: at(bound), tag: 1, advertise, transports: Transports::NVME_TCP };
            let shown = address(&portal, at(local));
            assert_eq!(shown, expected.map(|(host, port)| (host.into(), port.into())), "{portal:?}");
        }
    }
}

//! Steps that importers of NVMe targets share.

use crate::nvme::NO_IDENTIFIER;
use crate::portals::PortalSets;
use crate::{Disk, Imported, NamespaceIdentifiers, NewNamespace, NewSubsystem};
use lunar_proto::nvme::auth::DhChapSecret;
use lunar_proto::nvme::tls::TlsKey;
use lunar_wire::nvme::Nqn;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// The largest NSID.
const MAX_NSID: u32 = 1024;
/// The name of the discovery service.
pub(crate) const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

impl Imported {
    /// Adds a namespace to a subsystem.
    pub(crate) fn add_namespace(
        &mut self,
        subsystem: &mut NewSubsystem,
        nsid: u32,
        disk: Disk,
        mut identifiers: NamespaceIdentifiers,
        place: &str,
    ) {
        let shown = format!("{}: namespace {nsid}, {}", subsystem.nqn, disk.medium);
        let number = u16::try_from(nsid).ok().filter(|_| (1..=MAX_NSID).contains(&nsid));
        let other = self.same_medium(&disk);
        let is_shown = |index| subsystem.namespaces.values().any(|one| one.disk == index);
        let why = match number {
            None => Some(format!("the number is not in 1 to {MAX_NSID}")),
            Some(number) if subsystem.namespaces.contains_key(&number) => {
                Some("the number is given twice".into())
            }
            _ if other.is_some_and(is_shown) => Some("it is a namespace of this subsystem already".into()),
            _ if disk.block_size.is_some_and(|size| !matches!(size, 512 | 4096)) => {
                Some("a namespace has blocks of 512 or 4096 bytes".into())
            }
            _ => self.is_written_elsewhere(&disk),
        };
        if let (Some(number), None) = (number, &why) {
            self.notes.carried(place, shown);
            let disk = self.disk_index(disk, place);
            self.keep_identifiers_apart(&mut identifiers, subsystem, place);
            subsystem.namespaces.insert(number, NewNamespace { disk, identifiers });
        } else {
            self.notes.lost(place, format!("{shown}: {}", why.unwrap_or_default()));
        }
    }

    /// Takes identifiers that another namespace has already, also in another subsystem: hosts ignore the second one.
    fn keep_identifiers_apart(
        &mut self,
        identifiers: &mut NamespaceIdentifiers,
        subsystem: &NewSubsystem,
        place: &str,
    ) {
        let all = self.configuration.subsystems.iter().chain([subsystem]);
        let others: Vec<_> =
            all.flat_map(|one| one.namespaces.values()).map(|one| &one.identifiers).collect();
        let NamespaceIdentifiers { uuid, nguid, eui64 } = identifiers;
        for (name, value) in [("UUID", uuid), ("NGUID", nguid), ("EUI64", eui64)] {
            let Some(text) = value.clone().filter(|text| text != NO_IDENTIFIER) else { continue };
            // Each kind has a form of its own.
            let has = |other: &&NamespaceIdentifiers| other.named().any(|(_, one)| *one == text);
            if others.iter().any(has) {
                *value = None;
                let what = format!("the {name} {text}, which another namespace has already");
                self.notes.lost(place, what);
            }
        }
    }

    /// The serial or model number of a subsystem, which has up to `max` characters.
    pub(crate) fn subsystem_text(
        &mut self,
        text: &str,
        what: &str,
        max: usize,
        place: &str,
    ) -> Option<String> {
        let is_fine = |byte: u8| byte == b' ' || byte.is_ascii_graphic() && byte != b':';
        let fits = !text.is_empty() && text.len() <= max && text.bytes().all(is_fine);
        if !fits && !text.is_empty() {
            self.notes.changed(place, format!("the {what} {text:?}, which a subsystem cannot have"));
        }
        fits.then(|| text.to_owned())
    }

    /// Reports the name of a subsystem that no server accepts, and returns false. It is kept, because hosts know the name.
    pub(crate) fn check_subsystem_name(&mut self, nqn: &str, place: &str) -> bool {
        let fits = is_nqn(nqn) && nqn != DISCOVERY_NQN;
        let why = match self.configuration.subsystems.iter().any(|one| one.nqn == nqn) {
            _ if !fits => "which is no NQN of a subsystem",
            true => "which is given twice",
            false => return true,
        };
        self.notes.lost(place, format!("the name {nqn:?}, {why}: change it before the first start"));
        false
    }

    /// Makes the portal groups, and names them in the subsystems. Each subsystem has a list of sets of portals.
    pub(crate) fn subsystem_portals(&mut self, sets: &mut PortalSets, used: &[BTreeSet<usize>], place: &str) {
        let tags = self.portal_groups(sets, place);
        for (subsystem, used) in self.configuration.subsystems.iter_mut().zip(used) {
            subsystem.portal_groups = used.iter().flat_map(|set| &tags[*set]).copied().collect();
            // A subsystem without portal groups would be in all of them.
            if subsystem.portal_groups.is_empty() {
                subsystem.offline = true;
                let what = format!("{}: offline, because no portal of NVMe/TCP offers it", subsystem.nqn);
                self.notes.lost(place, what);
            }
        }
    }
}

/// The address of a portal of NVMe/TCP as it stands in `lunar.toml`, or the reason that there is none.
pub(crate) fn listen_address(transport: &str, address: &str, port: &str) -> Result<String, String> {
    if !transport.eq_ignore_ascii_case("tcp") {
        return Err(format!("the transport {transport:?}, which Lunar does not have for NVMe"));
    }
    let ip: Result<IpAddr, _> = address.trim_start_matches('[').trim_end_matches(']').parse();
    match (ip, port.parse()) {
        (Ok(ip), Ok(port)) if port != 0 => Ok(SocketAddr::new(ip, port).to_string()),
        (Err(_), _) => Err(format!("the address {address:?}, which is no IP address")),
        _ => Err(format!("the port {port:?}, which is no number of a port")),
    }
}

/// Whether a server accepts a text as an NQN.
fn is_nqn(text: &str) -> bool {
    Nqn::new(text).is_ok() && !text.contains(char::is_whitespace)
}

/// Whether a text is the NQN of a host, without wildcards.
pub(crate) fn is_host(text: &str) -> bool {
    is_nqn(text) && !text.contains(['*', '?'])
}

/// Whether a server accepts a text as a secret for DH-HMAC-CHAP.
pub(crate) fn is_secret(text: &str) -> bool {
    DhChapSecret::parse(text).is_ok()
}

/// Whether a server accepts a text as a key of TLS.
pub(crate) fn is_tls_key(text: &str) -> bool {
    TlsKey::parse(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_without_tcp_or_ip_are_refused() {
        assert_eq!(listen_address("TCP", "2001:db8::1", "4420").as_deref(), Ok("[2001:db8::1]:4420"));
        for (transport, address, port) in [
            ("rdma", "192.0.2.1", "4420"),
            ("tcp", "storage", "4420"),
            ("tcp", "fe80::1%eth0", "4420"),
            ("tcp", "192.0.2.1", "0"),
            ("tcp", "192.0.2.1", "none"),
        ] {
            assert!(listen_address(transport, address, port).is_err(), "{transport} {address} {port}");
        }
    }

    #[test]
    fn names_and_secrets_are_recognized() {
        assert!(is_host("nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427"));
        for name in [
            "testnqn",
            "nqn.2014-08",
            "nqn.2026-11.org.example:*",
            "nqn.2026-11.é\u{7}",
            "nqn.2026-11.org.example:a b",
            "nqn.2026-13.org.example:a",
            "nqn.2014-08.org.nvmexpress:uuid:1b4e28ba",
        ] {
            assert!(!is_host(name), "{name}");
        }
        let (secret, key) = (DhChapSecret::of_key([1; 32]).to_text(), TlsKey::of_key([1; 32]).to_text());
        assert!(is_secret(&secret) && is_tls_key(&key) && !is_secret(&key) && !is_tls_key(&secret));
        let short = format!("DHHC-1:00:{}:", "A".repeat(48));
        for text in [secret.trim_end_matches(':'), &secret.replace(":00:", ":04:"), &short, ""] {
            assert!(!is_secret(text), "{text}");
        }
    }
}

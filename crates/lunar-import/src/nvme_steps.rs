//! Steps that importers of NVMe targets share.

use crate::portals::PortalSets;
use crate::{Disk, Imported, NamespaceIdentifiers, NewNamespace, NewSubsystem};
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
        identifiers: NamespaceIdentifiers,
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
            subsystem.namespaces.insert(number, NewNamespace { disk, identifiers });
        } else {
            self.notes.lost(place, format!("{shown}: {}", why.unwrap_or_default()));
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

    /// Reports the name of a subsystem that no server accepts. It is kept, because hosts know the name.
    pub(crate) fn check_subsystem_name(&mut self, nqn: &str, place: &str) {
        if !is_nqn(nqn) || nqn == DISCOVERY_NQN {
            let what = format!("the name {nqn:?}, which is no NQN: change it before the first start");
            self.notes.lost(place, what);
        }
    }

    /// Makes the portal groups, and names them in the subsystems. Each subsystem has a list of sets of portals.
    pub(crate) fn subsystem_portals(&mut self, sets: &mut PortalSets, used: &[BTreeSet<usize>], place: &str) {
        let tags = self.portal_groups(sets, place);
        for (subsystem, used) in self.configuration.subsystems.iter_mut().zip(used) {
            subsystem.portal_groups = used.iter().flat_map(|set| &tags[*set]).copied().collect();
            // A subsystem without portal groups would be in all of them.
            subsystem.offline = subsystem.portal_groups.is_empty();
            if subsystem.offline {
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

/// Whether a text is an NQN: `nqn.`, a date and a domain (NVMe Base 2.0 section 4.5).
fn is_nqn(text: &str) -> bool {
    let form = |c: char| if c.is_ascii_digit() { '9' } else { c };
    let date: String = text.chars().take(12).map(form).collect();
    is_plain(text) && text.len() > 12 && date == "nqn.9999-99."
}

/// Whether a text is the NQN of a host, without wildcards.
pub(crate) fn is_host(text: &str) -> bool {
    is_nqn(text) && !text.contains(['*', '?'])
}

fn is_plain(text: &str) -> bool {
    text.len() <= 223 && !text.contains(char::is_control)
}

/// Whether a text has the form `KIND:HH:BASE64:` of secrets of NVMe.
pub(crate) fn is_secret(kind: &str, text: &str) -> bool {
    let parts: Vec<&str> = text.split(':').collect();
    let is_key = |key: &str| key.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b));
    matches!(parts[..], [first, _, key, ""] if first == kind && key.len() >= 48 && is_key(key))
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
        for name in ["testnqn", "nqn.2014-08", "nqn.2026-11.org.example:*", "nqn.2026-11.é\u{7}"] {
            assert!(!is_host(name), "{name}");
        }
        let key = "A".repeat(48);
        assert!(is_secret("DHHC-1", &format!("DHHC-1:00:{key}:")));
        for text in [format!("DHHC-1:00:{key}"), format!("NVMeTLSkey-1:01:{key}:"), String::new()] {
            assert!(!is_secret("DHHC-1", &text), "{text}");
        }
    }
}

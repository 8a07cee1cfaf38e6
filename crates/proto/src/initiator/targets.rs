//! The answer to SendTargets (RFC 7143 section 13.8 and appendix C).

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv6Addr;

use wire::iscsi::text::pairs;

use super::shown;
use crate::keys::in_range;
use crate::name;

/// The port of an address that names none.
pub const PORT: u16 = 3260;

/// Addresses of one target.
const ADDRESSES: usize = 1024;

/// The longest name of a host, in bytes (RFC 1035 section 2.3.4).
const HOST_LEN: usize = 253;

/// One target that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundTarget {
    /// TargetName.
    pub name: String,
    /// Where it is, each place once; none: where the question was asked.
    pub addresses: Vec<PortalAddress>,
}

/// A place where a target is to be found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortalAddress {
    /// A name, an IPv4 address, or an IPv6 address without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Portal group tag.
    pub tag: Option<u16>,
}

impl PortalAddress {
    /// Reads `host[:port][,tag]`, with an IPv6 address in brackets.
    ///
    /// # Errors
    /// What is wrong, in words for people.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (place, tag) = match text.split_once(',') {
            Some((place, tag)) => (place, Some(small(tag, 0).ok_or("no portal group tag after the comma")?)),
            None => (text, None),
        };
        let (host, port) = match place.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or("no ] after the IPv6 address")?,
            None => place.split_at(place.find(':').unwrap_or(place.len())),
        };
        let good = if place.starts_with('[') { host.parse::<Ipv6Addr>().is_ok() } else { is_host(host) };
        if !good {
            return Err("no name and no address of a host (IPv6 stands in brackets)".into());
        }
        let port = match port {
            "" => PORT,
            port => port.strip_prefix(':').and_then(|p| small(p, 1)).ok_or("no port from 1 to 65535")?,
        };
        Ok(PortalAddress { host: host.to_owned(), port, tag })
    }
}

/// As a URL has it: host and port, without the tag.
impl fmt::Display for PortalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Letters, digits, dash, dot and underscore: neither controls nor anything that a name service would read
/// otherwise than a person.
fn is_host(host: &str) -> bool {
    let may_stand = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    (1..=HOST_LEN).contains(&host.len()) && !host.starts_with('-') && host.bytes().all(may_stand)
}

fn small(value: &str, least: u32) -> Option<u16> {
    in_range(value, &(least..=0xffff)).ok().and_then(|n| u16::try_from(n).ok())
}

/// Reads the whole text of an answer. A target that comes twice is one with the addresses of both.
///
/// # Errors
/// What is wrong and where, in words for people.
pub fn parse(text: &[u8]) -> Result<Vec<FoundTarget>, String> {
    let (mut found, mut places): (Vec<FoundTarget>, BTreeMap<String, usize>) = Default::default();
    let mut current = None;
    for pair in pairs(text) {
        let (key, value) = pair.map_err(|m| format!("key text, at byte {}: {}", m.at, m.why))?;
        let wrong = |why: &str| format!("{key}={}: {why}", shown(value));
        match key {
            "TargetName" if name::is_valid(value) => {
                let place = *places.entry(value.to_owned()).or_insert(found.len());
                if place == found.len() {
                    found.push(FoundTarget { name: value.to_owned(), addresses: vec![] });
                }
                current = Some(place);
            }
            "TargetName" => return Err(wrong("no iSCSI name")),
            "TargetAddress" => {
                let place = current.ok_or_else(|| wrong("an address before any TargetName"))?;
                let address = PortalAddress::parse(value).map_err(|why| wrong(&why))?;
                add(&mut found[place].addresses, address).map_err(wrong)?;
            }
            "SendTargets" => return Err(wrong("the target does not answer it")),
            // Some tell of more, which nobody asked for.
            _ => {}
        }
    }
    Ok(found)
}

fn add(addresses: &mut Vec<PortalAddress>, address: PortalAddress) -> Result<(), &'static str> {
    if addresses.contains(&address) {
        return Ok(());
    }
    if addresses.len() == ADDRESSES {
        return Err("more than 1024 addresses of one target");
    }
    addresses.push(address);
    Ok(())
}

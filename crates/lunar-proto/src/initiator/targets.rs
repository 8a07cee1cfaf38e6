//! The answer to SendTargets (RFC 7143 section 13.8 and appendix C).

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv6Addr;

use lunar_wire::iscsi::text::pairs;

use super::shown;
use crate::keys::in_range;
use crate::name;

/// The port of an address that names none.
pub const PORT: u16 = 3260;

/// Addresses of one target.
const ADDRESSES: usize = 1024;

/// What is passed over and told, at most.
const NOTES: usize = 16;

const NO_NAME: &str = "an address before any TargetName";

/// The longest name of a host, in bytes (RFC 1035 section 2.3.4).
const HOST_LEN: usize = 253;

/// The longest name of an interface, in bytes (Linux: IFNAMSIZ).
const ZONE_LEN: usize = 15;

/// One target that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredTarget {
    /// TargetName.
    pub name: String,
    /// Where it is, each place once; none: where the question was asked.
    pub addresses: Vec<PortalAddress>,
}

/// What a portal told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendTargetsResult {
    /// The targets, in its order.
    pub found: Vec<DiscoveredTarget>,
    /// What was odd, and what had to be passed over, in words for people; the first few of it.
    pub notes: Vec<String>,
}

/// A place where a target is to be found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortalAddress {
    /// A name, an IPv4 address, or an IPv6 address without brackets, perhaps with a zone (RFC 4007): `fe80::1%eth0`.
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
        let good = if place.starts_with('[') { is_ipv6(host) } else { is_host(host) };
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

/// An address with or without a zone: the name or the number of an interface.
fn is_ipv6(host: &str) -> bool {
    let (address, zone) = host.split_once('%').map_or((host, None), |(address, zone)| (address, Some(zone)));
    let is_zone = |zone: &str| zone.len() <= ZONE_LEN && is_host(zone);
    address.parse::<Ipv6Addr>().is_ok() && zone.is_none_or(is_zone)
}

fn small(value: &str, least: u32) -> Option<u16> {
    in_range(value, &(least..=0xffff)).ok().and_then(|n| u16::try_from(n).ok())
}

/// Reads the whole text of an answer. A target that comes twice is one with the addresses of both. A name or an
/// address that cannot be used hides no other.
///
/// # Errors
/// What is wrong and where, in words for people, when the text breaks the rules, or nothing of it can be used.
pub fn parse(text: &[u8]) -> Result<SendTargetsResult, String> {
    let (mut reader, mut at) = (SendTargetsParser::default(), 0);
    // Pair by pair, for one that is not UTF-8 hides no other.
    for pair in text.split(|&b| b == 0) {
        match pairs(pair).next() {
            None => {}
            Some(Ok((key, value))) => reader.pair(key, value).map_err(|why| wrong(key, value, &why))?,
            Some(Err(m)) => {
                let (key, value) =
                    binary(pair).ok_or_else(|| format!("key text, at byte {at}: {}", m.why))?;
                reader.binary(key, &value).map_err(|why| wrong(key, &value, &why))?;
            }
        }
        at += pair.len() + 1;
    }
    match reader.told {
        SendTargetsResult { found, notes } if found.is_empty() && !notes.is_empty() => Err(notes.join("; ")),
        told => Ok(told),
    }
}

/// A pair whose value alone is not UTF-8: the key, and the value with escapes.
fn binary(pair: &[u8]) -> Option<(&str, String)> {
    let end = pair.iter().position(|&b| b == b'=')?;
    let (key, value) = (pairs(&pair[..=end]).next()?.ok()?.0, &pair[end + 1..]);
    std::str::from_utf8(value).is_err().then(|| (key, value.escape_ascii().to_string()))
}

fn wrong(key: &str, value: &str, why: &str) -> String {
    format!("{key}={}: {why}", shown(value))
}

/// Whose addresses follow.
#[derive(Default)]
enum CurrentTarget {
    /// There was no name yet.
    #[default]
    Nobody,
    /// Of one that is passed over.
    Passed,
    /// Of this one of those that were found.
    At(usize),
}

#[derive(Default)]
struct SendTargetsParser {
    told: SendTargetsResult,
    places: BTreeMap<String, usize>,
    current: CurrentTarget,
}

impl SendTargetsParser {
    fn pair(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "TargetName" => self.name(value),
            "TargetAddress" => self.address(value)?,
            "SendTargets" => return Err("the target does not answer it".into()),
            // Some tell of more, which nobody asked for.
            _ => {}
        }
        Ok(())
    }

    /// Takes a pair whose value is not UTF-8 and is given with escapes.
    fn binary(&mut self, key: &str, escaped: &str) -> Result<(), String> {
        match (key, &self.current) {
            ("TargetName", _) => self.current = CurrentTarget::Passed,
            ("TargetAddress", CurrentTarget::Nobody) => return Err(NO_NAME.into()),
            ("TargetAddress", CurrentTarget::At(_)) => {}
            // An address of a target that is passed over, or what nobody asked for.
            _ => return Ok(()),
        }
        self.note(key, escaped, "not UTF-8, and passed over");
        Ok(())
    }

    fn name(&mut self, name: &str) {
        if !name::is_usable(name) {
            self.note("TargetName", name, "no iSCSI name, and passed over");
            self.current = CurrentTarget::Passed;
            return;
        }
        let found = &mut self.told.found;
        let place = *self.places.entry(name.to_owned()).or_insert(found.len());
        let is_new = place == found.len();
        if is_new {
            found.push(DiscoveredTarget { name: name.to_owned(), addresses: vec![] });
        }
        self.current = CurrentTarget::At(place);
        if is_new && !name::is_valid(name) {
            self.note("TargetName", name, "no iSCSI name by the rules, and taken all the same");
        }
    }

    fn address(&mut self, text: &str) -> Result<(), String> {
        let place = match self.current {
            CurrentTarget::Nobody => return Err(NO_NAME.into()),
            CurrentTarget::Passed => return Ok(()),
            CurrentTarget::At(place) => place,
        };
        let addresses = &mut self.told.found[place].addresses;
        match PortalAddress::parse(text) {
            Ok(address) if addresses.contains(&address) => {}
            Ok(_) if addresses.len() == ADDRESSES => {
                self.note("TargetAddress", text, "the target has more than 1024, and it is passed over");
            }
            Ok(address) => addresses.push(address),
            Err(why) => self.note("TargetAddress", text, &format!("{why}; it is passed over")),
        }
        Ok(())
    }

    fn note(&mut self, key: &str, value: &str, why: &str) {
        if self.told.notes.len() < NOTES {
            self.told.notes.push(wrong(key, value, why));
        }
    }
}

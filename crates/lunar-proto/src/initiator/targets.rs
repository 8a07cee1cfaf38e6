//! The response to SendTargets (RFC 7143 section 13.8 and appendix C).

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv6Addr;

use lunar_wire::iscsi::text::pairs;

use super::shown;
use crate::keys::in_range;
use crate::name;

/// The default TCP port of iSCSI.
pub const PORT: u16 = 3260;

/// Maximum number of addresses of one target.
const ADDRESSES: usize = 1024;

/// Maximum number of notes.
const NOTES: usize = 16;

const NO_NAME: &str = "the address precedes the first TargetName";

/// The longest host name, in bytes (RFC 1035 section 2.3.4).
const HOST_LEN: usize = 253;

/// The longest interface name, in bytes (Linux: IFNAMSIZ without the NUL).
const ZONE_LEN: usize = 15;

/// A target in the response to SendTargets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredTarget {
    /// TargetName.
    pub name: String,
    /// Its addresses without duplicates. If there are none, the target is at the queried portal.
    pub addresses: Vec<PortalAddress>,
}

/// The parsed response to SendTargets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendTargetsResult {
    /// The targets, in the order of the response.
    pub found: Vec<DiscoveredTarget>,
    /// Messages about invalid entries, used or skipped; at most 16.
    pub notes: Vec<String>,
}

/// The address of a target portal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortalAddress {
    /// A host name, an IPv4 address, or an IPv6 address without brackets. An IPv6 address may have a zone (RFC 4007):
    /// `fe80::1%eth0`.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Target portal group tag.
    pub portal_group_tag: Option<u16>,
}

impl PortalAddress {
    /// Parses `host[:port][,tag]`, with an IPv6 address in brackets.
    ///
    /// # Errors
    /// A message that describes the fault.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (place, tag) = match text.split_once(',') {
            Some((place, tag)) => {
                (place, Some(small(tag, 0).ok_or("the text after the comma is not a portal group tag")?))
            }
            None => (text, None),
        };
        let (host, port) = match place.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or("the IPv6 address has no closing bracket ]")?,
            None => place.split_at(place.find(':').unwrap_or(place.len())),
        };
        let good = if place.starts_with('[') { is_ipv6(host) } else { is_host(host) };
        if !good {
            let host = shortened(host);
            return Err(format!("invalid host name or address \"{host}\" (IPv6 needs brackets)"));
        }
        let port = match port {
            "" => PORT,
            port => {
                let number = port.strip_prefix(':').and_then(|p| small(p, 1));
                number.ok_or_else(|| port_fault(port.strip_prefix(':').unwrap_or(port)))?
            }
        };
        Ok(PortalAddress { host: host.to_owned(), port, portal_group_tag: tag })
    }
}

/// Host and port in the form of a URL, without the tag.
impl fmt::Display for PortalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// A host name of letters, digits, dash, dot and underscore. No other character is safe to display and to resolve.
fn is_host(host: &str) -> bool {
    let may_stand = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    (1..=HOST_LEN).contains(&host.len()) && !host.starts_with('-') && host.bytes().all(may_stand)
}

/// An IPv6 address with or without a zone. A zone is the name or number of an interface.
fn is_ipv6(host: &str) -> bool {
    let (address, zone) = host.split_once('%').map_or((host, None), |(address, zone)| (address, Some(zone)));
    let is_zone = |zone: &str| zone.len() <= ZONE_LEN && is_host(zone);
    address.parse::<Ipv6Addr>().is_ok() && zone.is_none_or(is_zone)
}

fn port_fault(port: &str) -> String {
    let is_number = !port.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit());
    let what = if is_number { "out of range" } else { "not a number" };
    format!("the port \"{}\" is {what}: use 1 to 65535", shortened(port))
}

/// The beginning of a text, safe to display.
fn shortened(text: &str) -> String {
    text.chars().take(64).collect::<String>().escape_debug().to_string()
}

fn small(value: &str, least: u32) -> Option<u16> {
    in_range(value, &(least..=0xffff)).ok().and_then(|n| u16::try_from(n).ok())
}

/// Parses the complete key text of a response. A repeated target name adds addresses to the same target. An unusable
/// name or address is skipped with a note.
///
/// # Errors
/// A message that describes the fault: the key text is malformed, or none of its targets can be used.
pub fn parse(text: &[u8]) -> Result<SendTargetsResult, String> {
    let (mut reader, mut at) = (SendTargetsParser::default(), 0);
    // Parse each pair separately, so that invalid UTF-8 in one does not affect the others.
    for pair in text.split(|&b| b == 0) {
        match pairs(pair).next() {
            None => {}
            Some(Ok((key, value))) => reader.pair(key, value).map_err(|why| wrong(key, value, &why))?,
            Some(Err(m)) => {
                let (key, value) = binary(pair)
                    .ok_or_else(|| format!("the target sent malformed key text, at byte {at}: {}", m.why))?;
                reader.binary(key, &value).map_err(|why| wrong(key, &value, &why))?;
            }
        }
        at += pair.len() + 1;
    }
    match reader.result {
        SendTargetsResult { found, notes } if found.is_empty() && !notes.is_empty() => Err(notes.join("; ")),
        result => Ok(result),
    }
}

/// The key and the escaped value of a pair whose value, but not its key, is invalid UTF-8.
fn binary(pair: &[u8]) -> Option<(&str, String)> {
    let end = pair.iter().position(|&b| b == b'=')?;
    let (key, value) = (pairs(&pair[..=end]).next()?.ok()?.0, &pair[end + 1..]);
    std::str::from_utf8(value).is_err().then(|| (key, value.escape_ascii().to_string()))
}

fn wrong(key: &str, value: &str, why: &str) -> String {
    format!("the target sent {key}={}: {why}", shown(value))
}

/// The target to which the following addresses belong.
#[derive(Default)]
enum CurrentTarget {
    /// No TargetName was received yet.
    #[default]
    Nobody,
    /// A target that was skipped.
    Passed,
    /// The target with this index.
    At(usize),
}

#[derive(Default)]
struct SendTargetsParser {
    result: SendTargetsResult,
    places: BTreeMap<String, usize>,
    current: CurrentTarget,
}

impl SendTargetsParser {
    fn pair(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "TargetName" => self.name(value),
            "TargetAddress" => self.address(value)?,
            "SendTargets" => return Err("the target rejected the request for its target list".into()),
            // Ignore other keys: some targets send them.
            _ => {}
        }
        Ok(())
    }

    /// Processes a pair whose value is not UTF-8; `escaped` is the escaped value.
    fn binary(&mut self, key: &str, escaped: &str) -> Result<(), String> {
        match (key, &self.current) {
            ("TargetName", _) => self.current = CurrentTarget::Passed,
            ("TargetAddress", CurrentTarget::Nobody) => return Err(NO_NAME.into()),
            ("TargetAddress", CurrentTarget::At(_)) => {}
            // Ignore an address of a skipped target, and any other key.
            _ => return Ok(()),
        }
        self.note(key, escaped, "the value is not UTF-8 (skipped)");
        Ok(())
    }

    fn name(&mut self, name: &str) {
        if !name::is_usable(name) {
            self.note("TargetName", name, "invalid iSCSI name (skipped)");
            self.current = CurrentTarget::Passed;
            return;
        }
        let found = &mut self.result.found;
        let place = *self.places.entry(name.to_owned()).or_insert(found.len());
        let is_new = place == found.len();
        if is_new {
            found.push(DiscoveredTarget { name: name.to_owned(), addresses: vec![] });
        }
        self.current = CurrentTarget::At(place);
        if is_new && !name::is_valid(name) {
            self.note("TargetName", name, "invalid iSCSI name (accepted anyway)");
        }
    }

    fn address(&mut self, text: &str) -> Result<(), String> {
        let place = match self.current {
            CurrentTarget::Nobody => return Err(NO_NAME.into()),
            CurrentTarget::Passed => return Ok(()),
            CurrentTarget::At(place) => place,
        };
        let addresses = &mut self.result.found[place].addresses;
        match PortalAddress::parse(text) {
            Ok(address) if addresses.contains(&address) => {}
            Ok(_) if addresses.len() == ADDRESSES => {
                self.note("TargetAddress", text, "the target has more than 1024 addresses (skipped)");
            }
            Ok(address) => addresses.push(address),
            Err(why) => self.note("TargetAddress", text, &format!("{why} (skipped)")),
        }
        Ok(())
    }

    fn note(&mut self, key: &str, value: &str, why: &str) {
        if self.result.notes.len() < NOTES {
            self.result.notes.push(wrong(key, value, why));
        }
    }
}

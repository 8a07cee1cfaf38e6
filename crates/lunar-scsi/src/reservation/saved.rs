//! Encodes the registrations and the reservation that persist through power loss (APTPL). Integers are big-endian.
//!
//! The format is a version, the type or 0, the index of the holder among the registrants or `NOBODY`, then each
//! registrant: key, target port, ISID, length of the name, name. The second version adds the length of the CHAP user,
//! and the user. The first version is written if no registrant has a user, so that older versions can read it.

use super::registry::{PersistentReservation, Registrant, Registry};
use super::types::ReservationType;
use crate::{InitiatorPort, InvalidDefinition};
use lunar_wire::iscsi::name::fold;
use lunar_wire::srp::PortId;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Version without users.
const PLAIN: u8 = 1;
/// Version with users.
const VERSION: u8 = 2;
const NOBODY: u32 = u32::MAX;

/// Encodes the registry; empty unless APTPL is set and there are registrants.
pub(super) fn encode(registry: &Registry) -> Vec<u8> {
    if !registry.persists || registry.keys.is_empty() {
        return Vec::new();
    }
    encode_all(registry)
}

/// As [`encode`], whatever APTPL is.
pub(super) fn encode_all(registry: &Registry) -> Vec<u8> {
    let reservation = registry.reservation.as_ref();
    let holder = reservation.and_then(|r| r.holder.as_ref());
    let number = holder.and_then(|h| registry.keys.keys().position(|n| n == h));
    let has_users = has_users(registry);
    let version = if has_users { VERSION } else { PLAIN };
    let mut out = vec![version, reservation.map_or(0, |r| r.kind as u8)];
    out.extend_from_slice(&number.map_or(NOBODY, |n| n as u32).to_be_bytes());
    for (who, key) in &registry.keys {
        out.extend_from_slice(&key.to_be_bytes());
        put_port(&mut out, who);
        if has_users {
            put(&mut out, &who.user);
        }
    }
    out
}

fn put_port(out: &mut Vec<u8>, who: &Registrant) {
    out.extend_from_slice(&who.tag.to_be_bytes());
    out.extend_from_slice(&saved_isid(&who.initiator));
    put(out, &saved_name(&who.initiator));
}

/// The name of an initiator port; for an NVMe host with its identifier, behind a byte that no name has.
fn saved_name(port: &InitiatorPort) -> String {
    match port {
        InitiatorPort::Nvme { name, id } => format!("{name}{HOST_ID}{:032x}", u128::from_be_bytes(*id)),
        InitiatorPort::Iscsi { .. } | InitiatorPort::Srp(_) => port.name().into(),
    }
}

/// Separates the name of an NVMe host from its identifier.
const HOST_ID: char = '\0';

/// The NVMe host that [`saved_name`] names.
fn saved_host(text: &str) -> Option<InitiatorPort> {
    let (name, id) = text.split_once(HOST_ID).filter(|(name, id)| !name.is_empty() && id.len() == 32)?;
    let id = u128::from_str_radix(id, 16).ok()?.to_be_bytes();
    Some(InitiatorPort::Nvme { name: name.into(), id })
}

impl Registrant {
    /// The target port, ISID, name and user, as a saved registration has them.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_port(&mut out, self);
        put(&mut out, &self.user);
        out
    }

    /// Decodes what [`Registrant::encode`] returned.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Registrant, InvalidDefinition> {
        let mut rest = SavedReader(bytes);
        let who = nexus(&mut rest, VERSION).filter(|_| rest.0.is_empty());
        who.ok_or(InvalidDefinition::new("a nexus in the shared state is invalid"))
    }
}

/// The ISID of an initiator port; zero for SRP and NVMe.
fn saved_isid(port: &InitiatorPort) -> [u8; 6] {
    match port {
        InitiatorPort::Iscsi { isid, .. } => *isid,
        InitiatorPort::Srp(_) | InitiatorPort::Nvme { .. } => [0; 6],
    }
}

/// The initiator port with this name and ISID in the format. Names of iSCSI are never the text of an SRP port.
fn saved_port(name: String, isid: [u8; 6]) -> InitiatorPort {
    if let Some(host) = saved_host(&name) {
        return host;
    }
    match name.parse::<PortId>() {
        Ok(port) if isid == [0; 6] && port.to_string() == name => InitiatorPort::Srp(port),
        _ => InitiatorPort::Iscsi { name, isid },
    }
}

fn has_users(registry: &Registry) -> bool {
    registry.keys.keys().any(|who| !who.user.is_empty())
}

fn put(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Decodes what [`encode`] returned. PRGENERATION restarts at 0. Registrants above `max` stay, but no others can
/// register.
pub(super) fn decode(bytes: &[u8], max: usize) -> Result<Registry, InvalidDefinition> {
    let mut registry = Registry::new(max);
    if bytes.is_empty() {
        return Ok(registry);
    }
    let mut rest = SavedReader(bytes);
    let short = InvalidDefinition::new("the saved reservations are truncated");
    let [version] = rest.take().ok_or(short.clone())?;
    if ![PLAIN, VERSION].contains(&version) {
        return Err(InvalidDefinition::new("the saved reservations have an unsupported version"));
    }
    let [kind] = rest.take().ok_or(short.clone())?;
    let number = u32::from_be_bytes(rest.take().ok_or(short.clone())?);
    while !rest.0.is_empty() {
        let (who, key) = registrant(&mut rest, version).ok_or(short.clone())?;
        // Registrants were written in order. This excludes duplicates, and keeps the index of the holder valid.
        let ordered = registry.keys.last_key_value().is_none_or(|(last, _)| *last < who);
        if key == 0 || who.initiator.name().is_empty() || !ordered {
            return Err(InvalidDefinition::new("a saved registration is invalid, or out of order"));
        }
        registry.keys.insert(who, key);
    }
    if has_users(&registry) != (version == VERSION) {
        return Err(InvalidDefinition::new(
            "the saved registrations do not match the version of their format",
        ));
    }
    registry.reservation = reservation(kind, number, &registry.keys)?;
    registry.persists = true;
    Ok(registry)
}

/// Folds names. Older versions saved them in the spelling of the host. If two spellings of a name collide, the
/// holder's registration stays.
pub(super) fn fold_names(registry: &mut Registry) {
    let folded = |mut who: Registrant| {
        if let InitiatorPort::Iscsi { name, isid } = &who.initiator
            && let Cow::Owned(name) = fold(name)
        {
            who.initiator = saved_port(name, *isid);
        }
        who
    };
    let holder = registry.reservation.as_mut().and_then(|r| r.holder.as_mut());
    let key = holder.as_ref().and_then(|who| registry.keys.get(*who)).copied();
    registry.keys =
        std::mem::take(&mut registry.keys).into_iter().map(|(who, key)| (folded(who), key)).collect();
    if let (Some(holder), Some(key)) = (holder, key) {
        *holder = folded(holder.clone());
        registry.keys.insert(holder.clone(), key);
    }
}

fn registrant(rest: &mut SavedReader<'_>, version: u8) -> Option<(Registrant, u64)> {
    let key = u64::from_be_bytes(rest.take()?);
    Some((nexus(rest, version)?, key))
}

fn nexus(rest: &mut SavedReader<'_>, version: u8) -> Option<Registrant> {
    let tag = u16::from_be_bytes(rest.take()?);
    let isid = rest.take()?;
    let initiator = saved_port(rest.text()?, isid);
    let user = if version == PLAIN { String::new() } else { rest.text()? };
    Some(Registrant { initiator, tag, user })
}

fn reservation(
    kind: u8,
    number: u32,
    keys: &BTreeMap<Registrant, u64>,
) -> Result<Option<PersistentReservation>, InvalidDefinition> {
    let wrong = InvalidDefinition::new("the saved reservation is invalid");
    let holder = keys.keys().nth(number as usize).cloned();
    match (kind, ReservationType::from_code(kind)) {
        (0, _) if number == NOBODY && !keys.is_empty() => Ok(None),
        (_, Some(kind)) if kind.all_registrants() && number == NOBODY && !keys.is_empty() => {
            Ok(Some(PersistentReservation { kind, holder: None }))
        }
        (_, Some(kind)) if !kind.all_registrants() && holder.is_some() => {
            Ok(Some(PersistentReservation { kind, holder }))
        }
        _ => Err(wrong),
    }
}

struct SavedReader<'a>(&'a [u8]);

impl<'a> SavedReader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    fn text(&mut self) -> Option<String> {
        let len = u16::from_be_bytes(self.take()?) as usize;
        Some(std::str::from_utf8(self.some(len)?).ok()?.to_owned())
    }

    fn some(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn who(n: u8) -> Registrant {
        let initiator = InitiatorPort::Iscsi { name: format!("iqn.{n}"), isid: [n; 6] };
        Registrant { initiator, tag: 1, user: String::new() }
    }

    /// A registry in which some registrants have a user.
    fn with_users(kind: Option<ReservationType>, n: u8) -> Registry {
        let mut r = registry(kind, n);
        let user =
            |who: Registrant| Registrant { user: "u".repeat(saved_isid(&who.initiator)[0] as usize), ..who };
        r.keys = r.keys.into_iter().map(|(who, key)| (user(who), key)).collect();
        if let Some(PersistentReservation { holder: Some(holder), .. }) = &mut r.reservation {
            *holder = user(holder.clone());
        }
        r
    }

    fn registry(kind: Option<ReservationType>, n: u8) -> Registry {
        let mut r = Registry::new(64);
        r.keys = (0..n).map(|i| (who(i), 1 + i as u64)).collect();
        r.persists = true;
        if let Some(kind) = kind {
            r.establish(kind, &who(n / 2));
        }
        r
    }

    #[test]
    fn every_type_comes_back_and_the_generation_begins_again() {
        for kind in [None].into_iter().chain(ReservationType::ALL.map(Some)) {
            let before = registry(kind, 5);
            let bytes = encode(&Registry { generation: 7, ..before.clone() });
            assert_eq!(decode(&bytes, 64), Ok(before));
        }
    }

    #[test]
    fn saved_upper_case_names_load_in_lower_case() {
        let port = |name: &str| InitiatorPort::Iscsi { name: name.into(), isid: [1; 6] };
        let named = |name: &str| Registrant { initiator: port(name), ..who(1) };
        let mut r = registry(None, 0);
        r.keys = [(named("iqn.HOST"), 1), (named("iqn.Host"), 2), (named("iqn.other"), 3)].into();
        r.establish(ReservationType::WriteExclusive, &named("iqn.Host"));
        let mut loaded = decode(&encode(&r), 64).unwrap();
        fold_names(&mut loaded);
        assert_eq!(loaded.keys, [(named("iqn.host"), 2), (named("iqn.other"), 3)].into());
        assert_eq!(loaded.reservation.unwrap().holder, Some(named("iqn.host")));
    }

    #[test]
    fn saved_registrations_of_both_protocols_match_golden_bytes() {
        let srp = InitiatorPort::Srp(PortId::new(0xabcd, 2));
        let mut r = registry(None, 2);
        r.keys.insert(Registrant { initiator: srp, tag: 0x8001, ..who(0) }, 7);
        r.establish(ReservationType::WriteExclusive, &who(0));
        let of_srp = b"\0\0\0\0\0\0\0\x07\x80\x01\0\0\0\0\0\0\0\x220x000000000000abcd0000000000000002";
        let of_iscsi: [&[u8]; 2] = [
            b"\0\0\0\0\0\0\0\x01\0\x01\0\0\0\0\0\0\0\x05iqn.0",
            b"\0\0\0\0\0\0\0\x02\0\x01\x01\x01\x01\x01\x01\x01\0\x05iqn.1",
        ];
        let golden = [&[1, 1, 0, 0, 0, 1][..], of_srp, &of_iscsi.concat()].concat();
        assert_eq!(encode(&r), golden);
        assert_eq!(decode(&golden, 64), Ok(r));
    }

    #[test]
    fn saved_nvme_host_comes_back_with_its_identifier() {
        let host = |id: u8| InitiatorPort::Nvme { name: "nqn.2026-11.org.example:h".into(), id: [id; 16] };
        let mut r = registry(None, 0);
        for id in [0, 1, 0xff] {
            r.keys.insert(Registrant { initiator: host(id), tag: 0xffff, ..who(0) }, 7);
        }
        r.establish(
            ReservationType::WriteExclusive,
            &Registrant { initiator: host(1), tag: 0xffff, ..who(0) },
        );
        assert_eq!(decode(&encode(&r), 64), Ok(r));
    }

    #[test]
    fn saved_text_of_srp_port_with_isid_comes_back() {
        for (name, isid, is_srp) in [
            ("0x0000000000000000000000000000000a", 0, true),
            ("0x0000000000000000000000000000000a", 1, false),
            ("0x0000000000000000000000000000000A", 0, false),
        ] {
            let port = saved_port(name.into(), [isid; 6]);
            assert_eq!(matches!(port, InitiatorPort::Srp(_)), is_srp, "{name}, {isid}");
            assert_eq!((&*port.name(), saved_isid(&port)), (name, [isid; 6]));
        }
    }

    #[test]
    fn users_are_saved_in_version_2_only() {
        for kind in [None].into_iter().chain(ReservationType::ALL.map(Some)) {
            let before = with_users(kind, 5);
            let bytes = encode(&before);
            assert_eq!((bytes[0], decode(&bytes, 64)), (VERSION, Ok(before)));
            assert_eq!(encode(&registry(kind, 5))[0], PLAIN);
        }
        let mut users = encode(&with_users(None, 2));
        users[0] = PLAIN;
        assert!(decode(&users, 64).is_err());
    }

    #[test]
    fn registration_without_aptpl_is_not_saved() {
        let r = Registry { persists: false, ..registry(Some(ReservationType::WriteExclusive), 3) };
        assert_eq!(encode(&r), []);
        assert_eq!(decode(&[], 64), Ok(Registry::new(64)));
    }

    #[test]
    fn invalid_saved_reservations_are_rejected() {
        let good = encode(&registry(Some(ReservationType::WriteExclusive), 2));
        let edit = |at: usize, value: u8| {
            let mut b = good.clone();
            b[at] = value;
            decode(&b, 64).is_err()
        };
        assert!(decode(&good, 64).is_ok());
        assert!(edit(0, 2), "version");
        assert!(edit(1, 0), "a holder without a reservation");
        assert!(edit(1, 2), "an obsolete type");
        assert!(edit(1, 7), "a holder of an all registrants type");
        assert!(edit(5, 2), "a holder who is not there");
        assert!(edit(13, 0), "key 0");
        assert!(edit(23, 0), "no name");
        assert!(edit(24, 0xff), "no UTF-8");
        assert!(edit(28, b'9'), "out of order");
        assert!(decode(&good[..6], 64).is_err(), "no registrant");
        for at in 1..good.len() {
            assert!(decode(&good[..at], 64).is_err(), "cut at {at}");
        }
        assert!(decode(&[&good[..], &good[29..]].concat(), 64).is_err(), "twice");
    }

    proptest! {
        #[test]
        fn accepted_bytes_encode_to_themselves(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(r) = decode(&bytes, 64) {
                prop_assert_eq!(encode(&r), bytes);
            }
        }

        #[test]
        fn flipped_byte_is_refused_or_means_what_it_says(at in 0usize..120, value: u8, kind in 0usize..6, users: bool) {
            let make = if users { with_users } else { registry };
            let mut bytes = encode(&make(Some(ReservationType::ALL[kind]), 5));
            let at = at % bytes.len();
            bytes[at] = value;
            if let Ok(r) = decode(&bytes, 64) {
                prop_assert_eq!(encode(&r), bytes);
            }
        }
    }
}

//! Data of PERSISTENT RESERVE IN, and the parameter list of PERSISTENT RESERVE OUT (SPC-5 sections 6.16 and 6.17).

use super::fields::{self, Field, flag, get, named, split};
use crate::be;
use crate::srp::PortId;

/// Reservation types: TYPE code, name, abbreviation.
pub const TYPES: [(u8, &str, &str); 6] = [
    (1, "write exclusive", "we"),
    (3, "exclusive access", "ea"),
    (5, "write exclusive, registrants only", "we-ro"),
    (6, "exclusive access, registrants only", "ea-ro"),
    (7, "write exclusive, all registrants", "we-ar"),
    (8, "exclusive access, all registrants", "ea-ar"),
];

/// The name of a reservation type; `None` if the TYPE code is reserved or obsolete.
pub fn type_name(code: u8) -> Option<&'static str> {
    TYPES.iter().find(|row| row.0 == code).map(|row| row.1)
}

/// PRGENERATION of any PERSISTENT RESERVE IN data.
pub fn generation(answer: &[u8]) -> u32 {
    get(answer, 0, 4) as u32
}

fn list(answer: &[u8]) -> &[u8] {
    let rest = answer.get(8..).unwrap_or(&[]);
    &rest[..rest.len().min(get(answer, 4, 4) as usize)]
}

/// Bytes of the complete parameter data, which may exceed the allocation length.
pub fn whole(answer: &[u8]) -> usize {
    8 + get(answer, 4, 4) as usize
}

/// The keys in the data of READ KEYS.
pub fn keys(answer: &[u8]) -> impl Iterator<Item = u64> {
    list(answer).chunks_exact(8).map(be::get64)
}

/// The reservation descriptor of READ RESERVATION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationDescriptor {
    /// Reservation key of the holder; 0 under an all registrants type.
    pub key: u64,
    /// SCOPE: 0 is the logical unit.
    pub scope: u8,
    /// TYPE; see [`type_name`].
    pub kind: u8,
}

/// The descriptor in the data of READ RESERVATION; `None` without a reservation.
pub fn reservation(answer: &[u8]) -> Option<ReservationDescriptor> {
    let d = list(answer).get(..16)?;
    Some(ReservationDescriptor { key: be::get64(d), scope: d[13] >> 4, kind: d[13] & 0x0f })
}

/// TYPE MASK of REPORT CAPABILITIES: bytes 4 and 5, a bit for each type.
const fn kind(name: &'static str, at: usize, bit: u8) -> Field {
    flag(name, at, bit)
}

const ALLOWED: &[(u64, &str)] = &[
    (0, "not reported"),
    (1, "TEST UNIT READY is not allowed"),
    (2, "TEST UNIT READY is allowed"),
    (3, "TEST UNIT READY is allowed, and MODE SENSE and READ ATTRIBUTE under write exclusive"),
];

/// Fields of REPORT CAPABILITIES.
pub static CAPABILITIES: &[Field] = &[
    flag("replace_lost_reservation", 2, 7),
    flag("compatible_reservation_handling", 2, 4),
    flag("specify_initiator_ports", 2, 3),
    flag("all_target_ports", 2, 2),
    flag("persist_through_power_loss_capable", 2, 0),
    flag("persist_through_power_loss_active", 3, 0),
    named("allowed_commands", 3, (4, 3), ALLOWED),
    kind("write_exclusive", 4, 1),
    kind("exclusive_access", 4, 3),
    kind("write_exclusive_registrants_only", 4, 5),
    kind("exclusive_access_registrants_only", 4, 6),
    kind("write_exclusive_all_registrants", 4, 7),
    kind("exclusive_access_all_registrants", 5, 0),
];

/// A full status descriptor of READ FULL STATUS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrationDescriptor {
    /// Reservation key.
    pub key: u64,
    /// The TYPE of the reservation, if this registrant holds it.
    pub holds: Option<u8>,
    /// ALL_TG_PT: the registration covers all target ports.
    pub all_ports: bool,
    /// RELATIVE TARGET PORT IDENTIFIER.
    pub port: u16,
    /// The TransportID of the initiator port, as text.
    pub initiator: String,
}

/// Prefixes of iSCSI names (RFC 7143 section 4.2.7).
const NAMES: [&[u8]; 3] = [b"iqn.", b"eui.", b"naa."];

/// The descriptors in the data of READ FULL STATUS.
pub fn registrations(answer: &[u8]) -> impl Iterator<Item = RegistrationDescriptor> {
    let all = split(list(answer), |b| (b.len() >= 24).then(|| 24 + get(b, 20, 4) as usize));
    all.map(|d| RegistrationDescriptor {
        key: be::get64(d),
        holds: (d[12] & 1 != 0).then_some(d[13] & 0x0f),
        all_ports: d[12] & 2 != 0,
        port: be::get16(&d[18..]),
        initiator: transport_id(&d[24..]),
    })
}

/// A TransportID as text (SPC-5 section 7.6.4): name and ISID for iSCSI, the port identifier for SRP, hexadecimal
/// digits otherwise.
fn transport_id(b: &[u8]) -> String {
    match b {
        [first, _, _, _, name @ ..] if first & 0x0f == 5 => {
            let end = name.iter().position(|c| *c == 0).unwrap_or(name.len());
            fields::utf8(&name[..end])
        }
        [first, ..] if first & 0x0f == 4 && b.len() == 24 && text(b).is_none() => {
            PortId(std::array::from_fn(|i| b[8 + i])).to_string()
        }
        _ => text(b).unwrap_or_else(|| b.iter().map(|byte| format!("{byte:02x}")).collect()),
    }
}

/// Finds an iSCSI name in the private format of targets such as istgt: it begins at any byte and ends with NULs.
fn text(b: &[u8]) -> Option<String> {
    let start = b.windows(4).position(|four| NAMES.contains(&four))?;
    let end = b.iter().rposition(|byte| *byte != 0)? + 1;
    let name = &b[start..end];
    name.iter().all(u8::is_ascii_graphic).then(|| fields::utf8(name))
}

/// The parameter list of PERSISTENT RESERVE OUT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReserveOutParameters {
    /// RESERVATION KEY: the sender's own key.
    pub key: u64,
    /// SERVICE ACTION RESERVATION KEY: the new key, or the key to preempt.
    pub action_key: u64,
    /// ALL_TG_PT.
    pub all_ports: bool,
    /// APTPL.
    pub aptpl: bool,
}

/// Bytes of the parameter list.
pub const PARAMETERS_LEN: usize = 24;

impl ReserveOutParameters {
    /// Encodes the parameter list.
    pub fn encode(&self) -> [u8; PARAMETERS_LEN] {
        let mut b = [0; PARAMETERS_LEN];
        be::put64(&mut b, self.key);
        be::put64(&mut b[8..], self.action_key);
        b[20] = u8::from(self.all_ports) << 2 | u8::from(self.aptpl);
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(generation: u8, list: &[u8]) -> Vec<u8> {
        [&[0, 0, 0, generation, 0, 0, 0, list.len() as u8][..], list].concat()
    }

    #[test]
    fn keys_and_reservation() {
        let b = answer(3, &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!((generation(&b), whole(&b), keys(&b).collect()), (3, 24, vec![1, 2]));
        (0..b.len()).for_each(|n| assert!(keys(&b[..n]).count() < 2));
        let b = answer(0, &[0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0x05, 0, 0]);
        assert_eq!(reservation(&b), Some(ReservationDescriptor { key: 9, scope: 0, kind: 5 }));
        assert_eq!(type_name(5), Some("write exclusive, registrants only"));
        (0..b.len()).for_each(|n| assert_eq!(reservation(&b[..n]), None));
        assert_eq!(reservation(&answer(1, &[])), None);
    }

    #[test]
    fn full_status_descriptors_are_decoded() {
        let id = b"\x45\0\0\x18iqn.a,i,0x80\x1b0000000001\0";
        let one =
            [&[0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 3, 8, 0, 0, 0, 0, 0, 2][..], &[0, 0, 0, 28], id].concat();
        assert_eq!(one.len(), 24 + 28);
        let other = [&[0; 20][..], &[0, 0, 0, 2, 0x06, 1]].concat();
        let b = answer(1, &[one, other].concat());
        let all: Vec<_> = registrations(&b).collect();
        assert_eq!((all[0].key, all[0].holds, all[0].all_ports, all[0].port), (7, Some(8), true, 2));
        assert_eq!(all[0].initiator, "iqn.a,i,0x80?0000000001");
        assert_eq!((all[1].holds, all[1].initiator.as_str()), (None, "0601"));
        (0..b.len()).for_each(|n| assert!(registrations(&b[..n]).count() < 2));
    }

    #[test]
    fn transport_id_in_a_private_format_shows_as_text() {
        assert_eq!(transport_id(b"\0\0\0\x10iqn.a,i,0x80\0\0\0\0"), "iqn.a,i,0x80");
        assert_eq!(transport_id(b"iqn.2026-11.b\0"), "iqn.2026-11.b");
        let srp = b"\x04\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\x02\x03\0\0\0\0\0\0\x04";
        assert_eq!(transport_id(srp), "0x01000000000000020300000000000004");
        assert_eq!(transport_id(b"\x06\0\0\0ABCDEFGH"), "060000004142434445464748");
        assert_eq!(transport_id(b"\0iqn.\x1b[2J\0"), "0069716e2e1b5b324a00");
        assert_eq!((transport_id(b""), transport_id(&[0; 2])), (String::new(), "0000".into()));
    }

    #[test]
    fn parameter_list_matches_the_standard() {
        let b = ReserveOutParameters { key: 1, action_key: 2, all_ports: true, aptpl: true }.encode();
        assert_eq!((b[7], b[15], b[20]), (1, 2, 5));
    }
}

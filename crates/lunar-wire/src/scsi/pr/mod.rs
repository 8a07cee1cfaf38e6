//! Data of PERSISTENT RESERVE IN, and the parameter list of PERSISTENT RESERVE OUT (SPC-5 sections 6.16 and 6.17).

mod parameters;

use super::fields::{self, Field, flag, named, split};
use super::{BitField, transport_id};
use crate::be;
use crate::srp::PortId;
pub use parameters::{PARAMETERS_LEN, ReserveOutParameters, register_and_move, reserve_out};

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

/// The header of the data of READ KEYS, READ RESERVATION and READ FULL STATUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListHeader {
    /// PRGENERATION.
    pub generation: u32,
    /// ADDITIONAL LENGTH: bytes of the whole list, which may exceed the allocation length.
    pub additional_len: u32,
}

impl ListHeader {
    const GENERATION: BitField = BitField::bytes(0, 4);
    const ADDITIONAL_LENGTH: BitField = BitField::bytes(4, 4);
    /// Bytes of the header.
    pub const LEN: usize = 8;

    /// Encodes the header.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        Self::GENERATION.set(&mut b, self.generation.into());
        Self::ADDITIONAL_LENGTH.set(&mut b, self.additional_len.into());
        b
    }
}

/// PRGENERATION of any PERSISTENT RESERVE IN data.
pub fn generation(answer: &[u8]) -> u32 {
    ListHeader::GENERATION.get_u32(answer)
}

fn list_len(answer: &[u8]) -> usize {
    ListHeader::ADDITIONAL_LENGTH.get(answer) as usize
}

fn list(answer: &[u8]) -> &[u8] {
    let rest = answer.get(ListHeader::LEN..).unwrap_or(&[]);
    &rest[..rest.len().min(list_len(answer))]
}

/// Bytes of the complete parameter data, which may exceed the allocation length.
pub fn whole(answer: &[u8]) -> usize {
    ListHeader::LEN + list_len(answer)
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

impl ReservationDescriptor {
    const KEY: BitField = BitField::bytes(0, 8);
    const SCOPE: BitField = BitField::bits(13, 7, 4);
    const TYPE: BitField = BitField::bits(13, 3, 4);
    /// Bytes of the descriptor.
    pub const LEN: usize = 16;

    /// Encodes the descriptor.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        Self::KEY.set(&mut b, self.key);
        Self::SCOPE.set(&mut b, self.scope.into());
        Self::TYPE.set(&mut b, self.kind.into());
        b
    }
}

/// The descriptor in the data of READ RESERVATION; `None` without a reservation.
pub fn reservation(answer: &[u8]) -> Option<ReservationDescriptor> {
    let d = list(answer).get(..ReservationDescriptor::LEN)?;
    Some(ReservationDescriptor {
        key: ReservationDescriptor::KEY.get(d),
        scope: ReservationDescriptor::SCOPE.get_u8(d),
        kind: ReservationDescriptor::TYPE.get_u8(d),
    })
}

/// The data of REPORT CAPABILITIES, of a target that does not replace lost reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveCapabilities<'a> {
    /// CRH: RESERVE and RELEASE succeed without effect for some nexuses.
    pub compatible_reservation_handling: bool,
    /// SIP_C: SPEC_I_PT is supported.
    pub specify_initiator_ports: bool,
    /// ATP_C: ALL_TG_PT is supported.
    pub all_target_ports: bool,
    /// PTPL_C: APTPL is supported.
    pub persist_capable: bool,
    /// PTPL_A: APTPL was set.
    pub persist_active: bool,
    /// ALLOW COMMANDS.
    pub allow_commands: u8,
    /// The TYPE codes that the type mask names.
    pub types: &'a [u8],
}

/// Bytes of the data of REPORT CAPABILITIES.
const CAPABILITIES_LEN: usize = 8;

impl ReserveCapabilities<'_> {
    const LENGTH: BitField = BitField::bytes(0, 2);
    const RLR_C: BitField = BitField::flag(2, 7);
    const CRH: BitField = BitField::flag(2, 4);
    const SIP_C: BitField = BitField::flag(2, 3);
    const ATP_C: BitField = BitField::flag(2, 2);
    const PTPL_C: BitField = BitField::flag(2, 0);
    const TMV: BitField = BitField::flag(3, 7);
    const ALLOW_COMMANDS: BitField = BitField::bits(3, 6, 3);
    const PTPL_A: BitField = BitField::flag(3, 0);

    /// The bit of a TYPE code in the type mask: its low byte comes first.
    const fn type_bit(code: u8) -> BitField {
        BitField::flag(4 + code as u16 / 8, code % 8)
    }

    /// Encodes the data.
    pub fn encode(&self) -> [u8; CAPABILITIES_LEN] {
        let mut b = [0; CAPABILITIES_LEN];
        Self::LENGTH.set(&mut b, CAPABILITIES_LEN as u64);
        Self::CRH.set(&mut b, self.compatible_reservation_handling.into());
        Self::SIP_C.set(&mut b, self.specify_initiator_ports.into());
        Self::ATP_C.set(&mut b, self.all_target_ports.into());
        Self::PTPL_C.set(&mut b, self.persist_capable.into());
        Self::TMV.fill(&mut b);
        Self::ALLOW_COMMANDS.set(&mut b, self.allow_commands.into());
        Self::PTPL_A.set(&mut b, self.persist_active.into());
        self.types.iter().for_each(|code| Self::type_bit(*code).fill(&mut b));
        b
    }
}

const fn bit(name: &'static str, field: BitField) -> Field {
    flag(name, field.byte() as usize, field.bit())
}

const fn kind(name: &'static str, code: u8) -> Field {
    bit(name, ReserveCapabilities::type_bit(code))
}

const ALLOWED: &[(u64, &str)] = &[
    (0, "not reported"),
    (1, "TEST UNIT READY is not allowed"),
    (2, "TEST UNIT READY is allowed"),
    (3, "TEST UNIT READY is allowed, and MODE SENSE and READ ATTRIBUTE under write exclusive"),
];

/// Fields of REPORT CAPABILITIES.
pub static CAPABILITIES: &[Field] = &[
    bit("replace_lost_reservation", ReserveCapabilities::RLR_C),
    bit("compatible_reservation_handling", ReserveCapabilities::CRH),
    bit("specify_initiator_ports", ReserveCapabilities::SIP_C),
    bit("all_target_ports", ReserveCapabilities::ATP_C),
    bit("persist_through_power_loss_capable", ReserveCapabilities::PTPL_C),
    bit("persist_through_power_loss_active", ReserveCapabilities::PTPL_A),
    named("allowed_commands", 3, (4, 3), ALLOWED),
    kind("write_exclusive", 1),
    kind("exclusive_access", 3),
    kind("write_exclusive_registrants_only", 5),
    kind("exclusive_access_registrants_only", 6),
    kind("write_exclusive_all_registrants", 7),
    kind("exclusive_access_all_registrants", 8),
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

/// Fields of a full status descriptor.
mod full_status {
    use crate::scsi::BitField;

    pub(super) const KEY: BitField = BitField::bytes(0, 8);
    pub(super) const ALL_TG_PT: BitField = BitField::flag(12, 1);
    pub(super) const R_HOLDER: BitField = BitField::flag(12, 0);
    pub(super) const TYPE: BitField = BitField::bits(13, 3, 4);
    pub(super) const RELATIVE_TARGET_PORT: BitField = BitField::bytes(18, 2);
    pub(super) const ADDITIONAL_LENGTH: BitField = BitField::bytes(20, 4);
    pub(super) const LEN: usize = 24;
}

/// Encodes a full status descriptor: the fields are those of [`RegistrationDescriptor`].
pub fn encode_registration(key: u64, holds: Option<u8>, port: u16, transport_id: &[u8]) -> Vec<u8> {
    let mut b = vec![0; full_status::LEN];
    full_status::KEY.set(&mut b, key);
    full_status::R_HOLDER.set(&mut b, holds.is_some().into());
    full_status::TYPE.set(&mut b, holds.unwrap_or(0).into());
    full_status::RELATIVE_TARGET_PORT.set(&mut b, port.into());
    full_status::ADDITIONAL_LENGTH.set(&mut b, transport_id.len() as u64);
    b.extend_from_slice(transport_id);
    b
}

/// Prefixes of iSCSI names (RFC 7143 section 4.2.7).
const NAMES: [&[u8]; 3] = [b"iqn.", b"eui.", b"naa."];

/// The descriptors in the data of READ FULL STATUS.
pub fn registrations(answer: &[u8]) -> impl Iterator<Item = RegistrationDescriptor> {
    use full_status::{ADDITIONAL_LENGTH, ALL_TG_PT, KEY, LEN, R_HOLDER, RELATIVE_TARGET_PORT, TYPE};
    let all = split(list(answer), |b| (b.len() >= LEN).then(|| LEN + ADDITIONAL_LENGTH.get(b) as usize));
    all.map(|d| RegistrationDescriptor {
        key: KEY.get(d),
        holds: R_HOLDER.is_set(d).then_some(TYPE.get_u8(d)),
        all_ports: ALL_TG_PT.is_set(d),
        port: RELATIVE_TARGET_PORT.get_u16(d),
        initiator: initiator(&d[LEN..]),
    })
}

/// A TransportID as text (SPC-5 section 7.6.4): name and ISID for iSCSI, the port identifier for SRP, name and identifier
/// for the NVMe hosts of Lunar, hexadecimal digits otherwise.
fn initiator(b: &[u8]) -> String {
    use transport_id::{ISCSI_NAME, NVME_PROTOCOL, PROTOCOL_IDENTIFIER, SRP_LEN, SRP_PORT};
    match PROTOCOL_IDENTIFIER.get(b) {
        5 if b.len() >= ISCSI_NAME => {
            let name = &b[ISCSI_NAME..];
            let end = name.iter().position(|c| *c == 0).unwrap_or(name.len());
            fields::utf8(&name[..end])
        }
        4 if b.len() == SRP_LEN && text(b).is_none() => {
            PortId(std::array::from_fn(|i| b[SRP_PORT + i])).to_string()
        }
        id => {
            let host = (id == u64::from(NVME_PROTOCOL)).then(|| nvme_host(b)).flatten();
            let digits = || b.iter().map(|byte| format!("{byte:02x}")).collect();
            host.or_else(|| text(b)).unwrap_or_else(digits)
        }
    }
}

/// The name of an NVMe host and its identifier, a UUID.
fn nvme_host(b: &[u8]) -> Option<String> {
    let name = b.get(transport_id::NVME_NAME..)?;
    let name = &name[..name.iter().position(|c| *c == 0)?];
    let id = u128::from_be_bytes(*b[transport_id::NVME_HOST_ID..].first_chunk()?);
    let digits = format!("{id:032x}");
    let id = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]).join("-");
    name.starts_with(b"nqn.").then(|| format!("{}, host id {id}", fields::utf8(name)))
}

/// Finds an iSCSI name in the private format of targets such as istgt: it begins at any byte and ends with NULs.
fn text(b: &[u8]) -> Option<String> {
    let start = b.windows(4).position(|four| NAMES.contains(&four))?;
    let end = b.iter().rposition(|byte| *byte != 0)? + 1;
    let name = &b[start..end];
    name.iter().all(u8::is_ascii_graphic).then(|| fields::utf8(name))
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
        assert_eq!(initiator(b"\0\0\0\x10iqn.a,i,0x80\0\0\0\0"), "iqn.a,i,0x80");
        assert_eq!(initiator(b"iqn.2026-11.b\0"), "iqn.2026-11.b");
        let srp = b"\x04\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\x02\x03\0\0\0\0\0\0\x04";
        assert_eq!(initiator(srp), "0x01000000000000020300000000000004");
        let host = [&[15, 0, 0, 28, 0, 0, 0, 0][..], &[0xab; 16], b"nqn.a:b\0"].concat();
        assert_eq!(initiator(&host), "nqn.a:b, host id abababab-abab-abab-abab-abababababab");
        assert_eq!(initiator(&host[..8]), "0f00001c00000000", "cut");
        assert_eq!(initiator(b"\x06\0\0\0ABCDEFGH"), "060000004142434445464748");
        assert_eq!(initiator(b"\0iqn.\x1b[2J\0"), "0069716e2e1b5b324a00");
        assert_eq!((initiator(b""), initiator(&[0; 2])), (String::new(), "0000".into()));
    }

    #[test]
    fn parameter_list_matches_the_standard() {
        let b = ReserveOutParameters { key: 1, action_key: 2, all_ports: true, aptpl: true }.encode();
        assert_eq!((b[7], b[15], b[20]), (1, 2, 5));
    }
}

//! Data-In of PERSISTENT RESERVE IN (SPC-5 section 6.15).

use super::registry::Registry;
use super::transport_id;
use super::types::{RegistrantRole, ReservationType};
use lunar_wire::scsi::pr::{ListHeader, ReservationDescriptor, ReserveCapabilities, encode_registration};

/// Maximum value of ALLOCATION LENGTH, which has 16 bits.
const MAX: usize = 0xffff;

/// PRGENERATION, ADDITIONAL LENGTH, and as many entries as fit into the maximum allocation length.
fn listed(generation: u32, entries: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut out = vec![0; ListHeader::LEN];
    let mut additional_len = 0;
    for entry in entries {
        additional_len += entry.len() as u32;
        if out.len() < MAX {
            out.extend_from_slice(&entry);
        }
    }
    out[..ListHeader::LEN].copy_from_slice(&ListHeader { generation, additional_len }.encode());
    out
}

/// READ KEYS.
pub(super) fn keys(registry: &Registry) -> Vec<u8> {
    listed(registry.generation, registry.keys.values().map(|key| key.to_be_bytes().to_vec()))
}

/// READ RESERVATION.
pub(super) fn reservation(registry: &Registry) -> Vec<u8> {
    let entry = registry.reservation.as_ref().map(|r| {
        ReservationDescriptor { key: registry.holder_key(), scope: 0, kind: r.kind as u8 }.encode().to_vec()
    });
    listed(registry.generation, entry.into_iter())
}

/// ALLOW COMMANDS 011b: TEST UNIT READY is always allowed, and commands that read are allowed under write exclusive.
const ALLOW_COMMANDS: u8 = 3;

/// REPORT CAPABILITIES.
pub(super) fn capabilities(registry: &Registry) -> Vec<u8> {
    let capabilities = ReserveCapabilities {
        compatible_reservation_handling: true,
        specify_initiator_ports: true,
        all_target_ports: true,
        persist_capable: registry.can_persist,
        persist_active: registry.persists,
        allow_commands: ALLOW_COMMANDS,
        types: &ReservationType::ALL.map(|kind| kind as u8),
    };
    capabilities.encode().to_vec()
}

/// READ FULL STATUS.
pub(super) fn full_status(registry: &Registry) -> Vec<u8> {
    let kind = registry.reservation.as_ref().map(|r| r.kind);
    let entries = registry.keys.iter().map(|(who, key)| {
        let holds = kind.filter(|_| registry.role(who) == RegistrantRole::Holder).map(|kind| kind as u8);
        encode_registration(*key, holds, who.tag, &transport_id::encode(&who.initiator))
    });
    listed(registry.generation, entries)
}

#[cfg(test)]
mod tests {
    use super::super::registry::{PersistentReservation, Registrant};
    use super::*;
    use crate::InitiatorPort;

    fn reserved(kind: ReservationType) -> Registry {
        let who = Registrant { initiator: port("iqn.a:b", 1), tag: 0x0102, user: String::new() };
        let mut registry = Registry { generation: 0x0102_0304, persists: true, ..Registry::new(4) };
        let holder = Some(who.clone()).filter(|_| !kind.all_registrants());
        registry.keys.insert(who, 0x1122_3344_5566_7788);
        registry.reservation = Some(PersistentReservation { kind, holder });
        registry
    }

    fn port(name: &str, isid: u8) -> InitiatorPort {
        InitiatorPort::Iscsi { name: name.into(), isid: [isid; 6] }
    }

    #[test]
    fn read_keys_and_reservation_match_golden_bytes() {
        let registry = reserved(ReservationType::ExclusiveAccess);
        let key = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];
        assert_eq!(keys(&registry), [&[1, 2, 3, 4, 0, 0, 0, 8][..], &key].concat());
        let one = [&[1, 2, 3, 4, 0, 0, 0, 16][..], &key, &[0, 0, 0, 0, 0, 3, 0, 0]].concat();
        assert_eq!(reservation(&registry), one);
        let shared = reservation(&reserved(ReservationType::WriteExclusiveAllRegistrants));
        assert_eq!(shared[8..], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0]);
        assert_eq!(reservation(&Registry::new(1)), [0; 8]);
    }

    #[test]
    fn capabilities_match_golden_bytes() {
        let registry = reserved(ReservationType::ExclusiveAccess);
        assert_eq!(capabilities(&registry), [0, 8, 0x1d, 0xb1, 0xea, 1, 0, 0]);
        let volatile = Registry { can_persist: false, persists: false, ..registry };
        assert_eq!(capabilities(&volatile), [0, 8, 0x1c, 0xb0, 0xea, 1, 0, 0]);
    }

    #[test]
    fn full_status_matches_golden_bytes() {
        let mut registry = reserved(ReservationType::ExclusiveAccessRegistrantsOnly);
        let other = Registrant { initiator: port("iqn.c", 2), tag: 3, user: String::new() };
        registry.keys.insert(other, 9);
        let golden = [
            &[1, 2, 3, 4, 0, 0, 0, 108][..],
            &[
                0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0, 0, 0, 1, 6, 0, 0, 0, 0, 1, 2, 0, 0, 0,
                32,
            ],
            b"\x45\0\0\x1ciqn.a:b,i,0x010101010101\0\0\0\0",
            &[0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 28],
            b"\x45\0\0\x18iqn.c,i,0x020202020202\0\0",
        ];
        assert_eq!(full_status(&registry), golden.concat());
    }
}

//! Data-In of PERSISTENT RESERVE IN (SPC-5 section 6.15).

use super::registry::Registry;
use super::transport_id;
use super::types::{RegistrantRole, ReservationType};

/// Maximum value of ALLOCATION LENGTH, which has 16 bits.
const MAX: usize = 0xffff;

/// PRGENERATION, ADDITIONAL LENGTH, and as many entries as fit into the maximum allocation length.
fn listed(generation: u32, entries: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut out = vec![0; 8];
    let mut additional = 0u32;
    for entry in entries {
        additional += entry.len() as u32;
        if out.len() < MAX {
            out.extend_from_slice(&entry);
        }
    }
    out[..4].copy_from_slice(&generation.to_be_bytes());
    out[4..8].copy_from_slice(&additional.to_be_bytes());
    out
}

/// READ KEYS.
pub(super) fn keys(registry: &Registry) -> Vec<u8> {
    listed(registry.generation, registry.keys.values().map(|key| key.to_be_bytes().to_vec()))
}

/// READ RESERVATION.
pub(super) fn reservation(registry: &Registry) -> Vec<u8> {
    let entry = registry.reservation.as_ref().map(|r| {
        let mut entry = registry.holder_key().to_be_bytes().to_vec();
        entry.extend_from_slice(&[0, 0, 0, 0, 0, r.kind as u8, 0, 0]);
        entry
    });
    listed(registry.generation, entry.into_iter())
}

/// REPORT CAPABILITIES: CRH, SIP_C, ATP_C, PTPL_C; TMV, PTPL_A, TYPE MASK; ALLOW COMMANDS 011b (TEST UNIT READY is
/// always allowed, and commands that read are allowed under write exclusive).
pub(super) fn capabilities(registry: &Registry) -> Vec<u8> {
    let types = ReservationType::ALL.iter().fold(0u16, |mask, kind| mask | 1 << *kind as u16);
    let active = 0x80 | 0x30 | registry.persists as u8;
    vec![0, 8, 0x10 | 0x08 | 0x04 | registry.can_persist as u8, active, types as u8, (types >> 8) as u8, 0, 0]
}

/// READ FULL STATUS.
pub(super) fn full_status(registry: &Registry) -> Vec<u8> {
    let kind = registry.reservation.as_ref().map(|r| r.kind);
    let entries = registry.keys.iter().map(|(who, key)| {
        let id = transport_id::encode(who);
        let holder = kind.filter(|_| registry.role(who) == RegistrantRole::Holder);
        let mut entry = key.to_be_bytes().to_vec();
        entry.extend_from_slice(&[
            0,
            0,
            0,
            0,
            holder.is_some() as u8,
            holder.map_or(0, |k| k as u8),
            0,
            0,
            0,
            0,
        ]);
        entry.extend_from_slice(&who.tag.to_be_bytes());
        entry.extend_from_slice(&(id.len() as u32).to_be_bytes());
        entry.extend_from_slice(&id);
        entry
    });
    listed(registry.generation, entries)
}

#[cfg(test)]
mod tests {
    use super::super::registry::{PersistentReservation, Registrant};
    use super::*;

    fn reserved(kind: ReservationType) -> Registry {
        let who = Registrant { initiator: "iqn.a:b".into(), isid: [1; 6], tag: 0x0102, user: String::new() };
        let mut registry = Registry { generation: 0x0102_0304, persists: true, ..Registry::new(4) };
        let holder = Some(who.clone()).filter(|_| !kind.all_registrants());
        registry.keys.insert(who, 0x1122_3344_5566_7788);
        registry.reservation = Some(PersistentReservation { kind, holder });
        registry
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
        let other = Registrant { initiator: "iqn.c".into(), isid: [2; 6], tag: 3, user: String::new() };
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

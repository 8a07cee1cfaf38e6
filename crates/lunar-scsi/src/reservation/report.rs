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

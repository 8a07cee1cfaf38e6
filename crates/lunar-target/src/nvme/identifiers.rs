//! Identifiers of namespaces, which stay the same for good.

use lunar_wire::nvme::NamespaceIdentifier;
use sha2::{Digest, Sha256};

/// NVM command set.
const NVM: u8 = 0;

/// A UUID made of these parts (RFC 9562, version 8).
pub fn uuid_of(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let hash: [u8; 32] = hash.finalize().into();
    let mut uuid = *hash.first_chunk().expect("a hash has 32 bytes");
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

/// The serial number of a subsystem that has none.
pub fn serial_of(nqn: &str) -> String {
    let hash = uuid_of(&[b"serial", nqn.as_bytes()]);
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The identifiers that the configuration gives to a namespace. Zeros mean that the namespace has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenNamespaceIds {
    /// UUID; None: it is derived.
    pub uuid: Option<[u8; 16]>,
    /// NGUID; None: it is derived.
    pub nguid: Option<[u8; 16]>,
    /// EUI64; None: the namespace has none.
    pub eui64: Option<[u8; 8]>,
}

/// The identifiers of a namespace. Zeros mean that it has none.
pub struct NamespaceIds {
    /// NGUID.
    pub nguid: [u8; 16],
    /// UUID.
    pub uuid: [u8; 16],
    /// EUI64.
    pub eui64: [u8; 8],
}

impl NamespaceIds {
    /// Those that are given, and for the rest those of the logical unit with this NAA designator in a subsystem. Hosts take equal
    /// identifiers in two subsystems for a fault, and ignore the second namespace: that of another subsystem therefore has others.
    pub fn new(subsystem: &str, naa: &[u8], given: GivenNamespaceIds) -> NamespaceIds {
        let of = |kind: &str| uuid_of(&[kind.as_bytes(), subsystem.as_bytes(), naa]);
        NamespaceIds {
            nguid: given.nguid.unwrap_or_else(|| of("nguid")),
            uuid: given.uuid.unwrap_or_else(|| of("uuid")),
            eui64: given.eui64.unwrap_or_default(),
        }
    }

    /// The names and values of those that the namespace has.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        let all = [("UUID", &self.uuid[..]), ("NGUID", &self.nguid), ("EUI64", &self.eui64)];
        all.into_iter().filter(|(_, id)| id.iter().any(|byte| *byte != 0))
    }

    /// The list of identifiers.
    pub fn list(&self) -> Vec<u8> {
        let all = [
            (self.eui64 != [0; 8]).then_some(NamespaceIdentifier::Eui64(self.eui64)),
            (self.nguid != [0; 16]).then_some(NamespaceIdentifier::Nguid(self.nguid)),
            (self.uuid != [0; 16]).then_some(NamespaceIdentifier::Uuid(self.uuid)),
            Some(NamespaceIdentifier::CommandSet(NVM)),
        ];
        let all: Vec<_> = all.into_iter().flatten().collect();
        NamespaceIdentifier::encode(&all).to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_differ_by_subsystem_and_stay() {
        let of = |subsystem, naa: &[u8]| {
            let ids = NamespaceIds::new(subsystem, naa, GivenNamespaceIds::default());
            (ids.nguid, ids.uuid)
        };
        let (nguid, uuid) = of("nqn.2026-11.org.example:a", &[1; 8]);
        assert_ne!(nguid, uuid);
        assert_ne!((nguid, uuid), of("nqn.2026-11.org.example:b", &[1; 8]));
        assert_ne!((nguid, uuid), of("nqn.2026-11.org.example:a", &[2; 8]));
        // Another value would be another disk for every host.
        let golden = format!("{:032x}", u128::from_be_bytes(uuid));
        assert_eq!(golden, GOLDEN);
        assert_eq!((uuid[6] >> 4, uuid[8] >> 6), (8, 2));
    }

    const GOLDEN: &str = "784737180bab89f2b161423790164310";
}

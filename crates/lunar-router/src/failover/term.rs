//! The keys and the host of one term of the active role at NVMe storage.

use lunar_initiator::nvme::random_host_id;
use sha2::{Digest, Sha256};

/// Bits of a key.
const PREFIX_SHIFT: u32 = 32;
/// The key of the holder, once the commands of all earlier hosts have ended.
const PROVEN: u64 = 1;
/// The key of the hosts with data.
const DATA: u64 = 2;
/// Set in each key, so that none is 0.
const PRESENT: u64 = 4;

/// A term: the time for which a router holds the reservation of a namespace once. Its keys have the prefix of the router in
/// their upper half, and random digits in the lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    base: u64,
    host_id: [u8; 16],
}

/// The prefix of a router with this key.
pub fn prefix_of(key: u64) -> u32 {
    let hash = Sha256::digest(key.to_be_bytes());
    u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
}

impl Term {
    /// A new term of the router with this prefix.
    pub fn new(prefix: u32) -> Term {
        let host_id = random_host_id();
        // The last bytes of such a UUID are random.
        let [.., a, b, c, d] = host_id;
        let digits = u64::from(u32::from_be_bytes([a, b, c, d])) & !(PROVEN | DATA) | PRESENT;
        Term { base: u64::from(prefix) << PREFIX_SHIFT | digits, host_id }
    }

    /// The identifier of the host that holds the reservation.
    pub fn host_id(&self) -> [u8; 16] {
        self.host_id
    }

    /// The key of this host during the takeover.
    pub fn taking_key(&self) -> u64 {
        self.base
    }

    /// Its key after the takeover.
    pub fn holder_key(&self) -> u64 {
        self.base | PROVEN
    }

    /// The key of the hosts with data. It differs, so that the holder can preempt them.
    pub fn data_key(&self) -> u64 {
        self.base | DATA
    }

    /// Whether a key belongs to a term of the same router.
    pub fn is_of_same_router(&self, key: u64) -> bool {
        key >> PREFIX_SHIFT == self.base >> PREFIX_SHIFT
    }

    /// Whether the key of a holder shows that its takeover was complete. Keys of hosts outside of the pair
    /// rarely have this form.
    pub fn is_proven(key: u64) -> bool {
        key & (PROVEN | DATA | PRESENT) == PROVEN | PRESENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_term_has_its_own_host_and_keys() {
        let (own, other) = (prefix_of(0xa), prefix_of(0xb));
        let [one, two] = [Term::new(own), Term::new(own)];
        assert_ne!(one.host_id(), two.host_id());
        let keys = |term: &Term| [term.taking_key(), term.holder_key(), term.data_key()];
        let mut all = [keys(&one), keys(&two)].concat();
        assert!(all.iter().all(|key| one.is_of_same_router(*key) && *key != 0), "{all:x?}");
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 6, "{all:x?}");
        assert!(!Term::new(other).is_of_same_router(one.holder_key()));
        assert_eq!(keys(&one).map(Term::is_proven), [false, true, false]);
        assert_eq!([1, 3, 7].map(Term::is_proven), [false; 3], "keys of hosts outside of the pair");
    }
}

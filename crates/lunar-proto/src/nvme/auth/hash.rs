//! Hashes.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};
use zeroize::Zeroizing;

/// A hash, by its identifier on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DhChapHash {
    /// SHA-256.
    Sha256 = 1,
    /// SHA-384.
    Sha384 = 2,
    /// SHA-512.
    Sha512 = 3,
}

impl DhChapHash {
    /// All hashes.
    pub const ALL: [DhChapHash; 3] = [DhChapHash::Sha256, DhChapHash::Sha384, DhChapHash::Sha512];

    /// The hash with this identifier.
    pub fn decode(id: u8) -> Option<DhChapHash> {
        DhChapHash::ALL.into_iter().find(|hash| *hash as u8 == id)
    }

    /// Bytes of a digest.
    pub fn digest_len(self) -> usize {
        match self {
            DhChapHash::Sha256 => 32,
            DhChapHash::Sha384 => 48,
            DhChapHash::Sha512 => 64,
        }
    }

    /// The digest of these bytes.
    pub(in crate::nvme) fn digest(self, bytes: &[u8]) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match self {
            DhChapHash::Sha256 => Sha256::digest(bytes).to_vec(),
            DhChapHash::Sha384 => Sha384::digest(bytes).to_vec(),
            DhChapHash::Sha512 => Sha512::digest(bytes).to_vec(),
        })
    }
}

/// The HMAC of the concatenated parts (RFC 2104).
pub fn hmac(hash: DhChapHash, key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    fn of<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
        let mut mac = <M as KeyInit>::new_from_slice(key).expect("a key of any length");
        parts.iter().for_each(|part| mac.update(part));
        Zeroizing::new(mac.finalize().into_bytes().to_vec())
    }
    match hash {
        DhChapHash::Sha256 => of::<Hmac<Sha256>>(key, parts),
        DhChapHash::Sha384 => of::<Hmac<Sha384>>(key, parts),
        DhChapHash::Sha512 => of::<Hmac<Sha512>>(key, parts),
    }
}

//! Secrets in their text form: `DHHC-1:HH:`, base64 of the key and of its CRC-32, `:`.

use super::hash::{DhChapHash, hmac};
use crate::nvme::key_text::{InvalidSecret, KeyForm};
use lunar_wire::nvme::Nqn;
use std::fmt;
use zeroize::Zeroizing;

const FORM: KeyForm = KeyForm {
    prefix: "DHHC-1",
    lens: &[32, 48, 64],
    malformed: InvalidSecret("the form of a secret is DHHC-1:HH:BASE64:"),
    wrong_len: InvalidSecret("the key of a secret has 32, 48 or 64 bytes"),
};

/// A secret of a host or of a subsystem.
#[derive(Clone, PartialEq, Eq)]
pub struct DhChapSecret {
    /// The hash with which the key is transformed for its owner; None: it is used as it is.
    transform: Option<DhChapHash>,
    key: Zeroizing<Vec<u8>>,
}

/// Omits the key.
impl fmt::Debug for DhChapSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DhChapSecret({} bytes)", self.key.len())
    }
}

impl DhChapSecret {
    /// A random secret, as long as a digest of its hash, or 32 bytes without one.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn generate(transform: Option<DhChapHash>) -> std::io::Result<DhChapSecret> {
        DhChapSecret::generate_with_len(transform, transform.map_or(32, DhChapHash::digest_len))
    }

    /// A random secret of 32, 48 or 64 bytes. With a hash, `len` is the length of its digest.
    ///
    /// # Errors
    /// `InvalidInput` for another length. The system has no random numbers.
    pub fn generate_with_len(transform: Option<DhChapHash>, len: usize) -> std::io::Result<DhChapSecret> {
        if !FORM.lens.contains(&len) || transform.is_some_and(|hash| hash.digest_len() != len) {
            let what = format!("a key of {len} bytes is not as long as a digest of its hash");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, what));
        }
        let mut key = Zeroizing::new(vec![0; len]);
        getrandom::fill(&mut key).map_err(std::io::Error::other)?;
        Ok(DhChapSecret { transform, key })
    }

    /// A secret without a hash.
    pub fn of_key(key: [u8; 32]) -> DhChapSecret {
        DhChapSecret { transform: None, key: Zeroizing::new(key.to_vec()) }
    }

    /// Parses the text form.
    ///
    /// # Errors
    /// The fault.
    pub fn parse(text: &str) -> Result<DhChapSecret, InvalidSecret> {
        let (id, key) = FORM.parse(text)?;
        let transform = match id {
            "00" => None,
            "01" => Some(DhChapHash::Sha256),
            "02" => Some(DhChapHash::Sha384),
            "03" => Some(DhChapHash::Sha512),
            _ => return Err(InvalidSecret("the hash of a secret is 00, 01, 02 or 03")),
        };
        Ok(DhChapSecret { transform, key })
    }

    /// The text form.
    pub fn to_text(&self) -> Zeroizing<String> {
        FORM.encode(self.transform.map_or(0, |hash| hash as u8), &self.key)
    }

    /// The key for its owner: the host, or the subsystem.
    pub(super) fn key_of(&self, owner: &Nqn) -> Zeroizing<Vec<u8>> {
        match self.transform {
            Some(hash) => hmac(hash, &self.key, &[owner.as_str().as_bytes(), b"NVMe-over-Fabrics"]),
            None => self.key.clone(),
        }
    }
}

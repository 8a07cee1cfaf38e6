//! Secrets in their text form: `DHHC-1:HH:`, base64 of the key and of its CRC-32, `:`.

use super::hash::{DhChapHash, hmac};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lunar_wire::nvme::Nqn;
use std::fmt;
use zeroize::Zeroizing;

const PREFIX: &str = "DHHC-1";
/// Bytes of the CRC-32 (as of gzip), little-endian.
const CHECK: usize = 4;
/// The lengths of a key in bytes.
const KEY_LENS: [usize; 3] = [32, 48, 64];

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

/// The fault of a text that is no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidSecret(pub &'static str);

impl fmt::Display for InvalidSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for InvalidSecret {}

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
        if !KEY_LENS.contains(&len) || transform.is_some_and(|hash| hash.digest_len() != len) {
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
        const FORM: InvalidSecret = InvalidSecret("the form of a secret is DHHC-1:HH:BASE64:");
        let mut parts = text.trim_end_matches('\n').split(':');
        let (Some(PREFIX), Some(id), Some(encoded), Some(""), None) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(FORM);
        };
        let transform = match id {
            "00" => None,
            "01" => Some(DhChapHash::Sha256),
            "02" => Some(DhChapHash::Sha384),
            "03" => Some(DhChapHash::Sha512),
            _ => return Err(InvalidSecret("the hash of a secret is 00, 01, 02 or 03")),
        };
        let bytes = STANDARD.decode(encoded).map(Zeroizing::new);
        let bytes = bytes.map_err(|_| InvalidSecret("the secret is not base64"))?;
        let (key, check) = bytes.split_last_chunk::<CHECK>().ok_or(FORM)?;
        if !KEY_LENS.contains(&key.len()) {
            return Err(InvalidSecret("the key of a secret has 32, 48 or 64 bytes"));
        }
        if crc32fast::hash(key).to_le_bytes() != *check {
            return Err(InvalidSecret("the check sum of the secret differs"));
        }
        Ok(DhChapSecret { transform, key: Zeroizing::new(key.to_vec()) })
    }

    /// The text form.
    pub fn to_text(&self) -> Zeroizing<String> {
        let id = self.transform.map_or(0, |hash| hash as u8);
        let bytes = Zeroizing::new([&self.key[..], &crc32fast::hash(&self.key).to_le_bytes()].concat());
        let encoded = Zeroizing::new(STANDARD.encode(&*bytes));
        Zeroizing::new(format!("{PREFIX}:{id:02}:{}:", *encoded))
    }

    /// The key for its owner: the host, or the subsystem.
    pub(super) fn key_of(&self, owner: &Nqn) -> Zeroizing<Vec<u8>> {
        match self.transform {
            Some(hash) => hmac(hash, &self.key, &[owner.as_str().as_bytes(), b"NVMe-over-Fabrics"]),
            None => self.key.clone(),
        }
    }
}

//! The configured key, and what follows from it for one host and one subsystem.

use super::hkdf::{TlsKeyLabels, derive};
use crate::nvme::auth::{AuthNames, DhChapHash, hmac};
use crate::nvme::key_text::{InvalidSecret, KeyForm};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use zeroize::Zeroizing;

const FORM: KeyForm = KeyForm {
    prefix: "NVMeTLSkey-1",
    lens: &[32, 48],
    malformed: InvalidSecret("the form of a key is NVMeTLSkey-1:HH:BASE64:"),
    wrong_len: InvalidSecret("a key has 32 or 48 bytes"),
};

/// A hash of TLS 1.3 cipher suites, by its identifier in a key and in an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TlsKeyHash {
    /// SHA-256, for TLS_AES_128_GCM_SHA256.
    Sha256 = 1,
    /// SHA-384, for TLS_AES_256_GCM_SHA384.
    Sha384 = 2,
}

impl TlsKeyHash {
    fn digest(self) -> DhChapHash {
        match self {
            TlsKeyHash::Sha256 => DhChapHash::Sha256,
            TlsKeyHash::Sha384 => DhChapHash::Sha384,
        }
    }

    /// The hash whose digest has this length.
    fn of_len(len: usize) -> TlsKeyHash {
        if len == DhChapHash::Sha384.digest_len() { TlsKeyHash::Sha384 } else { TlsKeyHash::Sha256 }
    }
}

/// The version of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsPskVersion {
    /// Hash and names.
    Zero = 0,
    /// Hash, names, and a digest of the key, so that several keys of two names have different identities.
    One = 1,
}

/// A configured key of a host and a subsystem, as long as a digest of its hash.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsKey {
    /// Whether the host retains a key that was derived for its name, instead of this one.
    is_transformed: bool,
    hash: TlsKeyHash,
    key: Zeroizing<Vec<u8>>,
}

/// Omits the key.
impl fmt::Debug for TlsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsKey({:?})", self.hash)
    }
}

/// A PSK of a handshake.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsPsk {
    /// The identity, which is sent without encryption.
    pub identity: String,
    /// The hash of the cipher suite.
    pub hash: TlsKeyHash,
    /// The secret, as long as a digest of the hash.
    pub secret: Zeroizing<Vec<u8>>,
}

/// Omits the secret.
impl fmt::Debug for TlsPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsPsk({})", self.identity)
    }
}

impl TlsKey {
    /// A random key, which a host transforms for its name.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn generate(hash: TlsKeyHash) -> std::io::Result<TlsKey> {
        let mut key = Zeroizing::new(vec![0; hash.digest().digest_len()]);
        getrandom::fill(&mut key).map_err(std::io::Error::other)?;
        Ok(TlsKey { is_transformed: true, hash, key })
    }

    /// A key that the host uses as it is.
    pub fn of_key(key: [u8; 32]) -> TlsKey {
        TlsKey { is_transformed: false, hash: TlsKeyHash::Sha256, key: Zeroizing::new(key.to_vec()) }
    }

    /// Parses the text form: `NVMeTLSkey-1:HH:`, base64 of the key and of its CRC-32, `:`.
    ///
    /// # Errors
    /// The fault.
    pub fn parse(text: &str) -> Result<TlsKey, InvalidSecret> {
        let (id, key) = FORM.parse(text)?;
        let hash = TlsKeyHash::of_len(key.len());
        let is_transformed = match (id, hash) {
            ("00", _) => false,
            ("01", TlsKeyHash::Sha256) | ("02", TlsKeyHash::Sha384) => true,
            ("01" | "02", _) => return Err(InvalidSecret("the key is not as long as a digest of its hash")),
            _ => return Err(InvalidSecret("the hash of a key is 00, 01 or 02")),
        };
        Ok(TlsKey { is_transformed, hash, key })
    }

    /// The text form.
    pub fn to_text(&self) -> Zeroizing<String> {
        FORM.encode(if self.is_transformed { self.hash as u8 } else { 0 }, &self.key)
    }

    /// The PSK of these names, as the specification derives it. See [`TlsKey::psk_with`].
    ///
    /// # Errors
    /// See there.
    pub fn psk(&self, names: &AuthNames, version: TlsPskVersion) -> Result<TlsPsk, InvalidSecret> {
        self.psk_with(TlsKeyLabels::Standard, names, version)
    }

    /// The PSK of these names, derived with labels of this form.
    ///
    /// # Errors
    /// A name has a blank, which separates the names in the identity: two pairs of names could have one identity. Or the names
    /// are too long for version 0, which has room for 255 bytes of identity.
    pub fn psk_with(
        &self,
        labels: TlsKeyLabels,
        names: &AuthNames,
        version: TlsPskVersion,
    ) -> Result<TlsPsk, InvalidSecret> {
        let (host, subsystem) = (names.host.as_str(), names.subsystem.as_str());
        if host.contains(' ') || subsystem.contains(' ') {
            return Err(InvalidSecret("a name with a blank has no identity"));
        }
        let (hash, retained) = (self.hash.digest(), self.retained(labels, host));
        let mut identity = format!("NVMe{}R{:02} {host} {subsystem}", version as u8, self.hash as u8);
        let context = match version {
            TlsPskVersion::Zero => identity.clone(),
            TlsPskVersion::One => {
                let text = format!("{host} {subsystem} NVMe-over-Fabrics");
                let digest = STANDARD.encode(&*hmac(hash, &retained, &[text.as_bytes()]));
                identity = format!("{identity} {digest}");
                format!("{:02} {digest}", self.hash as u8)
            }
        };
        if context.len() > usize::from(u8::MAX) {
            return Err(InvalidSecret("the names are too long for version 0 of the identity"));
        }
        let secret = derive((hash, labels), &retained, "nvme-tls-psk", context.as_bytes());
        Ok(TlsPsk { identity, hash: self.hash, secret })
    }

    /// The key that the host retains.
    fn retained(&self, labels: TlsKeyLabels, host: &str) -> Zeroizing<Vec<u8>> {
        match self.is_transformed {
            true => derive((self.hash.digest(), labels), &self.key, "HostNQN", host.as_bytes()),
            false => self.key.clone(),
        }
    }
}

//! The text form of keys: `PREFIX:HH:`, base64 of the key and of its CRC-32, `:`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use zeroize::Zeroizing;

/// Bytes of the CRC-32 (as of gzip), little-endian.
const CHECK: usize = 4;

/// The fault of a text that is no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidSecret(pub &'static str);

impl fmt::Display for InvalidSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for InvalidSecret {}

/// A kind of key.
pub(super) struct KeyForm {
    /// The text before the first colon.
    pub prefix: &'static str,
    /// Allowed lengths of a key in bytes.
    pub lens: &'static [usize],
    /// The fault of a text with another form, and of a key with another length.
    pub malformed: InvalidSecret,
    pub wrong_len: InvalidSecret,
}

impl KeyForm {
    /// The two digits of the hash, and the key.
    pub fn parse<'a>(&self, text: &'a str) -> Result<(&'a str, Zeroizing<Vec<u8>>), InvalidSecret> {
        let mut parts = text.trim_end_matches('\n').split(':');
        let (Some(prefix), Some(hash), Some(encoded), Some(""), None) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(self.malformed);
        };
        if prefix != self.prefix {
            return Err(self.malformed);
        }
        let bytes = STANDARD.decode(encoded).map(Zeroizing::new);
        let mut bytes = bytes.map_err(|_| InvalidSecret("the secret is not base64"))?;
        let (key, check) = bytes.split_last_chunk::<CHECK>().ok_or(self.malformed)?;
        let len = key.len();
        if !self.lens.contains(&len) {
            return Err(self.wrong_len);
        }
        if crc32fast::hash(key).to_le_bytes() != *check {
            return Err(InvalidSecret("the check sum of the secret differs"));
        }
        bytes.truncate(len);
        Ok((hash, bytes))
    }

    /// The text form of a key.
    pub fn encode(&self, hash: u8, key: &[u8]) -> Zeroizing<String> {
        let bytes = Zeroizing::new([key, &crc32fast::hash(key).to_le_bytes()].concat());
        let encoded = Zeroizing::new(STANDARD.encode(&*bytes));
        Zeroizing::new(format!("{}:{hash:02}:{}:", self.prefix, *encoded))
    }
}

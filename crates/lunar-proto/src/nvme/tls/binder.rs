//! The proof of a PSK in a ClientHello (RFC 8446, section 4.2.11.2).

use super::hkdf::{expand_label, extract};
use super::{TlsKeyHash, TlsPsk};
use crate::nvme::auth::{DhChapHash, are_equal, hmac};

impl TlsPsk {
    /// Whether a binder proves that its sender has this PSK. `hello`: the ClientHello with its header, up to the binders.
    pub fn has_binder(&self, hello: &[u8], binder: &[u8]) -> bool {
        let hash = match self.hash {
            TlsKeyHash::Sha256 => DhChapHash::Sha256,
            TlsKeyHash::Sha384 => DhChapHash::Sha384,
        };
        let early = extract(hash, &self.secret);
        let key = expand_label(hash, &early, "ext binder", &hash.digest(&[]));
        let key = expand_label(hash, &key, "finished", &[]);
        are_equal(&hmac(hash, &key, &[&hash.digest(hello)]), binder)
    }
}

//! HKDF with the labels of TLS 1.3, for outputs that are as long as a digest.

use crate::nvme::auth::{DhChapHash, hmac};
use zeroize::Zeroizing;

/// The form of the labels of HKDF-Expand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsKeyLabels {
    /// RFC 8446, section 7.1, as the specification demands.
    Standard,
    /// libnvme before 1.16, as in Debian 12 and 13: no lengths of label and context, and the other byte order.
    Libnvme115,
}

/// HKDF-Extract without salt.
pub fn extract(hash: DhChapHash, key: &[u8]) -> Zeroizing<Vec<u8>> {
    hmac(hash, &vec![0; hash.digest_len()], &[key])
}

/// HKDF-Expand-Label. The output is as long as a digest, so one block is enough.
///
/// A label and a context of up to 255 bytes each: longer ones have no encoding.
pub fn expand_label(hash: DhChapHash, key: &[u8], label: &str, context: &[u8]) -> Zeroizing<Vec<u8>> {
    let label = ["tls13 ", label].concat();
    let [label_len, context_len] =
        [label.len(), context.len()].map(|len| u8::try_from(len).expect("at most 255 bytes"));
    let info =
        [&output_len(hash).to_be_bytes()[..], &[label_len], label.as_bytes(), &[context_len], context, &[1]];
    hmac(hash, key, &info)
}

/// HKDF-Extract without salt, then HKDF-Expand with a label of this form.
pub fn derive(
    (hash, labels): (DhChapHash, TlsKeyLabels),
    key: &[u8],
    label: &str,
    context: &[u8],
) -> Zeroizing<Vec<u8>> {
    let pseudorandom = extract(hash, key);
    match labels {
        TlsKeyLabels::Standard => expand_label(hash, &pseudorandom, label, context),
        TlsKeyLabels::Libnvme115 => {
            let len = output_len(hash).to_le_bytes();
            hmac(hash, &pseudorandom, &[&len, b"tls13 ", label.as_bytes(), context, &[1]])
        }
    }
}

fn output_len(hash: DhChapHash) -> u16 {
    u16::try_from(hash.digest_len()).expect("a digest is short")
}

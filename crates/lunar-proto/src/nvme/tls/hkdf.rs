//! HKDF with the labels of TLS 1.3, for outputs that are as long as a digest.

use crate::nvme::auth::{DhChapHash, hmac};
use zeroize::Zeroizing;

/// HKDF-Extract without salt, then HKDF-Expand-Label. The output is as long as a digest, so one block is enough.
///
/// A label and a context of up to 255 bytes each: longer ones have no encoding.
pub fn derive(hash: DhChapHash, key: &[u8], label: &str, context: &[u8]) -> Zeroizing<Vec<u8>> {
    let len = hash.digest_len();
    let pseudorandom = hmac(hash, &vec![0; len], &[key]);
    let label = ["tls13 ", label].concat();
    let [label_len, context_len] =
        [label.len(), context.len()].map(|len| u8::try_from(len).expect("at most 255 bytes"));
    let output_len = u16::try_from(len).expect("a digest is short").to_be_bytes();
    let info = [&output_len[..], &[label_len], label.as_bytes(), &[context_len], context, &[1]];
    hmac(hash, &pseudorandom, &info)
}

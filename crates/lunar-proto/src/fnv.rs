//! FNV-1a of 64 bits: a short name for a long one, the same for all time. It is no protection against anybody.

/// The hash of these bytes.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_are_found() {
        for (text, hash) in [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c)] {
            assert_eq!(fnv1a(text.as_bytes()), hash, "{text}");
        }
    }
}

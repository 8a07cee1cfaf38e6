//! CRC32C, the digest of RFC 7143 section 13.1.

/// The digest of these parts in sequence; on the wire it is little-endian.
pub fn crc32c(parts: &[&[u8]]) -> u32 {
    parts.iter().fold(0, |digest, part| crc32c::crc32c_append(digest, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_the_standard() {
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        for (data, digest) in [
            (&[0; 32][..], [0xaa, 0x36, 0x91, 0x8a]),
            (&[0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
            (&ascending, [0x4e, 0x79, 0xdd, 0x46]),
            (&descending, [0x5c, 0xdb, 0x3f, 0x11]),
        ] {
            assert_eq!(crc32c(&[data]).to_le_bytes(), digest);
            assert_eq!(crc32c(&[&data[..7], &data[7..]]).to_le_bytes(), digest);
        }
    }
}

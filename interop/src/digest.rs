//! CRC32C, bit-reflected polynomial 0x1EDC6F41 (RFC 7143 section 13.1).

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0u32; 256];
    let mut i = 0;
    while i < 256 {
        let (mut c, mut bit) = (i as u32, 0);
        while bit < 8 {
            c = if c & 1 == 1 { c >> 1 ^ 0x82F6_3B78 } else { c >> 1 };
            bit += 1;
        }
        table[i] = c;
        i += 1;
    }
    table
}

/// The digest of `bytes`: four bytes in wire order.
pub fn crc32c(bytes: &[u8]) -> [u8; 4] {
    let crc = bytes.iter().fold(!0u32, |c, b| TABLE[((c ^ *b as u32) & 0xff) as usize] ^ c >> 8);
    (!crc).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    /// The five vectors of RFC 7143 appendix A.4.
    #[test]
    fn digests_are_those_of_the_rfc() {
        let up: Vec<u8> = (0..32).collect();
        let down: Vec<u8> = (0..32).rev().collect();
        let mut read10 = [0u8; 48];
        read10[..3].copy_from_slice(&[1, 0xc0, 0]);
        read10[16] = 0x14;
        read10[22] = 4;
        read10[27] = 0x14;
        read10[31] = 0x18;
        read10[32] = 0x28;
        read10[40] = 2;
        for (bytes, digest) in [
            (&[0u8; 32][..], [0xaa, 0x36, 0x91, 0x8a]),
            (&[0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
            (&up, [0x4e, 0x79, 0xdd, 0x46]),
            (&down, [0x5c, 0xdb, 0x3f, 0x11]),
            (&read10, [0x56, 0x3a, 0x96, 0xd9]),
        ] {
            assert_eq!(crc32c(bytes), digest, "{bytes:02x?}");
        }
    }
}

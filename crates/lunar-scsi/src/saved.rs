//! The format of a logical unit's saved state: a magic, sections of (id, length, bytes), and a CRC-32C over
//! everything before it. Integers are big-endian.

use crate::InvalidDefinition;

const MAGIC: &[u8; 8] = b"lunarLU\x01";
const CRC: usize = 4;

/// Encodes sections; empty ones are omitted.
pub(crate) fn encode(sections: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    for (id, bytes) in sections.iter().filter(|(_, b)| !b.is_empty()) {
        out.push(*id);
        out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
        out.extend_from_slice(bytes);
    }
    let crc = checksum(&out);
    out.extend_from_slice(&crc.to_be_bytes());
    out
}

/// Decodes sections, after it has verified the checksum.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<(u8, &[u8])>, InvalidDefinition> {
    if !bytes.starts_with(&MAGIC[..7]) {
        return Err(InvalidDefinition::new("the file is not the saved state of a logical unit"));
    }
    if bytes.get(7) != Some(&MAGIC[7]) {
        return Err(InvalidDefinition::new("the saved state has an unsupported version"));
    }
    let Some((body, crc)) = bytes.split_last_chunk::<CRC>().filter(|(b, _)| b.len() >= MAGIC.len()) else {
        return Err(InvalidDefinition::new("the saved state is truncated"));
    };
    if checksum(body) != u32::from_be_bytes(*crc) {
        return Err(InvalidDefinition::new("the checksum does not match the saved state"));
    }
    sections(&body[MAGIC.len()..]).ok_or(InvalidDefinition::new("a section of the saved state is truncated"))
}

fn sections(mut rest: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    let mut found = Vec::new();
    while !rest.is_empty() {
        let (&id, tail) = rest.split_first()?;
        let (&len, tail) = tail.split_first_chunk()?;
        let (section, tail) = tail.split_at_checked(u32::from_be_bytes(len) as usize)?;
        found.push((id, section));
        rest = tail;
    }
    Some(found)
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_survive_and_empty_ones_vanish() {
        let bytes = encode(&[(1, vec![7, 8]), (2, vec![]), (3, vec![9])]);
        assert_eq!(decode(&bytes).unwrap(), [(1, &[7u8, 8][..]), (3, &[9][..])]);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_refused() {
        let bytes = encode(&[(1, vec![7, 8, 9])]);
        for at in 0..bytes.len() {
            assert!(decode(&bytes[..at]).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut wrong = bytes.clone();
                wrong[at] ^= 1 << bit;
                assert!(decode(&wrong).is_err(), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn section_length_beyond_the_end_is_rejected() {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&[1, 0xff, 0xff, 0xff, 0xff]);
        let crc = checksum(&bytes);
        bytes.extend_from_slice(&crc.to_be_bytes());
        assert!(decode(&bytes).is_err());
    }
}

//! A unit: a stretch of bytes with its own checksum.
//!
//! ```text
//! 0   magic, 8 bytes          16  number of the block        28  bytes of a unit
//! 8   owner                   24  generation                 32  CRC32C of all, this field zero
//! ```
//! Numbers are little-endian. Bytes from 36 on are pseudo-random, derived from owner, block and generation.

use lunar_runtime::iscsi::digest::crc32c;
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

/// The shortest unit in bytes: the smallest logical block.
pub const SHORTEST: u64 = 512;
/// The longest unit in bytes: the granularity at which torn writes are detected.
pub const LONGEST: u64 = 4096;

const MAGIC: [u8; 8] = *b"LUNARBLK";
const CRC: std::ops::Range<usize> = 32..36;

/// The identity of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The writer: a random number for each run and target.
    pub owner: u64,
    /// The position: units from the first byte of the disk.
    pub block: u64,
    /// The number of the write to this block; 0 means never written.
    pub generation: u32,
}

/// The result of parsing a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitContent {
    /// Not a unit, or one of another owner.
    Foreign,
    /// A unit of this owner with a wrong checksum.
    Damaged,
    /// A valid unit.
    Whole {
        /// The position that it was written to.
        block: u64,
        /// The generation.
        generation: u32,
    },
}

impl Stamp {
    /// Writes a unit that fills `bytes`, at least [`SHORTEST`].
    pub fn write_to(self, bytes: &mut [u8]) {
        let len = bytes.len() as u32;
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.owner.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.block.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.generation.to_le_bytes());
        bytes[28..32].copy_from_slice(&len.to_le_bytes());
        self.random().fill_bytes(&mut bytes[CRC.end..]);
        let crc = checksum(bytes);
        bytes[CRC].copy_from_slice(&crc.to_le_bytes());
    }

    fn random(self) -> SmallRng {
        let mixed = self.owner ^ self.block.rotate_left(32) ^ u64::from(self.generation);
        SmallRng::seed_from_u64(mixed)
    }
}

/// Parses a unit that `owner` may have written.
pub fn parse_unit(owner: u64, bytes: &[u8]) -> UnitContent {
    let le64 = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    let le32 = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    if bytes[..8] != MAGIC || le64(8) != owner {
        return UnitContent::Foreign;
    }
    if le32(CRC.start) != checksum(bytes) {
        return UnitContent::Damaged;
    }
    UnitContent::Whole { block: le64(16), generation: le32(24) }
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32c(&[&bytes[..CRC.start], &[0; 4], &bytes[CRC.end..]])
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { owner: 0x0123_4567_89ab_cdef, block: 77, generation: 3 };

    fn unit(stamp: Stamp, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        stamp.write_to(&mut bytes);
        bytes
    }

    #[test]
    fn written_unit_is_parsed() {
        for len in [512, 4096] {
            let bytes = unit(STAMP, len);
            assert_eq!(parse_unit(STAMP.owner, &bytes), UnitContent::Whole { block: 77, generation: 3 });
            assert_eq!(parse_unit(1, &bytes), UnitContent::Foreign);
            let zeros = bytes.iter().filter(|byte| **byte == 0).count();
            assert!(zeros < len / 8, "{zeros} zeros of {len}: compressible");
        }
        assert_eq!(parse_unit(0, &[0; 512]), UnitContent::Foreign);
    }

    #[test]
    fn unit_with_changed_bit_is_damaged() {
        let good = unit(STAMP, 512);
        for bit in 0..512 * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let expected = if bit < 128 { UnitContent::Foreign } else { UnitContent::Damaged };
            assert_eq!(parse_unit(STAMP.owner, &bytes), expected, "bit {bit}");
        }
    }

    #[test]
    fn unit_of_other_length_or_mixed_halves_is_damaged() {
        let long = unit(STAMP, 4096);
        assert_eq!(parse_unit(STAMP.owner, &long[..512]), UnitContent::Damaged);
        let newer = unit(Stamp { generation: 4, ..STAMP }, 4096);
        let torn = [&newer[..512], &long[512..]].concat();
        assert_eq!(parse_unit(STAMP.owner, &torn), UnitContent::Damaged);
    }
}

//! Parameter data of READ CAPACITY (SBC-4 sections 5.20 and 5.21).

use crate::scsi::BitField;
use crate::scsi::fields::{Field, bits, flag};

/// Fields of READ CAPACITY(16).
pub static CAPACITY: &[Field] = &[
    Field::number("last_lba", LAST_LBA_16),
    Field::number("block_size_bytes", BLOCK_SIZE_16),
    flag("protection", 12, 0),
    bits("protection_type", 12, 1, 3),
    Field::number("blocks_per_physical_block_exponent", PHYSICAL_EXPONENT),
    Field::flag("thin", LBPME),
    Field::flag("unmapped_reads_zero", LBPRZ),
];

/// RETURNED LOGICAL BLOCK ADDRESS and LOGICAL BLOCK LENGTH IN BYTES of READ CAPACITY(10).
const LAST_LBA_10: BitField = BitField::bytes(0, 4);
const BLOCK_SIZE_10: BitField = BitField::bytes(4, 4);
/// The same fields of READ CAPACITY(16).
const LAST_LBA_16: BitField = BitField::bytes(0, 8);
const BLOCK_SIZE_16: BitField = BitField::bytes(8, 4);
const PHYSICAL_EXPONENT: BitField = BitField::bits(13, 3, 4);
const LBPME: BitField = BitField::flag(14, 7);
const LBPRZ: BitField = BitField::flag(14, 6);

/// The data of READ CAPACITY(10) or (16).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// RETURNED LOGICAL BLOCK ADDRESS.
    pub last_lba: u64,
    /// LOGICAL BLOCK LENGTH IN BYTES.
    pub block_size: u32,
    /// LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT.
    pub physical_exponent: u8,
    /// LBPME.
    pub thin: bool,
    /// LBPRZ.
    pub unmapped_reads_zero: bool,
}

impl Capacity {
    /// The last LBA of READ CAPACITY(10), if only READ CAPACITY(16) can report it.
    pub const BEYOND_10: u64 = u32::MAX as u64;

    /// Decodes the data of READ CAPACITY(10); `None` if they are incomplete.
    pub fn decode_10(b: &[u8]) -> Option<Capacity> {
        let b = b.first_chunk::<8>()?;
        Some(Capacity {
            last_lba: LAST_LBA_10.get(b),
            block_size: BLOCK_SIZE_10.get_u32(b),
            ..Capacity::default()
        })
    }

    /// Decodes the data of READ CAPACITY(16); `None` if they end before the block size. Further missing bytes count as
    /// zeros.
    pub fn decode_16(b: &[u8]) -> Option<Capacity> {
        (b.len() >= 12).then(|| Capacity {
            last_lba: LAST_LBA_16.get(b),
            block_size: BLOCK_SIZE_16.get_u32(b),
            physical_exponent: PHYSICAL_EXPONENT.get_u8(b),
            thin: LBPME.is_set(b),
            unmapped_reads_zero: LBPRZ.is_set(b),
        })
    }

    /// Encodes the data of READ CAPACITY(10), with [`Capacity::BEYOND_10`] for a larger LBA.
    pub fn encode_10(&self) -> [u8; 8] {
        let mut b = [0; 8];
        LAST_LBA_10.set(&mut b, self.last_lba.min(Capacity::BEYOND_10));
        BLOCK_SIZE_10.set(&mut b, self.block_size.into());
        b
    }

    /// Encodes the data of READ CAPACITY(16).
    pub fn encode_16(&self) -> [u8; 32] {
        let mut b = [0; 32];
        LAST_LBA_16.set(&mut b, self.last_lba);
        BLOCK_SIZE_16.set(&mut b, self.block_size.into());
        PHYSICAL_EXPONENT.set(&mut b, self.physical_exponent.into());
        LBPME.set(&mut b, self.thin.into());
        LBPRZ.set(&mut b, self.unmapped_reads_zero.into());
        b
    }

    /// The number of logical blocks.
    pub fn blocks(&self) -> u64 {
        self.last_lba.saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::fields::{self, FieldValue};

    #[test]
    fn capacity_ends_with_its_block_size() {
        let mut b = [0; 32];
        (b[7], b[10], b[13], b[14]) = (99, 2, 0xf3, 0xc0);
        let plain = Capacity { last_lba: 99, block_size: 512, ..Capacity::default() };
        let whole = Capacity { physical_exponent: 3, thin: true, unmapped_reads_zero: true, ..plain };
        assert_eq!((Capacity::decode_16(&b), whole.blocks()), (Some(whole), 100));
        assert_eq!(Capacity::decode_10(&b[4..]), Some(plain));
        assert_eq!(whole.encode_16()[..16], [0, 0, 0, 0, 0, 0, 0, 99, 0, 0, 2, 0, 0, 3, 0xc0, 0]);
        assert_eq!(plain.encode_10(), b[4..12]);
        (0..12).for_each(|n| assert_eq!(Capacity::decode_16(&b[..n]), None, "{n} bytes"));
        assert_eq!(Capacity::decode_16(&b[..13]), Some(plain));
        (0..8).for_each(|n| assert_eq!(Capacity::decode_10(&b[..n]), None, "{n} bytes"));
        assert_eq!(Capacity::decode_16(&[0xff; 12]).map(|c| c.blocks()), Some(u64::MAX));
        assert_eq!(Capacity::decode_10(&[0xff; 8]).map(|c| c.last_lba), Some(Capacity::BEYOND_10));
    }

    #[test]
    fn read_capacity_data_decode() {
        let mut b = [0; 32];
        b[7] = 99;
        b[10] = 2;
        (b[13], b[14]) = (3, 0xc0);
        let all: Vec<_> = fields::read(CAPACITY, &b).collect();
        assert_eq!(
            all[..2],
            [("last_lba", FieldValue::Number(99)), ("block_size_bytes", FieldValue::Number(512))]
        );
        assert_eq!(
            all[5..],
            [("thin", FieldValue::Flag(true)), ("unmapped_reads_zero", FieldValue::Flag(true))]
        );
    }

    #[test]
    fn last_lba_beyond_the_short_form_is_capped() {
        let large = Capacity { last_lba: 1 << 32, block_size: 512, ..Capacity::default() };
        assert_eq!(large.encode_10()[..4], [0xff; 4]);
        assert_eq!(Capacity::decode_16(&large.encode_16()), Some(large));
    }
}

//! Fields of the commands that address logical blocks (SBC-4).

use super::{Cdb, opcode};
use crate::be;
use crate::scsi::BitField;

/// First LBA and number of blocks of a CDB, by its group code (SPC-5 section 4.2.5.1). In a 6-byte CDB, 0 means 256
/// blocks.
///
/// # Panics
///
/// If the CDB is shorter than its group requires.
#[inline]
pub fn lba_range(cdb: &[u8]) -> (u64, u32) {
    match cdb[0] >> 5 {
        0 => {
            let lba = (be::get24(&cdb[1..]) & 0x1f_ffff) as u64;
            (lba, if cdb[4] == 0 { 256 } else { cdb[4] as u32 })
        }
        1 | 2 => (be::get32(&cdb[2..]) as u64, be::get16(&cdb[7..]) as u32),
        5 => (be::get32(&cdb[2..]) as u64, be::get32(&cdb[6..])),
        _ => (be::get64(&cdb[2..]), be::get32(&cdb[10..])),
    }
}

/// The number of blocks in a CDB, by its group code.
pub const fn length_field(opcode: u8) -> BitField {
    match opcode >> 5 {
        0 => BitField::bytes(4, 1),
        1 | 2 => BitField::bytes(7, 2),
        5 => BitField::bytes(6, 4),
        _ => BitField::bytes(10, 4),
    }
}

/// Writes what [`lba_range`] reads. A value wider than its field is cut. The other fields of a 6-byte CDB are zero.
#[inline]
pub(super) fn put_lba_range(cdb: &mut Cdb, lba: u64, blocks: u32) {
    match opcode(cdb) >> 5 {
        0 => {
            be::put24(&mut cdb[1..], lba as u32 & 0x1f_ffff);
            cdb[4] = blocks as u8;
        }
        1 | 2 => {
            be::put32(&mut cdb[2..], lba as u32);
            be::put16(&mut cdb[7..], blocks as u16);
        }
        5 => {
            be::put32(&mut cdb[2..], lba as u32);
            be::put32(&mut cdb[6..], blocks);
        }
        _ => {
            be::put64(&mut cdb[2..], lba);
            be::put32(&mut cdb[10..], blocks);
        }
    }
}

/// READ and WRITE (SBC-4 sections 5.17, 5.19, 5.40 and 5.42). Other commands have FUA and DPO in the same place.
pub mod read_write {
    use super::{BitField, Cdb};

    /// DPO: disable page out. A 6-byte CDB lacks it.
    pub const DPO: BitField = BitField::flag(1, 4);
    /// FUA: force unit access. A 6-byte CDB lacks it.
    pub const FUA: BitField = BitField::flag(1, 3);

    /// The bits of a 6-byte CDB beside LBA and length: reserved ones, and CONTROL.
    #[inline]
    pub const fn other_bits_6(cdb: &Cdb) -> u8 {
        cdb[1] & 0xe0 | cdb[5]
    }

    /// The bits of a 10-byte CDB beside DPO, FUA, GROUP NUMBER, LBA and length: protection, reserved ones, and CONTROL.
    #[inline]
    pub const fn other_bits_10(cdb: &Cdb) -> u8 {
        cdb[1] & !0x18 | cdb[6] & 0xe0 | cdb[9]
    }

    /// The same bits of a 12-byte CDB.
    #[inline]
    pub const fn other_bits_12(cdb: &Cdb) -> u8 {
        cdb[1] & !0x18 | cdb[10] & 0xe0 | cdb[11]
    }

    /// The same bits of a 16-byte CDB, and DLD.
    #[inline]
    pub const fn other_bits_16(cdb: &Cdb) -> u8 {
        cdb[1] & !0x18 | cdb[14] & 0xe0 | cdb[15]
    }
}

/// WRITE ATOMIC(16) (SBC-4).
pub mod write_atomic_16 {
    use super::BitField;

    /// TRANSFER LENGTH in blocks.
    pub const TRANSFER_LENGTH: BitField = BitField::bytes(12, 2);
}

/// COMPARE AND WRITE (SBC-4).
pub mod compare_and_write {
    use super::BitField;

    /// NUMBER OF LOGICAL BLOCKS.
    pub const NUMBER_OF_LOGICAL_BLOCKS: BitField = BitField::bytes(13, 1);
}

/// VERIFY, and WRITE AND VERIFY (SBC-4).
pub mod verify {
    use super::BitField;

    /// BYTCHK: the bytes to compare.
    pub const BYTCHK: BitField = BitField::bits(1, 2, 2);
}

/// WRITE SAME (SBC-4 section 5.53).
pub mod write_same {
    use super::BitField;

    /// ANCHOR: the blocks get storage.
    pub const ANCHOR: BitField = BitField::flag(1, 4);
    /// UNMAP: the blocks may be deallocated.
    pub const UNMAP: BitField = BitField::flag(1, 3);
    /// NDOB: no Data-Out buffer, and zeros instead. WRITE SAME(10) lacks it.
    pub const NDOB: BitField = BitField::flag(1, 0);
}

/// UNMAP (SBC-4 section 5.35).
pub mod unmap {
    use super::BitField;

    /// ANCHOR: the blocks get storage.
    pub const ANCHOR: BitField = BitField::flag(1, 0);
    /// PARAMETER LIST LENGTH in bytes.
    pub const PARAMETER_LIST_LENGTH: BitField = BitField::bytes(7, 2);
}

/// GET LBA STATUS(16) (SBC-4 section 5.6).
pub mod get_lba_status {
    use super::BitField;

    /// STARTING LOGICAL BLOCK ADDRESS.
    pub const STARTING_LBA: BitField = BitField::bytes(2, 8);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(10, 4);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_keeps_its_lba_and_length_elsewhere() {
        let mut cdb: Cdb = std::array::from_fn(|i| i as u8);
        for (opcode, lba, blocks) in [
            (0x08, 0x010203, 4),
            (0x28, 0x02030405, 0x0708),
            (0x41, 0x02030405, 0x0708),
            (0xa8, 0x02030405, 0x06070809),
            (0x88, 0x0203040506070809, 0x0a0b0c0d),
        ] {
            cdb[0] = opcode;
            assert_eq!(lba_range(&cdb), (lba, blocks), "{opcode:02x}");
            assert_eq!(length_field(opcode).get_u32(&cdb), blocks, "{opcode:02x}");
            let mut other = super::super::cdb(opcode);
            put_lba_range(&mut other, lba, blocks);
            assert_eq!(lba_range(&other), (lba, blocks), "{opcode:02x}");
            let field: [u8; 16] = std::array::from_fn(|i| if other[i] == 0 { 0 } else { cdb[i] });
            assert_eq!(other, field, "{opcode:02x}");
        }
        assert_eq!(lba_range(&[8, 0xff, 0, 0, 0]), (0x1f0000, 256));
    }
}

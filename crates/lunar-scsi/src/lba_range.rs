//! LBA and length of the commands that address the medium, from any CDB format.

use crate::{LuSettings, State};
use lunar_wire::be;
use lunar_wire::scsi::Sense;

/// Maximum number of bytes that one command transfers (MAXIMUM TRANSFER LENGTH of VPD B0h).
pub(crate) const MAX_TRANSFER: u32 = 32 << 20;

/// The blocks that a CDB addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LbaRange {
    pub(crate) lba: u64,
    pub(crate) blocks: u32,
}

impl LbaRange {
    /// Decodes a CDB by its group code (SPC-5 section 4.2.5.1). In a 6-byte CDB, 0 means 256 blocks.
    #[inline]
    pub(crate) fn of(cdb: &[u8]) -> LbaRange {
        match cdb[0] >> 5 {
            0 => {
                let lba = (be::get24(&cdb[1..]) & 0x1f_ffff) as u64;
                LbaRange { lba, blocks: if cdb[4] == 0 { 256 } else { cdb[4] as u32 } }
            }
            1 | 2 => LbaRange { lba: be::get32(&cdb[2..]) as u64, blocks: be::get16(&cdb[7..]) as u32 },
            5 => LbaRange { lba: be::get32(&cdb[2..]) as u64, blocks: be::get32(&cdb[6..]) },
            _ => LbaRange { lba: be::get64(&cdb[2..]), blocks: be::get32(&cdb[10..]) },
        }
    }

    /// The byte of the CDB that begins the number of blocks, for field pointers.
    pub(crate) fn length_field(cdb: &[u8]) -> u16 {
        match cdb[0] >> 5 {
            0 => 4,
            1 | 2 => 7,
            5 => 6,
            _ => 10,
        }
    }

    /// Whether the range ends within the medium. An empty range may begin right after the last block.
    #[inline]
    pub(crate) fn fits(&self, capacity: u64) -> bool {
        self.lba.checked_add(self.blocks as u64).is_some_and(|end| end <= capacity)
    }

    /// Fails with LBA OUT OF RANGE and the first LBA beyond the medium.
    pub(crate) fn check(&self, state: &State) -> Result<(), Sense> {
        if self.fits(state.blocks) {
            return Ok(());
        }
        Err(Sense::LBA_OUT_OF_RANGE.at(self.lba.max(state.blocks)))
    }

    /// First byte and length in bytes of the range. Fails if it exceeds [`MAX_TRANSFER`]. The caller has called
    /// [`LbaRange::check`].
    pub(crate) fn transfer(&self, cdb: &[u8], settings: &LuSettings) -> Result<(u64, u32), Sense> {
        if self.blocks > MAX_TRANSFER / settings.block_size {
            return Err(Sense::cdb_field(LbaRange::length_field(cdb), 7));
        }
        Ok((self.lba * settings.block_size as u64, self.blocks * settings.block_size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_keeps_its_fields_elsewhere() {
        let mut cdb: [u8; 16] = std::array::from_fn(|i| i as u8);
        for (opcode, lba, blocks) in [
            (0x08, 0x010203, 4),
            (0x28, 0x02030405, 0x0708),
            (0x41, 0x02030405, 0x0708),
            (0xa8, 0x02030405, 0x06070809),
            (0x88, 0x0203040506070809, 0x0a0b0c0d),
        ] {
            cdb[0] = opcode;
            assert_eq!(LbaRange::of(&cdb), LbaRange { lba, blocks }, "{opcode:02x}");
        }
        assert_eq!(LbaRange::of(&[8, 0xff, 0, 0, 0]), LbaRange { lba: 0x1f0000, blocks: 256 });
    }

    #[test]
    fn end_beyond_64_bits_does_not_fit() {
        assert!(!LbaRange { lba: u64::MAX, blocks: 2 }.fits(u64::MAX));
        assert!(LbaRange { lba: 10, blocks: 0 }.fits(10));
        assert!(!LbaRange { lba: 11, blocks: 0 }.fits(10));
    }
}

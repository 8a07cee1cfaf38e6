//! LBA and length of the commands that address the medium, from any CDB format.

use crate::{LuSettings, State};
use lunar_wire::scsi::{Sense, cdb};

/// Maximum number of bytes that one command transfers (MAXIMUM TRANSFER LENGTH of VPD B0h).
pub(crate) const MAX_TRANSFER: u32 = 32 << 20;

/// The blocks that a CDB addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LbaRange {
    pub(crate) lba: u64,
    pub(crate) blocks: u32,
}

impl LbaRange {
    /// The range of a CDB of any group.
    #[inline]
    pub(crate) fn of(cdb: &[u8]) -> LbaRange {
        let (lba, blocks) = cdb::lba_range(cdb);
        LbaRange { lba, blocks }
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
            return Err(Sense::in_cdb(cdb::length_field(cdb::opcode(cdb))));
        }
        Ok((self.lba * settings.block_size as u64, self.blocks * settings.block_size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_beyond_64_bits_does_not_fit() {
        assert!(!LbaRange { lba: u64::MAX, blocks: 2 }.fits(u64::MAX));
        assert!(LbaRange { lba: 10, blocks: 0 }.fits(10));
        assert!(!LbaRange { lba: 11, blocks: 0 }.fits(10));
    }
}

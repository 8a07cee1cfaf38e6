//! The byte ranges that a segment of EXTENDED COPY copies.

use super::MAX_SEGMENT_LEN;
use crate::dispatch::{Requester, passes_checks};
use crate::{CopySegment, Nexus};
use lunar_wire::scsi::copy::segment_descriptor::{BYTES, DESTINATION, DESTINATION_LBA, SOURCE, SOURCE_LBA};
use lunar_wire::scsi::{BitField, Sense, op};

/// The byte ranges of a segment on both media, within their capacities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRange {
    /// First byte on the source.
    pub source: u64,
    /// First byte on the destination.
    pub destination: u64,
    /// Length in bytes, at most 256 MiB; may be 0.
    pub len: u64,
}

/// Block size in bytes, and number of blocks, of a medium.
#[derive(Clone, Copy)]
struct CopyMedium {
    block_size: u64,
    blocks: u64,
}

impl CopySegment {
    /// The bytes that this segment copies. `number` is its index in the list. `source` and `destination` are the
    /// nexuses of the command's session with the named logical units. If the session has none with one of them, the
    /// copy fails with [`CopySegment::unreachable`].
    ///
    /// # Errors
    /// The nexus may not read the source or write the destination now, the block sizes do not match, or a range
    /// extends beyond its medium.
    pub fn range(&self, number: u16, source: &Nexus, destination: &Nexus) -> Result<CopyRange, Sense> {
        let from = medium(source, op::READ_10).ok_or(self.unreachable(number))?;
        let to = medium(destination, op::WRITE_10)
            .ok_or(Sense::COPY_TARGET_UNREACHABLE.segment(number, DESTINATION.byte()))?;
        self.between(from, to).map_err(|(sense, field)| sense.segment(number, field.byte()))
    }

    /// The sense data if a segment names a logical unit that the session cannot access.
    pub fn unreachable(&self, number: u16) -> Sense {
        Sense::COPY_TARGET_UNREACHABLE.segment(number, SOURCE.byte())
    }

    /// An error contains the field of the segment descriptor at fault.
    fn between(&self, from: CopyMedium, to: CopyMedium) -> Result<CopyRange, (Sense, BitField)> {
        for (block_size, medium, field) in
            [(self.source_block_size, from, SOURCE), (self.destination_block_size, to, DESTINATION)]
        {
            if block_size != 0 && block_size as u64 != medium.block_size {
                return Err((Sense::COPY_WRONG_TARGET, field));
            }
        }
        let counted = if self.count_by_destination { to } else { from };
        let len = self.blocks.checked_mul(counted.block_size).filter(|l| *l <= MAX_SEGMENT_LEN as u64);
        let len = len.ok_or((Sense::COPY_ABORTED, BYTES))?;
        if len % from.block_size != 0 || len % to.block_size != 0 {
            return Err((Sense::COPY_INEXACT_SEGMENT, BYTES));
        }
        Ok(CopyRange {
            source: from.offset(self.source_lba, len).ok_or((Sense::COPY_ABORTED, SOURCE_LBA))?,
            destination: to
                .offset(self.destination_lba, len)
                .ok_or((Sense::COPY_ABORTED, DESTINATION_LBA))?,
            len,
        })
    }
}

impl CopyMedium {
    /// The first byte of a range that begins at block `lba`; `None` if the range extends beyond the medium.
    fn offset(&self, lba: u64, len: u64) -> Option<u64> {
        let end = lba.checked_add(len / self.block_size)?;
        (end <= self.blocks).then(|| lba * self.block_size)
    }
}

/// The medium of a nexus; `None` if a command with this operation code would be rejected now.
fn medium(nexus: &Nexus, opcode: u8) -> Option<CopyMedium> {
    let lu = nexus.lu();
    let state = lu.change();
    let requester = Requester { id: nexus.id(), port: nexus.port(), read_only: nexus.read_only() };
    passes_checks(opcode, &state, &lu.settings(), requester)
        .then_some(CopyMedium { block_size: lu.settings().block_size as u64, blocks: state.blocks })
}

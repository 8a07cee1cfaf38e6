//! Copy within a namespace, as EXTENDED COPY of a logical unit to itself.

use super::commands::NvmAction;
use lunar_wire::nvme::{NvmeStatus, Sqe};
use lunar_wire::scsi::copy::BlockSegment;

/// Bytes of a source range of format 0.
const SOURCE_RANGE: usize = 32;
/// The most source ranges of a command (MSRC, which is 0-based in Identify Namespace).
pub const MAX_COPY_RANGES: usize = 64;
/// The most bytes of a source range. A range of this length is read before it is written, so it may overlap its destination.
const MAX_RANGE_LEN: u32 = 1 << 20;

/// The descriptor format, in command dword 12.
const fn format(dword: u32) -> u32 {
    dword >> 8 & 0xf
}

/// The most blocks of a source range (MSSRL).
pub fn max_copy_range(block_size: u32) -> u16 {
    MAX_RANGE_LEN.checked_div(block_size).unwrap_or(0).min(u16::MAX.into()) as u16
}

/// The most blocks of a Copy command (MCL).
pub fn max_copy_blocks(block_size: u32) -> u32 {
    MAX_COPY_RANGES as u32 * u32::from(max_copy_range(block_size))
}

/// Checks a Copy command without its data.
pub(super) fn translate(sqe: &Sqe) -> Result<NvmAction, NvmeStatus> {
    let ranges = (sqe.dword(12) & 0xff) as usize + 1;
    if format(sqe.dword(12)) != 0 {
        return Err(NvmeStatus::INVALID_FIELD);
    }
    if ranges > MAX_COPY_RANGES {
        return Err(NvmeStatus::COMMAND_SIZE_LIMIT);
    }
    let len = sqe.data().len;
    match len as usize == ranges * SOURCE_RANGE {
        true => Ok(NvmAction::Copy { ranges, from_host: len }),
        false => Err(NvmeStatus::SGL_INVALID_LENGTH),
    }
}

/// The segments of a Copy command for a namespace with `blocks` blocks of `block_size` bytes. `data` are its source ranges.
///
/// # Errors
/// The status of the command: its fields or its data are invalid, a limit is exceeded, or a range is beyond the namespace.
pub fn copy_segments(
    sqe: &Sqe,
    data: &[u8],
    block_size: u32,
    blocks: u64,
) -> Result<Vec<BlockSegment>, NvmeStatus> {
    let NvmAction::Copy { ranges, .. } = translate(sqe)? else { return Err(NvmeStatus::INVALID_OPCODE) };
    let (entries, _) = data.as_chunks::<SOURCE_RANGE>();
    let entries = entries.get(..ranges).ok_or(NvmeStatus::SGL_INVALID_LENGTH)?;
    let mut destination_lba = sqe.lba();
    let segment = |entry: &[u8; SOURCE_RANGE]| {
        let segment = BlockSegment { destination_lba, ..source(entry, block_size)? };
        let len = u64::from(segment.blocks);
        let end = |lba: u64| lba.checked_add(len).filter(|end| *end <= blocks);
        let (Some(_), Some(next)) = (end(segment.source_lba), end(destination_lba)) else {
            return Err(NvmeStatus::LBA_OUT_OF_RANGE);
        };
        destination_lba = next;
        Ok(segment)
    };
    entries.iter().map(segment).collect()
}

/// The source of a segment. The number of blocks is 0-based on the wire.
fn source(entry: &[u8; SOURCE_RANGE], block_size: u32) -> Result<BlockSegment, NvmeStatus> {
    let [_, _, _, _, _, _, _, _, l0, l1, l2, l3, l4, l5, l6, l7, n0, n1, ..] = *entry;
    let blocks = u32::from(u16::from_le_bytes([n0, n1])) + 1;
    if blocks > max_copy_range(block_size).into() {
        return Err(NvmeStatus::COMMAND_SIZE_LIMIT);
    }
    let source_lba = u64::from_le_bytes([l0, l1, l2, l3, l4, l5, l6, l7]);
    Ok(BlockSegment { blocks: blocks as u16, source_lba, destination_lba: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_wire::nvme::{SglDescriptor, nvm_opcode};

    fn command(lba: u64, ranges: u32) -> Sqe {
        let sqe = Sqe::new(nvm_opcode::COPY, 1, 1).with_data(SglDescriptor::transport(ranges * 32));
        sqe.with_dword(10, lba as u32).with_dword(11, (lba >> 32) as u32).with_dword(12, ranges - 1)
    }

    fn range(lba: u64, blocks: u32) -> Vec<u8> {
        let count = (blocks - 1) as u16;
        [&[9; 8][..], &lba.to_le_bytes(), &count.to_le_bytes(), &[9; 14]].concat()
    }

    #[test]
    fn ranges_follow_each_other_at_the_destination() {
        let data = [range(7, 1), range(0x1_0000_0000, 8)].concat();
        let segment =
            |source_lba, destination_lba, blocks| BlockSegment { blocks, source_lba, destination_lba };
        let found = copy_segments(&command(100, 2), &data, 512, 1 << 40);
        assert_eq!(found, Ok(vec![segment(7, 100, 1), segment(0x1_0000_0000, 101, 8)]));
    }

    #[test]
    fn limits_are_those_of_the_block_size() {
        assert_eq!([512, 4096].map(max_copy_range), [2048, 256]);
        assert_eq!([512, 4096].map(max_copy_blocks), [64 * 2048, 64 * 256]);
        let copy = |data: &[u8], block_size| copy_segments(&command(0, 1), data, block_size, 1 << 40).err();
        assert_eq!(copy(&range(0, 2048), 512), None);
        assert_eq!(copy(&range(0, 2049), 512), Some(NvmeStatus::COMMAND_SIZE_LIMIT));
        assert_eq!(copy(&range(0, 257), 4096), Some(NvmeStatus::COMMAND_SIZE_LIMIT));
        assert_eq!(translate(&command(0, 64)), Ok(NvmAction::Copy { ranges: 64, from_host: 2048 }));
        assert_eq!(translate(&command(0, 65)), Err(NvmeStatus::COMMAND_SIZE_LIMIT));
    }

    #[test]
    fn invalid_commands_are_refused() {
        let format_1 = command(0, 1).with_dword(12, 1 << 8);
        assert_eq!(translate(&format_1), Err(NvmeStatus::INVALID_FIELD));
        for len in [0, 31, 64] {
            let sqe = command(0, 1).with_data(SglDescriptor::transport(len));
            assert_eq!(translate(&sqe), Err(NvmeStatus::SGL_INVALID_LENGTH));
        }
        let short = copy_segments(&command(0, 2), &range(0, 1), 512, 100);
        assert_eq!(short, Err(NvmeStatus::SGL_INVALID_LENGTH));
    }

    #[test]
    fn ranges_beyond_the_namespace_are_refused() {
        for (source, destination, is_fine) in
            [(92, 92, true), (93, 0, false), (0, 93, false), (u64::MAX, 0, false), (0, u64::MAX, false)]
        {
            let found = copy_segments(&command(destination, 1), &range(source, 8), 512, 100);
            let expected = if is_fine { None } else { Some(NvmeStatus::LBA_OUT_OF_RANGE) };
            assert_eq!(found.err(), expected, "{source} {destination}");
        }
        // The second range does not fit behind the first one.
        let data = [range(0, 8), range(0, 1)].concat();
        assert_eq!(copy_segments(&command(92, 2), &data, 512, 100), Err(NvmeStatus::LBA_OUT_OF_RANGE));
    }
}

//! The data of GET LBA STATUS (SBC-4 section 5.9): the provisioning status of blocks.

use lunar_block::Extent;
use lunar_wire::scsi::report::{self, LbaStatusDescriptor};
use std::ops::Range;

/// The minimum number of requested descriptors. A target with small extents returns many with the same state in a row.
const FEWEST: usize = 64;
/// The maximum number of requested descriptors.
const MAX: usize = 256;

/// The allocation length for this number of extents.
pub fn room(extents: usize) -> usize {
    LbaStatusDescriptor::list_len(extents.clamp(FEWEST, MAX))
}

/// The extents from the start of `bytes` up to the first gap. Adjacent extents of the same state are merged.
pub fn extents(data: &[u8], block_size: u64, bytes: Range<u64>) -> Vec<Extent> {
    let mut found: Vec<Extent> = Vec::new();
    let mut at = bytes.start;
    for (start, end, mapped) in report::extents(data).map(|d| extent(d, block_size)) {
        // Only the first one may begin before `bytes`.
        let joins = start == at || (found.is_empty() && start < at);
        let end = end.min(bytes.end);
        if !joins || end <= at {
            break;
        }
        let len = end - at;
        match found.last_mut() {
            Some(last) if last.mapped == mapped => last.len += len,
            _ => found.push(Extent { offset: at, len, mapped }),
        }
        at = end;
    }
    found
}

/// First byte, end, and whether the extent is mapped. Only deallocated blocks are unmapped: an anchored block has
/// storage.
fn extent(descriptor: LbaStatusDescriptor, block_size: u64) -> (u64, u64, bool) {
    let byte = |lba: u64| lba.saturating_mul(block_size);
    let end = descriptor.lba.saturating_add(descriptor.blocks.into());
    (byte(descriptor.lba), byte(end), !descriptor.is_deallocated())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes descriptors: LBA, number of blocks, provisioning status.
    fn answer(all: &[(u64, u32, u8)]) -> Vec<u8> {
        let descriptor = |(lba, blocks, state): &(u64, u32, u8)| {
            [&lba.to_be_bytes()[..], &blocks.to_be_bytes(), &[*state, 0, 0, 0]].concat()
        };
        let list: Vec<u8> = all.iter().flat_map(descriptor).collect();
        [&(list.len() as u32 + 4).to_be_bytes()[..], &[0; 4], &list].concat()
    }

    /// First block, number of blocks, and whether they are mapped.
    fn block_extents(data: &[u8], from: u64, to: u64) -> Vec<(u64, u64, bool)> {
        let found = extents(data, 512, from * 512..to * 512);
        found.iter().map(|e| (e.offset / 512, e.len / 512, e.mapped)).collect()
    }

    const END: u64 = 1 << 20;

    #[test]
    fn extents_of_one_state_that_touch_are_one() {
        let all = [(8, 8, 0), (16, 8, 2), (24, 8, 1), (32, 8, 0)];
        assert_eq!(block_extents(&answer(&all), 9, END), [(9, 15, true), (24, 8, false), (32, 8, true)]);
        assert_eq!(
            block_extents(&answer(&all[2..]), 24, 30),
            [(24, 6, false)],
            "clipped to the requested range"
        );
        assert_eq!(block_extents(&answer(&all), 9, 24), [(9, 15, true)]);
        let apart = [(0, 8, 1), (16, 8, 1)];
        assert_eq!(block_extents(&answer(&apart), 0, END), [(0, 8, false)], "a gap ends the list");
        let turning = [(0, 8, 1), (8, 0, 1), (8, 8, 1)];
        assert_eq!(
            block_extents(&answer(&turning), 0, END),
            [(0, 8, false)],
            "an empty extent ends the list"
        );
        let back = [(0, 8, 1), (4, 8, 0)];
        assert_eq!(
            block_extents(&answer(&back), 0, END),
            [(0, 8, false)],
            "an overlapping extent ends the list"
        );
    }

    #[test]
    fn missing_report_means_unknown() {
        for all in [&[(9, 8, 1)][..], &[(0, 8, 1)], &[(8, 0, 1)], &[]] {
            assert!(block_extents(&answer(all), 8, END).is_empty(), "{all:?}");
        }
        let whole = answer(&[(0, 8, 1), (8, 8, 1)]);
        let blocks = |n: usize| block_extents(&whole[..n], 0, END).first().map(|extent| extent.1);
        (0..24).for_each(|n| assert_eq!(blocks(n), None, "{n} bytes"));
        (24..40).for_each(|n| assert_eq!(blocks(n), Some(8), "{n} bytes"));
        assert_eq!(blocks(40), Some(16));
        let mut short = whole;
        short[3] = 20;
        assert_eq!(
            block_extents(&short, 0, END),
            [(0, 8, false)],
            "bytes beyond the parameter data length are ignored"
        );
        assert!(block_extents(&answer(&[(u64::MAX - 1, u32::MAX, 0)]), 0, END).is_empty());
    }
}

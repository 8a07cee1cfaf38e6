//! What GET LBA STATUS answers (SBC-4 section 5.9): which blocks have storage.

use wire::be;

/// Bytes before the descriptors, and of one of them.
const HEAD: usize = 8;
const DESCRIPTOR: usize = 16;
/// Bytes that are asked for: 64 descriptors. A target with small extents has many of the same state in a row.
pub const LEN: usize = HEAD + 64 * DESCRIPTOR;

/// How many bytes from `offset` on are alike, and whether they are mapped; None if the answer does not tell.
pub fn first(answer: &[u8], block_size: u64, offset: u64) -> Option<(u64, bool)> {
    let told = answer.get(..4).map_or(0, be::get32) as usize + 4;
    let list = answer.get(HEAD..told.min(answer.len()))?;
    let mut all = list.chunks_exact(DESCRIPTOR).map(|d| extent(d, block_size));
    let (start, mut end, mapped) = all.next()?;
    if start > offset || end <= offset {
        return None;
    }
    for (start, next, _) in all.take_while(|(.., other)| *other == mapped) {
        if start != end || next <= end {
            break;
        }
        end = next;
    }
    Some((end - offset, mapped))
}

/// First byte, end, and whether it is mapped: deallocated is the one state that is not; an anchored block has storage.
fn extent(descriptor: &[u8], block_size: u64) -> (u64, u64, bool) {
    let (lba, blocks) = (be::get64(descriptor), u64::from(be::get32(&descriptor[8..])));
    let byte = |lba: u64| lba.saturating_mul(block_size);
    (byte(lba), byte(lba.saturating_add(blocks)), descriptor[12] & 0x0f != 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LBA, blocks, provisioning status.
    fn answer(all: &[(u64, u32, u8)]) -> Vec<u8> {
        let descriptor = |(lba, blocks, state): &(u64, u32, u8)| {
            [&lba.to_be_bytes()[..], &blocks.to_be_bytes(), &[*state, 0, 0, 0]].concat()
        };
        let list: Vec<u8> = all.iter().flat_map(descriptor).collect();
        [&(list.len() as u32 + 4).to_be_bytes()[..], &[0; 4], &list].concat()
    }

    #[test]
    fn extents_of_one_state_that_touch_are_one() {
        let all = [(8, 8, 0), (16, 8, 2), (24, 8, 1), (32, 8, 0)];
        assert_eq!(first(&answer(&all), 512, 4608), Some((15 * 512, true)), "from the second block on");
        assert_eq!(first(&answer(&all[2..]), 512, 24 * 512), Some((8 * 512, false)));
        let apart = [(0, 8, 1), (16, 8, 1)];
        assert_eq!(first(&answer(&apart), 512, 0), Some((8 * 512, false)), "what lies between is not told");
        let turning = [(0, 8, 1), (8, 0, 1), (8, 8, 1)];
        assert_eq!(first(&answer(&turning), 512, 0), Some((8 * 512, false)), "an extent of nothing ends it");
    }

    #[test]
    fn what_is_not_told_is_not_known() {
        for all in [&[(9, 8, 1)][..], &[(0, 8, 1)], &[(8, 0, 1)], &[]] {
            assert_eq!(first(&answer(all), 512, 4096), None, "{all:?}");
        }
        let whole = answer(&[(0, 8, 1), (8, 8, 1)]);
        let told = |n: usize| first(&whole[..n], 512, 0).map(|(len, _)| len / 512);
        (0..24).for_each(|n| assert_eq!(told(n), None, "{n} bytes"));
        (24..40).for_each(|n| assert_eq!(told(n), Some(8), "{n} bytes"));
        assert_eq!(told(40), Some(16));
        let mut short = whole;
        short[3] = 20;
        assert_eq!(first(&short, 512, 0), Some((8 * 512, false)), "what lies behind the list is none of it");
        assert_eq!(first(&answer(&[(u64::MAX - 1, u32::MAX, 0)]), 512, 0), None);
    }
}

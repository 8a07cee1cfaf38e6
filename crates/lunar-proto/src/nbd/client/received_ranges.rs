//! The received bytes of a read.

/// Maximum number of separate ranges while a read's chunks arrive out of order.
const MAX_PIECES: usize = 1024;

/// The received bytes of a read: a prefix, and separate ranges after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceivedRanges {
    prefix: u32,
    /// Start and end of each range, in ascending order. No two ranges touch, and none touches the prefix.
    pieces: Vec<(u32, u32)>,
}

impl ReceivedRanges {
    /// Adds a range that is not empty. Fails if it overlaps a received range, or if there are too many separate
    /// ranges.
    pub fn add(&mut self, start: u32, end: u32) -> Result<(), &'static str> {
        let at = self.pieces.partition_point(|piece| piece.1 <= start);
        if start < self.prefix || self.pieces.get(at).is_some_and(|next| next.0 < end) {
            return Err("a reply to a read has overlapping chunks");
        }
        let joins_next = self.pieces.get(at).is_some_and(|next| next.0 == end);
        let end = if joins_next { self.pieces.remove(at).1 } else { end };
        if start == self.prefix {
            self.prefix = end;
        } else if at > 0 && self.pieces[at - 1].1 == start {
            self.pieces[at - 1].1 = end;
        } else if self.pieces.len() < MAX_PIECES {
            self.pieces.insert(at, (start, end));
        } else {
            return Err("a reply to a read has too many chunks out of order");
        }
        Ok(())
    }

    /// Whether all of `len` bytes were received.
    pub fn is_whole(&self, len: u32) -> bool {
        self.prefix == len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn received_bytes_match_a_byte_map(spans in prop::collection::vec((0u32..64, 1u32..16), 0..40)) {
            let (mut covered, mut map) = (ReceivedRanges::default(), [false; 80]);
            for (start, len) in spans {
                let bytes = &mut map[start as usize..(start + len) as usize];
                let free = bytes.iter().all(|byte| !byte);
                prop_assert_eq!(covered.add(start, start + len).is_ok(), free);
                if free {
                    bytes.fill(true);
                }
                for whole in 0..80u32 {
                    let prefix = map.iter().take_while(|byte| **byte).count();
                    prop_assert_eq!(covered.is_whole(whole), prefix == whole as usize);
                }
            }
        }
    }

    #[test]
    fn number_of_ranges_is_bounded() {
        let mut covered = ReceivedRanges::default();
        let last = (1..=MAX_PIECES as u32 + 1).map(|n| covered.add(2 * n, 2 * n + 1)).find(Result::is_err);
        assert_eq!(last, Some(Err("a reply to a read has too many chunks out of order")));
        assert_eq!(covered.pieces.len(), MAX_PIECES);
    }
}

//! Finding zeros.

use lunar_block::offload::GRANULE;
use std::ops::Range;

/// Whether all bytes are zero. Compares the bytes with themselves, shifted by one, because memcmp is fast.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    match bytes {
        [first, rest @ ..] => *first == 0 && *rest == bytes[..rest.len()],
        [] => true,
    }
}

/// The alternating runs of zero granules and other granules over the whole of `bytes`.
pub(crate) fn runs(bytes: &[u8]) -> Vec<(Range<usize>, bool)> {
    let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
    for (n, granule) in bytes.chunks(GRANULE as usize).enumerate() {
        let start = n * GRANULE as usize;
        let (end, zero) = (start + granule.len(), is_zero(granule));
        match runs.last_mut() {
            Some((last, kind)) if *kind == zero => last.end = end,
            _ => runs.push((start..end, zero)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_zeros_to_the_last_byte() {
        assert!(is_zero(&[]) && is_zero(&[0]) && is_zero(&[0; 4097]));
        for place in [0, 1, 2048, 4096] {
            let mut bytes = [0; 4097];
            bytes[place] = 1;
            assert!(!is_zero(&bytes), "{place}");
        }
        assert!(!is_zero(&[7; 16]));
    }

    #[test]
    fn runs_cover_everything_in_turn() {
        let g = GRANULE as usize;
        let mut bytes = vec![0; 5 * g + 10];
        bytes[2 * g + 5] = 1;
        bytes[3 * g] = 1;
        assert_eq!(runs(&bytes), [(0..2 * g, true), (2 * g..4 * g, false), (4 * g..5 * g + 10, true)]);
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[1]), [(0..1, false)]);
    }
}

//! Scatters popular offsets over a disk: a permutation of their numbers.

const ROUNDS: u64 = 4;
/// The key; round `n` adds it `n` times.
const KEY: u64 = 0x9e37_79b9_7f4a_7c15;

/// Maps a number below `count` to another number below it. It is a bijection: a Feistel network on the smallest
/// even number of bits. A result of `count` or more passes through the network again (cycle walking), on
/// average at most four times in all.
pub fn scatter(number: u64, count: u64) -> u64 {
    let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
    let half = bits.div_ceil(2).max(1);
    let mask = u64::MAX >> (u64::BITS - half);
    let mut at = number;
    loop {
        let (mut left, mut right) = (at >> half, at & mask);
        for round in 1..=ROUNDS {
            (left, right) = (right, left ^ (mix(right.wrapping_add(KEY.wrapping_mul(round))) & mask));
        }
        at = (left << half) | right;
        if at < count {
            return at;
        }
    }
}

/// The finalizer of SplitMix64: each input bit may change each output bit.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scatter_is_a_permutation() {
        for count in [1, 2, 3, 5, 255, 256, 257, 1000, 1024] {
            let mut places: Vec<u64> = (0..count).map(|number| scatter(number, count)).collect();
            places.sort_unstable();
            assert_eq!(places, (0..count).collect::<Vec<_>>(), "{count}");
        }
        assert!(scatter(u64::MAX - 1, u64::MAX) < u64::MAX);
    }

    #[test]
    fn ten_most_popular_are_not_adjacent() {
        for count in [1000, 1024, 1 << 18] {
            let mut places: Vec<u64> = (0..10).map(|number| scatter(number, count)).collect();
            places.sort_unstable();
            assert!(places.windows(2).all(|two| two[1] - two[0] > 1), "{count}: {places:?}");
        }
    }
}

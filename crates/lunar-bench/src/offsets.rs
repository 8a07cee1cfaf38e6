//! The choice of the next command: offset, length and direction.

use crate::job::{AccessPattern, IoDirection, Job};
use crate::scatter::scatter;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};

/// The next command of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextCommand {
    /// Whether it reads; otherwise it writes.
    pub read: bool,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// Generates the commands of one session.
pub struct OffsetGenerator {
    random: SmallRng,
    order: AccessPattern,
    zipf: Option<Zipf<f64>>,
    direction: IoDirection,
    /// Whether the last command was a read, if directions alternate. The first one writes.
    was_read: bool,
    sizes: Vec<(u32, u32)>,
    weights: u32,
    granule: u64,
    /// First byte.
    first: u64,
    /// Bytes from there.
    span: u64,
    /// A length, and the number of offsets at which a command of this length can start.
    places: (u32, u64),
    /// The next sequential offset, relative to `first`, one for each direction that advances independently.
    cursors: [u64; 2],
}

impl OffsetGenerator {
    /// Creates the generator of session `index`, which is number `position` of `total` with its target. It uses
    /// `span` bytes from `first`, which hold at least the longest command.
    pub fn new(
        job: &Job,
        first: u64,
        span: u64,
        index: usize,
        (position, total): (usize, usize),
    ) -> OffsetGenerator {
        let granule = job.granule();
        let places = (span / granule).max(1);
        let longest = job.longest();
        let zipf = match job.order {
            AccessPattern::Zipf(theta) => Zipf::new(places as f64, theta).ok(),
            _ => None,
        };
        let begin = (u128::from(places) * position as u128 / total.max(1) as u128) as u64 * granule;
        OffsetGenerator {
            random: SmallRng::seed_from_u64(job.stream_seed(index as u64)),
            order: job.order,
            zipf,
            direction: job.direction,
            was_read: true,
            weights: job.sizes.iter().map(|size| size.1).sum(),
            sizes: job.sizes.clone(),
            granule,
            first,
            span,
            places: (longest, places_of(span, longest, granule)),
            cursors: [begin; 2],
        }
    }

    /// The next command, of at most `left` bytes. Only [`IoDirection::Both`] uses `read`.
    pub fn next(&mut self, read: bool, left: u64) -> NextCommand {
        let read = match self.direction {
            IoDirection::Read => true,
            IoDirection::Write => false,
            IoDirection::Mix(percent) => self.random.random_range(0..100) < percent,
            IoDirection::Both => read,
            IoDirection::Turns => !self.was_read,
        };
        self.was_read = read;
        // Shorten the command first: a rest may fit only at the end of the span.
        let len = u64::from(self.len()).min(left) as u32;
        let at = match self.order {
            AccessPattern::Sequential => self.next_sequential(read, len, u64::from(len)),
            AccessPattern::Strided(stride) => self.next_sequential(read, len, stride),
            AccessPattern::Random => {
                let places = self.places(len);
                self.random.random_range(0..places) * self.granule
            }
            AccessPattern::Zipf(_) => self.next_zipf(len),
        };
        NextCommand { read, offset: self.first + at, len }
    }

    fn len(&mut self) -> u32 {
        if let [(len, _)] = self.sizes[..] {
            return len;
        }
        let mut lot = self.random.random_range(0..self.weights);
        for (len, weight) in &self.sizes {
            match lot.checked_sub(*weight) {
                Some(rest) => lot = rest,
                None => return *len,
            }
        }
        self.sizes[0].0
    }

    /// The number of offsets at which a command of this length can start. A division takes longer than the rest of
    /// the choice, so the last result is kept.
    fn places(&mut self, len: u32) -> u64 {
        if self.places.0 != len {
            self.places = (len, places_of(self.span, len, self.granule));
        }
        self.places.1
    }

    fn next_sequential(&mut self, read: bool, len: u32, step: u64) -> u64 {
        // As in fio, reads and writes of a mix share one sequential position.
        let goes_alone = matches!(self.direction, IoDirection::Both | IoDirection::Turns);
        let cursor = &mut self.cursors[usize::from(goes_alone && read)];
        let at = if *cursor + u64::from(len) > self.span { 0 } else { *cursor };
        *cursor = at + step;
        at
    }

    fn next_zipf(&mut self, len: u32) -> u64 {
        // The most popular offset has rank 1.
        let rank = self.zipf.map_or(1.0, |zipf| zipf.sample(&mut self.random)) as u64;
        let places = self.places(len);
        scatter(rank.saturating_sub(1) % places, places) * self.granule
    }
}

fn places_of(span: u64, len: u32, granule: u64) -> u64 {
    (span - u64::from(len)) / granule + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn offsets(job: &Job, span: u64, index: usize, count: usize) -> OffsetGenerator {
        OffsetGenerator::new(job, 0, span, index, (index, count))
    }

    fn visited(offsets: &mut OffsetGenerator, n: usize) -> Vec<u64> {
        (0..n).map(|_| offsets.next(true, u64::MAX).offset).collect()
    }

    #[test]
    fn sequential_offsets_wrap_at_the_end() {
        let job = Job { sizes: vec![(512, 1)], ..Job::default() };
        assert_eq!(visited(&mut offsets(&job, 1600, 0, 1), 5), [0, 512, 1024, 0, 512]);
        assert_eq!(visited(&mut offsets(&job, 2048, 1, 2), 3), [1024, 1536, 0]);
        let strided = Job { order: AccessPattern::Strided(1024), ..job };
        assert_eq!(visited(&mut offsets(&strided, 2048, 0, 1), 3), [0, 1024, 0]);
    }

    #[test]
    fn short_last_command_is_at_the_end() {
        let job = Job { sizes: vec![(512, 1)], ..Job::default() };
        let mut offsets = offsets(&job, 1600, 0, 1);
        let visited: Vec<(u64, u32)> = [1600, 1088, 576, 64]
            .map(|left| offsets.next(true, left))
            .map(|next| (next.offset, next.len))
            .to_vec();
        assert_eq!(visited, [(0, 512), (512, 512), (1024, 512), (1536, 64)]);
    }

    #[test]
    fn concurrent_directions_advance_independently() {
        let job = Job { direction: IoDirection::Both, ..Job::default() };
        let mut both = offsets(&job, 1 << 20, 0, 1);
        assert_eq!(
            (
                both.next(true, u64::MAX).offset,
                both.next(true, u64::MAX).offset,
                both.next(false, u64::MAX).offset
            ),
            (0, 4096, 0)
        );
    }

    #[test]
    fn alternating_directions_advance_independently() {
        let job = Job { direction: IoDirection::Turns, ..Job::default() };
        let mut sequence = offsets(&job, 1 << 20, 0, 1);
        let visited: Vec<(bool, u64)> =
            (0..4).map(|_| sequence.next(true, u64::MAX)).map(|next| (next.read, next.offset)).collect();
        assert_eq!(visited, [(false, 0), (true, 0), (false, 4096), (true, 4096)]);
    }

    #[test]
    fn random_offsets_are_aligned_in_range_and_reproducible() {
        let job = Job { order: AccessPattern::Random, sizes: vec![(4096, 3), (8192, 1)], ..Job::default() };
        let draw = |seed| {
            let mut offsets = offsets(&Job { seed, ..job.clone() }, 1 << 20, 0, 1);
            (0..4000).map(|_| offsets.next(true, u64::MAX)).collect::<Vec<_>>()
        };
        let places = draw(7);
        assert_eq!(places, draw(7));
        assert_ne!(places, draw(8));
        assert!(places.iter().all(|n| n.offset % 4096 == 0 && n.offset + u64::from(n.len) <= 1 << 20));
        let small = places.iter().filter(|n| n.len == 4096).count();
        assert!((2800..3200).contains(&small), "{small} of 4000 with a weight of 3 in 4");
    }

    #[test]
    fn mix_has_the_requested_read_share() {
        let job = Job { direction: IoDirection::Mix(70), order: AccessPattern::Random, ..Job::default() };
        let mut offsets = offsets(&job, 1 << 20, 0, 1);
        let reads = (0..10_000).filter(|_| offsets.next(false, u64::MAX).read).count();
        assert!((6800..7200).contains(&reads), "{reads} of 10000");
    }

    #[test]
    fn zipf_uses_few_scattered_offsets_often() {
        for places in [1000, 1024, 1 << 18] {
            let job = Job { order: AccessPattern::Zipf(1.2), ..Job::default() };
            let mut counts: HashMap<u64, u32> = HashMap::new();
            for at in visited(&mut offsets(&job, 4096 * places, 0, 1), 40_000) {
                assert!(at % 4096 == 0 && at < 4096 * places);
                *counts.entry(at / 4096).or_default() += 1;
            }
            let mut often: Vec<(u32, u64)> = counts.into_iter().map(|(at, n)| (n, at)).collect();
            often.sort_unstable_by(|a, b| b.cmp(a));
            // 1 / zeta(1.2, 1000) is about 0.22, and 1 / zeta(1.2) is 0.18.
            assert!((6400..11_200).contains(&often[0].0), "{:?}", &often[..3]);
            let mut ten: Vec<u64> = often[..10].iter().map(|place| place.1).collect();
            ten.sort_unstable();
            assert!(ten.windows(2).all(|two| two[1] - two[0] > 1), "popular offsets are adjacent: {ten:?}");
        }
    }
}

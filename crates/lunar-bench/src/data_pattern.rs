//! The data of writes, and the check of data that was read.

use crate::job::{Fill, Job};
use lunar_runtime::Buf;
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

/// Bytes of a block whose number [`Fill::Lba`] writes.
const BLOCK: u64 = 512;

/// Produces and checks the data of one lane.
pub struct DataPattern {
    fill: Fill,
    /// The original content of the buffer; empty if it is not needed again.
    original: Vec<u8>,
    is_compared: bool,
    /// The number of bytes at the start of the buffer that reads may have changed.
    dirty: usize,
    /// The mark of the next stretch of random data, unique in this buffer.
    mark: u64,
}

/// Each stretch of this many bytes of random data starts with a unique mark, so that a target with
/// deduplication finds no equal blocks.
const MARK_INTERVAL: usize = 4096;

impl DataPattern {
    /// Creates the pattern of a job, and its buffer. `lane` is its number.
    pub fn new(job: &Job, lane: u64) -> (DataPattern, Buf) {
        let mut buf = Buf::zeroed(job.longest() as usize);
        match job.fill {
            Fill::Random => SmallRng::seed_from_u64(job.stream_seed(lane)).fill_bytes(&mut buf),
            fill => fill_fixed(fill, &mut buf),
        }
        let (is_compared, is_mixed) =
            (job.compare && job.direction.reads(), job.direction.reads() && job.direction.writes());
        let original = if is_compared || is_mixed { buf.to_vec() } else { Vec::new() };
        let mark = job.stream_seed(lane);
        (DataPattern { fill: job.fill, original, is_compared, dirty: 0, mark }, buf)
    }

    /// Prepares the buffer for a read at `offset`. If the data will be compared, every byte of the buffer
    /// becomes wrong first.
    pub fn before_read(&mut self, offset: u64, buf: &mut [u8]) {
        self.dirty = self.dirty.max(buf.len());
        if self.is_compared {
            let expected = self.expected(offset, buf.len());
            buf.iter_mut().zip(expected).for_each(|(byte, right)| *byte = !*right);
        }
    }

    /// Prepares the buffer for a write at `offset`, so that data from an earlier read is not written back.
    pub fn before_write(&mut self, offset: u64, buf: &mut Buf) {
        if self.fill == Fill::Lba {
            return fill_lba(offset, buf);
        }
        if self.dirty > 0 {
            let len = buf.len();
            buf.copy_from_slice(&self.original[..len]);
            self.dirty = if len < self.dirty { self.dirty } else { 0 };
        }
        if self.fill == Fill::Random {
            self.mark(buf);
        }
    }

    fn mark(&mut self, buf: &mut [u8]) {
        for stretch in buf.chunks_mut(MARK_INTERVAL) {
            let mark = self.mark.to_le_bytes();
            let len = stretch.len().min(mark.len());
            stretch[..len].copy_from_slice(&mark[..len]);
            self.mark = self.mark.wrapping_add(1);
        }
    }

    /// The offset of the first byte that differs from the data that a write would put there.
    pub fn first_mismatch(&mut self, offset: u64, buf: &[u8]) -> Option<u64> {
        if !self.is_compared {
            return None;
        }
        let expected = self.expected(offset, buf.len());
        if expected == buf {
            return None;
        }
        expected.iter().zip(buf).position(|(a, b)| a != b).map(|at| offset + at as u64)
    }

    /// The data that a write at `offset` would have.
    fn expected(&mut self, offset: u64, len: usize) -> &[u8] {
        let expected = &mut self.original[..len];
        if self.fill == Fill::Lba {
            fill_lba(offset, expected);
        }
        expected
    }
}

/// Fills the buffer with the part of a pattern that depends neither on the offset nor on random numbers.
fn fill_fixed(fill: Fill, buf: &mut [u8]) {
    match fill {
        Fill::Zeros => buf.fill(0),
        Fill::Counting => buf.iter_mut().zip((0..=u8::MAX).cycle()).for_each(|(byte, n)| *byte = n),
        Fill::Bytes(eight) => buf.iter_mut().zip(eight.into_iter().cycle()).for_each(|(byte, n)| *byte = n),
        // Touches the memory before the measurement.
        Fill::Random | Fill::Lba => buf.fill(0),
    }
}

fn fill_lba(offset: u64, buf: &mut [u8]) {
    for (eight, at) in buf.chunks_mut(8).zip((offset..).step_by(8)) {
        eight.copy_from_slice(&(at / BLOCK).to_be_bytes()[..eight.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::IoDirection;

    fn job(fill: Fill) -> Job {
        Job { fill, direction: IoDirection::Mix(50), compare: true, sizes: vec![(1024, 1)], ..Job::default() }
    }

    #[test]
    fn written_data_matches_and_one_wrong_byte_is_found() {
        for fill in [Fill::Zeros, Fill::Counting, Fill::Lba, Fill::Bytes(*b"12345678")] {
            let (mut content, mut buf) = DataPattern::new(&job(fill), 0);
            content.before_write(4096, &mut buf);
            assert_eq!(content.first_mismatch(4096, &buf), None, "{fill:?}");
            content.before_read(4096, &mut buf);
            content.before_write(4096, &mut buf);
            assert_eq!(content.first_mismatch(4096, &buf), None, "{fill:?} after a read");
            buf[777] ^= 1;
            assert_eq!(content.first_mismatch(4096, &buf), Some(4096 + 777), "{fill:?}");
        }
    }

    #[test]
    fn buffer_before_compared_read_has_only_wrong_bytes() {
        for fill in [Fill::Zeros, Fill::Counting, Fill::Lba, Fill::Bytes(*b"12345678")] {
            let (mut content, mut buf) = DataPattern::new(&job(fill), 0);
            content.before_write(4096, &mut buf);
            let right = buf.to_vec();
            content.before_read(4096, &mut buf);
            assert!(buf.iter().zip(&right).all(|(byte, right)| byte != right), "{fill:?}");
            assert_eq!(content.first_mismatch(4096, &buf), Some(4096), "{fill:?}");
        }
    }

    #[test]
    fn lba_fill_writes_block_numbers() {
        let (mut content, mut buf) = DataPattern::new(&job(Fill::Lba), 0);
        content.before_write(1024, &mut buf);
        assert_eq!((&buf[..8], &buf[512..520]), (&2u64.to_be_bytes()[..], &3u64.to_be_bytes()[..]));
    }

    #[test]
    fn write_after_read_restores_the_pattern() {
        for fill in [Fill::Zeros, Fill::Counting, Fill::Random, Fill::Bytes(*b"12345678")] {
            let (mut content, mut buf) = DataPattern::new(&job(fill), 0);
            let made = buf.to_vec();
            content.before_read(0, &mut buf);
            buf.fill(0x55);
            // The mark is different each time.
            let from = if fill == Fill::Random { 8 } else { 0 };
            for len in [512, 1024, 512] {
                buf.set_visible(len);
                content.before_write(0, &mut buf);
                assert_eq!(buf[from..], made[from..len], "{fill:?}, {len}");
            }
        }
    }

    #[test]
    fn random_data_has_no_equal_blocks() {
        let job = Job {
            direction: IoDirection::Write,
            compare: false,
            sizes: vec![(3 * 4096, 1)],
            ..job(Fill::Random)
        };
        let mut seen = std::collections::HashSet::new();
        for lane in 0..2 {
            let (mut content, mut buf) = DataPattern::new(&job, lane);
            for _ in 0..50 {
                content.before_write(0, &mut buf);
                assert!(buf.chunks(4096).all(|block| seen.insert(block.to_vec())), "duplicate block");
            }
        }
    }

    #[test]
    fn random_data_differs_between_workers() {
        let job = Job { direction: IoDirection::Write, ..job(Fill::Random) };
        assert_ne!(DataPattern::new(&job, 0).1[..], DataPattern::new(&job, 1).1[..]);
        assert_eq!(DataPattern::new(&job, 1).1[..], DataPattern::new(&job, 1).1[..]);
    }
}

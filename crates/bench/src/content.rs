//! What is written, and whether what is read is that.

use crate::job::{Fill, Job};
use net::Buf;
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

/// Bytes of a block whose number [`Fill::Lba`] writes.
const BLOCK: u64 = 512;

/// The contents of one who sends commands, one after the other.
pub struct Content {
    fill: Fill,
    /// What a read is compared with.
    expected: Option<Vec<u8>>,
}

impl Content {
    /// For a job, with the buffer in which its data will go; `lane` tells those apart that run at once.
    pub fn new(job: &Job, lane: u64) -> (Content, Buf) {
        let mut buf = Buf::zeroed(job.longest() as usize);
        if job.fill == Fill::Random {
            SmallRng::seed_from_u64(job.seed ^ lane).fill_bytes(&mut buf);
        }
        settle(job.fill, &mut buf);
        let expected = (job.compare && job.way.reads()).then(|| buf.to_vec());
        (Content { fill: job.fill, expected }, buf)
    }

    /// Makes ready what is written at `offset`. The buffer holds what it held when it was made, unless reads
    /// have gone through it.
    pub fn prepare(&self, offset: u64, buf: &mut Buf, was_read: bool) {
        match self.fill {
            Fill::Lba => number(offset, buf),
            fill if was_read => settle(fill, buf),
            _ => {}
        }
    }

    /// The first byte that is not what would have been written there.
    pub fn wrong(&mut self, offset: u64, buf: &[u8]) -> Option<u64> {
        let expected = &mut self.expected.as_mut()?[..buf.len()];
        if self.fill == Fill::Lba {
            number(offset, expected);
        }
        if expected == buf {
            return None;
        }
        expected.iter().zip(buf).position(|(a, b)| a != b).map(|at| offset + at as u64)
    }
}

/// Whatever does not hang on the place.
fn settle(fill: Fill, buf: &mut [u8]) {
    match fill {
        Fill::Zeros => buf.fill(0),
        Fill::Counting => buf.iter_mut().zip((0..=u8::MAX).cycle()).for_each(|(byte, n)| *byte = n),
        Fill::Bytes(eight) => buf.iter_mut().zip(eight.into_iter().cycle()).for_each(|(byte, n)| *byte = n),
        // What a read left there is no worse, and Lba hangs on the place.
        Fill::Random | Fill::Lba => {}
    }
}

fn number(offset: u64, buf: &mut [u8]) {
    for (eight, at) in buf.chunks_mut(8).zip((offset..).step_by(8)) {
        eight.copy_from_slice(&(at / BLOCK).to_be_bytes()[..eight.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Way;

    fn job(fill: Fill) -> Job {
        Job { fill, compare: true, sizes: vec![(1024, 1)], ..Job::default() }
    }

    #[test]
    fn what_was_written_is_found_right_and_one_wrong_byte_is_found() {
        for fill in [Fill::Zeros, Fill::Counting, Fill::Lba, Fill::Bytes(*b"12345678")] {
            let (mut content, mut buf) = Content::new(&job(fill), 0);
            content.prepare(4096, &mut buf, false);
            assert_eq!(content.wrong(4096, &buf), None, "{fill:?}");
            buf.fill(0x55);
            content.prepare(4096, &mut buf, true);
            assert_eq!(content.wrong(4096, &buf), None, "{fill:?} after a read");
            buf[777] ^= 1;
            assert_eq!(content.wrong(4096, &buf), Some(4096 + 777), "{fill:?}");
        }
    }

    #[test]
    fn blocks_bear_their_numbers() {
        let (content, mut buf) = Content::new(&job(Fill::Lba), 0);
        content.prepare(1024, &mut buf, false);
        assert_eq!((&buf[..8], &buf[512..520]), (&2u64.to_be_bytes()[..], &3u64.to_be_bytes()[..]));
    }

    #[test]
    fn random_bytes_differ_from_lane_to_lane() {
        let job = Job { way: Way::Write, ..job(Fill::Random) };
        assert_ne!(Content::new(&job, 0).1[..], Content::new(&job, 1).1[..]);
        assert_eq!(Content::new(&job, 1).1[..], Content::new(&job, 1).1[..]);
    }
}

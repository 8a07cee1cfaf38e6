//! Workloads, in fio's terms where fio has one.

use std::time::Duration;

/// The order in which a job accesses offsets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AccessPattern {
    /// Ascending, and from the start again. Sessions with one target begin at equal distances.
    Sequential,
    /// Each offset with the same probability.
    Random,
    /// Ascending, with this distance in bytes between two offsets.
    Strided(u64),
    /// Zipf's distribution: the n-th most popular offset with a probability proportional to 1/n^theta.
    Zipf(f64),
}

/// The direction of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoDirection {
    /// Only reads.
    Read,
    /// Only writes.
    Write,
    /// At random for each command; this percentage are reads.
    Mix(u8),
    /// Writes and reads alternate; each direction continues where it was.
    Turns,
    /// Both at once: each session has the whole depth of reads in flight, and the same number of writes.
    Both,
}

impl IoDirection {
    /// It writes.
    pub fn writes(self) -> bool {
        !matches!(self, IoDirection::Read | IoDirection::Mix(100))
    }

    /// Of the first `many` commands so many are reads, as far as can be known beforehand.
    pub fn reads_of(self, many: u64) -> u64 {
        let percent = match self {
            IoDirection::Read => 100,
            IoDirection::Write => 0,
            IoDirection::Mix(percent) => percent,
            IoDirection::Both | IoDirection::Turns => 50,
        };
        (u128::from(many) * u128::from(percent) / 100) as u64
    }

    /// It reads.
    pub fn reads(self) -> bool {
        !matches!(self, IoDirection::Write | IoDirection::Mix(0))
    }
}

/// A length in bytes, and its weight relative to the other lengths.
pub type Weighted = (u32, u32);

/// The arrivals of commands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArrivalProcess {
    /// Closed loop: a command begins when the one before it ends.
    Closed,
    /// Open loop: this many a second over all sessions, at even distances, independent of the target.
    Even(f64),
    /// Open loop: this many a second on average, as a Poisson process, like independent users.
    Poisson(f64),
}

/// The content of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Zeros.
    Zeros,
    /// Incompressible bytes: each buffer is filled once, and each 4 KiB of a command has a unique number.
    Random,
    /// 0, 1, 2 ... 255, 0 ...
    Counting,
    /// Each eight bytes hold the number of their 512-byte block, big-endian.
    Lba,
    /// These eight bytes, repeated.
    Bytes([u8; 8]),
}

/// A workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The order of offsets.
    pub order: AccessPattern,
    /// The direction of data.
    pub direction: IoDirection,
    /// Lengths of commands in bytes, at least one.
    pub sizes: Vec<Weighted>,
    /// Commands in flight for each session.
    pub depth: usize,
    /// Ends the job after this time. One of time, amount and commands must be set; the first that is reached ends it.
    pub time: Option<Duration>,
    /// Ends the job after this many bytes over all sessions.
    pub amount: Option<u64>,
    /// Ends the job after this many commands over all sessions, of any length.
    pub commands: Option<u64>,
    /// Warm-up, excluded from the results.
    pub ramp: Duration,
    /// The arrivals of commands.
    pub pace: ArrivalProcess,
    /// Think time: the pause between two commands of one queue slot.
    pub think: Duration,
    /// The content of writes.
    pub fill: Fill,
    /// Compare what is read with `fill`; the first mismatch ends the job with its offset.
    pub compare: bool,
    /// Writes are stable when they are acknowledged (FUA).
    pub fua: bool,
    /// Flush at the end, and count the time of it.
    pub flush: bool,
    /// The offset of the first byte that the job uses.
    pub offset: u64,
    /// The number of bytes that the job uses; None for all from `offset`.
    pub span: Option<u64>,
    /// Continue after an error, and count it.
    pub continue_on_error: bool,
    /// The seed of random numbers: the same seed gives the same offsets.
    pub seed: u64,
    /// The interval of the time series.
    pub interval: Duration,
}

impl Default for Job {
    /// One read of 4 KiB at a time, sequential, for ten seconds.
    fn default() -> Job {
        Job {
            order: AccessPattern::Sequential,
            direction: IoDirection::Read,
            sizes: vec![(4096, 1)],
            depth: 1,
            time: Some(Duration::from_secs(10)),
            amount: None,
            commands: None,
            ramp: Duration::ZERO,
            pace: ArrivalProcess::Closed,
            think: Duration::ZERO,
            fill: Fill::Random,
            compare: false,
            fua: false,
            flush: false,
            offset: 0,
            span: None,
            continue_on_error: false,
            seed: 1,
            interval: Duration::from_secs(1),
        }
    }
}

impl Job {
    /// Commands of one session that may be in flight: reads first, then writes where both ways are taken at once.
    pub(crate) fn workers(&self) -> usize {
        if self.direction == IoDirection::Both { 2 * self.depth } else { self.depth }
    }

    /// Where chance begins for one of its sessions or lanes: elsewhere for each of them, and for each seed.
    pub(crate) fn stream_seed(&self, of: u64) -> u64 {
        self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ of
    }

    /// The same job again, as round number `round` from 0: other places and other data by chance, and the
    /// same ones each time for the same seed.
    pub fn round(&self, round: usize) -> Job {
        Job { seed: self.seed.wrapping_add(round as u64), ..self.clone() }
    }

    /// The longest command in bytes.
    pub fn longest(&self) -> u32 {
        self.sizes.iter().map(|size| size.0).max().unwrap_or(0)
    }

    /// The largest number that divides all lengths: places begin at its multiples.
    pub fn granule(&self) -> u64 {
        let gcd = |mut a: u64, mut b: u64| {
            while b != 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        self.sizes.iter().fold(0, |sum, size| gcd(sum, size.0.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_several_lengths_begin_where_all_of_them_may() {
        let job = Job { sizes: vec![(4096, 1), (6144, 2)], ..Job::default() };
        assert_eq!((job.granule(), job.longest()), (2048, 6144));
    }

    #[test]
    fn a_mix_of_one_kind_is_that_kind() {
        assert!(!IoDirection::Mix(100).writes() && IoDirection::Mix(100).reads());
        assert!(IoDirection::Mix(0).writes() && !IoDirection::Mix(0).reads());
        assert!(
            IoDirection::Both.writes()
                && IoDirection::Both.reads()
                && IoDirection::Turns.writes()
                && IoDirection::Turns.reads()
        );
        assert_eq!(
            (
                IoDirection::Mix(70).reads_of(10),
                IoDirection::Read.reads_of(3),
                IoDirection::Write.reads_of(3)
            ),
            (7, 3, 0)
        );
    }
}

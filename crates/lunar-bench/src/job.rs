//! Workloads, in fio's terms where fio has one.

use std::time::Duration;

/// The order in which a job accesses offsets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AccessPattern {
    /// Ascending, starting again after the last offset. Sessions with one target start at equal distances.
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
    /// Each command is a read with this probability in percent, otherwise a write.
    Mix(u8),
    /// Writes and reads alternate; each direction continues where it was.
    Turns,
    /// Both at once: each session has `depth` reads and as many writes in flight.
    Both,
}

impl IoDirection {
    /// Whether the job writes.
    pub fn writes(self) -> bool {
        !matches!(self, IoDirection::Read | IoDirection::Mix(100))
    }

    /// The expected number of reads among the first `many` commands.
    pub fn reads_of(self, many: u64) -> u64 {
        let percent = match self {
            IoDirection::Read => 100,
            IoDirection::Write => 0,
            IoDirection::Mix(percent) => percent,
            IoDirection::Both | IoDirection::Turns => 50,
        };
        (u128::from(many) * u128::from(percent) / 100) as u64
    }

    /// Whether the job reads.
    pub fn reads(self) -> bool {
        !matches!(self, IoDirection::Write | IoDirection::Mix(0))
    }
}

/// A length in bytes, and its weight relative to the other lengths.
pub type Weighted = (u32, u32);

/// The arrivals of commands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArrivalProcess {
    /// Closed loop: a command starts when the previous one ends.
    Closed,
    /// Open loop: this many per second over all sessions, at equal intervals, independent of the target.
    Even(f64),
    /// Open loop: this many per second on average, as a Poisson process, like independent users.
    Poisson(f64),
}

/// The content of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Zeros.
    Zeros,
    /// Incompressible bytes: each buffer is filled once, and each 4 KiB of a command has a unique number.
    Random,
    /// The byte values 0 to 255, repeated.
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
    /// Ends the job after this time. Set at least one of time, amount and commands; the first one reached ends
    /// the job.
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
    /// Compare the data read with `fill`; the first mismatch ends the job and reports its offset.
    pub compare: bool,
    /// Use FUA: a write is stable when it is acknowledged.
    pub fua: bool,
    /// Flush at the end; the flush is part of the measured time.
    pub flush: bool,
    /// The offset of the first byte that the job uses.
    pub offset: u64,
    /// The number of bytes that the job uses; None means all from `offset`.
    pub span: Option<u64>,
    /// Count errors and continue.
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
    /// The lanes of one session: one for each command in flight. With [`IoDirection::Both`], readers come
    /// first, then writers.
    pub(crate) fn lanes(&self) -> usize {
        if self.direction == IoDirection::Both { 2 * self.depth } else { self.depth }
    }

    /// The random seed of one session or lane, different for each of them and for each job seed.
    pub(crate) fn stream_seed(&self, of: u64) -> u64 {
        self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ of
    }

    /// The same job as round `round`, counted from 0. Each round uses other random offsets and data; the same
    /// job seed reproduces them.
    pub fn round(&self, round: usize) -> Job {
        Job { seed: self.seed.wrapping_add(round as u64), ..self.clone() }
    }

    /// The longest command in bytes.
    pub fn longest(&self) -> u32 {
        self.sizes.iter().map(|size| size.0).max().unwrap_or(0)
    }

    /// The greatest common divisor of all lengths: commands start at its multiples.
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
    fn granule_of_several_lengths_divides_all() {
        let job = Job { sizes: vec![(4096, 1), (6144, 2)], ..Job::default() };
        assert_eq!((job.granule(), job.longest()), (2048, 6144));
    }

    #[test]
    fn mix_of_zero_or_hundred_percent_is_one_direction() {
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

//! What is to be done: a workload, in fio's words where fio has one.

use std::time::Duration;

/// Which places are visited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    /// One after the other, and from the start again. Sessions with one target begin at equal distances.
    Sequential,
    /// Each place as likely as any other.
    Random,
    /// As sequential, with this distance in bytes between two beginnings.
    Strided(u64),
    /// Few places often, many seldom: the n-th most popular with a probability of 1/n^theta.
    Zipf(f64),
}

/// Which way the data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Only reads.
    Read,
    /// Only writes.
    Write,
    /// Each command by lot; this many of a hundred are reads.
    Mix(u8),
    /// A write and a read by turns, each direction from where it was before.
    Turns,
    /// Both at once: each session has the whole depth of reads in flight, and the same of writes.
    Both,
}

impl Way {
    /// It writes.
    pub fn writes(self) -> bool {
        !matches!(self, Way::Read | Way::Mix(100))
    }

    /// Of the first `many` commands so many are reads, as far as can be known beforehand.
    pub fn reads_of(self, many: u64) -> u64 {
        let percent = match self {
            Way::Read => 100,
            Way::Write => 0,
            Way::Mix(percent) => percent,
            Way::Both | Way::Turns => 50,
        };
        (u128::from(many) * u128::from(percent) / 100) as u64
    }

    /// It reads.
    pub fn reads(self) -> bool {
        !matches!(self, Way::Write | Way::Mix(0))
    }
}

/// A length in bytes, and how often it is taken relative to the others.
pub type Weighted = (u32, u32);

/// When commands begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// One ends, the next begins (closed loop).
    Closed,
    /// So many each second over all sessions, at even distances, whatever the target does (open loop).
    Even(f64),
    /// As even, at random distances (Poisson), as independent users would.
    Poisson(f64),
}

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Zeros.
    Zeros,
    /// Bytes that do not compress: each buffer has its own, made once, and each 4 KiB of a command a number that no other
    /// has.
    Random,
    /// 0, 1, 2 ... 255, 0 ...
    Counting,
    /// Each eight bytes hold the number of their 512-byte block, big endian.
    Lba,
    /// These eight bytes again and again.
    Bytes([u8; 8]),
}

/// A workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Which places.
    pub order: Order,
    /// Which way.
    pub way: Way,
    /// Lengths of commands in bytes, at least one.
    pub sizes: Vec<Weighted>,
    /// Commands in flight for each session.
    pub depth: usize,
    /// It ends after this time. One of time, amount and commands must be there; the first that is reached ends it.
    pub time: Option<Duration>,
    /// It ends after this many bytes over all sessions.
    pub amount: Option<u64>,
    /// It ends after this many commands over all sessions, whatever their lengths.
    pub commands: Option<u64>,
    /// Time before anything is counted.
    pub ramp: Duration,
    /// When commands begin.
    pub pace: Pace,
    /// Pause of each of those in flight after its command, before the next one.
    pub think: Duration,
    /// What is written.
    pub fill: Fill,
    /// What is read must be what `fill` would have written; the number of the first wrong byte ends the job.
    pub compare: bool,
    /// Writes are stable when they are acknowledged (FUA).
    pub stable: bool,
    /// All that was written is made stable at the end, and the time of that counts.
    pub flush: bool,
    /// First byte that is used.
    pub offset: u64,
    /// Bytes that are used; all from `offset` if none.
    pub span: Option<u64>,
    /// Go on after an error, and count it.
    pub go_on: bool,
    /// Where chance begins: the same seed visits the same places.
    pub seed: u64,
    /// Width of the steps of the time series.
    pub interval: Duration,
}

impl Default for Job {
    /// One read of 4 KiB at a time, sequential, for ten seconds.
    fn default() -> Job {
        Job {
            order: Order::Sequential,
            way: Way::Read,
            sizes: vec![(4096, 1)],
            depth: 1,
            time: Some(Duration::from_secs(10)),
            amount: None,
            commands: None,
            ramp: Duration::ZERO,
            pace: Pace::Closed,
            think: Duration::ZERO,
            fill: Fill::Random,
            compare: false,
            stable: false,
            flush: false,
            offset: 0,
            span: None,
            go_on: false,
            seed: 1,
            interval: Duration::from_secs(1),
        }
    }
}

impl Job {
    /// Commands of one session that may be in flight: reads first, then writes where both ways are taken at once.
    pub(crate) fn lanes(&self) -> usize {
        if self.way == Way::Both { 2 * self.depth } else { self.depth }
    }

    /// Where chance begins for one of its sessions or lanes: elsewhere for each of them, and for each seed.
    pub(crate) fn chance(&self, of: u64) -> u64 {
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
        assert!(!Way::Mix(100).writes() && Way::Mix(100).reads());
        assert!(Way::Mix(0).writes() && !Way::Mix(0).reads());
        assert!(Way::Both.writes() && Way::Both.reads() && Way::Turns.writes() && Way::Turns.reads());
        assert_eq!((Way::Mix(70).reads_of(10), Way::Read.reads_of(3), Way::Write.reads_of(3)), (7, 3, 0));
    }
}

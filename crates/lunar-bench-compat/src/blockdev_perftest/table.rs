//! The table of blockdev-perftest: its arithmetic and its columns.

/// 2^20 bytes, which the script calls MB.
pub const MIB: f64 = (1u64 << 20) as f64;

/// The statistics of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RateStats {
    /// The mean rate in MiB/s.
    pub average: f64,
    /// The standard deviation (of the population) in MiB/s.
    pub deviation: f64,
    /// The mean rate in blocks per second.
    pub iops: f64,
}

impl RateStats {
    /// Computes the statistics from run times in seconds. Each run moved `bytes` in blocks of `block` bytes.
    /// Times of zero do not count.
    pub fn of(times: &[f64], bytes: u64, block: u64) -> RateStats {
        let rates: Vec<f64> = times.iter().filter(|t| **t > 0.0).map(|t| bytes as f64 / t).collect();
        if rates.is_empty() {
            return RateStats::default();
        }
        let mean = |sum: f64| sum / rates.len() as f64;
        let average = mean(rates.iter().sum());
        let squares = mean(rates.iter().map(|rate| rate * rate).sum());
        RateStats {
            average: average / MIB,
            deviation: (squares - average * average).max(0.0).sqrt() / MIB,
            iops: average / block as f64,
        }
    }
}

/// One row: the run times of a block size, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Bytes of a block.
    pub block: u64,
    /// The times of writes.
    pub writes: Vec<f64>,
    /// The times of reads.
    pub reads: Vec<f64>,
}

impl Row {
    /// The line of this row, for `iterations` runs of `bytes` each. Missing runs are 0.000.
    pub fn line(&self, bytes: u64, iterations: usize) -> String {
        let fields = [&self.writes, &self.reads].into_iter().flat_map(|times| {
            let figures = RateStats::of(times, bytes, self.block);
            let times = (0..iterations).map(|i| times.get(i).copied().unwrap_or(0.0));
            times.chain([figures.average, figures.deviation, figures.iops]).collect::<Vec<_>>()
        });
        let fields: String = fields.map(|field| format!(" {field:8.3}")).collect();
        format!("{:9}{fields}", self.block)
    }
}

/// The two heading lines.
pub fn head(iterations: usize) -> [String; 2] {
    let line = |first: &str, of: &dyn Fn(&str) -> Vec<String>| {
        let fields: String =
            ["W", "R"].iter().flat_map(|direction| of(direction)).map(|f| format!(" {f:>8}")).collect();
        format!("{first:>9}{fields}")
    };
    let repeated = |text: &str, rest: [String; 3]| {
        std::iter::repeat_n(text.to_owned(), iterations).chain(rest).collect::<Vec<_>>()
    };
    let names = |direction: &str| {
        repeated(direction, [format!("{direction}(avg,"), format!("{direction}(std,"), direction.to_owned()])
    };
    let units = |_: &str| repeated("(s)", ["MB/s)".into(), "MB/s)".into(), "(IOPS)".into()]);
    [line("blocksize", &names), line("(bytes)", &units)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The four published tables: times, and the figures derived from them.
    const PUBLISHED: &str = include_str!("published.txt");

    struct Direction {
        times: Vec<f64>,
        figures: [f64; 3],
    }

    fn directions(line: &str) -> (u64, [Direction; 2]) {
        let cells: Vec<f64> = line.split_whitespace().map(|cell| cell.parse().expect("a number")).collect();
        let direction = |at: usize| Direction {
            times: cells[at..at + 3].to_vec(),
            figures: cells[at + 3..at + 6].try_into().expect("three"),
        };
        (cells[0] as u64, [direction(1), direction(7)])
    }

    #[test]
    fn rate_stats_match_manual_result() {
        let figures = RateStats::of(&[1.0, 2.0, 4.0], 1 << 30, 4096);
        assert!((figures.average - 597.333).abs() < 0.001, "{figures:?}");
        assert!((figures.deviation - 319.288).abs() < 0.001, "{figures:?}");
        assert!((figures.iops - 152917.333).abs() < 0.001, "{figures:?}");
        assert_eq!(RateStats::of(&[0.0], 1, 1), RateStats::default());
        assert_eq!(RateStats::of(&[0.0, 2.0], 2 << 20, 1 << 20).average, 1.0);
    }

    #[test]
    fn published_figures_follow_from_published_times() {
        let mut cells = 0;
        for line in PUBLISHED.lines().filter(|line| !line.starts_with('#')) {
            let (block, both) = directions(line);
            for Direction { times, figures: [average, deviation, iops] } in both {
                // The published times are rounded to a millisecond.
                let slack = times.iter().map(|t| 0.0005 / t).fold(0.0, f64::max);
                let found = RateStats::of(&times, 1 << 30, block);
                let near = |a: f64, b: f64, of: f64| (a - b).abs() <= of * slack * 1.05 + 0.001;
                assert!(near(found.average, average, average), "{found:?} {line}");
                assert!(near(found.iops, iops, iops), "{found:?} {line}");
                // A deviation changes as much as its rates.
                assert!(near(found.deviation, deviation, average), "{found:?} {line}");
                cells += 3;
            }
        }
        assert_eq!(cells, 4 * 15 * 6);
    }

    #[test]
    fn published_rows_are_reproduced() {
        let row =
            Row { block: 67_108_864, writes: vec![0.986, 1.007, 0.984], reads: vec![0.359, 0.359, 0.359] };
        let line = row.line(1 << 30, 3);
        // The published figures were computed from more precise times.
        let published =
            " 67108864    0.986    1.007    0.984 1031.838   10.783   16.122    0.359    0.359    0.359";
        assert_eq!((&line[..36], line.len()), (&published[..36], published.len() + 3 * 9));
        let row = Row { block: 4096, writes: vec![1.0, 2.0, 4.0], reads: vec![] };
        let expected = "     4096    1.000    2.000    4.000  597.333  319.288 152917.333    0.000    0.000    0.000    0.000    \
                        0.000    0.000";
        assert_eq!(row.line(1 << 30, 3), expected);
    }

    #[test]
    fn heading_matches_the_published_one() {
        let [names, units] = head(3);
        assert_eq!(
            names,
            "blocksize        W        W        W   W(avg,   W(std,        W        R        R        R   R(avg,   \
             R(std,        R"
        );
        assert_eq!(
            units,
            "  (bytes)      (s)      (s)      (s)    MB/s)    MB/s)   (IOPS)      (s)      (s)      (s)    MB/s)    \
             MB/s)   (IOPS)"
        );
        assert_eq!(
            head(1)[0],
            "blocksize        W   W(avg,   W(std,        W        R   R(avg,   R(std,        R"
        );
    }
}

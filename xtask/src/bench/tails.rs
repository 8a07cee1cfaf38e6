//! Sessions that share a core: the tail of a small reader beside a neighbour with long commands, and many sessions.

use anyhow::Result;

use super::load::{self, BlastLoad, LatencyResult};
use super::rows::{BenchRun, median_of};
use super::server::{self, Backing, BenchServer};
use super::table::{RatioLimit, RowResult};

/// p99.9 of the reader beside its neighbour, relative to its p50 alone.
const TAIL_OF_MEDIAN: f64 = 4.0;
/// IO/s of many sessions, relative to few with the same total depth.
const MANY_OF_FEW: f64 = 0.8;

const READER: BlastLoad = BlastLoad::new("read", 4096, 1);
const NEIGHBOUR: BlastLoad = BlastLoad { one_thread: true, ..BlastLoad::new("read", 1 << 20, 32) };
const FEW: BlastLoad = BlastLoad { sessions: 64, depth: 16, ..MANY };
const MANY: BlastLoad = BlastLoad { sessions: 1000, one_thread: true, ..READER };

type Quantile = (&'static str, fn(&LatencyResult) -> f64);
const QUANTILES: [Quantile; 3] =
    [("p50", |run| run.p50_us), ("p99", |run| run.p99_us), ("p99.9", |run| run.p999_us)];

impl BenchRun<'_> {
    /// A reader with one command in flight, alone and beside a neighbour on the same core.
    pub fn tails(&self) -> Result<Vec<RowResult>> {
        let name = "4 KiB read, depth 1";
        let (alone, beside) =
            (format!("{name}, alone"), format!("{name}, tails beside 1 MiB reads at depth 32"));
        if !self.wants(&beside) {
            return Ok(Vec::new());
        }
        let (floor, lunar) = (server::floor(&self.programs.floor)?, self.lunar(Backing::Null(1))?);
        let mut runs = [const { Vec::new() }; 4];
        for _ in 0..self.options.rounds.max(1) {
            for (server, runs) in [&lunar, &floor].into_iter().zip(runs.chunks_exact_mut(2)) {
                runs[0].push(self.latency(server, None)?);
                runs[1].push(self.latency(server, Some(NEIGHBOUR))?);
            }
        }
        let [ours_alone, ours_beside, floor_alone, floor_beside] = &runs;
        let mut outcomes = Vec::new();
        for (work, ours, theirs) in
            [(alone, ours_alone, floor_alone), (beside.clone(), ours_beside, floor_beside)]
        {
            let (name, [ours_iops, its]) =
                (format!("{work}, rate"), [ours, theirs].map(|runs| median_of(runs, |run| run.iops)));
            outcomes.push(RowResult::ratio(&name, "IO/s", ours_iops, "floor", its, RatioLimit::None));
            outcomes.extend(QUANTILES.map(|(quantile, figure)| {
                let (name, ours, theirs) =
                    (format!("{work}, {quantile}"), median_of(ours, figure), median_of(theirs, figure));
                RowResult::ratio(&name, "µs", ours, "floor", theirs, RatioLimit::None)
            }));
        }
        let (tail, median) =
            (median_of(ours_beside, |run| run.p999_us), median_of(ours_alone, |run| run.p50_us));
        let limit = RatioLimit::Reported(TAIL_OF_MEDIAN);
        outcomes.push(RowResult::ratio(&beside, "µs", tail, "p50 alone", median, limit));
        Ok(outcomes)
    }

    fn latency(&self, server: &BenchServer, neighbour: Option<BlastLoad>) -> Result<LatencyResult> {
        let seconds = self.options.seconds;
        let Some(neighbour) = neighbour else {
            return load::latency(&self.programs.blast, server, &READER, seconds);
        };
        load::latency_beside(&self.programs.blast, server, &READER, &neighbour, seconds)
    }

    /// Many sessions against few with the same total depth.
    pub fn many_sessions(&self) -> Result<Vec<RowResult>> {
        let name = "1,000 sessions, 4 KiB read, depth 1";
        if !self.wants(name) {
            return Ok(Vec::new());
        }
        let (floor, lunar) = (server::floor(&self.programs.floor)?, self.lunar(Backing::Null(1))?);
        let reached = self.medians(&[(&lunar, MANY), (&lunar, FEW), (&floor, MANY), (&floor, FEW)])?;
        let of_few = |name: &str, many: usize, limit| {
            RowResult::ratio(name, "IO/s", reached[many].iops, "64 sessions", reached[many + 1].iops, limit)
        };
        Ok(vec![
            of_few(name, 0, RatioLimit::ReportedAtLeast(MANY_OF_FEW)),
            of_few("floor's 1,000 sessions, 4 KiB read, depth 1", 2, RatioLimit::None),
        ])
    }
}

//! The chain client -> router -> target against client -> target, with one null LUN of Lunar.

use anyhow::Result;

use super::initiator::BenchClient;
use super::load::{self, BlastLoad, FirstData, LoadResult};
use super::rows::{BenchRun, median_of};
use super::server::{self, Backing, BenchServer};
use super::table::{RatioLimit, RowResult};

/// A row and its ratio to the target alone.
struct HopRow {
    name: &'static str,
    load: BlastLoad,
    of_direct: f64,
}

const HOP_ROWS: [HopRow; 4] = [
    HopRow { name: "256 KiB read, depth 8", load: LARGE, of_direct: 0.5 },
    HopRow { name: "256 KiB write, depth 8", load: BlastLoad { op: "write", ..LARGE }, of_direct: 0.5 },
    HopRow { name: "4 KiB random read, depth 32", load: SMALL, of_direct: 0.45 },
    HopRow {
        name: "4 KiB random write, depth 32",
        load: BlastLoad { op: "write", ..SMALL },
        of_direct: 0.45,
    },
];
const LARGE: BlastLoad = BlastLoad::new("read", 262_144, 8);
const SMALL: BlastLoad = BlastLoad::new("read", 4096, 32);
const FIRST: BlastLoad = BlastLoad::new("read", 1 << 20, 1);
/// The router's CPU time per I/O, relative to that of target and client together.
const CPU_OF_ENDS: f64 = 1.3;
const FIRST_OF_DIRECT: f64 = 1.5;

/// The mode of a router. Limits apply to block mode; passthrough is reported.
#[derive(Clone, Copy, PartialEq)]
enum RouterMode {
    Block,
    Passthrough,
}

impl RouterMode {
    fn name(self) -> &'static str {
        match self {
            RouterMode::Block => "block",
            RouterMode::Passthrough => "passthrough",
        }
    }

    fn row(self, work: &str) -> String {
        format!("router ({}), {work}", self.name())
    }

    /// A lower limit. For writes and for passthrough it is reported, but not asserted.
    fn at_least(self, load: &BlastLoad, limit: f64) -> RatioLimit {
        let counts = self == RouterMode::Block && load.op == "read";
        if counts { RatioLimit::AtLeast(limit) } else { RatioLimit::ReportedAtLeast(limit) }
    }

    fn at_most(self, limit: f64) -> RatioLimit {
        if self == RouterMode::Block { RatioLimit::AtMost(limit) } else { RatioLimit::Reported(limit) }
    }
}

/// The CPU time of a command in microseconds: of the server, and of the client.
#[derive(Clone, Copy, Debug)]
struct CpuCost {
    server_us: f64,
    client_us: f64,
}

impl BenchRun<'_> {
    /// All rows of the router.
    pub fn routers(&self) -> Result<Vec<RowResult>> {
        let mut outcomes = Vec::new();
        for mode in [RouterMode::Block, RouterMode::Passthrough] {
            for hop in &HOP_ROWS {
                outcomes.extend(self.hop(mode, hop)?);
            }
            for (work, load) in [("4 KiB", SMALL), ("256 KiB", LARGE)] {
                outcomes.extend(self.cpu_of_router(mode, work, load)?);
            }
            outcomes.extend(self.first_data(mode)?);
        }
        Ok(outcomes)
    }

    /// A target, and a router in front of it.
    fn chain(&self, mode: RouterMode) -> Result<[BenchServer; 2]> {
        let target = self.lunar(Backing::Null(1))?;
        let router = server::routed(&self.programs.lunar, &self.programs.blast, &target, mode.name())?;
        Ok([target, router])
    }

    fn hop(&self, mode: RouterMode, hop: &HopRow) -> Result<Vec<RowResult>> {
        let name = mode.row(hop.name);
        if !self.wants(&name) {
            return Ok(Vec::new());
        }
        let [target, router] = self.chain(mode)?;
        let reached = self.medians(&[(&router, hop.load), (&target, hop.load)])?;
        let limit = mode.at_least(&hop.load, hop.of_direct);
        Ok(vec![RowResult::ratio(&name, "IO/s", reached[0].iops, "direct", reached[1].iops, limit)])
    }

    /// Uses Lunar's initiator as the client, so that a router cannot save CPU time at the cost of its peers.
    fn cpu_of_router(&self, mode: RouterMode, work: &str, load: BlastLoad) -> Result<Vec<RowResult>> {
        let name = mode.row(&format!("{work} read, CPU per I/O"));
        if !self.wants(&name) {
            return Ok(Vec::new());
        }
        let [target, router] = self.chain(mode)?;
        let (mut through, mut direct) = (Vec::new(), Vec::new());
        for _ in 0..self.options.rounds.max(1) {
            through.push(self.cost(&router, &load)?);
            direct.push(self.cost(&target, &load)?);
        }
        let cost = median_of(&through, |cost| cost.server_us);
        let ends = median_of(&direct, |cost| cost.server_us + cost.client_us);
        let limit = mode.at_most(CPU_OF_ENDS);
        Ok(vec![RowResult::ratio(&name, "us", cost, "target and client", ends, limit)])
    }

    fn cost(&self, server: &BenchServer, load: &BlastLoad) -> Result<CpuCost> {
        let seconds = self.options.seconds;
        let before = server.cpu_s()?;
        let LoadResult { iops, cpu_us_per_io } =
            BenchClient::Lunar(&self.programs.load).run(server, load, seconds)?;
        let server_us = (server.cpu_s()? - before) * 1e6 / (iops * seconds as f64);
        Ok(CpuCost { server_us, client_us: cpu_us_per_io })
    }

    fn first_data(&self, mode: RouterMode) -> Result<Vec<RowResult>> {
        let [byte, pdu] =
            ["first byte", "first Data-In"].map(|what| mode.row(&format!("1 MiB read, {what}")));
        let wanted = [self.wants(&byte), self.wants(&pdu)];
        if wanted == [false, false] {
            return Ok(Vec::new());
        }
        let [target, router] = self.chain(mode)?;
        let (mut through, mut direct) = (Vec::new(), Vec::new());
        for _ in 0..self.options.rounds.max(1) {
            for (runs, server) in [(&mut through, &router), (&mut direct, &target)] {
                runs.push(load::first_data(&self.programs.blast, server, &FIRST, self.options.seconds)?);
            }
        }
        let row = |name: &str, figure: fn(&FirstData) -> f64| {
            let (through, direct) = (median_of(&through, figure), median_of(&direct, figure));
            RowResult::ratio(name, "us", through, "direct", direct, mode.at_most(FIRST_OF_DIRECT))
        };
        let rows = [row(&byte, |run| run.byte_us), row(&pdu, |run| run.pdu_us)];
        Ok(rows.into_iter().zip(wanted).filter_map(|(row, wanted)| wanted.then_some(row)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_promised_ratios_can_be_missed() {
        assert_eq!(RouterMode::Block.at_least(&SMALL, 0.45), RatioLimit::AtLeast(0.45));
        assert_eq!(RouterMode::Passthrough.at_least(&SMALL, 0.45), RatioLimit::ReportedAtLeast(0.45));
        assert_eq!(RouterMode::Block.at_least(&HOP_ROWS[1].load, 0.5), RatioLimit::ReportedAtLeast(0.5));
        assert_eq!(RouterMode::Block.at_most(1.3), RatioLimit::AtMost(1.3));
        assert_eq!(RouterMode::Passthrough.at_most(1.3), RatioLimit::Reported(1.3));
    }

    #[test]
    fn filter_selects_router_rows_and_one_mode() {
        let rows = [RouterMode::Block, RouterMode::Passthrough].map(|mode| mode.row(HOP_ROWS[0].name));
        assert!(rows.iter().all(|row| row.contains("router") && row.contains("256 KiB read, depth 8")));
        assert!(rows[1].contains("router (passthrough)") && !rows[0].contains("passthrough"), "{rows:?}");
    }
}

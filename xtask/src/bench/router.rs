//! The chain client -> router -> target against client -> target, with one null LUN of Lunar. The relay of `floor` in
//! the place of the router is the limit for any router.

use anyhow::Result;

use super::initiator::BenchClient;
use super::load::{self, BlastLoad, CpuCost, FirstData, LoadResult};
use super::rows::{BenchRun, median_of};
use super::server::{self, Backing, BenchServer};
use super::table::{RatioLimit, RowResult};

const LOADS: [(&str, BlastLoad); 4] = [
    ("256 KiB read, depth 8", LARGE),
    ("256 KiB write, depth 8", BlastLoad { op: "write", ..LARGE }),
    ("4 KiB random read, depth 32", SMALL),
    ("4 KiB random write, depth 32", BlastLoad { op: "write", ..SMALL }),
];
const CPU_LOADS: [(&str, BlastLoad); 3] =
    [("4 KiB read", SMALL), ("4 KiB write", BlastLoad { op: "write", ..SMALL }), ("256 KiB read", LARGE)];
const LARGE: BlastLoad = BlastLoad::new("read", 262_144, 8);
const SMALL: BlastLoad = BlastLoad::new("read", 4096, 32);
const FIRST: BlastLoad = BlastLoad::new("read", 1 << 20, 1);
const FIRST_OF_DIRECT: f64 = 1.5;

/// The program between client and target.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hop {
    /// The relay of `floor`
    Relay,
    /// Lunar's router in block mode
    Block,
    /// The same in passthrough mode
    Passthrough,
}

impl Hop {
    fn row(self, work: &str) -> String {
        let name = match self {
            Hop::Relay => "router (relay)",
            Hop::Block => "router (block)",
            Hop::Passthrough => "router (passthrough)",
        };
        format!("{name}, {work}")
    }

    /// The limit of the ratio to direct access. The one of large writes, and of large reads in passthrough mode, is reported.
    fn of_direct(self, load: &BlastLoad) -> RatioLimit {
        let limit = match (self, load.bytes <= SMALL.bytes) {
            (Hop::Relay, _) => return RatioLimit::None,
            (_, false) => 0.5,
            (Hop::Block, true) => 0.4,
            (Hop::Passthrough, true) => 0.35,
        };
        let is_promised = load.bytes <= SMALL.bytes || (self == Hop::Block && load.op == "read");
        if is_promised { RatioLimit::AtLeast(limit) } else { RatioLimit::ReportedAtLeast(limit) }
    }

    /// The limit of the CPU time for a command, relative to that of target and client together.
    fn of_ends(self) -> RatioLimit {
        match self {
            Hop::Relay => RatioLimit::None,
            Hop::Block => RatioLimit::AtMost(1.25),
            Hop::Passthrough => RatioLimit::AtMost(1.5),
        }
    }

    fn of_first_data(self) -> RatioLimit {
        match self {
            Hop::Relay => RatioLimit::None,
            Hop::Block | Hop::Passthrough => RatioLimit::AtMost(FIRST_OF_DIRECT),
        }
    }
}

impl BenchRun<'_> {
    /// All rows of the router, each work beside its limit.
    pub fn routers(&self) -> Result<Vec<RowResult>> {
        const HOPS: [Hop; 3] = [Hop::Relay, Hop::Block, Hop::Passthrough];
        let mut outcomes = Vec::new();
        for (work, load) in &LOADS {
            for hop in HOPS {
                outcomes.extend(self.throughput(hop, work, load)?);
            }
        }
        for (work, load) in &CPU_LOADS {
            for hop in HOPS {
                outcomes.extend(self.cpu_of_hop(hop, work, load)?);
            }
        }
        for hop in HOPS {
            outcomes.extend(self.first_data(hop)?);
        }
        Ok(outcomes)
    }

    /// A target, and the hop in front of it.
    fn chain(&self, hop: Hop) -> Result<[BenchServer; 2]> {
        let target = self.lunar(Backing::Null(1))?;
        let routed = |mode| server::routed(&self.programs.lunar, &self.programs.blast, &target, mode);
        let router = match hop {
            Hop::Relay => server::relay(&self.programs.floor, &target),
            Hop::Block => routed("block"),
            Hop::Passthrough => routed("passthrough"),
        }?;
        Ok([target, router])
    }

    fn throughput(&self, hop: Hop, work: &str, load: &BlastLoad) -> Result<Option<RowResult>> {
        let name = hop.row(work);
        if !self.wants(&name) {
            return Ok(None);
        }
        let [target, router] = self.chain(hop)?;
        let reached = self.medians(&[(&router, *load), (&target, *load)])?;
        let limit = hop.of_direct(load);
        Ok(Some(RowResult::ratio(&name, "IO/s", reached[0].iops, "direct", reached[1].iops, limit)))
    }

    /// The limit is that with Lunar's initiator as the client, so that a router cannot save CPU time at the cost of its
    /// peers. `blast` is the client with the least CPU time.
    fn cpu_of_hop(&self, hop: Hop, work: &str, load: &BlastLoad) -> Result<Vec<RowResult>> {
        let name = hop.row(&format!("{work}, CPU per I/O"));
        if !self.wants(&name) {
            return Ok(Vec::new());
        }
        let [target, router] = self.chain(hop)?;
        let row = |other, limit, cost: &dyn Fn(&BenchServer) -> Result<CpuCost>| -> Result<RowResult> {
            let (mut through, mut direct) = (Vec::new(), Vec::new());
            for _ in 0..self.options.rounds.max(1) {
                through.push(cost(&router)?);
                direct.push(cost(&target)?);
            }
            let cost = median_of(&through, |cost| cost.server_us);
            let ends = median_of(&direct, |cost| cost.server_us + cost.client_us);
            Ok(RowResult::ratio(&name, "µs", cost, other, ends, limit))
        };
        let seconds = self.options.seconds;
        Ok(vec![
            row("target and client", hop.of_ends(), &|server| self.cost(server, load))?,
            row("target and blast", RatioLimit::None, &|server| {
                load::cpu(&self.programs.blast, server, load, seconds)
            })?,
        ])
    }

    fn cost(&self, server: &BenchServer, load: &BlastLoad) -> Result<CpuCost> {
        let seconds = self.options.seconds;
        let before = server.cpu_s()?;
        let LoadResult { iops, cpu_us_per_io } =
            BenchClient::Lunar(&self.programs.load).run(server, load, seconds)?;
        let server_us = (server.cpu_s()? - before) * 1e6 / (iops * seconds as f64);
        Ok(CpuCost { server_us, client_us: cpu_us_per_io })
    }

    fn first_data(&self, hop: Hop) -> Result<Vec<RowResult>> {
        let [byte, pdu] = ["first byte", "first Data-In"].map(|what| hop.row(&format!("1 MiB read, {what}")));
        let wanted = [self.wants(&byte), self.wants(&pdu)];
        if wanted == [false, false] {
            return Ok(Vec::new());
        }
        let [target, router] = self.chain(hop)?;
        let (mut through, mut direct) = (Vec::new(), Vec::new());
        for _ in 0..self.options.rounds.max(1) {
            for (runs, server) in [(&mut through, &router), (&mut direct, &target)] {
                runs.push(load::first_data(&self.programs.blast, server, &FIRST, self.options.seconds)?);
            }
        }
        let row = |name: &str, figure: fn(&FirstData) -> f64| {
            let (through, direct) = (median_of(&through, figure), median_of(&direct, figure));
            RowResult::ratio(name, "µs", through, "direct", direct, hop.of_first_data())
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
        let [_, (_, large_write), (_, read), (_, write)] = LOADS;
        assert_eq!(Hop::Block.of_direct(&read), RatioLimit::AtLeast(0.4));
        assert_eq!(Hop::Block.of_direct(&write), RatioLimit::AtLeast(0.4));
        assert_eq!(Hop::Block.of_direct(&large_write), RatioLimit::ReportedAtLeast(0.5));
        assert_eq!(Hop::Passthrough.of_direct(&read), RatioLimit::AtLeast(0.35));
        assert_eq!(Hop::Passthrough.of_direct(&large_write), RatioLimit::ReportedAtLeast(0.5));
        assert_eq!(Hop::Relay.of_direct(&read), RatioLimit::None);
        assert_eq!(
            [Hop::Relay, Hop::Block, Hop::Passthrough].map(Hop::of_ends),
            [RatioLimit::None, RatioLimit::AtMost(1.25), RatioLimit::AtMost(1.5)]
        );
    }

    #[test]
    fn filter_selects_router_rows_and_one_mode() {
        let rows = [Hop::Block, Hop::Passthrough].map(|hop| hop.row(LOADS[0].0));
        assert!(rows.iter().all(|row| row.contains("router") && row.contains("256 KiB read, depth 8")));
        assert!(rows[1].contains("router (passthrough)") && !rows[0].contains("passthrough"), "{rows:?}");
    }
}

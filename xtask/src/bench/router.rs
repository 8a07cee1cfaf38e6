//! The chain client -> router -> target against client -> target, on one null LUN of Lunar.

use anyhow::Result;

use super::initiator::Client;
use super::load::{self, FirstData, Load, Reached};
use super::rows::{Bench, middle};
use super::server::{self, Backing, Server};
use super::table::{Limit, Outcome};

/// What the chain must reach of the target alone.
struct Hop {
    name: &'static str,
    load: Load,
    of_direct: f64,
}

const HOPS: [Hop; 4] = [
    Hop { name: "256 KiB read, depth 8", load: LARGE, of_direct: 0.5 },
    Hop { name: "256 KiB write, depth 8", load: Load { op: "write", ..LARGE }, of_direct: 0.5 },
    Hop { name: "4 KiB random read, depth 32", load: SMALL, of_direct: 0.45 },
    Hop { name: "4 KiB random write, depth 32", load: Load { op: "write", ..SMALL }, of_direct: 0.45 },
];
const LARGE: Load = Load::new("read", 262_144, 8);
const SMALL: Load = Load::new("read", 4096, 32);
const FIRST: Load = Load::new("read", 1 << 20, 1);
/// The router's CPU per I/O, of those of target and client together.
const CPU_OF_ENDS: f64 = 1.3;
const FIRST_OF_DIRECT: f64 = 1.5;

/// How a router carries commands. Limits are for the one that understands them; the other is told.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Block,
    Passthrough,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Block => "block",
            Mode::Passthrough => "passthrough",
        }
    }

    fn row(self, work: &str) -> String {
        format!("router ({}), {work}", self.name())
    }

    /// What must not be below; writes are told.
    fn at_least(self, load: &Load, limit: f64) -> Limit {
        let counts = self == Mode::Block && load.op == "read";
        if counts { Limit::AtLeast(limit) } else { Limit::ToldAtLeast(limit) }
    }

    fn at_most(self, limit: f64) -> Limit {
        if self == Mode::Block { Limit::AtMost(limit) } else { Limit::Told(limit) }
    }
}

/// The CPU time of a command in microseconds: of the one who serves it, and of the client.
#[derive(Clone, Copy, Debug)]
struct Cost {
    server_us: f64,
    client_us: f64,
}

impl Bench<'_> {
    /// Every row of the router.
    pub fn routers(&self) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        for mode in [Mode::Block, Mode::Passthrough] {
            for hop in &HOPS {
                outcomes.extend(self.hop(mode, hop)?);
            }
            for (work, load) in [("4 KiB", SMALL), ("256 KiB", LARGE)] {
                outcomes.extend(self.cpu_of_router(mode, work, load)?);
            }
            outcomes.extend(self.first_data(mode)?);
        }
        Ok(outcomes)
    }

    /// A target, and a router before it.
    fn chain(&self, mode: Mode) -> Result<[Server; 2]> {
        let target = self.lunar(Backing::Null(1))?;
        let router = server::routed(&self.programs.lunar, &self.programs.blast, &target, mode.name())?;
        Ok([target, router])
    }

    fn hop(&self, mode: Mode, hop: &Hop) -> Result<Vec<Outcome>> {
        let name = mode.row(hop.name);
        if !self.wants(&name) {
            return Ok(Vec::new());
        }
        let [target, router] = self.chain(mode)?;
        let reached = self.medians(&[(&router, hop.load), (&target, hop.load)])?;
        let limit = mode.at_least(&hop.load, hop.of_direct);
        Ok(vec![Outcome::ratio(&name, "IO/s", reached[0].iops, "direct", reached[1].iops, limit)])
    }

    /// With Lunar's initiator as the client: what is saved at a router shall not be spent at its ends.
    fn cpu_of_router(&self, mode: Mode, work: &str, load: Load) -> Result<Vec<Outcome>> {
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
        let cost = middle(&through, |cost| cost.server_us);
        let ends = middle(&direct, |cost| cost.server_us + cost.client_us);
        let limit = mode.at_most(CPU_OF_ENDS);
        Ok(vec![Outcome::ratio(&name, "us", cost, "target and client", ends, limit)])
    }

    fn cost(&self, server: &Server, load: &Load) -> Result<Cost> {
        let seconds = self.options.seconds;
        let before = server.cpu_s()?;
        let Reached { iops, cpu_us_per_io } =
            Client::Lunar(&self.programs.load).run(server, load, seconds)?;
        let server_us = (server.cpu_s()? - before) * 1e6 / (iops * seconds as f64);
        Ok(Cost { server_us, client_us: cpu_us_per_io })
    }

    fn first_data(&self, mode: Mode) -> Result<Vec<Outcome>> {
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
            let (through, direct) = (middle(&through, figure), middle(&direct, figure));
            Outcome::ratio(name, "us", through, "direct", direct, mode.at_most(FIRST_OF_DIRECT))
        };
        let rows = [row(&byte, |run| run.byte_us), row(&pdu, |run| run.pdu_us)];
        Ok(rows.into_iter().zip(wanted).filter_map(|(row, wanted)| wanted.then_some(row)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_promised_can_be_missed() {
        assert_eq!(Mode::Block.at_least(&SMALL, 0.45), Limit::AtLeast(0.45));
        assert_eq!(Mode::Passthrough.at_least(&SMALL, 0.45), Limit::ToldAtLeast(0.45));
        assert_eq!(Mode::Block.at_least(&HOPS[1].load, 0.5), Limit::ToldAtLeast(0.5));
        assert_eq!(Mode::Block.at_most(1.3), Limit::AtMost(1.3));
        assert_eq!(Mode::Passthrough.at_most(1.3), Limit::Told(1.3));
    }

    #[test]
    fn a_filter_finds_the_rows_of_the_router_and_those_of_one_path() {
        let rows = [Mode::Block, Mode::Passthrough].map(|mode| mode.row(HOPS[0].name));
        assert!(rows.iter().all(|row| row.contains("router") && row.contains("256 KiB read, depth 8")));
        assert!(rows[1].contains("router (passthrough)") && !rows[0].contains("passthrough"), "{rows:?}");
    }
}

//! iSCSI over RDMA by software iWARP against iSCSI over TCP: Lunar's initiator, Lunar's target, one null LUN, one portal.

use anyhow::Result;

use super::initiator::{self, Client};
use super::load::Load;
use super::rows::{Bench, middle};
use super::server;
use super::table::{Limit, Outcome};

/// What must be reached of TCP without digests.
struct Row {
    name: &'static str,
    load: Load,
    crc: bool,
    of_tcp: f64,
}

const ROWS: [Row; 6] = [
    Row { name: "4 KiB random read, depth 32", load: SMALL, crc: false, of_tcp: 0.6 },
    Row {
        name: "4 KiB random write, depth 32",
        load: Load { op: "write", ..SMALL },
        crc: false,
        of_tcp: 0.6,
    },
    Row { name: "4 KiB random read, depth 32, CRC", load: SMALL, crc: true, of_tcp: 0.5 },
    Row {
        name: "4 KiB random write, depth 32, CRC",
        load: Load { op: "write", ..SMALL },
        crc: true,
        of_tcp: 0.5,
    },
    Row { name: "256 KiB read, depth 8", load: LARGE, crc: false, of_tcp: 0.7 },
    Row { name: "256 KiB write, depth 8", load: Load { op: "write", ..LARGE }, crc: false, of_tcp: 0.7 },
];
const SMALL: Load = Load::new("read", 4096, 32);
const LARGE: Load = Load::new("read", 262_144, 8);

/// What the protocols cost without a network: (head, transport).
const IN_MEMORY: [(&str, &str); 2] = [("iSER", "iser"), ("SRP", "srp")];

impl Bench<'_> {
    /// CPU time of initiator and target together, with memory between them instead of a network: told, without a limit.
    pub fn rdma_in_memory(&self) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        for ((head, transport), op) in IN_MEMORY.into_iter().flat_map(|row| [(row, "read"), (row, "write")]) {
            let name = format!("{head} (mem), 4 KiB {op}, depth 32, CPU of both ends");
            if !self.wants(&name) {
                continue;
            }
            let load = Load { op, ..SMALL };
            let run =
                |_| initiator::in_memory(&self.programs.in_memory, transport, &load, self.options.seconds);
            let runs = (0..self.options.rounds.max(1)).map(run).collect::<Result<Vec<_>>>()?;
            let cpu_ns = middle(&runs, |run| run.cpu_us_per_io * 1e3);
            outcomes.push(Outcome::figure(&name, "ns/IO", cpu_ns, Limit::None));
        }
        Ok(outcomes)
    }

    /// Every row of RDMA. Writes of 256 KiB have no limit: they are told.
    pub fn rdma(&self) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        for row in &ROWS {
            let name = format!("iSER (iwarp), {}", row.name);
            if !self.wants(&name) {
                continue;
            }
            let server = server::lunar_with_iser(&self.programs.lunar)?;
            let over = Client::Iser { program: &self.programs.load, crc: row.crc };
            let (mut iser, mut tcp) = (Vec::new(), Vec::new());
            for _ in 0..self.options.rounds.max(1) {
                iser.push(over.run(&server, &row.load, self.options.seconds)?.iops);
                let client = Client::Lunar(&self.programs.load);
                tcp.push(client.run(&server, &row.load, self.options.seconds)?.iops);
            }
            let limit = match row.load.op {
                "read" => Limit::AtLeast(row.of_tcp),
                _ => Limit::ToldAtLeast(row.of_tcp),
            };
            let (iser, tcp) = (middle(&iser, |iops| *iops), middle(&tcp, |iops| *iops));
            outcomes.push(Outcome::ratio(&name, "IO/s", iser, "TCP", tcp, limit));
        }
        Ok(outcomes)
    }
}

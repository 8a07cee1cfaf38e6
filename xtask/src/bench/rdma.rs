//! iSCSI over RDMA with software iWARP against iSCSI over TCP: Lunar's initiator and target, one null LUN, one
//! portal.

use anyhow::Result;

use super::initiator::{self, BenchClient};
use super::load::BlastLoad;
use super::rows::{BenchRun, median_of};
use super::server;
use super::table::{RatioLimit, RowResult};

/// A row and its ratio to TCP without digests.
struct Row {
    name: &'static str,
    load: BlastLoad,
    crc: bool,
    of_tcp: f64,
}

const ROWS: [Row; 6] = [
    Row { name: "4 KiB random read, depth 32", load: SMALL, crc: false, of_tcp: 0.6 },
    Row {
        name: "4 KiB random write, depth 32",
        load: BlastLoad { op: "write", ..SMALL },
        crc: false,
        of_tcp: 0.6,
    },
    Row { name: "4 KiB random read, depth 32, CRC", load: SMALL, crc: true, of_tcp: 0.5 },
    Row {
        name: "4 KiB random write, depth 32, CRC",
        load: BlastLoad { op: "write", ..SMALL },
        crc: true,
        of_tcp: 0.5,
    },
    Row { name: "256 KiB read, depth 8", load: LARGE, crc: false, of_tcp: 0.7 },
    Row { name: "256 KiB write, depth 8", load: BlastLoad { op: "write", ..LARGE }, crc: false, of_tcp: 0.7 },
];
const SMALL: BlastLoad = BlastLoad::new("read", 4096, 32);
const LARGE: BlastLoad = BlastLoad::new("read", 262_144, 8);

/// The cost of the protocols without a network: (name, transport).
const IN_MEMORY: [(&str, &str); 2] = [("iSER", "iser"), ("SRP", "srp")];

impl BenchRun<'_> {
    /// CPU time of initiator and target together, connected by memory instead of a network: reported without a
    /// limit.
    pub fn rdma_in_memory(&self) -> Result<Vec<RowResult>> {
        let mut outcomes = Vec::new();
        for ((head, transport), op) in IN_MEMORY.into_iter().flat_map(|row| [(row, "read"), (row, "write")]) {
            let name = format!("{head} (mem), 4 KiB {op}, depth 32, CPU of both ends");
            if !self.wants(&name) {
                continue;
            }
            let load = BlastLoad { op, ..SMALL };
            let run =
                |_| initiator::in_memory(&self.programs.in_memory, transport, &load, self.options.seconds);
            let runs = (0..self.options.rounds.max(1)).map(run).collect::<Result<Vec<_>>>()?;
            let cpu_ns = median_of(&runs, |run| run.cpu_us_per_io * 1e3);
            outcomes.push(RowResult::figure(&name, "ns/IO", cpu_ns, RatioLimit::None));
        }
        Ok(outcomes)
    }

    /// All rows of RDMA. Writes are reported, but their limits are not asserted.
    pub fn rdma(&self) -> Result<Vec<RowResult>> {
        let mut outcomes = Vec::new();
        for row in &ROWS {
            let name = format!("iSER (iwarp), {}", row.name);
            if !self.wants(&name) {
                continue;
            }
            let server = server::lunar_with_iser(&self.programs.lunar)?;
            let over = BenchClient::Iser { program: &self.programs.load, crc: row.crc };
            let (mut iser, mut tcp) = (Vec::new(), Vec::new());
            for _ in 0..self.options.rounds.max(1) {
                iser.push(over.run(&server, &row.load, self.options.seconds)?.iops);
                let client = BenchClient::Lunar(&self.programs.load);
                tcp.push(client.run(&server, &row.load, self.options.seconds)?.iops);
            }
            let limit = match row.load.op {
                "read" => RatioLimit::AtLeast(row.of_tcp),
                _ => RatioLimit::ReportedAtLeast(row.of_tcp),
            };
            let (iser, tcp) = (median_of(&iser, |iops| *iops), median_of(&tcp, |iops| *iops));
            outcomes.push(RowResult::ratio(&name, "IO/s", iser, "TCP", tcp, limit));
        }
        Ok(outcomes)
    }
}

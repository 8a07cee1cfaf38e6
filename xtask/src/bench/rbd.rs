//! Images of Ceph RBD: Lunar, over iSCSI and directly, against `rbd bench` and STGT with `bs_rbd`, all on one image of a
//! cluster of this host; and the memory of an image. No program is pinned to a core.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Options;
use super::ceph::Cluster;
use super::initiator;
use super::load::BlastLoad;
use super::rows::{BenchRun, median_of};
use super::server::{Backing, BenchServer};
use super::stgt::{self, StgtStore};
use super::table::{RatioLimit, RowResult};
use super::tools::{self, Tool};
use crate::root;

const LOADS: [(&str, BlastLoad); 2] = [
    ("rbd: 4 KiB random read, depth 32", BlastLoad::new("read", 4096, 32)),
    ("rbd: 4 KiB random write, depth 32", BlastLoad::new("write", 4096, 32)),
];
const MEMORY: &str = "rbd: resident memory of an image";

const OF_RBD_BENCH: f64 = 0.9;
const OF_STGT: f64 = 1.0;
const IMAGE_MIB: f64 = 3.0;
/// Measurements in a round.
const TURNS: usize = 4;

/// The image of the loads, as large as the span that `lunar bench` uses.
const IMAGE: &str = "bench";
const SIZE_MIB: u32 = 256;
/// Images of the server whose memory is compared with that of a server of one.
const IMAGES: usize = 16;
/// The time until a server is at rest.
const REST: Duration = Duration::from_secs(2);
/// Threads of STGT: one for each command in flight.
const STGT_THREADS: u32 = 32;

const TOOLS: [Tool; 6] = [
    ("ceph-mon", "ceph-mon"),
    ("ceph-osd", "ceph-osd"),
    ("rbd", "ceph-common"),
    ("/usr/lib/x86_64-linux-gnu/librbd.so.1", "librbd1"),
    ("tgtd", "tgt"),
    ("/usr/lib/tgt/backing-store/bs_rbd.so", "tgt-rbd"),
];

/// If the rows are requested and all programs are installed: builds the starter of the cluster.
pub fn prepare(options: &Options) -> Result<Option<PathBuf>> {
    let wants = LOADS.iter().map(|(name, _)| *name).chain([MEMORY]).any(|name| options.wants(name));
    if options.base.is_some() || !wants || !tools::have(&TOOLS, "Ceph RBD") {
        return Ok(None);
    }
    root::build("interop", "ceph").map(Some)
}

/// The rates of one round, in IO/s, and the CPU time of the servers in microseconds per command.
#[derive(Default)]
struct Round {
    rbd_bench: f64,
    direct: f64,
    lunar: f64,
    stgt: f64,
    lunar_cpu_us: f64,
    stgt_cpu_us: f64,
}

/// Programs on one image, and the load that each of them measures.
struct Subjects<'a> {
    cluster: &'a Cluster,
    load: &'a BlastLoad,
    lunar: &'a BenchServer,
    stgt: &'a BenchServer,
}

impl BenchRun<'_> {
    /// All rows of Ceph RBD, with one cluster.
    pub fn rbd(&self) -> Result<Vec<RowResult>> {
        let Some(program) = &self.programs.ceph else { return Ok(Vec::new()) };
        let cluster = Cluster::start(program)?;
        let mut outcomes = self.rbd_rates(&cluster)?;
        outcomes.extend(self.rbd_memory(&cluster)?);
        Ok(outcomes)
    }

    fn rbd_rates(&self, cluster: &Cluster) -> Result<Vec<RowResult>> {
        let loads: Vec<_> = LOADS.iter().filter(|(name, _)| self.wants(name)).collect();
        if loads.is_empty() {
            return Ok(Vec::new());
        }
        cluster.create(IMAGE, SIZE_MIB)?;
        cluster.fill(IMAGE, SIZE_MIB)?;
        let lunar = self.lunar(Backing::Rbd(cluster, &[IMAGE.into()]))?;
        let stgt = stgt::start(StgtStore::Rbd(cluster, IMAGE, STGT_THREADS))?;
        let mut outcomes = Vec::new();
        for (name, load) in loads {
            let subjects = Subjects { cluster, load, lunar: &lunar, stgt: &stgt };
            let commands = (self.rbd_direct(&subjects)? * self.options.seconds as f64).max(1.0) as u64;
            let rounds = 0..self.options.rounds.max(1);
            let rounds = rounds.map(|number| self.rbd_round(&subjects, commands, number));
            outcomes.extend(rows(name, &rounds.collect::<Result<Vec<_>>>()?));
        }
        Ok(outcomes)
    }

    /// One round; the number of the round gives the measurement that begins it. An OSD pays for a write later, too: with
    /// a fixed order, one program would always pay for the writes of another.
    fn rbd_round(&self, subjects: &Subjects, commands: u64, number: usize) -> Result<Round> {
        let Subjects { cluster, load, lunar, stgt } = subjects;
        let mut round = Round::default();
        for turn in 0..TURNS {
            match (number + turn) % TURNS {
                0 => round.direct = self.rbd_direct(subjects)?,
                1 => (round.lunar, round.lunar_cpu_us) = self.served(lunar, load)?,
                2 => round.rbd_bench = cluster.rbd_bench(IMAGE, load, commands)?,
                _ => (round.stgt, round.stgt_cpu_us) = self.served(stgt, load)?,
            }
        }
        Ok(round)
    }

    fn rbd_direct(&self, subjects: &Subjects) -> Result<f64> {
        self.lunar_bench(&subjects.cluster.target(IMAGE), subjects.load)
    }

    /// The rate of `lunar bench` on a target.
    fn lunar_bench(&self, target: &str, load: &BlastLoad) -> Result<f64> {
        let command = Command::new(&self.programs.lunar);
        Ok(initiator::engine(command, target, load, self.options.seconds)?.iops)
    }

    /// The rate of `lunar bench` on a server, and the server's CPU time per command in microseconds.
    fn served(&self, server: &BenchServer, load: &BlastLoad) -> Result<(f64, f64)> {
        let (seconds, before) = (self.options.seconds, server.cpu_s()?);
        let iops = self.lunar_bench(&server.url(), load)?;
        Ok((iops, (server.cpu_s()? - before) * 1e6 / (iops * seconds as f64)))
    }

    fn rbd_memory(&self, cluster: &Cluster) -> Result<Vec<RowResult>> {
        if !self.wants(MEMORY) {
            return Ok(Vec::new());
        }
        let images: Vec<String> = (0..IMAGES).map(|number| format!("rest{number}")).collect();
        images.iter().try_for_each(|image| cluster.create(image, SIZE_MIB))?;
        let [one, all] = [&images[..1], &images].map(|images| self.rbd_at_rest(cluster, images));
        let mib = (all? - one?) / (IMAGES - 1) as f64;
        Ok(vec![RowResult::figure(MEMORY, "MiB", mib, RatioLimit::AtMost(IMAGE_MIB))])
    }

    /// The memory of a server of these images, in MiB.
    fn rbd_at_rest(&self, cluster: &Cluster, images: &[String]) -> Result<f64> {
        let lunar = self.lunar(Backing::Rbd(cluster, images))?;
        std::thread::sleep(REST);
        lunar.resident_mib().context("the server")
    }
}

/// The rows of a load.
fn rows(name: &str, rounds: &[Round]) -> [RowResult; 4] {
    let median = |figure: fn(&Round) -> f64| median_of(rounds, figure);
    let [rbd_bench, lunar] = [median(|round| round.rbd_bench), median(|round| round.lunar)];
    let (of_rbd_bench, of_stgt) = (RatioLimit::AtLeast(OF_RBD_BENCH), RatioLimit::AtLeast(OF_STGT));
    let (direct, stgt) = (median(|round| round.direct), median(|round| round.stgt));
    let cpu = [median(|round| round.lunar_cpu_us), median(|round| round.stgt_cpu_us)];
    [
        RowResult::ratio(name, "IO/s", lunar, "rbd bench", rbd_bench, of_rbd_bench),
        RowResult::ratio(name, "IO/s", lunar, "STGT", stgt, of_stgt),
        RowResult::ratio(&format!("{name}, direct"), "IO/s", direct, "rbd bench", rbd_bench, of_rbd_bench),
        RowResult::ratio(
            &format!("{name}, server's CPU per I/O"),
            "µs",
            cpu[0],
            "STGT",
            cpu[1],
            RatioLimit::None,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_compare_medians_with_both_others() {
        let round = |lunar, stgt| Round {
            rbd_bench: 100.0,
            direct: 120.0,
            lunar,
            stgt,
            lunar_cpu_us: 60.0,
            stgt_cpu_us: 120.0,
        };
        let rounds = [round(89.0, 40.0), round(95.0, 50.0), round(1.0, 999.0)];
        let table = crate::bench::table::text(&rows("w", &rounds));
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let expected = [
            "| w | 89.00 IO/s | rbd bench 100.00 | 0.89 | >= 0.90 | MISSED |",
            "| w | 89.00 IO/s | STGT 50.00 | 1.78 | >= 1.00 | ok |",
            "| w, direct | 120.00 IO/s | rbd bench 100.00 | 1.20 | >= 0.90 | ok |",
            "| w, server's CPU per I/O | 60.00 µs | STGT 120.00 | 0.50 | | none |",
        ];
        assert_eq!(table.lines().skip(2).map(words).collect::<Vec<_>>(), expected);
    }
}

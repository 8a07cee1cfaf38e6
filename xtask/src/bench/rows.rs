//! The rows and their limits.

use std::path::Path;

use anyhow::Result;

use super::cached_file::CachedFile;
use super::initiator::{BenchClient, NbdExport};
use super::load::{self, BlastLoad, IdleSessions, LoadResult};
use super::server::{self, Backing, BenchServer};
use super::stgt::{self, StgtStore};
use super::table::{RatioLimit, RowResult};
use super::{Options, Programs};

/// A null LUN and one session: the load, and the ratios to `floor` and STGT.
struct SpeedRow {
    name: &'static str,
    load: BlastLoad,
    of_floor: f64,
    of_stgt: f64,
}

const SPEED_ROWS: [SpeedRow; 8] = [
    SpeedRow {
        name: "1 KiB random read, depth 64",
        load: BlastLoad::new("read", 1024, 64),
        of_floor: 0.85,
        of_stgt: 10.0,
    },
    SpeedRow {
        name: "1 KiB random write, depth 64",
        load: BlastLoad::new("write", 1024, 64),
        of_floor: 0.85,
        of_stgt: 10.0,
    },
    SpeedRow {
        name: "4 KiB random read, depth 32",
        load: BlastLoad::new("read", 4096, 32),
        of_floor: 0.70,
        of_stgt: 10.0,
    },
    SpeedRow {
        name: "4 KiB random write, depth 32",
        load: BlastLoad::new("write", 4096, 32),
        of_floor: 0.70,
        of_stgt: 10.0,
    },
    SpeedRow {
        name: "4 KiB random read, depth 1",
        load: BlastLoad::new("read", 4096, 1),
        of_floor: 0.80,
        of_stgt: 1.2,
    },
    SpeedRow {
        name: "4 KiB random write, depth 1",
        load: BlastLoad::new("write", 4096, 1),
        of_floor: 0.80,
        of_stgt: 1.2,
    },
    SpeedRow { name: "256 KiB read, depth 8", load: LARGE_READ, of_floor: 0.85, of_stgt: 1.05 },
    SpeedRow { name: "256 KiB write, depth 8", load: LARGE_WRITE, of_floor: 0.85, of_stgt: 1.7 },
];
const LARGE_READ: BlastLoad = BlastLoad::new("read", 262_144, 8);
const LARGE_WRITE: BlastLoad = BlastLoad::new("write", 262_144, 8);
const SMALL_READ: BlastLoad = BlastLoad::new("read", 4096, 32);

const CACHED_OF_STGT: f64 = 6.0;
const WITH_DIGESTS: f64 = 0.85;
const CPU_GROWTH: f64 = 1.10;
const MANY_SESSIONS: u32 = 64;
const MANY_LUNS: u32 = 1000;
const OF_LIBISCSI: f64 = 4.0;
const LARGE_OF_LIBISCSI: f64 = 1.3;
const CPU_OF_LIBISCSI: f64 = 0.3;
const OF_BLAST: f64 = 0.7;
const NBD_OF_DIRECT: f64 = 0.75;
const IDLE_SESSIONS: u32 = 1000;
const IDLE_MIB: f64 = 64.0;

/// The options and programs that every row needs.
pub struct BenchRun<'a> {
    /// Durations and counts
    pub options: &'a Options,
    /// The programs
    pub programs: &'a Programs,
}

/// Runs every row that the filter selects, in the order of the table.
/// The number of parts that failed follows: their rows are missing, and the others are still of use.
pub fn run(options: &Options, programs: &Programs) -> Result<(Vec<RowResult>, usize)> {
    let bench = BenchRun { options, programs };
    if let Some(base) = &options.base {
        return Ok((bench.against_base(base)?, 0));
    }
    let parts = [
        BenchRun::speed,
        BenchRun::page_cache,
        BenchRun::large_writes,
        BenchRun::zero_copy,
        BenchRun::memory_file_system,
        BenchRun::digests,
        BenchRun::cpu_by_sessions,
        BenchRun::cpu_by_luns,
        BenchRun::tails,
        BenchRun::many_sessions,
        BenchRun::idle_sessions,
        BenchRun::many_luns,
        BenchRun::initiator_on_floor,
        BenchRun::engine,
        BenchRun::initiator_on_stgt,
        BenchRun::initiator_large,
        BenchRun::nbd,
        BenchRun::routers,
        BenchRun::rdma,
        BenchRun::rdma_in_memory,
        BenchRun::verbs,
        BenchRun::lio,
        BenchRun::nvmet,
        BenchRun::nvme,
        BenchRun::nvme_initiator,
        BenchRun::rbd,
    ];
    let (mut outcomes, mut failed) = (Vec::new(), 0);
    for part in parts {
        match part(&bench) {
            Ok(rows) => outcomes.extend(rows),
            Err(e) => {
                eprintln!("bench: {e:#}");
                failed += 1;
            }
        }
    }
    Ok((outcomes, failed))
}

impl BenchRun<'_> {
    /// Whether the filter selects a row; prints its name if so.
    pub fn wants(&self, name: &str) -> bool {
        let wanted = self.options.wants(name);
        if wanted {
            eprintln!("bench: {name}");
        }
        wanted
    }

    /// Starts Lunar.
    pub fn lunar(&self, backing: Backing) -> Result<BenchServer> {
        server::lunar(&self.programs.lunar, backing)
    }

    /// Medians of alternating runs, in the order of `contenders`.
    pub fn medians(&self, contenders: &[(&BenchServer, BlastLoad)]) -> Result<Vec<LoadResult>> {
        let mut runs = vec![Vec::new(); contenders.len()];
        for _ in 0..self.options.rounds.max(1) {
            for (runs, (server, load)) in runs.iter_mut().zip(contenders) {
                runs.push(load::run(&self.programs.blast, server, load, self.options.seconds)?);
            }
        }
        Ok(runs.iter().map(|runs| median(runs)).collect())
    }

    fn speed(&self) -> Result<Vec<RowResult>> {
        let mut outcomes = Vec::new();
        for row in SPEED_ROWS.iter().filter(|row| self.wants(row.name)) {
            let servers = [
                Some(server::floor(&self.programs.floor)?),
                self.programs.stgt.then(|| stgt::start(StgtStore::Null)).transpose()?,
                Some(self.lunar(Backing::Null(1))?),
            ];
            let contenders: Vec<(&BenchServer, BlastLoad)> =
                servers.iter().flatten().map(|s| (s, row.load)).collect();
            let reached = self.medians(&contenders)?;
            let lunar = reached[reached.len() - 1].iops;
            let against = |name, iops, limit| {
                RowResult::ratio(row.name, "IO/s", lunar, name, iops, RatioLimit::AtLeast(limit))
            };
            outcomes.push(against("floor", reached[0].iops, row.of_floor));
            if servers[1].is_some() {
                outcomes.push(against("STGT", reached[1].iops, row.of_stgt));
            }
        }
        Ok(outcomes)
    }

    fn page_cache(&self) -> Result<Vec<RowResult>> {
        let name = "4 KiB random read, depth 32, file in the page cache";
        if !self.programs.stgt || !self.wants(name) {
            return Ok(Vec::new());
        }
        let file = CachedFile::create()?;
        let lunar = self.lunar(Backing::File(file.path()))?;
        let stgt = stgt::start(StgtStore::File(file.path()))?;
        let reached = self.medians(&[(&lunar, SMALL_READ), (&stgt, SMALL_READ)])?;
        let limit = RatioLimit::AtLeast(CACHED_OF_STGT);
        Ok(vec![RowResult::ratio(name, "IO/s", reached[0].iops, "STGT", reached[1].iops, limit)])
    }

    fn digests(&self) -> Result<Vec<RowResult>> {
        let mut outcomes = Vec::new();
        for (name, load) in
            [("256 KiB read, data digests", LARGE_READ), ("256 KiB write, data digests", LARGE_WRITE)]
        {
            if !self.wants(name) {
                continue;
            }
            let lunar = self.lunar(Backing::Null(1))?;
            let with = BlastLoad { data_digest: true, ..load };
            let reached = self.medians(&[(&lunar, with), (&lunar, load)])?;
            let limit = RatioLimit::AtLeast(WITH_DIGESTS);
            outcomes.push(RowResult::ratio(name, "IO/s", reached[0].iops, "without", reached[1].iops, limit));
        }
        Ok(outcomes)
    }

    fn cpu_by_sessions(&self) -> Result<Vec<RowResult>> {
        let many = BlastLoad { sessions: MANY_SESSIONS, ..SMALL_READ };
        let name = "CPU per I/O, 64 sessions";
        let mut outcomes = self.cpu_growth(name, 1, many, "1 session")?;
        if self.wants(name) {
            // This is the share of the kernel, because floor itself does almost nothing.
            let floor = server::floor(&self.programs.floor)?;
            outcomes.push(self.growth(
                "floor's CPU per I/O, 64 sessions",
                [(&floor, many), (&floor, SMALL_READ)],
                "1 session",
                RatioLimit::None,
            )?);
        }
        Ok(outcomes)
    }

    fn cpu_by_luns(&self) -> Result<Vec<RowResult>> {
        let many = BlastLoad { luns: MANY_LUNS, ..SMALL_READ };
        self.cpu_growth("CPU per I/O, 1,000 LUNs", MANY_LUNS, many, "1 LUN")
    }

    fn cpu_growth(
        &self,
        name: &str,
        luns: u32,
        many: BlastLoad,
        one: &'static str,
    ) -> Result<Vec<RowResult>> {
        if !self.wants(name) {
            return Ok(Vec::new());
        }
        let (small, large) = (self.lunar(Backing::Null(1))?, self.lunar(Backing::Null(luns))?);
        let both = [(&large, many), (&small, SMALL_READ)];
        Ok(vec![self.growth(name, both, one, RatioLimit::AtMost(CPU_GROWTH))?])
    }

    /// CPU time per I/O of the first server relative to the second.
    fn growth(
        &self,
        name: &str,
        both: [(&BenchServer, BlastLoad); 2],
        one: &'static str,
        limit: RatioLimit,
    ) -> Result<RowResult> {
        let reached = self.medians(&both)?;
        Ok(RowResult::ratio(name, "µs", reached[0].cpu_us_per_io, one, reached[1].cpu_us_per_io, limit))
    }

    fn idle_sessions(&self) -> Result<Vec<RowResult>> {
        let name = "1,000 idle sessions, resident memory";
        if !self.wants(name) {
            return Ok(Vec::new());
        }
        let lunar = self.lunar(Backing::Null(1))?;
        let _held = IdleSessions::open(&self.programs.blast, &lunar, IDLE_SESSIONS)?;
        Ok(vec![RowResult::figure(name, "MiB", lunar.resident_mib()?, RatioLimit::AtMost(IDLE_MIB))])
    }
}

/// Rows of the initiator.
impl BenchRun<'_> {
    /// Medians of alternating runs of clients on one server.
    fn clients(
        &self,
        clients: &[BenchClient<'_>],
        server: &BenchServer,
        load: &BlastLoad,
    ) -> Result<Vec<LoadResult>> {
        let mut runs = vec![Vec::new(); clients.len()];
        for _ in 0..self.options.rounds.max(1) {
            for (runs, client) in runs.iter_mut().zip(clients) {
                runs.push(client.run(server, load, self.options.seconds)?);
            }
        }
        Ok(runs.iter().map(|runs| median(runs)).collect())
    }

    /// A client of Lunar against `blast`, both on the same server.
    fn against_blast(
        &self,
        name: &str,
        client: BenchClient<'_>,
        server: &BenchServer,
        limit: RatioLimit,
    ) -> Result<Vec<RowResult>> {
        let clients = [client, BenchClient::Blast(&self.programs.blast)];
        let reached = self.clients(&clients, server, &SMALL_READ)?;
        Ok(vec![RowResult::ratio(name, "IO/s", reached[0].iops, "blast", reached[1].iops, limit)])
    }

    /// The initiator on the floor of NVMe/TCP.
    pub fn nvme_initiator(&self) -> Result<Vec<RowResult>> {
        let name = "NVMe/TCP: initiator, 4 KiB random read, depth 32, on floor";
        if !self.wants(name) {
            return Ok(Vec::new());
        }
        let floor = server::nvme_floor(&self.programs.floor, super::nvme::SUBSYSTEM)?;
        let client = BenchClient::Lunar(&self.programs.load);
        self.against_blast(name, client, &floor, RatioLimit::ReportedAtLeast(OF_BLAST))
    }

    fn initiator_on_floor(&self) -> Result<Vec<RowResult>> {
        let name = "initiator, 4 KiB random read, depth 32, on floor";
        if !self.wants(name) {
            return Ok(Vec::new());
        }
        let floor = server::floor(&self.programs.floor)?;
        let mut clients =
            vec![BenchClient::Lunar(&self.programs.load), BenchClient::Blast(&self.programs.blast)];
        clients.extend(self.programs.libiscsi.then_some(BenchClient::Libiscsi));
        let reached = self.clients(&clients, &floor, &SMALL_READ)?;
        let (lunar, blast) = (reached[0], reached[1]);
        let mut outcomes = vec![RowResult::ratio(
            name,
            "IO/s",
            lunar.iops,
            "blast",
            blast.iops,
            RatioLimit::AtLeast(OF_BLAST),
        )];
        if let Some(libiscsi) = reached.get(2) {
            outcomes.extend(of_libiscsi(name, lunar, *libiscsi, OF_LIBISCSI));
        }
        Ok(outcomes)
    }

    fn engine(&self) -> Result<Vec<RowResult>> {
        let name = "lunar bench, 4 KiB random read, depth 32, on floor";
        if !self.wants(name) {
            return Ok(Vec::new());
        }
        let floor = server::floor(&self.programs.floor)?;
        let client = BenchClient::Engine(&self.programs.lunar);
        self.against_blast(name, client, &floor, RatioLimit::AtLeast(OF_BLAST))
    }

    /// STGT is the bottleneck here: only the cost of the client can differ.
    fn initiator_on_stgt(&self) -> Result<Vec<RowResult>> {
        let name = "initiator, 4 KiB random read, depth 32, on STGT";
        if !self.programs.stgt || !self.programs.libiscsi || !self.wants(name) {
            return Ok(Vec::new());
        }
        let stgt = stgt::start(StgtStore::Null)?;
        let clients = [BenchClient::Lunar(&self.programs.load), BenchClient::Libiscsi];
        let reached = self.clients(&clients, &stgt, &SMALL_READ)?;
        Ok(of_libiscsi(name, reached[0], reached[1], 1.0).into())
    }

    fn initiator_large(&self) -> Result<Vec<RowResult>> {
        let name = "initiator, 256 KiB read, depth 8, on floor";
        if !self.programs.libiscsi || !self.wants(name) {
            return Ok(Vec::new());
        }
        let floor = server::floor(&self.programs.floor)?;
        let clients = [BenchClient::Lunar(&self.programs.load), BenchClient::Libiscsi];
        let reached = self.clients(&clients, &floor, &LARGE_READ)?;
        let limit = RatioLimit::AtLeast(LARGE_OF_LIBISCSI);
        Ok(vec![RowResult::ratio(name, "IO/s", reached[0].iops, "libiscsi", reached[1].iops, limit)])
    }

    /// Uses a file in the page cache, because zeros would be skipped as holes.
    fn nbd(&self) -> Result<Vec<RowResult>> {
        let name = "256 KiB read, depth 8, through the NBD export";
        if !self.programs.libnbd || !self.wants(name) {
            return Ok(Vec::new());
        }
        let (direct, through) = self.nbd_on(CachedFile::create()?.path())?;
        let limit = RatioLimit::AtLeast(NBD_OF_DIRECT);
        Ok(vec![RowResult::ratio(name, "IO/s", through, "direct", direct, limit)])
    }

    fn nbd_on(&self, file: &Path) -> Result<(f64, f64)> {
        let lunar = self.lunar(Backing::File(file))?;
        let dir = file.with_extension("run");
        let export = NbdExport::attach(&self.programs.lunar, &lunar, dir)?;
        let (mut direct, mut through) = (Vec::new(), Vec::new());
        for _ in 0..self.options.rounds.max(1) {
            let client = BenchClient::Lunar(&self.programs.load);
            direct.push(client.run(&lunar, &LARGE_READ, self.options.seconds)?);
            let (bytes, time) = export.copy_out()?;
            let iops = bytes as f64 / f64::from(LARGE_READ.bytes) / time.as_secs_f64();
            through.push(LoadResult { iops, cpu_us_per_io: 0.0 });
        }
        Ok((median(&direct).iops, median(&through).iops))
    }
}

fn of_libiscsi(name: &str, lunar: LoadResult, libiscsi: LoadResult, iops: f64) -> [RowResult; 2] {
    let cpu = format!("{name}, client's CPU per I/O");
    [
        RowResult::ratio(name, "IO/s", lunar.iops, "libiscsi", libiscsi.iops, RatioLimit::AtLeast(iops)),
        RowResult::ratio(
            &cpu,
            "µs",
            lunar.cpu_us_per_io,
            "libiscsi",
            libiscsi.cpu_us_per_io,
            RatioLimit::AtMost(CPU_OF_LIBISCSI),
        ),
    ]
}

/// The median of each figure.
pub fn median(runs: &[LoadResult]) -> LoadResult {
    LoadResult {
        iops: median_of(runs, |run| run.iops),
        cpu_us_per_io: median_of(runs, |run| run.cpu_us_per_io),
    }
}

/// The median of one figure of several runs: of an even number of runs, the mean of the middle two.
pub fn median_of<T>(runs: &[T], figure: fn(&T) -> f64) -> f64 {
    let mut figures: Vec<f64> = runs.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    let (below, above) = (figures[(figures.len() - 1) / 2], figures[figures.len() / 2]);
    f64::midpoint(below, above)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_ignores_one_outlier() {
        let run = |iops| LoadResult { iops, cpu_us_per_io: 1.0 / iops };
        let median = median(&[run(10.0), run(1000.0), run(11.0)]);
        assert_eq!((median.iops, median.cpu_us_per_io), (11.0, 1.0 / 11.0));
    }

    #[test]
    fn median_of_two_runs_favours_neither() {
        assert_eq!(median_of(&[3.0, 1.0], |run| *run), 2.0);
        assert_eq!(median_of(&[4.0, 1.0, 2.0, 100.0], |run| *run), 3.0);
    }
}

//! NVMe/TCP: a null namespace of Lunar against `floor` and a null LUN over iSCSI, with digests against without, and two I/O
//! queues against one, on one core and on two.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

use anyhow::Result;

use super::load::BlastLoad;
use super::rows::BenchRun;
use super::server::{self, Backing, BenchServer, CORE, TWO_CORES};
use super::table::{RatioLimit, RowResult};

/// The target, and the subsystem that Lunar makes of its name.
const TARGET: &str = "iqn.2026-11.org.example:bench";
pub const SUBSYSTEM: &str = "nqn.2026-11.org.example:bench";

/// The work, what it is compared with, and its least ratio.
struct NvmeRow {
    name: &'static str,
    load: BlastLoad,
    /// The cores of the server and the client
    cores: &'static str,
    against: NvmeBaseline,
    at_least: f64,
}

/// The load with which a row is compared.
#[derive(Clone, Copy)]
enum NvmeBaseline {
    /// The same load on `floor`
    Floor,
    /// The same load on a null LUN of Lunar over iSCSI
    Iscsi,
    /// Another load on Lunar on one core, with its name
    Load(&'static str, BlastLoad),
}

const SMALL_READ: BlastLoad = BlastLoad::new("read", 4096, 32);
const SMALL_WRITE: BlastLoad = BlastLoad::new("write", 4096, 32);
const LARGE_READ: BlastLoad = BlastLoad::new("read", 262_144, 8);
const LARGE_WRITE: BlastLoad = BlastLoad::new("write", 262_144, 8);

const ROWS: [NvmeRow; 12] = [
    of_floor("NVMe/TCP: 4 KiB random read, depth 32", SMALL_READ, 0.80),
    of_floor("NVMe/TCP: 4 KiB random write, depth 32", SMALL_WRITE, 0.80),
    of_floor("NVMe/TCP: 4 KiB random read, depth 1", BlastLoad::new("read", 4096, 1), 0.85),
    of_floor("NVMe/TCP: 256 KiB read, depth 8", LARGE_READ, 0.90),
    of_floor("NVMe/TCP: 256 KiB write, depth 8", LARGE_WRITE, 0.90),
    of_iscsi("NVMe/TCP: 4 KiB random read, depth 32, against iSCSI", SMALL_READ),
    of_iscsi("NVMe/TCP: 4 KiB random write, depth 32, against iSCSI", SMALL_WRITE),
    with_digests("NVMe/TCP: 4 KiB random read, depth 32, both digests", SMALL_READ, 0.85),
    with_digests("NVMe/TCP: 256 KiB read, depth 8, both digests", LARGE_READ, 0.85),
    with_digests("NVMe/TCP: 256 KiB write, depth 8, both digests", LARGE_WRITE, 0.85),
    NvmeRow {
        name: "NVMe/TCP: 4 KiB random read, depth 32, two I/O queues",
        load: BlastLoad { queues: 2, ..SMALL_READ },
        cores: CORE,
        against: NvmeBaseline::Load("one", SMALL_READ),
        at_least: 0.80,
    },
    // The client has a share of each core, so it must scale too.
    NvmeRow {
        name: "NVMe/TCP: 4 KiB random read, depth 32, two I/O queues on two cores",
        load: BlastLoad { queues: 2, ..SMALL_READ },
        cores: TWO_CORES,
        against: NvmeBaseline::Load("one on one", SMALL_READ),
        at_least: 1.70,
    },
];

const fn of_floor(name: &'static str, load: BlastLoad, at_least: f64) -> NvmeRow {
    NvmeRow { name, load, cores: CORE, against: NvmeBaseline::Floor, at_least }
}

const fn of_iscsi(name: &'static str, load: BlastLoad) -> NvmeRow {
    NvmeRow { name, load, cores: CORE, against: NvmeBaseline::Iscsi, at_least: 1.0 }
}

const fn with_digests(name: &'static str, load: BlastLoad, at_least: f64) -> NvmeRow {
    let with = BlastLoad { header_digest: true, data_digest: true, ..load };
    NvmeRow { name, load: with, cores: CORE, against: NvmeBaseline::Load("without", load), at_least }
}

impl BenchRun<'_> {
    /// All rows of NVMe/TCP. Their limits are reported until Lunar's target has been measured on several machines.
    pub fn nvme(&self) -> Result<Vec<RowResult>> {
        let rows = ROWS.iter().filter(|row| self.wants(row.name));
        rows.map(|row| self.nvme_row(row)).collect()
    }

    fn nvme_row(&self, row: &NvmeRow) -> Result<RowResult> {
        let lunar = serve(&self.programs.lunar, row.cores)?;
        let limit = RatioLimit::ReportedAtLeast(row.at_least);
        let (name, reached) = match row.against {
            NvmeBaseline::Load(name, other) => {
                let on_one = (row.cores != CORE).then(|| serve(&self.programs.lunar, CORE)).transpose()?;
                (name, self.medians(&[(&lunar, row.load), (on_one.as_ref().unwrap_or(&lunar), other)])?)
            }
            NvmeBaseline::Floor => {
                let floor = server::nvme_floor(&self.programs.floor, SUBSYSTEM)?;
                ("floor", self.medians(&[(&lunar, row.load), (&floor, row.load)])?)
            }
            NvmeBaseline::Iscsi => {
                let iscsi = server::lunar(&self.programs.lunar, Backing::Null(1))?;
                ("iSCSI", self.medians(&[(&lunar, row.load), (&iscsi, row.load)])?)
            }
        };
        Ok(RowResult::ratio(row.name, "IO/s", reached[0].iops, name, reached[1].iops, limit))
    }
}

/// Starts Lunar with a null namespace, and a portal of iSCSI that is not used.
fn serve(program: &Path, cores: &'static str) -> Result<BenchServer> {
    let portal = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let nvme = format!("--nvme={portal}");
    let options = ["--listen", "127.0.0.1:0", &nvme, "--target", TARGET, "null:1T"];
    let mut server = server::lunar_with_options(cores, program, &options)?;
    (server.portal, server.target) = (portal, SUBSYSTEM.into());
    Ok(server)
}

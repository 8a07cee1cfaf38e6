//! NVMe/TCP over loopback in the lab's guest: Lunar against the kernel's target (nvmet), each with a null disk and with a
//! file on tmpfs. Lunar serves a second file with `zero_copy`. The kernel's host measures them in turn, on one processor, which
//! it shares with the targets.

use anyhow::Result;

use super::Options;
use super::guest::{self, GuestRates, GuestScenario};
use super::rows::BenchRun;
use super::table::{RatioLimit, RowResult};

/// A load of the scenario, with the least ratio.
struct GuestLoad {
    name: &'static str,
    load: &'static str,
    at_least: f64,
}

const LOADS: [GuestLoad; 4] = [
    GuestLoad { name: "4 KiB random read, depth 32", load: "randread-4k-32", at_least: SMALL },
    GuestLoad { name: "4 KiB random write, depth 32", load: "randwrite-4k-32", at_least: SMALL },
    GuestLoad { name: "256 KiB read, depth 8", load: "randread-256k-8", at_least: LARGE },
    GuestLoad { name: "256 KiB write, depth 8", load: "randwrite-256k-8", at_least: LARGE },
];
/// The goals. The kernel's host takes a part of the processor that no target can save.
const SMALL: f64 = 1.3;
const LARGE: f64 = 0.9;

/// A disk of Lunar, and the one of nvmet that it is compared with, by their names in the scenario.
struct GuestDisk {
    name: &'static str,
    theirs: &'static str,
    ours: &'static str,
}

const DISKS: [GuestDisk; 3] = [
    GuestDisk { name: "null", theirs: "nvmet-null", ours: "Lunar-null" },
    GuestDisk { name: "file", theirs: "nvmet-file", ours: "Lunar-file" },
    GuestDisk { name: "file, zero copy", theirs: "nvmet-file", ours: ZERO_COPY },
];
const ZERO_COPY: &str = "Lunar-zero_copy";
/// The only load that `zero_copy` changes.
const ZERO_COPY_LOAD: &str = "randread-256k-8";
const NVMET: &str = "nvmet";
const SCENARIO: &str = "nvmet_rates";
const TOOLS: [(&str, &str); 3] =
    [("qemu-system-x86_64", "qemu-system-x86"), ("fio", "fio"), ("nvme", "nvme-cli")];

/// Seconds to start a measurement on a busy machine.
const BEGIN_S: u64 = 8;

/// A load on a disk.
type GuestRow = (&'static GuestLoad, &'static GuestDisk);

fn row_name((load, disk): &GuestRow) -> String {
    format!("NVMe/TCP in the guest: {}, {}, against nvmet", disk.name, load.name)
}

fn rows() -> impl Iterator<Item = GuestRow> {
    let all = LOADS.iter().flat_map(|load| DISKS.iter().map(move |disk| (load, disk)));
    all.filter(|(load, disk)| disk.ours != ZERO_COPY || load.load == ZERO_COPY_LOAD)
}

/// Whether the rows are requested and the guest is available; fetches its kernel.
pub fn prepare(options: &Options) -> Result<bool> {
    guest::prepare(options, rows().map(|row| row_name(&row)), (&TOOLS, "NVMe/TCP against nvmet"), "setup")
}

impl BenchRun<'_> {
    /// All rows of NVMe/TCP against nvmet, measured in one boot.
    pub fn nvmet(&self) -> Result<Vec<RowResult>> {
        if !self.programs.nvmet {
            return Ok(Vec::new());
        }
        let rows: Vec<GuestRow> = rows().filter(|row| self.wants(&row_name(row))).collect();
        let rates = self.nvmet_scenario(&rows).run()?;
        rows.iter().map(|row| result_of(&rates, row)).collect()
    }

    fn nvmet_scenario(&self, rows: &[GuestRow]) -> GuestScenario {
        let mut loads: Vec<&str> = rows.iter().map(|(load, _)| load.load).collect();
        loads.dedup();
        let is_wanted = |disk: &&GuestDisk| rows.iter().any(|(_, wanted)| wanted.ours == disk.ours);
        let contenders = contenders(DISKS.iter().filter(is_wanted));
        self.guest_scenario(SCENARIO, (&loads, &contenders), BEGIN_S)
    }
}

/// The names of these disks at both targets.
fn contenders(disks: impl Iterator<Item = &'static GuestDisk>) -> Vec<&'static str> {
    let mut names = Vec::new();
    for name in disks.flat_map(|disk| [disk.theirs, disk.ours]) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn result_of(rates: &GuestRates, row: &GuestRow) -> Result<RowResult> {
    let (load, disk) = row;
    let (its, lunar) = (rates.median(load.load, disk.theirs)?, rates.median(load.load, disk.ours)?);
    let limit = RatioLimit::ReportedAtLeast(load.at_least);
    Ok(RowResult::ratio(&row_name(row), "IO/s", lunar, NVMET, its, limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_of_nvmet_has_all_loads_and_contenders() {
        let scenario = guest::scenario_text(SCENARIO);
        let loads = LOADS.map(|load| load.load).join(" ");
        assert!(scenario.contains(&loads), "{loads}");
        let contenders = contenders(DISKS.iter()).join(" ");
        assert!(scenario.contains(&contenders), "{contenders}");
    }

    #[test]
    fn row_of_nvmet_is_a_ratio_with_its_goal() {
        let said = "rate randread-4k-32 nvmet-file 100\nrate randread-4k-32 Lunar-file 150\n";
        let row = rows().find(|row| row_name(row).contains("file, 4 KiB random read")).expect("a row");
        let result = result_of(&GuestRates(said.into()), &row).expect("both rates");
        let table = crate::bench::table::text(&[result]);
        assert!(table.contains("| nvmet 100.00 | 1.50 ") && table.contains(">= 1.30"), "{table}");
        assert!(result_of(&GuestRates(String::new()), &row).is_err());
    }
}

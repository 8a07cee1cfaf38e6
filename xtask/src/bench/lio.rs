//! iSCSI over loopback in the lab's guest: Lunar against the kernel's target (LIO), each with a null disk and with a
//! file on tmpfs. Lunar serves two files, one with `zero_copy`. `blast` measures all of them and `floor` in turn, on one
//! processor.

use anyhow::Result;

use super::Options;
use super::guest::{self, GuestRates, GuestScenario};
use super::rows::BenchRun;
use super::table::{RatioLimit, RowResult};

/// A load of the scenario.
struct Load {
    name: &'static str,
    load: &'static str,
}

const LOADS: [Load; 6] = [
    Load { name: "4 KiB read, depth 32", load: "read-4-32" },
    Load { name: "4 KiB write, depth 32", load: "write-4-32" },
    Load { name: "4 KiB read, depth 1", load: "read-4-1" },
    Load { name: "64 KiB read, depth 16", load: "read-64-16" },
    Load { name: "256 KiB read, depth 8", load: "read-256-8" },
    Load { name: "256 KiB write, depth 8", load: "write-256-8" },
];

/// A disk: name in the row, and contenders in the scenario.
#[derive(PartialEq)]
struct Disk {
    name: &'static str,
    lunar: &'static str,
    lio: &'static str,
}

const NULL: Disk = Disk { name: "null", lunar: "Lunar-null", lio: "LIO-null" };
const FILE: Disk = Disk { name: "file", lunar: "Lunar-file", lio: "LIO-file" };
const ZERO_COPY: Disk = Disk { name: "file, zero copy", lunar: "Lunar-file-zero-copy", lio: FILE.lio };
const FLOOR: &str = "floor";

const OF_LIO: f64 = 1.0;
const SCENARIO: &str = "lio_rates";
const TOOLS: [(&str, &str); 1] = [("qemu-system-x86_64", "qemu-system-x86")];

/// Seconds to start a measurement on a busy machine.
const BEGIN_S: u64 = 4;

impl Disk {
    fn row(&self, load: &Load) -> String {
        format!("lio: {}, {}", self.name, load.name)
    }
}

/// The rows: each load on each disk. `zero_copy` concerns reads of 128 KiB to 1 MiB.
fn pairs() -> impl Iterator<Item = (&'static Load, Disk)> {
    let is_copied = |load: &Load| !load.load.starts_with("read-256-");
    let all = LOADS.iter().flat_map(|load| [NULL, FILE, ZERO_COPY].map(|disk| (load, disk)));
    all.filter(move |(load, disk)| *disk != ZERO_COPY || !is_copied(load))
}

/// Whether the rows are requested and the guest is available; fetches its kernel.
pub fn prepare(options: &Options) -> Result<bool> {
    guest::prepare(options, pairs().map(|(load, disk)| disk.row(load)), (&TOOLS, "LIO over TCP"), "setup")
}

impl BenchRun<'_> {
    /// All rows of LIO over TCP, measured in one boot.
    pub fn lio(&self) -> Result<Vec<RowResult>> {
        if !self.programs.lio {
            return Ok(Vec::new());
        }
        let pairs: Vec<(&Load, Disk)> = pairs().filter(|(load, disk)| self.wants(&disk.row(load))).collect();
        let rates = self.lio_scenario(&pairs).run()?;
        let mut outcomes = Vec::new();
        for (load, disk) in &pairs {
            outcomes.extend(outcomes_of(&rates, load, disk)?);
        }
        Ok(outcomes)
    }

    fn lio_scenario(&self, pairs: &[(&Load, Disk)]) -> GuestScenario {
        let mut loads: Vec<&str> = pairs.iter().map(|(load, _)| load.load).collect();
        loads.dedup();
        let scenario = self.guest_scenario(SCENARIO, (&loads, &contenders(pairs)), BEGIN_S);
        let programs = &self.programs;
        scenario.with("BLAST", programs.blast.display()).with("FLOOR", programs.floor.display())
    }
}

/// The contenders of the rows, in the order of a round. A row with zero copy also needs the default.
fn contenders(pairs: &[(&Load, Disk)]) -> Vec<&'static str> {
    let wants = |disk: &Disk| pairs.iter().any(|(_, wanted)| wanted == disk);
    let mut names = vec![FLOOR];
    if wants(&NULL) {
        names.extend([NULL.lio, NULL.lunar]);
    }
    if wants(&FILE) || wants(&ZERO_COPY) {
        names.extend([FILE.lio, FILE.lunar]);
    }
    if wants(&ZERO_COPY) {
        names.push(ZERO_COPY.lunar);
    }
    names
}

/// The rows of a load on a disk.
fn outcomes_of(rates: &GuestRates, load: &Load, disk: &Disk) -> Result<Vec<RowResult>> {
    let row = disk.row(load);
    let lunar = rates.median(load.load, disk.lunar)?;
    let mut others = vec![("LIO", disk.lio, RatioLimit::AtLeast(OF_LIO)), (FLOOR, FLOOR, RatioLimit::None)];
    if *disk == ZERO_COPY {
        others.push(("default", FILE.lunar, RatioLimit::None));
    }
    let outcome = |(name, contender, limit)| {
        Ok(RowResult::ratio(&row, "IO/s", lunar, name, rates.median(load.load, contender)?, limit))
    };
    others.into_iter().map(outcome).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_has_all_loads_and_contenders() {
        let scenario = guest::scenario_text(SCENARIO);
        let loads = LOADS.map(|load| load.load).join(" ");
        assert!(scenario.contains(&loads), "{loads}");
        let served = |name: &str| scenario.contains(&format!("\n        {name}) echo "));
        let names = [FLOOR, NULL.lio, NULL.lunar, FILE.lio, FILE.lunar, ZERO_COPY.lunar];
        assert_eq!(names.into_iter().filter(|name| !served(name)).collect::<Vec<_>>(), [] as [&str; 0]);
    }

    #[test]
    fn zero_copy_has_rows_of_large_reads_beside_the_default() {
        let rows: Vec<String> = pairs().map(|(load, disk)| disk.row(load)).collect();
        let of = |name: &str| rows.iter().filter(|row| row.starts_with(name)).count();
        assert_eq!((of("lio: null, "), of("lio: file, zero copy, ")), (6, 1));
        let at = rows.iter().position(|row| row == "lio: file, zero copy, 256 KiB read, depth 8");
        assert_eq!(at.map(|at| rows[at - 1].as_str()), Some("lio: file, 256 KiB read, depth 8"));
        let said = "rate read-256-8 Lunar-file-zero-copy 150\nrate read-256-8 LIO-file 100\n\
                    rate read-256-8 floor 200\nrate read-256-8 Lunar-file 120\n";
        let rates = GuestRates(said.to_owned());
        let table =
            crate::bench::table::text(&outcomes_of(&rates, &LOADS[4], &ZERO_COPY).expect("all rates"));
        assert!(table.contains("| default 120.00 | 1.25 "), "{table}");
    }

    #[test]
    fn contenders_are_those_of_the_rows() {
        assert_eq!(contenders(&[(&LOADS[0], NULL)]), [FLOOR, NULL.lio, NULL.lunar]);
        let both = contenders(&[(&LOADS[0], NULL), (&LOADS[1], FILE)]);
        assert_eq!(both, [FLOOR, NULL.lio, NULL.lunar, FILE.lio, FILE.lunar]);
        let zero_copy = contenders(&[(&LOADS[4], ZERO_COPY)]);
        assert_eq!(zero_copy, [FLOOR, FILE.lio, FILE.lunar, ZERO_COPY.lunar]);
    }
}

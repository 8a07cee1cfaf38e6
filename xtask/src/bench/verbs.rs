//! iSER over a software RDMA device: Lunar with verbs against STGT and the kernel's target (LIO), all in one guest of
//! the lab. The kernel's initiator measures them in turn.

use anyhow::Result;

use super::Options;
use super::guest::{self, GuestScenario};
use super::rows::BenchRun;
use super::table::{RatioLimit, RowResult};

/// A load of the scenario.
struct Row {
    name: &'static str,
    load: &'static str,
}

const ROWS: [Row; 4] = [
    Row { name: "4 KiB random read, depth 32", load: "randread-4k-32" },
    Row { name: "4 KiB random write, depth 32", load: "randwrite-4k-32" },
    Row { name: "256 KiB read, depth 8", load: "randread-256k-8" },
    Row { name: "256 KiB write, depth 8", load: "randwrite-256k-8" },
];

/// The other targets: name in the scenario, and the ratio to reach.
const OTHERS: [(&str, f64); 2] = [("STGT", 1.0), ("LIO", 0.8)];

const SCENARIO: &str = "iser_rates";

/// The programs that the guest needs, and their Debian packages. (The lab's tests name those of the lab
/// itself.)
const TOOLS: [(&str, &str); 4] =
    [("qemu-system-x86_64", "qemu-system-x86"), ("fio", "fio"), ("iscsiadm", "open-iscsi"), ("tgtd", "tgt")];

/// Seconds to start a measurement on a busy machine.
const BEGIN_S: u64 = 8;

impl Row {
    fn name(&self) -> String {
        format!("iSER (verbs/siw, guest), {}", self.name)
    }
}

/// Whether the rows are requested and the guest is available; builds what it needs.
pub fn prepare(options: &Options) -> Result<bool> {
    guest::prepare(options, ROWS.iter().map(Row::name), (&TOOLS, "iSER by verbs"), "siw")
}

impl BenchRun<'_> {
    /// All rows of iSER by verbs, measured in one boot.
    pub fn verbs(&self) -> Result<Vec<RowResult>> {
        if !self.programs.verbs {
            return Ok(Vec::new());
        }
        let rows: Vec<&Row> = ROWS.iter().filter(|row| self.wants(&row.name())).collect();
        let rates = self.verbs_scenario(&rows).run()?;
        let mut outcomes = Vec::new();
        for row in rows {
            let lunar = rates.median(row.load, "Lunar")?;
            for (name, limit) in OTHERS {
                let (its, limit) = (rates.median(row.load, name)?, RatioLimit::AtLeast(limit));
                outcomes.push(RowResult::ratio(&row.name(), "IO/s", lunar, name, its, limit));
            }
        }
        Ok(outcomes)
    }

    fn verbs_scenario(&self, rows: &[&Row]) -> GuestScenario {
        let loads: Vec<&str> = rows.iter().map(|row| row.load).collect();
        let contenders = ["Lunar", OTHERS[0].0, OTHERS[1].0];
        self.guest_scenario(SCENARIO, (&loads, &contenders), BEGIN_S).with("RDMA", "siw")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_has_all_loads_and_targets() {
        let scenario = guest::scenario_text(SCENARIO);
        let loads = ROWS.map(|row| row.load).join(" ");
        assert!(scenario.contains(&loads), "{loads}");
        let opened = |name: &str| scenario.contains(&format!("opened {name}\n"));
        assert!(opened("Lunar") && OTHERS.iter().all(|(name, _)| opened(name)));
    }
}

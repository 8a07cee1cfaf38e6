//! iSER over a software RDMA device: Lunar with verbs against STGT and the kernel's target (LIO), all in one guest of
//! the lab. The kernel's initiator measures them in turn.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use super::Options;
use super::rows::{BenchRun, median_of};
use super::table::{RatioLimit, RowResult};
use crate::root;

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

/// The programs that the guest needs, and their Debian packages. (The lab's tests name those of the lab
/// itself.)
const TOOLS: [(&str, &str); 4] =
    [("qemu-system-x86_64", "qemu-system-x86"), ("fio", "fio"), ("iscsiadm", "open-iscsi"), ("tgtd", "tgt")];

/// Seconds to boot, and to start a measurement, on a busy machine.
const BOOT_S: u64 = 240;
const BEGIN_S: u64 = 8;

impl Row {
    fn name(&self) -> String {
        format!("iSER (verbs/siw, guest), {}", self.name)
    }
}

/// Whether the guest is requested and available; builds what it needs, which requires the host's network.
pub fn prepare(options: &Options) -> Result<bool> {
    if options.base.is_some() || !ROWS.iter().any(|row| options.wants(&row.name())) {
        return Ok(false);
    }
    let missing = TOOLS.iter().find(|(program, _)| !root::is_installed(program));
    if let Some((program, package)) = missing {
        eprintln!("bench: {program} is missing (apt-get install {package}): iSER by verbs is skipped");
        return Ok(false);
    }
    root::must(&script(), &["siw"])?;
    Ok(true)
}

fn script() -> String {
    root::path().join("interop/lab/lab").display().to_string()
}

impl BenchRun<'_> {
    /// All rows of the guest, measured in one boot.
    pub fn guest(&self) -> Result<Vec<RowResult>> {
        if !self.programs.guest {
            return Ok(Vec::new());
        }
        let rows: Vec<&Row> = ROWS.iter().filter(|row| self.wants(&row.name())).collect();
        let said = self.measure(&rows)?;
        let mut outcomes = Vec::new();
        for row in rows {
            let of = |name: &str| {
                let rates = rates(&said, row.load, name);
                ensure!(!rates.is_empty(), "{}: no rate of {name}; output of the guest:\n{said}", row.load);
                Ok(median_of(&rates, |rate| *rate))
            };
            let lunar = of("Lunar")?;
            for (name, limit) in OTHERS {
                let limit = RatioLimit::AtLeast(limit);
                outcomes.push(RowResult::ratio(&row.name(), "IO/s", lunar, name, of(name)?, limit));
            }
        }
        Ok(outcomes)
    }

    /// The output of the scenario.
    fn measure(&self, rows: &[&Row]) -> Result<String> {
        let (rounds, seconds) = (self.options.rounds.max(1), self.options.seconds);
        let runs = (rows.len() * rounds * (OTHERS.len() + 1)) as u64;
        let limit = (BOOT_S + runs * (seconds + BEGIN_S)).to_string();
        let variables = [
            ("LUNAR", self.programs.lunar.display().to_string()),
            ("RDMA", "siw".into()),
            ("LOADS", rows.iter().map(|row| row.load).collect::<Vec<_>>().join(" ")),
            ("ROUNDS", rounds.to_string()),
            ("SECONDS_EACH", seconds.to_string()),
        ];
        let mut command = root::command(&script());
        command.args(["run", "-t", &limit]);
        for (name, value) in &variables {
            command.args(["-e", name]).env(name, value);
        }
        let scenario = Path::new("interop/lab/scenarios/iser_rates.sh");
        command.args(["--", "bash"]).arg(root::path().join(scenario)).stderr(Stdio::inherit());
        let output = command.output().context("cannot run the lab")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "the guest: {}\n{said}", output.status);
        Ok(said)
    }
}

/// The figures in lines `rate LOAD NAME FIGURE`.
fn rates(said: &str, load: &str, name: &str) -> Vec<f64> {
    let head = format!("rate {load} {name} ");
    said.lines().filter_map(|line| line.trim().strip_prefix(&head)?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_one_load_and_one_target() {
        let said = "### rates\r\nrate randread-4k-32 STGT 2586\r\nrate randread-4k-32 Lunar 2178\n\
            rate randread-256k-8 STGT 479\nrate randread-4k-32 STGT 2600.5\nrate randread-4k-32 STGT \n";
        assert_eq!(rates(said, "randread-4k-32", "STGT"), [2586.0, 2600.5]);
        assert_eq!(rates(said, "randread-256k-8", "STGT"), [479.0]);
        assert_eq!(rates(said, "randwrite-4k-32", "LIO"), [] as [f64; 0]);
    }

    #[test]
    fn scenario_has_all_loads_and_targets() {
        let path = root::path().join("interop/lab/scenarios/iser_rates.sh");
        let scenario = std::fs::read_to_string(path).expect("read");
        let loads = ROWS.map(|row| row.load).join(" ");
        assert!(scenario.contains(&loads), "{loads}");
        let opened = |name: &str| scenario.contains(&format!("opened {name}\n"));
        assert!(opened("Lunar") && OTHERS.iter().all(|(name, _)| opened(name)));
    }
}

//! Measurements in the lab's guest: a scenario runs all contenders in one boot and prints their rates.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use super::rows::{BenchRun, median_of};
use super::{Options, tools};
use crate::root;

/// A scenario that prints rates.
pub struct GuestScenario {
    /// Its name, without the folder and `.sh`
    pub name: &'static str,
    /// Its environment
    pub variables: Vec<(&'static str, String)>,
    /// The time limit of the guest in seconds
    pub limit_s: u64,
}

/// Seconds to boot on a busy machine.
const BOOT_S: u64 = 240;

/// Whether rows are requested and the guest is available with these tools. Then [`set_up`] makes what it needs.
pub fn prepare(
    options: &Options,
    mut rows: impl Iterator<Item = String>,
    (tools, what): (&[tools::Tool], &str),
    with: &str,
) -> Result<bool> {
    if options.base.is_some() || !rows.any(|row| options.wants(&row)) {
        return Ok(false);
    }
    let available = tools::have(tools, what);
    if available {
        set_up(with)?;
    }
    Ok(available)
}

/// The output of a scenario.
pub struct GuestRates(pub(super) String);

/// `lab setup` or `lab siw`: fetches the kernel, which requires the host's network.
fn set_up(with: &str) -> Result<()> {
    root::must(&lab(), &[with])
}

fn lab() -> String {
    root::path().join("interop/lab/lab").display().to_string()
}

fn script(scenario: &str) -> PathBuf {
    root::path().join(format!("interop/lab/scenarios/{scenario}.sh"))
}

/// The script of a scenario, to compare it with its rows.
#[cfg(test)]
pub fn scenario_text(scenario: &str) -> String {
    std::fs::read_to_string(script(scenario)).expect("read")
}

impl BenchRun<'_> {
    /// A scenario that measures each load with each contender. `begin_s`: seconds to start a measurement on a busy machine.
    pub fn guest_scenario<C: AsRef<str>>(
        &self,
        name: &'static str,
        (loads, contenders): (&[&str], &[C]),
        begin_s: u64,
    ) -> GuestScenario {
        let (rounds, seconds) = (self.options.rounds.max(1), self.options.seconds);
        let runs = (loads.len() * contenders.len() * rounds) as u64;
        let contenders: Vec<&str> = contenders.iter().map(AsRef::as_ref).collect();
        let variables = vec![
            ("LUNAR", self.programs.lunar.display().to_string()),
            ("LOADS", loads.join(" ")),
            ("CONTENDERS", contenders.join(" ")),
            ("ROUNDS", rounds.to_string()),
            ("SECONDS_EACH", seconds.to_string()),
        ];
        GuestScenario { name, variables, limit_s: BOOT_S + runs * (seconds + begin_s) }
    }
}

impl GuestScenario {
    /// The same with another environment variable.
    pub fn with(mut self, name: &'static str, value: impl ToString) -> GuestScenario {
        self.variables.push((name, value.to_string()));
        self
    }

    /// Boots a guest and runs the scenario there.
    pub fn run(&self) -> Result<GuestRates> {
        let mut command = root::command(&lab());
        command.args(["run", "-t", &self.limit_s.to_string()]);
        for (name, value) in &self.variables {
            command.args(["-e", name]).env(name, value);
        }
        let output = command.args(["--", "bash"]).arg(script(self.name)).stderr(Stdio::inherit()).output();
        let output = output.context("cannot run the lab")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "the guest: {}\n{said}", output.status);
        Ok(GuestRates(said))
    }
}

impl GuestRates {
    /// The median rate of a contender under a load.
    pub fn median(&self, load: &str, contender: &str) -> Result<f64> {
        let rates = self.all(load, contender);
        ensure!(!rates.is_empty(), "{load}: no rate of {contender}; output of the guest:\n{}", self.0);
        Ok(median_of(&rates, |rate| *rate))
    }

    /// The figures in lines `rate LOAD CONTENDER FIGURE`.
    fn all(&self, load: &str, contender: &str) -> Vec<f64> {
        let head = format!("rate {load} {contender} ");
        self.0.lines().filter_map(|line| line.trim().strip_prefix(&head)?.parse().ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_one_load_and_one_contender() {
        let said = GuestRates(
            "### rates\r\nrate randread-4k-32 STGT 2586\r\nrate randread-4k-32 Lunar 2178\n\
             rate randread-256k-8 STGT 479\nrate randread-4k-32 STGT 2600.5\nrate randread-4k-32 STGT \n"
                .into(),
        );
        assert_eq!(said.all("randread-4k-32", "STGT"), [2586.0, 2600.5]);
        assert_eq!(said.all("randread-256k-8", "STGT"), [479.0]);
        assert_eq!(said.all("randwrite-4k-32", "LIO"), [] as [f64; 0]);
        assert!(said.median("randwrite-4k-32", "LIO").is_err());
    }
}

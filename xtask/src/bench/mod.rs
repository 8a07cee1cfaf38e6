//! `cargo xtask bench`: Lunar's target against the limit of the machine (`floor`) and against STGT, its initiator
//! against libiscsi, and the way through its router against the direct one, as ratios of runs in one session. Client
//! and servers are pinned to one and the same core, but for those in the lab's guest: figures are small that way, and
//! stable. Medians of alternating runs; no time is asserted, only ratios.

mod base;
mod guest;
mod initiator;
mod load;
mod rdma;
mod router;
mod rows;
mod server;
mod table;
mod unpaced;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use crate::root::{self, Profile, StepResult};

/// Options of `cargo xtask bench`.
#[derive(Debug, Args)]
pub struct Options {
    /// Length of one run
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Runs per figure, of which the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// One JSON object per row instead of the table
    #[arg(long)]
    json: bool,
    /// Another build of `lunar`: run the rows of speed against it, and no others
    #[arg(long, value_name = "PROGRAM")]
    base: Option<PathBuf>,
    /// Only the rows whose name contains this
    filter: Option<String>,
}

impl Options {
    /// Whether the filter lets a row through.
    fn wants(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    }
}

/// The programs that take part.
#[derive(Debug)]
pub struct Programs {
    blast: PathBuf,
    floor: PathBuf,
    lunar: PathBuf,
    /// Lunar's initiator as a load generator
    load: PathBuf,
    /// Lunar's initiator and target in one process, with memory between them
    in_memory: PathBuf,
    stgt: bool,
    libiscsi: bool,
    libnbd: bool,
    /// The lab, in which Lunar is measured by verbs
    guest: bool,
}

/// Runs all rows.
pub fn run(options: &Options) -> Result<StepResult> {
    let programs = programs(options)?;
    if let Some(step) = unpaced::run_unpaced()? {
        return Ok(step);
    }
    let results = rows::run(options, &programs)?;
    if results.is_empty() {
        bail!("no row is named so; without a filter all of them run");
    }
    println!("{}", if options.json { table::json(&results) } else { table::text(&results) });
    let missed = results.iter().filter(|result| result.missed()).count();
    Ok(if missed == 0 { StepResult::Ok } else { StepResult::Failed(format!("{missed} ratios missed")) })
}

fn programs(options: &Options) -> Result<Programs> {
    let stgt = root::is_installed("tgtd") && root::is_installed("tgtadm");
    if !stgt {
        eprintln!("bench: no tgtd here (apt-get install tgt): the ratios against STGT are not measured");
    }
    let libiscsi = root::is_installed("iscsi-perf");
    if !libiscsi {
        eprintln!(
            "bench: no iscsi-perf here (apt-get install libiscsi-bin): the initiator is not compared with it"
        );
    }
    let libnbd = root::is_installed("nbdcopy") && root::is_installed("nbdinfo");
    if !libnbd {
        eprintln!("bench: no nbdcopy here (apt-get install libnbd-bin): the NBD export is not measured");
    }
    let examples = root::build_examples(
        Profile::Release,
        &[("lunar-initiator", "load"), ("lunar-target", "in_memory")],
    )?;
    Ok(Programs {
        blast: root::build("xtask", "blast")?,
        floor: root::build("xtask", "floor")?,
        lunar: root::lunar(Profile::Release)?,
        load: examples.join("load"),
        in_memory: examples.join("in_memory"),
        stgt,
        libiscsi,
        libnbd,
        guest: guest::prepare(options)?,
    })
}

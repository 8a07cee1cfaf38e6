//! `cargo xtask bench`: compares Lunar with other programs, as ratios of runs in one session. The target is compared
//! with the limit of the machine (`floor`) and with STGT, and the initiator with libiscsi. The path through the
//! router is compared with the direct one.
//!
//! Client and servers are pinned to the same core, except in the lab's guest: figures are low that way, and
//! stable. Each figure is the median of alternating runs. Only ratios are asserted, no times.

mod base;
mod cached_file;
mod ceph;
mod files;
mod guest;
mod initiator;
mod lio;
mod load;
mod many_luns;
mod nvme;
mod nvmet;
mod rbd;
mod rdma;
mod router;
mod rows;
mod server;
mod stgt;
mod table;
mod tails;
mod tools;
mod unpaced;
mod verbs;

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
    /// Runs per figure; the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Print one JSON object per row instead of the table
    #[arg(long)]
    json: bool,
    /// Run only the speed rows, against this other build of `lunar`
    #[arg(long, value_name = "PROGRAM")]
    base: Option<PathBuf>,
    /// Run only the rows whose name contains this
    filter: Option<String>,
}

impl Options {
    /// Whether the filter selects a row.
    fn wants(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    }
}

/// The programs to run.
#[derive(Debug)]
pub struct Programs {
    blast: PathBuf,
    floor: PathBuf,
    lunar: PathBuf,
    /// Lunar's initiator as a load generator
    load: PathBuf,
    /// Lunar's initiator and target in one process, connected by memory
    in_memory: PathBuf,
    stgt: bool,
    libiscsi: bool,
    libnbd: bool,
    /// The lab's guest with a soft RDMA device, for iSER by verbs
    verbs: bool,
    /// The lab's guest, for LIO over TCP
    lio: bool,
    /// The lab's guest, for nvmet
    nvmet: bool,
    /// The program that starts a cluster of Ceph, for RBD
    ceph: Option<PathBuf>,
}

/// Runs all rows.
pub fn run(options: &Options) -> Result<StepResult> {
    let programs = programs(options)?;
    if let Some(step) = unpaced::run_unpaced()? {
        return Ok(step);
    }
    let (results, failed) = rows::run(options, &programs)?;
    if results.is_empty() && failed == 0 {
        bail!("no row matches the filter");
    }
    println!("{}", if options.json { table::json(&results) } else { table::text(&results) });
    let missed = results.iter().filter(|result| result.missed()).count();
    Ok(match (missed, failed) {
        (0, 0) => StepResult::Ok,
        (_, 0) => StepResult::Failed(format!("{missed} ratios missed")),
        _ => StepResult::Failed(format!("{missed} ratios missed, {failed} measurements failed")),
    })
}

fn programs(options: &Options) -> Result<Programs> {
    let stgt = root::is_installed("tgtd") && root::is_installed("tgtadm");
    if !stgt {
        eprintln!("bench: tgtd is missing (apt-get install tgt): the ratios to STGT are skipped");
    }
    let libiscsi = root::is_installed("iscsi-perf");
    if !libiscsi {
        eprintln!(
            "bench: iscsi-perf is missing (apt-get install libiscsi-bin): the ratios to libiscsi are skipped"
        );
    }
    let libnbd = root::is_installed("nbdcopy") && root::is_installed("nbdinfo");
    if !libnbd {
        eprintln!("bench: nbdcopy is missing (apt-get install libnbd-bin): the NBD export is skipped");
    }
    let examples = root::build_examples(
        Profile::Release,
        &[("lunar-initiator", "load"), ("lunar-target", "in_memory")],
    )?;
    Ok(Programs {
        blast: root::build("xtask", "blast")?,
        floor: root::build("xtask", "floor")?,
        // Built with the examples: alone, it would select other features of shared crates.
        lunar: root::lunar_path(Profile::Release),
        load: examples.join("load"),
        in_memory: examples.join("in_memory"),
        stgt,
        libiscsi,
        libnbd,
        verbs: verbs::prepare(options)?,
        lio: lio::prepare(options)?,
        nvmet: nvmet::prepare(options)?,
        ceph: rbd::prepare(options)?,
    })
}

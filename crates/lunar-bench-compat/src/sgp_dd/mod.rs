//! sgp_dd: copies with several commands in flight, each of `bpt` blocks.

mod cdb_disk;

use super::failures::{CommandFailure, FailureReporter, heard};
use super::operands::Operands;
use super::route::{OpenRoute, RouteEnd, RoutePlan};
use super::tool_output::{self, ToolOutput};
use super::{RunContext, refused};
use cdb_disk::{CdbDisk, CdbOptions};
use flume::{Receiver, Sender};
use lunar_bench::device::flush;
use lunar_bench::job::{Fill, IoDirection, Job};
use lunar_bench::{Document, Error, JobOutcome, OpenTargets, TargetSpec};
use lunar_block::Backend;
use lunar_runtime::CoreSelection;
use std::sync::Arc;

const KEYS: [&str; 21] = [
    "bs", "ibs", "obs", "bpt", "thr", "dio", "count", "skip", "seek", "if", "of", "time", "fua", "cdbsz",
    "sync", "coe", "iflag", "oflag", "deb", "verbose", "odir",
];
const FLAGS: [&str; 8] = ["coe", "dio", "direct", "dpo", "dsync", "excl", "fua", "null"];

/// The help text after the options.
const ABOUT: &str = "\
Operands, as in sgp_dd:
  if= of=        a target, or /dev/zero to read from, /dev/null or . to write to. With two targets, a copy
  bs=512         bytes of a block: must be the logical block size
  bpt=128        blocks of a command (32 if bs is 2048 or more); bs * bpt is the transfer length
  thr=4          commands in flight, 1 to 1024, all in one session
  count=N        blocks [default: as many as the input and the output have]
  skip=N seek=N  blocks to skip in the input and the output
  cdbsz=10       size of READ and WRITE CDBs: 6, 10, 12 or 16 bytes (default 16 if 10 cannot address the disk)
  fua=0          force unit access: 1 writes, 2 reads, 3 both
  dio=0          1: bypass the page cache for files and block devices; iSCSI has none
  coe=0          1: continue on errors and report each; unreadable blocks count as zeros
  sync=0         1: SYNCHRONIZE CACHE at the end, excluded from the time as in sgp_dd
  time=0         1: print the time and the rate
  iflag= oflag=  coe, dio, direct, dpo, dsync, excl, fua, null

MB/sec is 10^6 bytes per second. cdbsz, fua and dpo appear on the wire for iscsi://. The lines are those of sg3_utils 1.46, \
which counts a record out for each record in, even if it is discarded; later versions have a different time line. \
The result (--json) also has CPU time and latencies.";

/// `lunar bench sgp_dd`.
#[derive(Clone, Debug, clap::Args)]
#[command(about = "Copy, read or write a disk, with the operands and output of sgp_dd", after_long_help = ABOUT)]
pub struct Args {
    /// Prepare everything, but copy nothing
    #[arg(short = 'd', long)]
    pub dry_run: bool,
    /// Print details
    #[arg(short = 'v', long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Overwrite existing data in the output
    #[arg(long)]
    pub destroy: bool,
    /// Operands as in sgp_dd: if= of= bs= bpt= thr= count= skip= seek= cdbsz= fua= dio= coe= sync= time=
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub operands: Vec<String>,
}

/// The parsed operands.
#[derive(Debug)]
struct SgpDdSettings {
    plan: RoutePlan,
    bs: u64,
    bpt: u64,
    threads: u64,
    time: bool,
    sync: bool,
    verbose: bool,
    /// The CDBs of the input and of the output; size 0 selects one that fits.
    shapes: [CdbOptions; 2],
    words: Vec<(String, String)>,
    /// Whether a CDB size was given.
    sized: bool,
    /// Continue after read errors, and after write errors.
    continue_on_error: [bool; 2],
}

impl SgpDdSettings {
    fn read(args: &Args) -> Result<SgpDdSettings, Error> {
        let given = Operands::parse("sgp_dd", &args.operands, &KEYS)?;
        let bs = block_size(&given)?;
        let bpt = given.bounded("bpt", 1..=(1 << 30) / bs, if bs < 2048 { 128 } else { 32 })?;
        let (input, output) = (given.flags("iflag", &FLAGS)?, given.flags("oflag", &FLAGS)?);
        let coe = given.is_set("coe")?;
        let (fua, dio) = (given.bounded("fua", 0..=3, 0)?, given.is_set("dio")?);
        let size = given.bounded("cdbsz", 0..=16, 0)? as u8;
        if !matches!(size, 0 | 6 | 10 | 12 | 16) {
            return Err(refused(format!("cdbsz={size}: invalid CDB size"), "use 6, 10, 12 or 16"));
        }
        let shape = |flags: &[&str], bit: u64| CdbOptions {
            size,
            fua: fua & bit != 0 || flags.contains(&"fua"),
            dpo: flags.contains(&"dpo"),
        };
        let is_direct = |flags: &[&str]| dio || flags.contains(&"dio") || flags.contains(&"direct");
        let end = |key: &str, start: &str, flags: &[&str]| {
            let start = bytes(given.number(start)?.unwrap_or(0), bs)?;
            RouteEnd::named(key, given.text(key), start, is_direct(flags))
        };
        Ok(SgpDdSettings {
            plan: RoutePlan {
                input: end("if", "skip", &input)?,
                output: end("of", "seek", &output)?,
                bytes: given.number("count")?.map(|count| bytes(count, bs)).transpose()?,
                until_end: false,
                fua: output.contains(&"dsync") || shape(&output, 1).fua,
                destroy: args.destroy,
                cores: CoreSelection::All,
            },
            shapes: [shape(&input, 2), shape(&output, 1)],
            threads: given.bounded("thr", 1..=1024, 4)?,
            time: given.is_set("time")?,
            sync: given.is_set("sync")?,
            verbose: args.verbose > 0
                || given.bounded("deb", 0..=9, 0)? + given.bounded("verbose", 0..=9, 0)? > 0,
            words: given.words().into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            sized: size != 0,
            continue_on_error: [&input, &output].map(|flags| coe || flags.contains(&"coe")),
            bs,
            bpt,
        })
    }

    /// Wraps an end: reports failures, and selects CDBs.
    fn prepare(
        &self,
        opened: &mut OpenTargets,
        target: &TargetSpec,
        is_output: bool,
        failures_sender: &Sender<CommandFailure>,
    ) -> Result<(), Error> {
        self.shape(opened, target, is_output)?;
        if self.continue_on_error[usize::from(is_output)] {
            opened
                .wrap(|_, disk| Arc::new(FailureReporter::replacing_by_zeros(disk, failures_sender.clone())));
        }
        Ok(())
    }

    /// Applies the CDB options to a logical unit.
    fn shape(&self, opened: &mut OpenTargets, target: &TargetSpec, is_output: bool) -> Result<(), Error> {
        let mut shape = self.shapes[usize::from(is_output)];
        let Some(lun) = opened.lun(0).cloned() else {
            let what = || format!("bs={}: not a logical block size of {target}", self.bs);
            return if self.bs.is_multiple_of(512) { Ok(()) } else { Err(refused(what(), "use bs=512")) };
        };
        let size = u64::from(lun.block_size());
        if self.bs != size {
            let what = format!("bs={}: not the logical block size of {target}", self.bs);
            return Err(refused(what, format!("use bs={size}; bpt= sets the length of commands")));
        }
        let end = opened.capacity() / size;
        if shape.size == 0 {
            shape.size = if end > 1 << 32 || self.bpt > u64::from(u16::MAX) { 16 } else { 10 };
        }
        let start = if is_output { self.plan.output.start } else { self.plan.input.start };
        let last = self.plan.bytes.map_or(end, |bytes| start.saturating_add(bytes) / size);
        shape
            .check(last.min(end), self.bpt)
            .map_err(|why| refused(why, "use a larger cdbsz, or a smaller range"))?;
        opened.wrap(|_, _| -> Arc<dyn Backend> { Arc::new(CdbDisk::new(lun.clone(), shape)) });
        Ok(())
    }

    fn job(&self, route: &OpenRoute) -> Job {
        Job {
            direction: route.direction,
            sizes: vec![((self.bs * self.bpt).min(route.bytes) as u32, 1)],
            depth: self.threads as usize,
            time: None,
            amount: Some(route.bytes),
            offset: route.offset,
            span: Some(route.bytes),
            fill: Fill::Zeros,
            fua: self.plan.fua,
            ..Job::default()
        }
    }
}

fn block_size(given: &Operands) -> Result<u64, Error> {
    let bs = given.bounded("bs", 1..=1 << 20, 512)?;
    for key in ["ibs", "obs"] {
        if given.number(key)?.is_some_and(|other| other != bs) {
            return Err(refused(
                format!("{key}= differs from bs={bs}"),
                "use the logical block size for bs=, ibs= and obs=",
            ));
        }
    }
    if given.text("odir").is_some() {
        return Err(refused("odir= is not supported", "use oflag=direct"));
    }
    Ok(bs)
}

fn bytes(blocks: u64, bs: u64) -> Result<u64, Error> {
    blocks.checked_mul(bs).ok_or_else(|| {
        refused(
            format!("{blocks} blocks of {bs} bytes are too many: the limit is 2^64-1 bytes"),
            "use fewer blocks",
        )
    })
}

/// Runs sgp_dd.
///
/// # Errors
/// If an end cannot be opened or holds data, or an operand is not supported.
pub fn run(args: &Args, context: RunContext) -> Result<Document, Error> {
    let settings = SgpDdSettings::read(args)?;
    let (failures_sender, failures) = flume::unbounded();
    let route = OpenRoute::open(&settings.plan, &|opened, target, is_output| {
        settings.prepare(opened, target, is_output, &failures_sender)
    })?;
    let result = copy(args, &settings, (&route, &failures), context);
    route.close();
    result
}

fn copy(
    args: &Args,
    settings: &SgpDdSettings,
    (route, failures): (&OpenRoute, &Receiver<CommandFailure>),
    context: RunContext,
) -> Result<Document, Error> {
    if route.bytes == 0 && settings.plan.bytes != Some(0) {
        return Err(refused(
            "nothing to copy: skip= or seek= leaves no blocks",
            "use a smaller skip= or seek=",
        ));
    }
    let mut output = ToolOutput::new(tool_output::title("sgp_dd", &args.operands), context);
    let ends = [&settings.plan.input, &settings.plan.output];
    let plain = ends.iter().filter_map(|end| end.target.as_ref()).find(|t| !matches!(t, TargetSpec::Lun(_)));
    if let Some(target) = plain.filter(|_| settings.sized) {
        output.remark(format!("cdbsz is ignored: {target} does not use CDBs"))?;
    }
    if settings.verbose {
        let (blocks, size) = (route.bytes / settings.bs, settings.bs * settings.bpt);
        output.line(format!("# {blocks} blocks, {size} bytes a command, {} at once", settings.threads))?;
    }
    if args.dry_run {
        return Ok(output.finish());
    }
    let mut outcome = perform(settings, (route, failures), &mut output)?;
    if settings.sync && outcome.ended_early.is_none() && settings.plan.output.target.is_some() {
        outcome.ended_early = flush(&route.opened).err();
    }
    if let Some(why) = &outcome.ended_early {
        output.remark(format!("the run ended early: {why}"))?;
    }
    for line in lines(&outcome, route.bytes, settings.bs, settings.time) {
        output.line(line)?;
    }
    let words: Vec<(&str, String)> = settings.words.iter().map(|(k, v)| (k.as_str(), v.clone())).collect();
    let label = match (route.direction, &settings.plan.output.target) {
        (IoDirection::Write, _) => "write",
        (_, None) => "read",
        (_, Some(_)) => "copy",
    };
    output.keep(tool_output::run(label.into(), &words, route.measured_targets(), outcome));
    Ok(output.finish())
}

/// Runs the job, if there is one, and reports replaced data at once.
fn perform(
    settings: &SgpDdSettings,
    (route, failures): (&OpenRoute, &Receiver<CommandFailure>),
    output: &mut ToolOutput,
) -> Result<JobOutcome, Error> {
    if route.bytes == 0 {
        return Ok(JobOutcome::default());
    }
    let (handle, mut errors) = (output.handle.clone(), 0);
    let on_failure = |failure: CommandFailure| {
        errors += 1;
        output.line(replaced(&failure, settings.bs))
    };
    let mut outcome =
        heard(failures, on_failure, || handle.end(), || route.opened.run(&settings.job(route), &handle))?;
    outcome.errors += errors;
    Ok(outcome)
}

/// The line of sgp_dd for an ignored error.
fn replaced(failure: &CommandFailure, bs: u64) -> String {
    let (block, CommandFailure { len, why, .. }) = (failure.offset / bs, failure);
    match failure.read {
        true => format!(">> substituted zeros for in blk={block} for {len} bytes, {why}"),
        false => format!(">> ignored error for out blk={block} for {len} bytes, {why}"),
    }
}

/// The final lines of sgp_dd of sg3_utils 1.46. It counts a record out for each record in, even if they are
/// discarded.
fn lines(outcome: &JobOutcome, wanted: u64, bs: u64, time: bool) -> Vec<String> {
    let (moved, seconds) = (outcome.bytes(), outcome.elapsed_s);
    let mut lines = Vec::new();
    if time {
        let us = (seconds * 1e6).round() as u64;
        let timed = format!("time to transfer data was {}.{:06} secs", us / 1_000_000, us % 1_000_000);
        let has_rate = us > 10 && moved > 511;
        let rate = if has_rate { format!(", {:.2} MB/sec", outcome.rate() / 1e6) } else { String::new() };
        lines.push(timed + &rate);
    }
    if moved < wanted {
        lines.push(format!("  remaining block count={}", (wanted - moved).div_ceil(bs)));
    }
    let (full, rest) = (moved / bs, u8::from(!moved.is_multiple_of(bs)));
    lines.push(format!("{full}+{rest} records in"));
    lines.push(format!("{full}+{rest} records out"));
    lines
}

#[cfg(test)]
mod tests;

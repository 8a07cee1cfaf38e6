//! blockdev-perftest: the time to write and read a fixed amount, three times for each block size.

mod table;

use super::tool_output::{self, ToolOutput};
use super::{RunContext, refused};
use lunar_bench::device::{self, CacheModel, emulate_block_layer, flush};
use lunar_bench::document::{ResultTable, TableCell};
use lunar_bench::job::{Fill, IoDirection, Job};
use lunar_bench::{Document, Error, ErrorKind, OpenTargets, TargetOptions, TargetSpec};
use rustix::fs::Advice;
use std::fs::{self, File};
use std::path::Path;
use table::{MIB, head};
pub use table::{RateStats, Row};

const CACHES: &str = "/proc/sys/vm/drop_caches";

/// The help text after the options.
const ABOUT: &str = "\
For each block size from 2^M down to 2^m bytes, 2^s bytes of zeros are written N times and read N times, with one request \
in flight.

As in the script, MB/s in the table is 2^20 bytes per second, and the average is the mean of the rates. It exceeds the rate \
of all runs together, which is printed below the table in both units. Times end with the last request, and exclude the \
start of the program. With -a, files and block devices use the page cache of this host. iscsi:// and NBD have none: requests \
of 512 KiB, four in flight, emulate read-ahead and write-behind. As in the script, buffered writes are flushed after the \
time, or with -j as part of it.
Large requests to iscsi:// and NBD are split into pieces of 512 KiB, all in flight at once, as the kernel would do.

Before each run, the page cache of this host is dropped; with -j only that of the target (fio's --invalidate=1).

Not supported: fixing the CPU frequency (the result names the governor), and dropping caches of the target's host (-t).";

/// `lunar bench blockdev-perftest`.
#[derive(Clone, Debug, clap::Args)]
#[command(about = "Write and read times by block size, in the table of SCST's blockdev-perftest", after_long_help = ABOUT)]
pub struct Args {
    /// Buffered ("asynchronous") I/O
    #[arg(short = 'a', conflicts_with = "direct")]
    pub buffered: bool,
    /// Direct I/O, bypassing the page cache (the default)
    #[arg(short = 'd')]
    pub direct: bool,
    /// Overwrite existing data
    #[arg(short = 'f')]
    pub force: bool,
    /// Number of runs for each block size and direction
    #[arg(short = 'i', value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub iterations: u32,
    /// Emulate fio instead of dd: the time includes flushes, and only the target is dropped from the page
    /// cache
    #[arg(short = 'j')]
    pub fio: bool,
    /// Smallest block size: 2^N bytes
    #[arg(short = 'm', value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(9..=30))]
    pub min: u32,
    /// Largest block size: 2^N bytes
    #[arg(short = 'M', value_name = "N", default_value_t = 26, value_parser = clap::value_parser!(u32).range(9..=30))]
    pub max: u32,
    /// Write without checking for existing data
    #[arg(short = 'n')]
    pub no_check: bool,
    /// Read only
    #[arg(short = 'r', conflicts_with = "write_only")]
    pub read_only: bool,
    /// Size of each run: 2^N bytes
    #[arg(short = 's', value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(9..=50))]
    pub size: u32,
    /// Not supported: drop the caches of the target's host
    #[arg(short = 't', value_name = "HOST", hide = true)]
    pub target_host: Option<String>,
    /// Write only
    #[arg(short = 'w')]
    pub write_only: bool,
    /// Do not drop the page cache of this host before each run
    #[arg(long)]
    pub keep_caches: bool,
    /// iscsi://..., a file, a block device, null:SIZE or memory:SIZE
    pub target: String,
}

impl Args {
    fn reads(&self) -> bool {
        !self.write_only
    }

    fn writes(&self) -> bool {
        !self.read_only
    }

    fn bytes(&self) -> u64 {
        1 << self.size
    }

    /// The block sizes, in order.
    fn blocks(&self) -> Vec<u64> {
        (self.min..=self.max.min(self.size)).rev().map(|log| 1 << log).collect()
    }

    /// The options of the script.
    fn options_text(&self) -> String {
        let flag = |is_set: bool, text: &str| if is_set { format!("{text} ") } else { String::new() };
        [
            flag(self.force, "-f"),
            flag(self.fio, "-j"),
            flag(self.no_check, "-n"),
            flag(self.read_only, "-r"),
            flag(self.write_only, "-w"),
            flag(true, if self.buffered { "-a" } else { "-d" }),
            flag(self.iterations != 3, &format!("-i {}", self.iterations)),
            format!("-s {} -m {}", self.size, self.min),
            if self.max == 26 { String::new() } else { format!(" -M {}", self.max) },
        ]
        .concat()
    }

    fn job(&self, block: u64, direction: IoDirection) -> Job {
        Job {
            direction,
            sizes: vec![(block as u32, 1)],
            time: None,
            amount: Some(self.bytes()),
            span: Some(self.bytes()),
            fill: Fill::Zeros,
            flush: self.fio && direction == IoDirection::Write,
            ..Job::default()
        }
    }
}

/// Runs blockdev-perftest.
///
/// # Errors
/// If the target cannot be opened, is too small or holds data, or an option is not supported.
pub fn run(args: &Args, context: RunContext) -> Result<Document, Error> {
    check(args)?;
    let target = TargetSpec::parse(&args.target)?;
    let opening = TargetOptions {
        direct: !args.buffered,
        write: args.writes(),
        destroy: true,
        ..TargetOptions::default()
    };
    let mut opened = OpenTargets::open(std::slice::from_ref(&target), &opening)?;
    let result = measure(args, &target, &mut opened, context);
    opened.close();
    result
}

fn check(args: &Args) -> Result<(), Error> {
    if args.target_host.is_some() {
        let hint = "run on that host: sync; echo 3 > /proc/sys/vm/drop_caches";
        return Err(refused("-t cannot drop the caches of another host", hint));
    }
    if args.blocks().is_empty() {
        let what = format!(
            "-m {0}: the smallest block size 2^{0} exceeds the largest, 2^{1}",
            args.min,
            args.max.min(args.size)
        );
        return Err(refused(what, "-m must not be larger than -M or -s"));
    }
    Ok(())
}

fn measure(
    args: &Args,
    target: &TargetSpec,
    opened: &mut OpenTargets,
    context: RunContext,
) -> Result<Document, Error> {
    if opened.capacity() < args.bytes() {
        let what = format!(
            "{target} has {} bytes, fewer than the 2^{1} bytes of -s {1}",
            opened.capacity(),
            args.size
        );
        return Err(refused(what, "use a smaller -s"));
    }
    let mut output = ToolOutput::new(format!("blockdev-perftest {} {target}", args.options_text()), context);
    if args.writes() && !args.force && !args.no_check {
        refuse_data(args, target, opened, &output)?;
    }
    // The data of reads and writes does not matter.
    let before = if args.buffered { CacheModel::PageCache } else { CacheModel::RequestSplittingWithoutData };
    if emulate_block_layer(opened, target, before) && args.buffered {
        output.remark(format!(
            "-a: {target} has no page cache; requests of {} KiB, {} in flight, emulate a page cache",
            device::PIECE >> 10,
            device::MAX_IN_FLIGHT
        ))?;
    }
    let head = head(args.iterations as usize);
    head.into_iter().try_for_each(|line| output.line(line))?;
    let mut rows = Vec::new();
    for block in args.blocks() {
        let row = one_row(args, target, opened, &mut output, block)?;
        output.line(row.line(args.bytes(), args.iterations as usize))?;
        rows.push(row);
        if let Some(why) = output.document.ended_early().map(str::to_owned) {
            output.remark(format!("the run ended early: {why}"))?;
        }
        if output.handle.is_ended() || output.document.ended_early().is_some() {
            break;
        }
    }
    together(args, &rows, &mut output)?;
    output.document.tables = vec![table_of(args, &rows, target)];
    Ok(output.finish())
}

/// Checks that the first bytes are zeros.
fn refuse_data(
    args: &Args,
    target: &TargetSpec,
    opened: &OpenTargets,
    output: &ToolOutput,
) -> Result<(), Error> {
    let look = Job {
        sizes: vec![(args.bytes().min(1 << 19) as u32, 1)],
        depth: 4,
        compare: true,
        ..args.job(512, IoDirection::Read)
    };
    let outcome = opened.run(&look, &output.handle)?;
    match outcome.ended_early {
        None => Ok(()),
        Some(why) if outcome.errors > 0 => {
            let hint = "run lunar doctor, or check the system log";
            Err(Error::new(ErrorKind::System, format!("{target} cannot be read: {why}"), hint))
        }
        Some(why) => {
            let what = format!("{target} holds data in its first 2^{} bytes: {why}", args.size);
            Err(Error::new(ErrorKind::HoldsData, what, "add -f to overwrite the data"))
        }
    }
}

fn one_row(
    args: &Args,
    target: &TargetSpec,
    opened: &OpenTargets,
    output: &mut ToolOutput,
    block: u64,
) -> Result<Row, Error> {
    let mut row = Row { block, ..Row::default() };
    for (direction, is_wanted) in [(IoDirection::Write, args.writes()), (IoDirection::Read, args.reads())] {
        for n in 0..args.iterations {
            if !is_wanted || output.handle.is_ended() || output.document.ended_early().is_some() {
                break;
            }
            drop_caches(args, target, output)?;
            let mut outcome = opened.run(&args.job(block, direction), &output.handle)?;
            if direction == IoDirection::Write && outcome.ended_early.is_none() {
                outcome.ended_early = flush(opened).err();
            }
            let (times, name) = match direction {
                IoDirection::Write => (&mut row.writes, "write"),
                _ => (&mut row.reads, "read"),
            };
            // A partial run would distort the rates.
            if outcome.bytes() == args.bytes() {
                times.push(outcome.elapsed_s);
            }
            let words = [
                ("tool", "blockdev-perftest".to_owned()),
                ("options", args.options_text()),
                ("bs", block.to_string()),
            ];
            let label = format!("{block} {name} {}", n + 1);
            output.keep(tool_output::run(label, &words, opened.measured_targets(), outcome));
        }
    }
    Ok(row)
}

/// Drops caches before each run like the script, or with -j like its fio. Only files and block devices have a
/// page cache here.
fn drop_caches(args: &Args, target: &TargetSpec, output: &mut ToolOutput) -> Result<(), Error> {
    match target {
        TargetSpec::Path(path) if !args.keep_caches && args.fio => warned(invalidate(path), path, output),
        TargetSpec::Path(_) if !args.keep_caches => {
            rustix::fs::sync();
            drop_all(Path::new(CACHES), output)
        }
        _ => Ok(()),
    }
}

fn drop_all(caches: &Path, output: &mut ToolOutput) -> Result<(), Error> {
    let dropped = fs::write(caches, "3").map_err(|e| format!("cannot be written ({e})"));
    warned(dropped, caches, output)
}

/// Drops a file from the page cache, like fio's --invalidate=1.
fn invalidate(path: &Path) -> Result<(), String> {
    let file = File::open(path).map_err(|e| format!("cannot be opened ({e})"))?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)
        .map_err(|e| format!("stays in the page cache ({e})"))
}

/// Prints the reason once if caches are not dropped.
fn warned(dropped: Result<(), String>, what: &Path, output: &mut ToolOutput) -> Result<(), Error> {
    let Err(why) = dropped else { return Ok(()) };
    let note = format!("WARNING: {} {why}: results will be unreliable", what.display());
    if output.document.notes.contains(&note) { Ok(()) } else { output.remark(note) }
}

/// The rates over all runs, in both units.
fn together(args: &Args, rows: &[Row], output: &mut ToolOutput) -> Result<(), Error> {
    output.line(
        "# above: MB = 2^20 bytes, averages of rates; below: bytes of all runs divided by their total time",
    )?;
    for row in rows {
        let rate_text = |name: &str, times: &[f64]| {
            let seconds: f64 = times.iter().sum();
            let rate = if seconds > 0.0 { args.bytes() as f64 * times.len() as f64 / seconds } else { 0.0 };
            format!(" {name} {:9.3} MiB/s {:9.3} MB/s", rate / MIB, rate / 1e6)
        };
        output.line(format!(
            "# {:9}{}{}",
            row.block,
            rate_text("W", &row.writes),
            rate_text("R", &row.reads)
        ))?;
    }
    Ok(())
}

fn table_of(args: &Args, rows: &[Row], target: &TargetSpec) -> ResultTable {
    let cells = |row: &Row| {
        let of = |times: &[f64]| RateStats::of(times, args.bytes(), row.block);
        let (write, read) = (of(&row.writes), of(&row.reads));
        let figures = [write.average, write.deviation, read.average, read.deviation];
        (row.block.to_string(), figures.map(|figure| TableCell::new(None, Some(figure))).to_vec())
    };
    ResultTable {
        title: format!("blockdev-perftest {} {target}", args.options_text()),
        unit: "MiB/s".into(),
        larger_is_better: true,
        columns: ["write avg", "write std", "read avg", "read std"].map(str::to_owned).to_vec(),
        rows: rows.iter().map(cells).collect(),
    }
}

#[cfg(test)]
mod tests;

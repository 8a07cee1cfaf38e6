//! blockdev-perftest: time to write and read the same amount, block size by block size, three times each.

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

/// What the help says besides the options.
const ABOUT: &str = "\
Block sizes go from 2^M down to 2^m bytes; with each, 2^s bytes of zeros are written N times and read N times, \
one request at a time.

MB/s in the table is 2^20 bytes a second, as the script has it, and the mean of the rates of the runs, which is above \
the rate of all runs together; that one is printed below the table, in both units. Times end with the last request, and \
hold no start of a program. With -a, the page cache is that of this host for files and block devices; before iscsi:// and \
NBD there is none, and what one does to a stream is done instead: requests of 512 KiB, four in flight, ahead of the \
reader and behind the writer. As in the script, buffered writes are made stable outside the time, or inside it with -j.
Large requests to iscsi:// and NBD go out in pieces of 512 KiB, all at once, as a kernel would cut them.

Before each run the page cache of this host is dropped, with -j only what it holds of the target (fio's --invalidate=1).

Not done: pinning the frequency of the CPU (the governor is part of the result), and caches of the target (-t).";

/// `lunar bench blockdev-perftest`.
#[derive(Clone, Debug, clap::Args)]
#[command(about = "Write and read times by block size, in the table of SCST's blockdev-perftest", after_long_help = ABOUT)]
pub struct Args {
    /// Buffered ("asynchronous") I/O
    #[arg(short = 'a', conflicts_with = "direct")]
    pub buffered: bool,
    /// Direct I/O, past the page cache (the default)
    #[arg(short = 'd')]
    pub direct: bool,
    /// Write, whatever the target holds
    #[arg(short = 'f')]
    pub force: bool,
    /// Runs of each block size and direction
    #[arg(short = 'i', value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub iterations: u32,
    /// As with fio in place of dd: what makes writes stable is inside the time, and of the caches only what is of the target
    /// is dropped
    #[arg(short = 'j')]
    pub fio: bool,
    /// The smallest block: 2^N bytes
    #[arg(short = 'm', value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(9..=30))]
    pub min: u32,
    /// The largest block: 2^N bytes
    #[arg(short = 'M', value_name = "N", default_value_t = 26, value_parser = clap::value_parser!(u32).range(9..=30))]
    pub max: u32,
    /// Write without looking whether the target holds data
    #[arg(short = 'n')]
    pub no_check: bool,
    /// Only read
    #[arg(short = 'r', conflicts_with = "write_only")]
    pub read_only: bool,
    /// Bytes of each run: 2^N
    #[arg(short = 's', value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(9..=50))]
    pub size: u32,
    /// Not supported: dropping the caches of the target
    #[arg(short = 't', value_name = "HOST", hide = true)]
    pub target_host: Option<String>,
    /// Only write
    #[arg(short = 'w')]
    pub write_only: bool,
    /// Leave the page cache of this host as it is before each run
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

    /// Block sizes, as they are gone through.
    fn blocks(&self) -> Vec<u64> {
        (self.min..=self.max.min(self.size)).rev().map(|log| 1 << log).collect()
    }

    /// The options as they would be given to the script.
    fn told(&self) -> String {
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

/// Runs it.
///
/// # Errors
/// When the target cannot be opened, is too small, or holds data, or an option makes no sense here.
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
        let hint = "drop its caches there: sync; echo 3 > /proc/sys/vm/drop_caches";
        return Err(refused("-t: caches of another host are not dropped", hint));
    }
    if args.blocks().is_empty() {
        let what =
            format!("there is no block size from 2^{} down to 2^{}", args.max.min(args.size), args.min);
        return Err(refused(what, "-m must not be above -M and -s"));
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
        let what = format!("{target} has {} bytes, fewer than 2^{}", opened.capacity(), args.size);
        return Err(refused(what, "a smaller -s moves less"));
    }
    let mut output = ToolOutput::new(format!("blockdev-perftest {} {target}", args.told()), context);
    if args.writes() && !args.force && !args.no_check {
        refuse_data(args, target, opened, &output)?;
    }
    // What it writes are zeros, and nobody looks at what it reads.
    let before = if args.buffered { CacheModel::PageCache } else { CacheModel::RequestSplittingWithoutData };
    if emulate_block_layer(opened, target, before) && args.buffered {
        output.remark(format!(
            "-a: no page cache stands before {target}; requests of {} KiB, {} in flight, take its place",
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
            output.remark(format!("it ended early: {why}"))?;
        }
        if output.handle.is_ended() || output.document.ended_early().is_some() {
            break;
        }
    }
    together(args, &rows, &mut output)?;
    output.document.tables = vec![table_of(args, &rows, target)];
    Ok(output.finish())
}

/// All of the first bytes must be zero.
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
            let hint = "lunar doctor, or the log of the system, tells more";
            Err(Error::new(ErrorKind::System, format!("{target} cannot be read: {why}"), hint))
        }
        Some(why) => {
            let what = format!("{target} still holds data in its first 2^{} bytes: {why}", args.size);
            Err(Error::new(ErrorKind::HoldsData, what, "-f overwrites it"))
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
            // What was cut short has not moved as much as the arithmetic takes for granted.
            if outcome.bytes() == args.bytes() {
                times.push(outcome.elapsed_s);
            }
            let words = [
                ("tool", "blockdev-perftest".to_owned()),
                ("options", args.told()),
                ("bs", block.to_string()),
            ];
            let label = format!("{block} {name} {}", n + 1);
            output.keep(tool_output::run(label, &words, opened.facts(), outcome));
        }
    }
    Ok(row)
}

/// Before each run, as the script does, or with -j as its fio does. Only files and block devices have a page cache
/// here.
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

/// Drops what the page cache holds of it: fio's --invalidate=1.
fn invalidate(path: &Path) -> Result<(), String> {
    let file = File::open(path).map_err(|e| format!("cannot be opened ({e})"))?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)
        .map_err(|e| format!("stays in the page cache ({e})"))
}

/// Why caches are not dropped, once.
fn warned(dropped: Result<(), String>, what: &Path, output: &mut ToolOutput) -> Result<(), Error> {
    let Err(why) = dropped else { return Ok(()) };
    let note = format!("WARNING: {} {why}: results will be unreliable", what.display());
    if output.document.notes.contains(&note) { Ok(()) } else { output.remark(note) }
}

/// The rates of all runs together, in both units.
fn together(args: &Args, rows: &[Row], output: &mut ToolOutput) -> Result<(), Error> {
    output
        .line("# above: MB = 2^20 bytes, averages of rates; below: bytes of all runs by their whole time")?;
    for row in rows {
        let told = |name: &str, times: &[f64]| {
            let seconds: f64 = times.iter().sum();
            let rate = if seconds > 0.0 { args.bytes() as f64 * times.len() as f64 / seconds } else { 0.0 };
            format!(" {name} {:9.3} MiB/s {:9.3} MB/s", rate / MIB, rate / 1e6)
        };
        output.line(format!("# {:9}{}{}", row.block, told("W", &row.writes), told("R", &row.reads)))?;
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
        title: format!("blockdev-perftest {} {target}", args.told()),
        unit: "MiB/s (2^20)".into(),
        larger_is_better: true,
        columns: ["write avg", "write std", "read avg", "read std"].map(str::to_owned).to_vec(),
        rows: rows.iter().map(cells).collect(),
    }
}

#[cfg(test)]
mod tests;

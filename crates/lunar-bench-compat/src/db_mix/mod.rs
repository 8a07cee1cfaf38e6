//! db-mix: the disk workload of a database, after io_trash of the publication of 2009.

mod database;

use super::tool_output::{self, ToolOutput};
use super::{RunContext, clock, refused};
use database::{AccessProfile, Database, DatabaseFile};
use lunar_bench::CleanupGuard;
use lunar_bench::job::{AccessPattern, Fill, IoDirection, Job};
use lunar_bench::words::length_range;
use lunar_bench::{Document, Error, ErrorKind, JobOutcome, OpenTargets, TargetOptions, TargetSpec};
use lunar_block::Backend;
use lunar_proto::size;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use std::{fs, iter};

const SECTOR: u64 = 512;

/// The help text after the options.
const ABOUT: &str = "\
Threads read and write at random offsets of some files, mostly in a window at the start of each; the result is the time \
until all operations are done. The source of io_trash is lost: this is an interpretation of the thirteen arguments that \
were published. The arguments in order, with the published values:

  2          threads               2 at once
  2          files
  ./         place                 a folder, or targets
  500000000  size of a file        bytes
  50000000   window of a file      bytes, at its start
  10         outside               percentage of operations anywhere in the file
  4096 4096  smallest and largest operation
  300000     operations            all threads together
  10 90      writes and reads      percentages
  0          think                 ms between two operations of a thread
  10         fsync                 number of writes to a file between flushes

These are also the defaults of the options. In a folder, the files are written first, as a separate result, and removed at \
the end; they use the page cache of this host, except with --direct. On targets, each file is a range of one target. The \
time of a flush counts for the write before it.";

/// `lunar bench db-mix`.
#[derive(Clone, Debug, clap::Args)]
#[command(about = "Random access like a database, and its execution time (io_trash)", after_long_help = ABOUT)]
pub struct Args {
    /// Threads, each with one operation in flight
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// Number of files
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub files: u32,
    /// Size of a file
    #[arg(long, value_name = "SIZE", default_value = "500MB")]
    pub size: String,
    /// Size of the window at the start of a file where most operations fall
    #[arg(long, value_name = "SIZE", default_value = "50MB")]
    pub window: String,
    /// Percentage of operations anywhere in the file
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub outside: u8,
    /// Length of the shortest operation
    #[arg(long, value_name = "SIZE", default_value = "4096")]
    pub io_min: String,
    /// Length of the longest operation
    #[arg(long, value_name = "SIZE", default_value = "4096")]
    pub io_max: String,
    /// Number of operations of all threads together
    #[arg(long, value_name = "N", default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub operations: u64,
    /// Percentage of reads
    #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub read_percent: u8,
    /// Think time between two operations of a thread (5ms, 1s)
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = lunar_proto::duration::any)]
    pub think: Duration,
    /// Number of writes to a file between flushes; 0: never flush
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub fsync_every: u64,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Bypass the page cache of this host
    #[arg(long)]
    pub direct: bool,
    /// Keep the files in the folder
    #[arg(long)]
    pub keep: bool,
    /// Overwrite existing data on targets, or existing files of the same name
    #[arg(long)]
    pub destroy: bool,
    /// A folder, or targets; or the thirteen arguments of io_trash
    #[arg(required = true, value_name = "FOLDER|TARGET|NUMBER")]
    pub places: Vec<String>,
}

/// The parsed arguments.
#[derive(Debug, PartialEq)]
struct DbMixSettings {
    threads: u32,
    files: u64,
    io: (u64, u64),
    operations: u64,
    read_percent: u8,
    think_ms: u64,
    habit: AccessProfile,
    places: Vec<String>,
}

impl DbMixSettings {
    fn of(args: &Args) -> Result<DbMixSettings, Error> {
        let size = |name: &str, text: &str| {
            size::parse(text).map_err(|e| refused(format!("{name}: {}", e.what), e.hint))
        };
        let io = (size("--io-min", &args.io_min)?, size("--io-max", &args.io_max)?);
        let settings = match io_trash(&args.places) {
            Some(settings) => settings?,
            None => DbMixSettings {
                threads: args.threads,
                files: args.files.into(),
                io,
                operations: args.operations,
                read_percent: args.read_percent,
                think_ms: u64::try_from(args.think.as_millis()).unwrap_or(u64::MAX),
                habit: AccessProfile {
                    size: size("--size", &args.size)?,
                    window: size("--window", &args.window)?,
                    outside: args.outside.into(),
                    fsync_every: args.fsync_every,
                    granule: SECTOR,
                },
                places: args.places.clone(),
            },
        };
        settings.checked()
    }

    fn checked(mut self) -> Result<DbMixSettings, Error> {
        let (low, high) = self.io;
        let AccessProfile { size, window, .. } = self.habit;
        if !low.is_multiple_of(SECTOR)
            || !high.is_multiple_of(SECTOR)
            || low == 0
            || low > high
            || high > 1 << 30
        {
            let what = format!("invalid operation lengths: {low} to {high} bytes");
            return Err(refused(what, "use multiples of 512 up to 1G, the smaller one first"));
        }
        if high > window || window > size {
            let what = format!(
                "operation length {high}, window {window} and file size {size} (in bytes) are not in ascending order"
            );
            return Err(refused(
                what,
                "the window must have at least the size of an operation, and at most the size of the file",
            ));
        }
        if size.checked_mul(self.files).is_none_or(|sum| sum > i64::MAX as u64) {
            let what =
                format!("{} files of {size} bytes are too large: the limit is 2^63-1 bytes", self.files);
            return Err(refused(what, "use fewer or smaller files"));
        }
        // Align to the operation length if it is constant; a file ends with a whole operation.
        self.habit.granule = if low == high { low } else { SECTOR };
        self.habit.size = size / self.habit.granule * self.habit.granule;
        Ok(self)
    }

    fn job(&self, seed: u64) -> Job {
        Job {
            order: AccessPattern::Random,
            direction: IoDirection::Mix(self.read_percent),
            commands: Some(self.operations),
            time: None,
            think: Duration::from_millis(self.think_ms),
            sizes: length_range(self.io.0, self.io.1, SECTOR),
            seed,
            ..Job::default()
        }
    }

    fn words(&self) -> Vec<(&'static str, String)> {
        let AccessProfile { size, window, outside, fsync_every, .. } = self.habit;
        let mut words = vec![("tool", "db-mix".to_owned())];
        let numbers = [
            ("threads", self.threads.into()),
            ("files", self.files),
            ("size", size),
            ("window", window),
            ("outside", outside),
            ("io-min", self.io.0),
            ("io-max", self.io.1),
            ("operations", self.operations),
            ("read-percent", self.read_percent.into()),
            ("think", self.think_ms),
            ("fsync-every", fsync_every),
        ];
        words.extend(numbers.map(|(name, n): (_, u64)| (name, n.to_string())));
        words
    }
}

/// Parses the thirteen arguments of io_trash: all are numbers, except the third.
fn io_trash(places: &[String]) -> Option<Result<DbMixSettings, Error>> {
    if places.len() != 13 {
        return None;
    }
    let numbers: Option<Vec<u64>> =
        places.iter().enumerate().filter(|(at, _)| *at != 2).map(|(_, text)| text.parse().ok()).collect();
    let numbers = numbers?;
    let [threads, files, size, window, outside, low, high, operations, writes, reads, think_ms, fsync_every] =
        numbers[..]
    else {
        return None;
    };
    let within = |n: u64, bounds: std::ops::RangeInclusive<u64>| bounds.contains(&n);
    if writes.checked_add(reads) != Some(100) || !within(outside, 0..=100) {
        let hint = "arguments 10 and 11 are percentages of writes and reads, argument 6 is the percentage outside the window";
        return Some(Err(refused(
            format!(
                "invalid percentages: writes ({writes}) and reads ({reads}) must add up to 100, \
                 and accesses outside the window ({outside}) must not exceed 100"
            ),
            hint,
        )));
    }
    if !within(threads, 1..=1024)
        || !within(files, 1..=1024)
        || !within(operations, 1..=u64::MAX)
        || !within(think_ms, 0..=u32::MAX.into())
    {
        return Some(Err(refused(
            format!(
                "argument out of range: {threads} threads, {files} files, {operations} operations, {think_ms} ms think time"
            ),
            "use 1 to 1024 threads and files, at least 1 operation, and at most 4294967295 ms think time",
        )));
    }
    Some(Ok(DbMixSettings {
        threads: threads as u32,
        files,
        io: (low, high),
        operations,
        read_percent: reads as u8,
        think_ms,
        habit: AccessProfile { size, window, outside, fsync_every, granule: SECTOR },
        places: vec![places[2].clone()],
    }))
}

/// Runs db-mix.
///
/// # Errors
/// If a place cannot be used, is too small or holds data, or an option is invalid.
pub fn run(args: &Args, context: RunContext) -> Result<Document, Error> {
    let settings = DbMixSettings::of(args)?;
    let mut output = ToolOutput::new(tool_output::title("db-mix on", &settings.places), context);
    match &settings.places[..] {
        [folder] if Path::new(folder).is_dir() => in_folder(args, &settings, Path::new(folder), &mut output)?,
        places => on_targets(args, &settings, places, &mut output)?,
    }
    Ok(output.finish())
}

fn opening(args: &Args, settings: &DbMixSettings, create: Option<u64>) -> TargetOptions {
    TargetOptions {
        direct: args.direct,
        write: settings.read_percent < 100 || create.is_some(),
        destroy: args.destroy,
        create,
        ..TargetOptions::default()
    }
}

fn in_folder(
    args: &Args,
    settings: &DbMixSettings,
    folder: &Path,
    output: &mut ToolOutput,
) -> Result<(), Error> {
    let paths: Vec<PathBuf> = (0..settings.files).map(|n| folder.join(format!("lunar-db-mix-{n}"))).collect();
    let ours: Vec<PathBuf> = paths.iter().filter(|path| !path.exists()).cloned().collect();
    let made = removed_at_the_end(if args.keep { Vec::new() } else { ours })?;
    let targets: Vec<TargetSpec> = paths.into_iter().map(TargetSpec::Path).collect();
    let mut opened = OpenTargets::open(&targets, &opening(args, settings, Some(settings.habit.size)))?;
    let result = fill(settings, &opened, output).and_then(|is_whole| match is_whole {
        true => measure(args, settings, &mut opened, output),
        false => Ok(()),
    });
    opened.close();
    drop(made);
    result
}

/// Removes the files at the end of the run.
fn removed_at_the_end(files: Vec<PathBuf>) -> Result<CleanupGuard, Error> {
    // A file may already be gone.
    let remove = move || files.iter().for_each(|file| _ = fs::remove_file(file));
    CleanupGuard::create(|| Ok(((), remove))).map(|((), undo)| undo)
}

/// Writes the files, so that reads find data. False if the user ended it.
fn fill(settings: &DbMixSettings, opened: &OpenTargets, output: &mut ToolOutput) -> Result<bool, Error> {
    // Each session starts somewhere in its file; lengths that divide the file reach every byte once.
    let size = settings.habit.size;
    let piece = 1u32 << size.trailing_zeros().min(20);
    let job = Job {
        direction: IoDirection::Write,
        sizes: vec![(piece, 1)],
        depth: 4,
        time: None,
        amount: Some(size.saturating_mul(settings.files)),
        span: Some(size),
        fill: Fill::Random,
        flush: true,
        ..Job::default()
    };
    let outcome = opened.run(&job, &output.handle)?;
    let (seconds, why) = (outcome.elapsed_s, outcome.ended_early.clone());
    output.line(format!("{} files of {size} bytes written in {}", settings.files, clock::span(seconds)))?;
    output.keep(tool_output::run(
        "files written".into(),
        &settings.words(),
        opened.measured_targets(),
        outcome,
    ));
    if let Some(why) = &why {
        output.remark(format!("the run ended early: {why}"))?;
    }
    Ok(why.is_none() && !output.handle.is_ended())
}

fn on_targets(
    args: &Args,
    settings: &DbMixSettings,
    places: &[String],
    output: &mut ToolOutput,
) -> Result<(), Error> {
    let targets = places.iter().map(|text| TargetSpec::parse(text)).collect::<Result<Vec<_>, _>>()?;
    let mut opened = OpenTargets::open(&targets, &opening(args, settings, None))?;
    let of_each = settings.files.div_ceil(targets.len() as u64);
    let result = match opened.capacity() / of_each < settings.habit.size {
        true => {
            let what = format!(
                "{of_each} files of {} bytes exceed the {} bytes of the target",
                settings.habit.size,
                opened.capacity()
            );
            Err(Error::new(ErrorKind::Invalid, what, "use a smaller --size, or fewer --files"))
        }
        false => measure(args, settings, &mut opened, output),
    };
    opened.close();
    result
}

fn measure(
    args: &Args,
    settings: &DbMixSettings,
    opened: &mut OpenTargets,
    output: &mut ToolOutput,
) -> Result<(), Error> {
    let measured = opened.measured_targets();
    opened.replace_by_shared(settings.threads as usize, |disks| Arc::new(base_of(settings, &disks)));
    let outcome = opened.run(&settings.job(args.seed), &output.handle)?;
    for line in lines(&outcome) {
        output.line(line)?;
    }
    if let Some(why) = &outcome.ended_early {
        output.remark(format!("the run ended early: {why}"))?;
    }
    output.keep(tool_output::run("operations".into(), &settings.words(), measured, outcome));
    Ok(())
}

/// Distributes the files over the disks in turn; files of one disk are adjacent.
fn base_of(settings: &DbMixSettings, disks: &[Arc<dyn Backend>]) -> Database {
    let part = |(n, disk): (u64, &Arc<dyn Backend>)| DatabaseFile {
        disk: disk.clone(),
        start: n / disks.len() as u64 * settings.habit.size,
        writes: AtomicU64::new(0),
    };
    let turns = (0..settings.files).zip(disks.iter().cycle());
    Database::new(turns.map(part).collect(), settings.habit)
}

fn lines(outcome: &JobOutcome) -> Vec<String> {
    let direction = |name: &str, totals: &lunar_bench::outcome::DirectionTotals| {
        let rate = totals.rate(outcome.elapsed_s);
        format!(
            "{name}: {} operations, {:.1}/s, {:.2} MB/s ({:.2} MiB/s)",
            totals.ios,
            totals.iops(outcome.elapsed_s),
            rate / 1e6,
            rate / (1u64 << 20) as f64
        )
    };
    iter::once(format!("total execution time {}", clock::span(outcome.elapsed_s)))
        .chain([direction("reads", &outcome.read), direction("writes", &outcome.write)])
        .collect()
}

#[cfg(test)]
mod tests;

//! The options of disktest v1.1.12, and the test plan that they describe.

use super::lines::ReportOptions;
use super::numbers::{SECTOR, fixed, number, sizes};
use crate::refused;
use lunar_bench::job::{AccessPattern, Fill, IoDirection, Job, Weighted};
use lunar_bench::{Error, TargetSpec};
use std::time::Duration;

/// The default number of threads.
pub const THREADS: u32 = 4;

/// The help text after the options.
const ABOUT: &str = "\
Numbers accept k, m, g (powers of 1024) and, except in -B, K, M, G (powers of 1000). Times are seconds, or have a unit: \
ms, s, m, h, d. Several targets are tested at once, each as in a process of its own, and summed up at the end.

As in disktest, MB/s is 2^20 bytes per second, and a heartbeat shows the average since the start of the pass, not of the \
last interval (for changes over time, see the time series of --json). Rates use the elapsed time in microseconds. \
disktest used whole seconds, and divided each direction of a mixed pass by its share of the time, so that 50:50 runs \
showed twice their rate. Times of day are UTC.

-p: R random (default); L linear, all writes and then all reads; l linear, writes and reads alternate. \
-L counts both directions: with -p L half of them are writes. The default is the number of the longest transfers that fit, \
and twice that in linear passes that read and write. \
Not supported: order d (up and down in turn), -m, -d, -t, -o.";

/// `lunar bench disktest`.
#[derive(Clone, Debug, clap::Args)]
#[command(about = "Sector I/O, with the options and output of LTP's disktest v1.1.12", after_long_help = ABOUT)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub struct Args {
    /// Seed of the random numbers
    #[arg(short = 'a', value_name = "SEED")]
    pub seed: Option<u64>,
    /// Continue after an error, to the end of the pass; each error is printed, and the test fails
    #[arg(short = 'A')]
    pub continue_on_error: bool,
    /// Transfer size, or a range of sizes; a number up to 256 is sectors, above that bytes [default: 1]
    #[arg(short = 'B', value_name = "LO[:HI]")]
    pub blocks: Option<String>,
    /// Write 0, 1, 2 ... 255 (the default)
    #[arg(short = 'c', conflicts_with_all = ["fixed", "numbers", "random"])]
    pub counting: bool,
    /// Number of passes; 0: endless
    #[arg(short = 'C', value_name = "N")]
    pub cycles: Option<u64>,
    /// Share of reads and writes in random passes, such as 70:30
    #[arg(short = 'D', value_name = "R:W")]
    pub duty: Option<String>,
    /// Compare read data with the data that a write would have written; always the whole transfer, as with 0
    #[arg(short = 'E', value_name = "LEN")]
    pub compare: Option<String>,
    /// Write these bytes repeatedly: 1, 2, 4 or 8 bytes in hexadecimal
    #[arg(short = 'f', value_name = "BYTES", conflicts_with_all = ["numbers", "random"])]
    pub fixed: Option<String>,
    /// Heartbeat: print statistics at this interval
    #[arg(short = 'h', value_name = "TIME", value_parser = lunar_proto::duration::positive)]
    pub heartbeat: Option<Duration>,
    /// r raw, b block, f file; r, or an added d, bypasses the page cache [default: b]
    #[arg(short = 'I', value_name = "TYPE")]
    pub kind: Option<String>,
    /// Threads, each with one command in flight [default: 4]
    #[arg(short = 'K', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub threads: Option<u32>,
    /// Number of seeks (transfers) of a pass, reads and writes together
    #[arg(short = 'L', value_name = "N")]
    pub seeks: Option<String>,
    /// Not supported: mark sectors
    #[arg(short = 'm', value_name = "l,f,a", hide = true)]
    pub mark: Option<String>,
    /// Write block numbers
    #[arg(short = 'n', conflicts_with = "random")]
    pub numbers: bool,
    /// Number of sectors in use
    #[arg(short = 'N', value_name = "SECTORS")]
    pub sectors: Option<String>,
    /// Order of offsets: R random, L linear, l linear and interleaved [default: R]
    #[arg(short = 'p', value_name = "ORDER")]
    pub order: Option<String>,
    /// Output: T throughput, X transfers, R run time, A all, P machine-readable
    #[arg(short = 'P', value_name = "TXRAP")]
    pub statistics: Option<String>,
    /// Omit INFO lines
    #[arg(short = 'q')]
    pub quiet: bool,
    /// Omit the prefix of lines
    #[arg(short = 'Q')]
    pub bare: bool,
    /// Read (the default)
    #[arg(short = 'r')]
    pub read: bool,
    /// First and last sector in use
    #[arg(short = 's', value_name = "A[:B]")]
    pub lba: Option<String>,
    /// First and last transfer in use; needs a single transfer size
    #[arg(short = 'S', value_name = "A[:B]", conflicts_with = "lba")]
    pub block_range: Option<String>,
    /// Run time: repeat passes until it ends
    #[arg(short = 'T', value_name = "TIME", value_parser = lunar_proto::duration::positive)]
    pub time: Option<Duration>,
    /// Print the version
    #[arg(short = 'v')]
    pub version: bool,
    /// Write
    #[arg(short = 'w')]
    pub write: bool,
    /// Write random bytes
    #[arg(short = 'z')]
    pub random: bool,
    /// Overwrite existing data
    #[arg(long)]
    pub destroy: bool,
    // `-v` prints the version here: the option of all commands keeps only its long form.
    #[arg(id = "verbose", long = "verbose", hide = true, action = clap::ArgAction::Count)]
    pub _verbose: u8,
    /// Print help
    #[arg(short = '?', long = "help", action = clap::ArgAction::HelpLong)]
    pub help: Option<bool>,
    /// iscsi://..., files, block devices, null:SIZE or memory:SIZE
    #[arg(required_unless_present = "version")]
    pub targets: Vec<String>,
}

/// One phase of a pass.
#[derive(Clone, Debug, PartialEq)]
pub struct TestPhase {
    /// `write` or `read`, if a pass has both phases.
    pub name: Option<&'static str>,
    /// The job, without an end.
    pub job: Job,
}

/// The test of each target.
#[derive(Clone, Debug)]
pub struct TestPlan {
    /// The targets.
    pub targets: Vec<TargetSpec>,
    /// Bypass the page cache.
    pub direct: bool,
    /// Whether the test writes.
    pub writes: bool,
    /// The phases of a pass; spans are those of the smallest target.
    pub phases: Vec<TestPhase>,
    /// The number of passes; None is endless.
    pub cycles: Option<u64>,
    /// Whether a pass ends after its seeks even with a run time.
    pub seeks_rule: bool,
    /// Transfers of a pass, both directions together.
    pub seeks: Option<u64>,
    /// The sectors or transfers in use: first, last, bytes of one.
    range: Option<(u64, Option<u64>, u64)>,
    /// The number of bytes in use, if not all.
    volume: Option<u64>,
    /// Run time.
    pub time: Option<Duration>,
    /// Heartbeat.
    pub heartbeat: Option<Duration>,
    /// The output options.
    pub wanted: ReportOptions,
}

impl TestPlan {
    /// Builds the plan.
    ///
    /// # Errors
    /// If an option is invalid, or options conflict.
    pub fn of(args: &Args) -> Result<TestPlan, Error> {
        if args.mark.is_some() {
            return Err(refused("-m: marking sectors is not supported", "use -n to write block numbers"));
        }
        let (reads, writes) = (args.read || !args.write, args.write);
        let sizes = sizes(args.blocks.as_deref().unwrap_or("1"))?;
        let (time, heartbeat) = (args.time, args.heartbeat);
        let wanted = wanted(args.statistics.as_deref().unwrap_or(""))?;
        check_heartbeat(heartbeat, time, wanted)?;
        let job = Job {
            sizes: sizes.clone(),
            depth: args.threads.unwrap_or(THREADS) as usize,
            time: None,
            fill: fill(args)?,
            compare: compare(args, reads, writes)?,
            continue_on_error: args.continue_on_error,
            seed: args.seed.unwrap_or_else(|| std::process::id().into()),
            ..Job::default()
        };
        Ok(TestPlan {
            targets: args.targets.iter().map(|text| TargetSpec::parse(text)).collect::<Result<_, _>>()?,
            direct: is_direct(args.kind.as_deref().unwrap_or("b"))?,
            phases: phases(args, job, reads, writes)?,
            cycles: match args.cycles {
                Some(0) => None,
                None if time.is_some() => None,
                n => Some(n.unwrap_or(1)),
            },
            seeks_rule: args.cycles.is_some() || args.seeks.is_some() || time.is_none(),
            seeks: args.seeks.as_deref().map(|text| number("-L", text)).transpose()?,
            range: range(args, &sizes)?,
            volume: args.sectors.as_deref().map(volume).transpose()?,
            writes,
            time,
            heartbeat,
            wanted,
        })
    }

    /// The number of transfers of a phase over an area in bytes.
    pub fn seeks_of(&self, phase: &TestPhase, area: u64) -> u64 {
        let directions = if phase.job.direction == IoDirection::Turns { 2 } else { 1 };
        let all = (area / u64::from(phase.job.longest())).max(1) * directions;
        self.seeks.map_or(all, |seeks| seeks / self.phases.len() as u64)
    }

    /// The first byte and the number of bytes in use on a target of this capacity.
    ///
    /// # Errors
    /// If the target is too small.
    pub fn area(&self, capacity: u64) -> Result<(u64, u64), Error> {
        let small = |end: u64| {
            refused(
                format!("the range ends at byte {end}, past the end of the target at byte {capacity}"),
                "use a smaller range: see -s, -S and -N",
            )
        };
        let volume = self.volume.unwrap_or(capacity);
        if volume > capacity {
            return Err(small(volume));
        }
        let (first, last, unit) = self.range.unwrap_or((0, None, 1));
        let start = first.saturating_mul(unit);
        let end = last.map_or(volume, |last| (last.saturating_add(1)).saturating_mul(unit));
        if end > volume || start >= end {
            return Err(small(end.max(start)));
        }
        let longest = self.phases.iter().map(|phase| phase.job.longest()).max().unwrap_or(0);
        if u64::from(longest) > end - start {
            let what =
                format!("transfers of {longest} bytes (-B) exceed the tested range of {} bytes", end - start);
            return Err(refused(what, "use a smaller -B, or a larger range"));
        }
        Ok((start, end - start))
    }
}

fn wanted(letters: &str) -> Result<ReportOptions, Error> {
    let mut wanted = ReportOptions::default();
    for letter in letters.chars() {
        match letter {
            'T' => wanted.throughput = true,
            'X' => wanted.transfers = true,
            'R' => wanted.times = true,
            'P' => wanted.performance = true,
            'A' => wanted = ReportOptions { throughput: true, transfers: true, times: true, ..wanted },
            _ => {
                return Err(refused(
                    format!("-P {letters}: unknown letter {letter:?}"),
                    "use T, X, R, A and P",
                ));
            }
        }
    }
    let ReportOptions { throughput, transfers, times, performance } = wanted;
    if performance && !(throughput || transfers || times) {
        return Err(refused(
            "-P P selects the format of the statistics, but no statistics are selected",
            "add T, X, R or A, as in -P AP",
        ));
    }
    Ok(wanted)
}

fn check_heartbeat(
    heartbeat: Option<Duration>,
    time: Option<Duration>,
    wanted: ReportOptions,
) -> Result<(), Error> {
    if heartbeat.is_some() && wanted == ReportOptions::default() {
        return Err(refused("-h prints statistics, but -P selects none", "add -P, as in -P T"));
    }
    if let Some((heartbeat, time)) = heartbeat.zip(time).filter(|(heartbeat, time)| heartbeat > time) {
        let what = format!("-h: the heartbeat of {heartbeat:?} exceeds the run time of {time:?} (-T)");
        return Err(refused(what, "use a smaller -h, or a larger -T"));
    }
    Ok(())
}

fn is_direct(kind: &str) -> Result<bool, Error> {
    match kind {
        "r" | "rd" | "bd" | "fd" => Ok(true),
        "b" | "f" => Ok(false),
        _ => {
            let what = format!("-I {}: unknown type of I/O", kind.escape_debug());
            Err(refused(what, "use r, b or f, with d appended for direct I/O, as in -I bd"))
        }
    }
}

fn fill(args: &Args) -> Result<Fill, Error> {
    Ok(match &args.fixed {
        Some(text) => Fill::Bytes(fixed(text)?),
        None if args.numbers => Fill::Lba,
        None if args.random => Fill::Random,
        None => Fill::Counting,
    })
}

fn compare(args: &Args, reads: bool, writes: bool) -> Result<bool, Error> {
    // The amount does not matter: everything is compared.
    if args.compare.as_deref().map(|text| number("-E", text)).transpose()?.is_none() {
        return Ok(false);
    }
    if args.random {
        return Err(refused("-E cannot compare random data (-z)", "replace -z with -c, -f or -n"));
    }
    if reads && writes && order(args) != "L" {
        let hint = "use -p L, which does all writes before all reads";
        return Err(refused(
            "-E cannot be used with mixed reads and writes: a read may reach a block before its write",
            hint,
        ));
    }
    Ok(reads)
}

/// The percentage of reads.
fn duty(text: &str) -> Option<u8> {
    let (reads, writes) = text.split_once(':')?;
    let part = |text: &str| text.trim_end_matches('%').parse::<u8>().ok();
    let (reads, writes) = (part(reads)?, part(writes)?);
    (reads.checked_add(writes) == Some(100)).then_some(reads)
}

/// The order of offsets (R, L, l). Sweeps go upwards with or without u.
pub fn order(args: &Args) -> &str {
    let order = args.order.as_deref().unwrap_or("R");
    order.strip_suffix('u').unwrap_or(order)
}

/// The bytes of a number of sectors.
fn volume(text: &str) -> Result<u64, Error> {
    let many = || refused(format!("-N {text}: too many sectors"), "use fewer sectors");
    number("-N", text)?.checked_mul(SECTOR).ok_or_else(many)
}

fn phases(args: &Args, job: Job, reads: bool, writes: bool) -> Result<Vec<TestPhase>, Error> {
    let order = order(args);
    if order.ends_with('d') {
        return Err(refused(
            format!("-p {order}: order d (up and down in turn) is not supported"),
            "omit the d: sweeps then go upwards",
        ));
    }
    let direction = match (reads, writes) {
        (true, false) => IoDirection::Read,
        (false, _) => IoDirection::Write,
        (true, true) => IoDirection::Mix(50),
    };
    let phase = |name, direction, order| TestPhase { name, job: Job { direction, order, ..job.clone() } };
    match (order, &args.duty) {
        ("R" | "r", None) => Ok(vec![phase(None, direction, AccessPattern::Random)]),
        ("R" | "r", Some(text)) => {
            let wrong = || {
                refused(
                    format!("-D {}: not a ratio of reads and writes", text.escape_debug()),
                    "use R:W with a sum of 100, as in 70:30",
                )
            };
            let share = duty(text).ok_or_else(wrong)?;
            if IoDirection::Mix(share).writes() && !writes {
                return Err(refused(format!("-D {text}: a ratio with writes needs -w"), "add -w"));
            }
            Ok(vec![phase(None, IoDirection::Mix(share), AccessPattern::Random)])
        }
        ("L" | "l", Some(_)) => Err(refused(
            format!(
                "-D: a ratio of reads and writes requires random access, but -p {order} selects another order"
            ),
            "use -p R, or omit -D",
        )),
        ("L", None) if reads && writes => Ok(vec![
            phase(Some("write"), IoDirection::Write, AccessPattern::Sequential),
            phase(Some("read"), IoDirection::Read, AccessPattern::Sequential),
        ]),
        ("l", None) if reads && writes => {
            Ok(vec![phase(None, IoDirection::Turns, AccessPattern::Sequential)])
        }
        ("L" | "l", None) => Ok(vec![phase(None, direction, AccessPattern::Sequential)]),
        _ => {
            Err(refused(format!("-p {}: unknown order of transfers", order.escape_debug()), "use R, L or l"))
        }
    }
}

fn range(args: &Args, sizes: &[Weighted]) -> Result<Option<(u64, Option<u64>, u64)>, Error> {
    let (key, text, unit) = match (&args.lba, &args.block_range) {
        (Some(text), _) => ("-s", text, SECTOR),
        (None, Some(_)) if sizes.len() > 1 => {
            let what = "-S counts transfers of one size, but -B has a range of sizes";
            return Err(refused(what, "set the length in sectors with -s, or use a single size in -B"));
        }
        (None, Some(text)) => ("-S", text, u64::from(sizes[0].0)),
        (None, None) => return Ok(None),
    };
    let (first, last) = match text.split_once(':') {
        Some((first, last)) => (first, Some(number(key, last)?)),
        None => (text.as_str(), None),
    };
    Ok(Some((number(key, first)?, last, unit)))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    #[command(name = "bench")]
    struct Cli {
        #[command(subcommand)]
        face: Face,
    }

    /// The tool as a subcommand among others.
    #[derive(clap::Subcommand)]
    enum Face {
        Disktest(Box<Args>),
    }

    pub fn args(line: &str) -> Args {
        let words = ["bench", "disktest"].into_iter().chain(line.split_whitespace());
        let Face::Disktest(args) = Cli::try_parse_from(words).unwrap_or_else(|e| panic!("{e}")).face;
        *args
    }

    fn plan(line: &str) -> TestPlan {
        TestPlan::of(&args(&format!("{line} null:1M"))).unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn published_command_lines_are_parsed() {
        let plan = plan("-B 256k -K 16 -p L -P T -h 1 -T 5m -I bd -w");
        let job = &plan.phases[0].job;
        assert_eq!((&job.sizes[..], job.depth, job.direction), (&[(262_144, 1)][..], 16, IoDirection::Write));
        assert_eq!(
            (plan.time, plan.heartbeat),
            (Some(Duration::from_secs(300)), Some(Duration::from_secs(1)))
        );
        assert!(
            plan.direct && plan.writes && plan.wanted.throughput && !plan.wanted.times && !plan.seeks_rule
        );
        assert_eq!((job.order, plan.phases.len(), plan.cycles), (AccessPattern::Sequential, 1, None));
    }

    #[test]
    fn every_option_reaches_the_plan() {
        let job = |line: &str| plan(line).phases[0].job.clone();
        assert_eq!(
            (job("").direction, job("").order, job("").depth, job("").fill),
            (IoDirection::Read, AccessPattern::Random, 4, Fill::Counting)
        );
        assert_eq!((job("-B 1k").sizes, job("-B 1:4m").sizes.len()), (vec![(1024, 1)], 1024));
        assert_eq!((job("-a 7").seed, job("-A").continue_on_error), (7, true));
        assert_eq!(
            (job("-r -w").direction, job("-r -w -D 70:30").direction),
            (IoDirection::Mix(50), IoDirection::Mix(70))
        );
        assert_eq!(job("-r -w -D 70%:30%").direction, IoDirection::Mix(70));
        assert_eq!(
            (job("-w -n").fill, job("-w -z").fill, job("-w -c").fill),
            (Fill::Lba, Fill::Random, Fill::Counting)
        );
        assert_eq!(job("-w -f a5").fill, Fill::Bytes([0xa5; 8]));
        assert_eq!(job("-w -f 0x1234").fill, Fill::Bytes([0x12, 0x34, 0x12, 0x34, 0x12, 0x34, 0x12, 0x34]));
        assert!(job("-r -E 512").compare && !job("-r").compare && job("-r -w -p L -E 512").compare);
        assert!(job("-r -E 0").compare, "0 is the whole transfer");
        let both = plan("-r -w -p L -C 3 -L 1k");
        assert_eq!(both.phases.iter().map(|p| p.name).collect::<Vec<_>>(), [Some("write"), Some("read")]);
        assert_eq!((both.cycles, both.seeks, both.seeks_rule), (Some(3), Some(1024), true));
        assert_eq!((job("-r -w -p l -K 5").direction, job("-r -w -p l -K 5").depth), (IoDirection::Turns, 5));
        assert_eq!(plan("-p Lu").phases[0].job.order, AccessPattern::Sequential);
        assert_eq!((plan("").cycles, plan("-C 0").cycles, plan("-T 2").cycles), (Some(1), None, None));
        assert_eq!(plan("-P A").wanted, ReportOptions { performance: false, ..plan("-P AP").wanted });
        assert!(!plan("-I f").direct && plan("-I r").direct);
        let all = args("-q -Q -v --destroy null:1M");
        assert!(all.quiet && all.bare && all.version && all.destroy);
    }

    #[test]
    fn seeks_count_both_directions_and_longest_transfers() {
        let seeks = |line: &str| {
            let plan = plan(line);
            plan.phases.iter().map(|phase| plan.seeks_of(phase, 1 << 20)).collect::<Vec<_>>()
        };
        assert_eq!((seeks("-B 4k -r"), seeks("-B 1:16 -r -w")), (vec![256], vec![128]));
        assert_eq!((seeks("-B 4k -p L -r -w"), seeks("-B 4k -p l -r -w")), (vec![256, 256], vec![512]));
        assert_eq!((seeks("-L 2K -p L -r -w"), seeks("-L 2k -p l -r -w")), (vec![1000, 1000], vec![2048]));
        assert_eq!((seeks("-L 35 -p L -r -w"), seeks("-L 3m -w")), (vec![17, 17], vec![3 << 20]));
    }

    #[test]
    fn ranges_are_inclusive() {
        let area = |line: &str| plan(line).area(1 << 20);
        assert_eq!((area(""), area("-N 16")), (Ok((0, 1 << 20)), Ok((0, 8192))));
        assert_eq!((area("-s 2:3"), area("-s 2")), (Ok((1024, 1024)), Ok((1024, (1 << 20) - 1024))));
        assert_eq!(area("-B 8k -S 1:2"), Ok((8192, 16384)));
        assert_eq!((area("-N 1K"), area("-s 1K:1k")), (Ok((0, 512_000)), Ok((512_000, 25 * 512))));
        assert_eq!(plan("-B 512 -S 1k:2K").area(2 << 20), Ok((1 << 19, 977 * 512)));
        for wrong in ["-N 2049", "-s 2048", "-s 0:2048", "-s 4:2", "-S 99999999999999999"] {
            assert!(area(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn invalid_options_are_rejected_with_a_hint() {
        let refusals = [
            "-m a",
            "-p Rd",
            "-p X",
            "-p L -D 50:50",
            "-D 60:60",
            "-D 50:50",
            "-P Z",
            "-P P",
            "-h 1",
            "-P T -h 5 -T 4",
            "-B 0",
            "-B 3:1",
            "-B x",
            "-I x",
            "-w -f abc",
            "-r -E 1 -z",
            "-r -w -E 1",
            "-L x",
            "-B 1K",
            "-B 1:8 -S 1:2",
            "-N y",
        ];
        for line in refusals {
            let error = TestPlan::of(&args(&format!("{line} null:1M"))).expect_err(line);
            assert!(!error.hint.is_empty(), "{line}");
        }
        for line in [
            "",
            "-T 0 null:1M",
            "-T 3y null:1M",
            "-K 0 null:1M",
            "-K 65537 null:1M",
            "-n -z null:1M",
            "-s 1 -S 1 null:1M",
        ] {
            let words = ["bench", "disktest"].into_iter().chain(line.split_whitespace());
            assert!(Cli::try_parse_from(words).is_err(), "{line}");
        }
        let help = Cli::try_parse_from(["bench", "disktest", "-?"]).err().expect("help");
        assert_eq!(help.kind(), clap::error::ErrorKind::DisplayHelp);
        assert!(help.to_string().contains("2^20 bytes per second"), "{help}");
    }
}

//! The arguments of `lunar bench`, and the job that they describe.

use crate::job::{AccessPattern, ArrivalProcess, Fill, Job};
use crate::rounds::{LatencyBound, SteadyMetric};
use crate::verify::VerifyOptions;
use crate::{Error, ErrorKind, TargetOptions, TargetSpec, TargetTransport, words};
use lunar_proto::{duration, size};
use lunar_runtime::CoreSelection;
use std::path::Path;
use std::time::Duration;

/// Arguments of `lunar bench`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Targets: iscsi://HOST[:PORT]/TARGET/LUN (or iser://, srp://), a file, a block device, null:[SIZE],
    /// memory:[SIZE] (1G), or an NBD URL. If their sizes differ, the smallest size applies to all. A workload
    /// such as randread may precede them
    #[arg(value_name = "TARGET", required = true)]
    pub targets: Vec<String>,

    /// Transport of the sessions with iSCSI targets, overriding the URL. An SRP target needs a URL of its own,
    /// srp://HOST[:PORT]/ID_EXT[:IOC_GUID]/LUN
    #[arg(long, value_name = "NAME")]
    pub transport: Option<TargetTransport>,

    /// Workload: read, write, rw, bidir, randread, randwrite, randrw, randbidir [default: read]
    #[arg(long, value_name = "WORK")]
    pub rw: Option<String>,

    /// Percentage of reads in a mix
    #[arg(long, value_name = "PERCENT", default_value_t = 50, visible_alias = "rwmixread",
          value_parser = clap::value_parser!(u8).range(0..=100))]
    pub read_percent: u8,

    /// Transfer length of a command, or several lengths with weights: 4k/60:64k/40
    #[arg(long, value_name = "SIZE", default_value = "4k")]
    pub bs: String,

    /// Commands in flight for each session
    #[arg(long, value_name = "N", default_value_t = 1, visible_alias = "iodepth",
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub depth: u32,

    /// Sessions with each target
    #[arg(long, value_name = "N", default_value_t = 1, visible_alias = "numjobs",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub sessions: u32,

    /// End after this time: seconds, or 500ms, 2m [default: 10 unless --amount is given]
    #[arg(long, value_name = "TIME", value_parser = duration::positive)]
    pub runtime: Option<Duration>,

    /// End after this many bytes in all sessions together
    #[arg(long, value_name = "SIZE", visible_alias = "io-size")]
    pub amount: Option<String>,

    /// Warm-up, excluded from the results and from --amount
    #[arg(long, value_name = "TIME", default_value = "0", visible_alias = "ramp-time", value_parser = duration::any)]
    pub ramp: Duration,
    /// Think time: pause between the end of a command and the start of the next one in its place
    #[arg(long, value_name = "TIME", default_value = "0", visible_alias = "thinktime", value_parser = duration::any)]
    pub think: Duration,

    /// Start this many commands per second, even if earlier ones are slow. Latency counts from the time at which
    /// a command is due
    #[arg(long, value_name = "IOPS", visible_alias = "rate-iops")]
    pub rate: Option<f64>,

    /// With --rate: random arrivals as of independent users (a Poisson process) instead of equal intervals
    #[arg(long, requires = "rate")]
    pub poisson: bool,

    /// Zipf-distributed random offsets: the probability of the n-th most popular one is proportional to
    /// 1/n^THETA
    #[arg(long, value_name = "THETA", conflicts_with = "stride")]
    pub zipf: Option<f64>,

    /// Distance between sequential offsets
    #[arg(long, value_name = "SIZE")]
    pub stride: Option<String>,

    /// First byte in use
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub offset: String,

    /// Number of bytes in use [default: all]
    #[arg(long, value_name = "SIZE", visible_alias = "size")]
    pub span: Option<String>,

    /// Data of writes: random (no two 4 KiB blocks are equal), zeros, counting, lba, or bytes such as 0xdeadbeef
    #[arg(long, value_name = "WHAT", default_value = "random")]
    pub fill: String,

    /// Compare read data with the data that --fill writes
    #[arg(long)]
    pub compare: bool,

    /// Stamp written blocks with checksums, verify them when they are read, and read all of them back at the
    /// end
    #[arg(long, conflicts_with_all = ["compare", "fill"])]
    pub verify: bool,

    /// Like --verify, and keep the state in this file, so that another run can continue or verify, even after a
    /// crash
    #[arg(long, value_name = "FILE", conflicts_with_all = ["compare", "fill"])]
    pub verify_state: Option<std::path::PathBuf>,

    /// Write nothing: read and verify all blocks recorded in the file of --verify-state
    #[arg(long, requires = "verify_state", conflicts_with_all = ["steady", "latency_target", "create"])]
    pub verify_only: bool,

    /// Write with FUA: writes are stable when they are acknowledged
    #[arg(long, visible_alias = "sync")]
    pub fua: bool,

    /// Flush at the end, as part of the measured time
    #[arg(long, visible_alias = "end-fsync")]
    pub flush: bool,

    /// Bypass the page cache of this host (files and block devices)
    #[arg(long)]
    pub direct: bool,

    /// Overwrite existing data. Without this option, the run fails unless the first and the last mebibyte are
    /// zeros; the rest is not checked
    #[arg(long)]
    pub destroy: bool,

    /// Measure a file as raw bytes, even if it looks like an image format (qcow2, VMDK, VHD, VHDX, VDI)
    #[arg(long)]
    pub raw: bool,

    /// Create a file of this size if it does not exist
    #[arg(long, value_name = "SIZE")]
    pub create: Option<String>,

    /// Count failed commands and continue; the exit status is then 1
    #[arg(long)]
    pub continue_on_error: bool,

    /// Seed of the random numbers: the same seed gives the same offsets. Each round of --steady uses another seed
    #[arg(long, value_name = "N", default_value_t = 1, visible_alias = "randseed")]
    pub seed: u64,

    /// Interval of the time series, at most 1,000,000 intervals [default: 1; for a short --runtime a tenth of
    /// it, at least 100ms]
    #[arg(long, value_name = "TIME", value_parser = duration::any)]
    pub interval: Option<Duration>,

    /// Repeat until this metric is steady: five rounds within 20 % of each other, with a trend below 10 % (SNIA
    /// PTS). Exit status 1 if it is not steady
    #[arg(long, value_name = "FIGURE", conflicts_with = "latency_target")]
    pub steady: Option<SteadyMetric>,

    /// With --steady: the maximum number of rounds [default: 25]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: Option<u16>,

    /// Find the highest rate at which commands complete within this time, such as 500us. Each trial takes
    /// --runtime, which must be long enough for its commands (100 for 99 %). Exit status 1 if there is no such
    /// rate
    #[arg(long, value_name = "TIME", conflicts_with = "rate", value_parser = duration::any)]
    pub latency_target: Option<Duration>,

    /// With --latency-target: the percentage of commands that must meet it [default: 99]
    #[arg(long, value_name = "PERCENT")]
    pub latency_percentile: Option<f64>,

    /// Cores to run on: all, a count, or a list such as 0,2-3; 0 means core 0 [default: all]
    #[arg(long, value_name = "N|LIST")]
    pub cores: Option<String>,

    /// Also measure the CPU time of this process, such as a target on this host
    #[arg(long, value_name = "PID")]
    pub target_pid: Option<u32>,
}

/// The default of `--rounds`.
const ROUNDS: u16 = 25;
/// The shortest default interval of a time series.
const NARROW: Duration = Duration::from_millis(100);

fn size(text: &str) -> Result<u64, Error> {
    Ok(size::parse(text)?)
}

/// Whether the first word is a workload: a known one, or a similar one that is not a file.
fn is_work(word: &str) -> bool {
    words::is_rw(word) || words::nearest_rw(word).is_some() && !Path::new(word).exists()
}

impl Args {
    /// Splits off the workload, which may be the first of the targets.
    fn split(&self) -> Result<(&str, &[String]), Error> {
        let first = self.targets.first().filter(|word| is_work(word) && self.targets.len() > 1);
        match (first, &self.rw) {
            (Some(word), Some(rw)) => {
                let what = format!("two workloads: {word} and --rw {rw}");
                Err(Error::new(
                    ErrorKind::Invalid,
                    what,
                    format!("omit one of them; for a file of this name, write ./{word}"),
                ))
            }
            (Some(word), None) => Ok((word, &self.targets[1..])),
            (None, rw) => Ok((rw.as_deref().unwrap_or("read"), &self.targets)),
        }
    }

    /// The targets.
    ///
    /// # Errors
    /// If a name is invalid.
    pub fn target_specs(&self) -> Result<Vec<TargetSpec>, Error> {
        let over = |target| match self.transport {
            Some(transport) => transport.to(target),
            None => Ok(target),
        };
        self.split()?.1.iter().map(|text| TargetSpec::parse(text).and_then(over)).collect()
    }

    /// The job.
    ///
    /// # Errors
    /// If a value is invalid, or two options contradict each other.
    pub fn job(&self) -> Result<Job, Error> {
        let (order, direction) = words::rw(self.split()?.0, self.read_percent)?;
        let runtime = self.runtime;
        let amount = self.amount.as_deref().map(size).transpose()?;
        if amount == Some(0) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "--amount 0: nothing to do",
                "use an amount of at least 1",
            ));
        }
        let default = Job::default();
        let time = runtime.or(default.time.filter(|_| amount.is_none()));
        Ok(Job {
            order: self.order(order)?,
            direction,
            sizes: words::sizes(&self.bs)?,
            depth: self.depth as usize,
            time,
            amount,
            commands: None,
            ramp: self.ramp,
            pace: words::arrivals(self.rate, self.poisson)?,
            think: self.think,
            fill: words::fill(&self.fill)?,
            compare: self.compare,
            fua: self.fua,
            flush: self.flush,
            offset: size(&self.offset)?,
            span: self.span.as_deref().map(size).transpose()?,
            continue_on_error: self.continue_on_error,
            seed: self.seed,
            interval: self.interval(time, default.interval),
        })
    }

    /// The interval of the time series: a tenth of a short run.
    fn interval(&self, time: Option<Duration>, usual: Duration) -> Duration {
        let of_time = || time.map_or(usual, |time| (time / 10).clamp(NARROW, usual));
        self.interval.unwrap_or_else(of_time)
    }

    /// The metric that must be steady and the maximum number of rounds, with `--steady`.
    ///
    /// # Errors
    /// If there is `--rounds` without `--steady`.
    pub fn until_steady(&self) -> Result<Option<(SteadyMetric, usize)>, Error> {
        match (self.steady, self.rounds) {
            (None, Some(rounds)) => Err(Error::new(
                ErrorKind::Invalid,
                format!("--rounds {rounds}: needs --steady"),
                "add a metric, as in --steady iops, or omit --rounds",
            )),
            (figure, rounds) => Ok(figure.map(|figure| (figure, rounds.unwrap_or(ROUNDS).into()))),
        }
    }

    /// The latency bound, with `--latency-target`.
    ///
    /// # Errors
    /// If the time or the percentage is invalid, or there is only a percentage.
    pub fn bound(&self) -> Result<Option<LatencyBound>, Error> {
        let percent = self.latency_percentile.unwrap_or(99.0);
        if self.latency_percentile.is_some() && self.latency_target.is_none() {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("--latency-percentile {percent}: needs --latency-target"),
                "add a time, as in --latency-target 5ms",
            ));
        }
        if self.latency_target.is_some_and(|time| time.is_zero()) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "--latency-target 0: the time is 0",
                "use a time above 0, as in --latency-target 5ms",
            ));
        }
        if !(percent > 0.0 && percent <= 100.0) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("--latency-percentile {percent}: out of range"),
                "use more than 0, up to 100",
            ));
        }
        Ok(self.latency_target.map(|within| LatencyBound { percent, within }))
    }

    /// The options of the verification.
    pub fn verify_options(&self) -> VerifyOptions {
        VerifyOptions {
            is_on: self.verify || self.verify_state.is_some(),
            state: self.verify_state.clone(),
            is_only: self.verify_only,
        }
    }

    fn order(&self, order: AccessPattern) -> Result<AccessPattern, Error> {
        let invalid = |what: String, hint: &'static str| Err(Error::new(ErrorKind::Invalid, what, hint));
        match (order, self.zipf, &self.stride) {
            (AccessPattern::Random, Some(theta), _) if theta > 0.0 && theta <= 100.0 => {
                Ok(AccessPattern::Zipf(theta))
            }
            (AccessPattern::Random, Some(theta), _) => {
                invalid(format!("--zipf {theta}: out of range"), "use more than 0, such as 1.2")
            }
            (AccessPattern::Sequential, _, Some(stride)) => match size(stride)? {
                0 => invalid("--stride 0: out of range".into(), "use the distance between two offsets"),
                stride => Ok(AccessPattern::Strided(stride)),
            },
            (_, Some(_), _) => {
                invalid("--zipf needs a random workload".into(), "use randread, randwrite or randrw")
            }
            (_, _, Some(_)) => {
                invalid("--stride needs a sequential workload".into(), "use read, write or rw")
            }
            _ => Ok(order),
        }
    }

    /// The options with which targets are opened for a job.
    ///
    /// # Errors
    /// If a value is invalid.
    pub fn target_options(&self, job: &Job) -> Result<TargetOptions, Error> {
        let cores = self.cores.as_deref().map(CoreSelection::parse).transpose()?;
        Ok(TargetOptions {
            sessions: self.sessions as usize,
            cores: cores.unwrap_or(CoreSelection::All),
            direct: self.direct,
            write: job.direction.writes(),
            destroy: self.destroy,
            raw: self.raw,
            create: self.create.as_deref().map(size).transpose()?,
            target_pid: self.target_pid,
        })
    }
}

/// A job as (option, value) of the command line.
pub fn job_words(job: &Job, sessions: usize) -> Vec<(String, String)> {
    let mut options = vec![
        ("rw", words::rw_word(job.order, job.direction).to_owned()),
        ("bs", words::sizes_text(&job.sizes)),
        ("depth", job.depth.to_string()),
        ("sessions", sessions.to_string()),
    ];
    let usual = Job::default();
    let mut also = |name, value: Option<String>| options.extend(value.map(|value| (name, value)));
    let time = |time| humantime::format_duration(time).to_string();
    also(
        "read-percent",
        if let crate::job::IoDirection::Mix(percent) = job.direction {
            Some(percent.to_string())
        } else {
            None
        },
    );
    also("zipf", if let AccessPattern::Zipf(theta) = job.order { Some(theta.to_string()) } else { None });
    also(
        "stride",
        if let AccessPattern::Strided(bytes) = job.order { Some(words::size_text(bytes)) } else { None },
    );
    also("runtime", job.time.map(time));
    also("amount", job.amount.map(words::size_text));
    also("ramp", (!job.ramp.is_zero()).then(|| time(job.ramp)));
    also("think", (!job.think.is_zero()).then(|| time(job.think)));
    also(
        "rate",
        if let ArrivalProcess::Even(rate) | ArrivalProcess::Poisson(rate) = job.pace {
            Some(rate.to_string())
        } else {
            None
        },
    );
    also("poisson", matches!(job.pace, ArrivalProcess::Poisson(_)).then(|| "yes".into()));
    also("fill", (job.direction.writes() || job.compare).then(|| fill_word(job.fill)));
    also("compare", job.compare.then(|| "yes".into()));
    also("fua", job.fua.then(|| "yes".into()));
    also("flush", job.flush.then(|| "yes".into()));
    also("offset", (job.offset > 0).then(|| words::size_text(job.offset)));
    also("span", job.span.map(words::size_text));
    also("continue-on-error", job.continue_on_error.then(|| "yes".into()));
    also("seed", (job.seed != usual.seed).then(|| job.seed.to_string()));
    also("interval", (job.interval != usual.interval).then(|| time(job.interval)));
    options.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The options of targets that affect the results, as (option, value) of the command line.
pub fn option_words(opening: &TargetOptions) -> Vec<(String, String)> {
    let direct = opening.direct.then(|| ("direct".to_owned(), "yes".to_owned()));
    let cores = words::cores_text(&opening.cores).map(|cores| ("cores".to_owned(), cores));
    direct.into_iter().chain(cores).collect()
}

fn fill_word(fill: Fill) -> String {
    match fill {
        Fill::Zeros => "zeros".into(),
        Fill::Random => "random".into(),
        Fill::Counting => "counting".into(),
        Fill::Lba => "lba".into(),
        Fill::Bytes(eight) => format!("0x{:016x}", u64::from_be_bytes(eight)),
    }
}

//! Arguments of `lunar bench`, and the job that they mean.

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
    /// What is measured: iscsi://HOST[:PORT]/TARGET/LUN (or iser://, srp://), a file, a block device, null:[SIZE], memory:[SIZE]
    /// (1G), or an NBD URL; of several, so much of each as the smallest has. A work such as randread may stand before them
    #[arg(value_name = "TARGET", required = true)]
    pub targets: Vec<String>,

    /// What carries sessions with targets of iSCSI, whatever their URLs say; a target of SRP has a URL of its own,
    /// srp://HOST[:PORT]/ID_EXT[:IOC_GUID]/LUN
    #[arg(long, value_name = "NAME")]
    pub transport: Option<TargetTransport>,

    /// The work: read, write, rw, bidir, randread, randwrite, randrw, randbidir [default: read]
    #[arg(long, value_name = "WORK")]
    pub rw: Option<String>,

    /// Of a mix, so many of a hundred are reads
    #[arg(long, value_name = "PERCENT", default_value_t = 50, visible_alias = "rwmixread",
          value_parser = clap::value_parser!(u8).range(0..=100))]
    pub read_percent: u8,

    /// Bytes of a command, or several sizes with weights: 4k/60:64k/40
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

    /// End after this time: seconds, or 500ms, 2m [default: 10, without --amount]
    #[arg(long, value_name = "TIME", value_parser = duration::positive)]
    pub runtime: Option<Duration>,

    /// End after so many bytes, all sessions together
    #[arg(long, value_name = "SIZE", visible_alias = "io-size")]
    pub amount: Option<String>,

    /// Do not count what happens in this time at the begin, neither in figures nor in --amount
    #[arg(long, value_name = "TIME", default_value = "0", visible_alias = "ramp-time", value_parser = duration::any)]
    pub ramp: Duration,
    /// Pause of each of those in flight after its command
    #[arg(long, value_name = "TIME", default_value = "0", visible_alias = "thinktime", value_parser = duration::any)]
    pub think: Duration,

    /// So many commands are due each second, however long they take; latency counts from then on
    #[arg(long, value_name = "IOPS", visible_alias = "rate-iops")]
    pub rate: Option<f64>,

    /// With --rate: as independent users come (Poisson), not at even distances
    #[arg(long, requires = "rate")]
    pub poisson: bool,

    /// Random places, a few of them often: the n-th most popular as often as 1/n^THETA
    #[arg(long, value_name = "THETA", conflicts_with = "stride")]
    pub zipf: Option<f64>,

    /// Sequential places that are so far apart
    #[arg(long, value_name = "SIZE")]
    pub stride: Option<String>,

    /// First byte that is used
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub offset: String,

    /// Bytes that are used [default: all]
    #[arg(long, value_name = "SIZE", visible_alias = "size")]
    pub span: Option<String>,

    /// What is written: random (no 4 KiB are like any others), zeros, counting, lba, or bytes such as 0xdeadbeef
    #[arg(long, value_name = "WHAT", default_value = "random")]
    pub fill: String,

    /// What is read must be what --fill writes
    #[arg(long)]
    pub compare: bool,

    /// Writes carry checks; all that was written is read back at the end, and what is read meanwhile is checked
    #[arg(long, conflicts_with_all = ["compare", "fill"])]
    pub verify: bool,

    /// As --verify, and keep account in this file, so that another run can go on, or check, after a crash
    #[arg(long, value_name = "FILE", conflicts_with_all = ["compare", "fill"])]
    pub verify_state: Option<std::path::PathBuf>,

    /// Write nothing: read and check all that the file of --verify-state knows
    #[arg(long, requires = "verify_state", conflicts_with_all = ["steady", "latency_target", "create"])]
    pub verify_only: bool,

    /// Writes are stable when they are acknowledged (FUA)
    #[arg(long, visible_alias = "sync")]
    pub fua: bool,

    /// Make all stable at the end; that counts
    #[arg(long, visible_alias = "end-fsync")]
    pub flush: bool,

    /// Pass the page cache of this host by (files and block devices)
    #[arg(long)]
    pub direct: bool,

    /// Overwrite data that is there: without this, the first and the last mebibyte are looked at, and nothing between them
    #[arg(long)]
    pub destroy: bool,

    /// Measure the bytes of a file as they are, also where it looks like an image format (qcow2, VMDK, VHD, VHDX, VDI)
    #[arg(long)]
    pub raw: bool,

    /// Make a file of this size where there is none
    #[arg(long, value_name = "SIZE")]
    pub create: Option<String>,

    /// Count commands that fail, and go on; the exit status is 1
    #[arg(long)]
    pub continue_on_error: bool,

    /// Where chance begins: the same number visits the same places; each round of --steady visits others
    #[arg(long, value_name = "N", default_value_t = 1, visible_alias = "randseed")]
    pub seed: u64,

    /// Width of the steps of the time series, of which there are at most 1,000,000 [default: 1; of a short --runtime a tenth,
    /// and not less than 100ms]
    #[arg(long, value_name = "TIME", value_parser = duration::any)]
    pub interval: Option<Duration>,

    /// Run again and again until this is steady: five rounds that are within 20 % of each other, and whose trend
    /// is below 10 % (SNIA PTS); exit status 1 if it does not become so
    #[arg(long, value_name = "FIGURE", conflicts_with = "latency_target")]
    pub steady: Option<SteadyMetric>,

    /// With --steady: give up after so many rounds [default: 25]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: Option<u16>,

    /// Look for the highest rate at which commands end within this time, such as 500us; each try takes --runtime, in which
    /// there must be enough commands to tell (100 for 99 %); exit status 1 if there is no such rate
    #[arg(long, value_name = "TIME", conflicts_with = "rate", value_parser = duration::any)]
    pub latency_target: Option<Duration>,

    /// With --latency-target: so many of a hundred commands [default: 99]
    #[arg(long, value_name = "PERCENT")]
    pub latency_percentile: Option<f64>,

    /// Cores to run on: all, a count, or a list such as 0,2-3; 0 means core 0 [default: all]
    #[arg(long, value_name = "N|LIST")]
    pub cores: Option<String>,

    /// Count the CPU time of this process too: the target, if it is on this machine
    #[arg(long, value_name = "PID")]
    pub target_pid: Option<u32>,
}

/// Rounds after which figures that are not steady are given up.
const ROUNDS: u16 = 25;
/// The narrowest steps of a time series that nobody asked for.
const NARROW: Duration = Duration::from_millis(100);

fn size(text: &str) -> Result<u64, Error> {
    Ok(size::parse(text)?)
}

/// Whether a word before the targets is the work: one that is known, or nearly one and no file.
fn is_work(word: &str) -> bool {
    words::is_rw(word) || words::nearest_rw(word).is_some() && !Path::new(word).exists()
}

impl Args {
    /// The work, and what it is done on: the work may stand first among the targets.
    fn split(&self) -> Result<(&str, &[String]), Error> {
        let first = self.targets.first().filter(|word| is_work(word) && self.targets.len() > 1);
        match (first, &self.rw) {
            (Some(word), Some(rw)) => {
                let what = format!("two works: {word} and --rw {rw}");
                Err(Error::new(ErrorKind::Invalid, what, format!("a file of that name is written ./{word}")))
            }
            (Some(word), None) => Ok((word, &self.targets[1..])),
            (None, rw) => Ok((rw.as_deref().unwrap_or("read"), &self.targets)),
        }
    }

    /// What it runs on.
    ///
    /// # Errors
    /// When a name cannot be understood.
    pub fn on(&self) -> Result<Vec<TargetSpec>, Error> {
        let over = |target| match self.transport {
            Some(transport) => transport.to(target),
            None => Ok(target),
        };
        self.split()?.1.iter().map(|text| TargetSpec::parse(text).and_then(over)).collect()
    }

    /// What is run.
    ///
    /// # Errors
    /// When a word cannot be understood, or two contradict each other.
    pub fn job(&self) -> Result<Job, Error> {
        let (order, direction) = words::rw(self.split()?.0, self.read_percent)?;
        let runtime = self.runtime;
        let amount = self.amount.as_deref().map(size).transpose()?;
        if amount == Some(0) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "--amount 0: there is nothing to do",
                "name what is to be moved",
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

    /// Steps of a time series: ten at least, also of a second.
    fn interval(&self, time: Option<Duration>, usual: Duration) -> Duration {
        let of_time = || time.map_or(usual, |time| (time / 10).clamp(NARROW, usual));
        self.interval.unwrap_or_else(of_time)
    }

    /// What is to become steady, if something is, and in how many rounds at most.
    ///
    /// # Errors
    /// When there are to be rounds, and nothing says of what.
    pub fn until_steady(&self) -> Result<Option<(SteadyMetric, usize)>, Error> {
        match (self.steady, self.rounds) {
            (None, Some(rounds)) => Err(Error::new(
                ErrorKind::Invalid,
                format!("--rounds {rounds}: without --steady there are no rounds"),
                "say what is to become steady, as in --steady iops, or leave --rounds out",
            )),
            (figure, rounds) => Ok(figure.map(|figure| (figure, rounds.unwrap_or(ROUNDS).into()))),
        }
    }

    /// The bound on latency for which a rate is to be found.
    ///
    /// # Errors
    /// When it is no time, or no percentage, or there is a percentage alone.
    pub fn bound(&self) -> Result<Option<LatencyBound>, Error> {
        let percent = self.latency_percentile.unwrap_or(99.0);
        if self.latency_percentile.is_some() && self.latency_target.is_none() {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("--latency-percentile {percent}: without --latency-target no rate is looked for"),
                "name the time in which they are to end, as in --latency-target 5ms",
            ));
        }
        if self.latency_target.is_some_and(|time| time.is_zero()) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "--latency-target 0: no command ends in no time",
                "name a time above 0, as in --latency-target 5ms",
            ));
        }
        if !(percent > 0.0 && percent <= 100.0) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("{percent} is no percentage"),
                "more than 0, up to 100",
            ));
        }
        Ok(self.latency_target.map(|within| LatencyBound { percent, within }))
    }

    /// How what is written is verified, if it is.
    pub fn checks(&self) -> VerifyOptions {
        VerifyOptions {
            is_on: self.verify || self.verify_state.is_some(),
            state: self.verify_state.clone(),
            is_only: self.verify_only,
        }
    }

    fn order(&self, order: AccessPattern) -> Result<AccessPattern, Error> {
        let invalid = |what: String, hint: &str| Err(Error::new(ErrorKind::Invalid, what, hint));
        match (order, self.zipf, &self.stride) {
            (AccessPattern::Random, Some(theta), _) if theta > 0.0 && theta <= 100.0 => {
                Ok(AccessPattern::Zipf(theta))
            }
            (AccessPattern::Random, Some(theta), _) => {
                invalid(format!("no zipf with {theta}"), "more than 0, such as 1.2")
            }
            (AccessPattern::Sequential, _, Some(stride)) => match size(stride)? {
                0 => invalid("a stride of 0 stays where it is".into(), "name the distance of two beginnings"),
                stride => Ok(AccessPattern::Strided(stride)),
            },
            (_, Some(_), _) => {
                invalid("--zipf is for random work".into(), "say randread, randwrite or randrw")
            }
            (_, _, Some(_)) => invalid("--stride is for sequential work".into(), "say read, write or rw"),
            _ => Ok(order),
        }
    }

    /// How targets are opened for it.
    ///
    /// # Errors
    /// When a word cannot be understood.
    pub fn opening(&self, job: &Job) -> Result<TargetOptions, Error> {
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

/// A job in the words of the command line.
pub fn job_words(job: &Job, sessions: usize) -> Vec<(String, String)> {
    let mut told = vec![
        ("rw", words::rw_word(job.order, job.direction).to_owned()),
        ("bs", words::sizes_text(&job.sizes)),
        ("depth", job.depth.to_string()),
        ("sessions", sessions.to_string()),
    ];
    let usual = Job::default();
    let mut also = |name, value: Option<String>| told.extend(value.map(|value| (name, value)));
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
    told.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// How targets were opened, as far as it bears on figures, in the words of the command line.
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

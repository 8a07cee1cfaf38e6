//! dd: copies block by block; with lists of block sizes, and several copies at once.

mod human;

use super::operands::{self, Operands};
use super::route::{OpenRoute, RouteEnd, RoutePlan};
use super::tool_output::{self, ToolOutput};
use super::{RunContext, one_core, refused};
use lunar_bench::device::{CacheModel, emulate_block_layer, flush};
use lunar_bench::document::{JobRun, redact_secrets};
use lunar_bench::job::{Fill, IoDirection, Job};
use lunar_bench::{Document, Error, JobOutcome, RunHandle};
use std::path::Path;
use std::thread;

const KEYS: [&str; 10] = ["if", "of", "bs", "count", "skip", "seek", "iflag", "oflag", "conv", "status"];
const IFLAGS: [&str; 2] = ["direct", "fullblock"];
const OFLAGS: [&str; 3] = ["direct", "dsync", "sync"];
const CONV: [&str; 3] = ["fsync", "fdatasync", "notrunc"];

/// The help text after the options.
const ABOUT: &str = "\
Operands, as in dd:
  if= of=        a target, or /dev/zero to read from, /dev/null to write to. With two targets, a copy.
                 Several if= (or of=) run at once, and a last line shows their sum
  bs=512         bytes of a block. A list such as 64k,128k,256k repeats everything for each size
  count=N        blocks [default: as many as the input and the output have]
  skip=N seek=N  blocks to skip in the input and the output. Past the end of a file, nothing is copied, and the
                 exit status is 0. Past the end of a disk, it is an error
  iflag=direct oflag=direct   bypass the page cache
  oflag=dsync    write with FUA
  conv=fsync     flush at the end, as part of the time (also fdatasync)
  conv=notrunc   always on: the output is never truncated
  status=none|noxfer   no lines | without the last line

k is 1024, kB is 1000. As in coreutils, MB/s is 10^6 bytes per second, and the time excludes the flush, except with \
conv=fsync. Files and block devices use the page cache of this host. iscsi:// and NBD have none: without direct, requests \
of 512 KiB, four in flight, emulate it for sequential access.";

/// `lunar bench dd`.
#[derive(Clone, Debug, clap::Args)]
#[command(about = "Copy block by block, with the operands and output of dd", after_long_help = ABOUT)]
pub struct Args {
    /// Overwrite existing data in the output
    #[arg(long)]
    pub destroy: bool,
    /// Operands as in dd: if= of= bs= count= skip= seek= iflag= oflag= conv= status=
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub operands: Vec<String>,
}

/// The parsed operands.
struct DdSettings {
    given: Operands,
    sizes: Vec<u64>,
    direct: [bool; 2],
    fua: bool,
    flush: bool,
    /// Which lines to print: records, and the rate.
    status: (bool, bool),
    destroy: bool,
}

impl DdSettings {
    fn read(args: &Args) -> Result<DdSettings, Error> {
        let given = Operands::parse("dd", &args.operands, &KEYS)?;
        let list = given.text("bs").unwrap_or("512").split(',');
        let sizes = list.map(|text| operands::read("bs", text)).collect::<Result<Vec<_>, _>>()?;
        if let Some(bs) = sizes.iter().find(|bs| !(1..=1 << 30).contains(*bs)) {
            return Err(refused(format!("bs={bs}: out of range"), "use 1 to 1G"));
        }
        let (input, output) = (given.flags("iflag", &IFLAGS)?, given.flags("oflag", &OFLAGS)?);
        let conv = given.flags("conv", &CONV)?;
        let status = match given.text("status") {
            None | Some("progress") => (true, true),
            Some("noxfer") => (true, false),
            Some("none") => (false, false),
            Some(other) => {
                return Err(refused(
                    format!("status={}: unknown", other.escape_debug()),
                    "use none, noxfer or progress",
                ));
            }
        };
        let direct = [input.contains(&"direct"), output.contains(&"direct")];
        let fua = output.contains(&"dsync") || output.contains(&"sync");
        let flush = conv.contains(&"fsync") || conv.contains(&"fdatasync");
        Ok(DdSettings { sizes, direct, fua, flush, status, destroy: args.destroy, given })
    }

    /// The inputs and outputs of concurrent copies. One of the two may be given several times.
    fn pairs(&self) -> Result<Vec<(&str, &str)>, Error> {
        let (inputs, outputs): (Vec<_>, Vec<_>) =
            (self.given.all("if").collect(), self.given.all("of").collect());
        match (&inputs[..], &outputs[..]) {
            ([], _) | (_, []) => Err(refused(
                "both if= and of= are required: standard input and output are not supported",
                "use /dev/zero to read from, /dev/null to write to",
            )),
            ([input], outputs) => Ok(outputs.iter().map(|output| (*input, *output)).collect()),
            (inputs, [output]) => Ok(inputs.iter().map(|input| (*input, *output)).collect()),
            (inputs, outputs) if inputs.len() == outputs.len() => {
                Ok(inputs.iter().copied().zip(outputs.iter().copied()).collect())
            }
            _ => Err(refused(
                format!(
                    "{} inputs (if=) cannot be paired with {} outputs (of=)",
                    inputs.len(),
                    outputs.len()
                ),
                "give if= or of= once, or both equally often",
            )),
        }
    }

    fn plan(&self, (input, output): (&str, &str), bs: u64, index: usize) -> Result<RoutePlan, Error> {
        let bytes = |key: &str| -> Result<Option<u64>, Error> {
            let many = || refused(format!("{key}=: too many blocks of {bs} bytes"), "use a smaller value");
            self.given.number(key)?.map(|blocks| blocks.checked_mul(bs).ok_or_else(many)).transpose()
        };
        Ok(RoutePlan {
            input: RouteEnd::named("if", Some(input), bytes("skip")?.unwrap_or(0), self.direct[0])?,
            output: RouteEnd::named("of", Some(output), bytes("seek")?.unwrap_or(0), self.direct[1])?,
            bytes: bytes("count")?,
            until_end: true,
            fua: self.fua,
            destroy: self.destroy,
            cores: one_core(index)?,
        })
    }

    fn open(&self, plan: &RoutePlan) -> Result<OpenRoute, Error> {
        let cutting = if plan.is_copy() {
            CacheModel::RequestSplitting
        } else {
            CacheModel::RequestSplittingWithoutData
        };
        OpenRoute::open(plan, &|opened, target, is_output| {
            let before = if self.direct[usize::from(is_output)] { cutting } else { CacheModel::PageCache };
            emulate_block_layer(opened, target, before);
            Ok(())
        })
    }

    /// The operands for the document, without secrets.
    fn words(&self, (input, output): &(String, String), bs: u64) -> Vec<(&str, String)> {
        let others = self.given.words().into_iter().filter(|(key, _)| !["if", "of", "bs"].contains(key));
        let ends = [("if", redact_secrets(input)), ("of", redact_secrets(output)), ("bs", bs.to_string())];
        [("tool", "dd".to_owned())].into_iter().chain(ends).chain(others).collect()
    }

    fn job(&self, route: &OpenRoute, bs: u64) -> Job {
        Job {
            direction: route.direction,
            sizes: vec![(bs.min(route.bytes) as u32, 1)],
            time: None,
            amount: Some(route.bytes),
            offset: route.offset,
            span: Some(route.bytes),
            fill: Fill::Zeros,
            fua: self.fua,
            flush: self.flush,
            ..Job::default()
        }
    }
}

/// Runs dd.
///
/// # Errors
/// If an end cannot be opened or holds data, or an operand is not supported.
pub fn run(args: &Args, context: RunContext) -> Result<Document, Error> {
    let mut settings = DdSettings::read(args)?;
    let pairs: Vec<(String, String)> =
        settings.pairs()?.into_iter().map(|(input, output)| (input.to_owned(), output.to_owned())).collect();
    let mut output = ToolOutput::new(tool_output::title("dd", &args.operands), context);
    for bs in settings.sizes.clone() {
        let done = one_size(&settings, &pairs, bs, &mut output);
        match done {
            // The results of the other sizes remain valid.
            Err(e) if !output.document.runs.is_empty() => {
                not_begun(&settings, &pairs[0], bs, e, &mut output)?
            }
            done => done?,
        }
        if output.handle.is_ended() || output.document.ended_early().is_some() {
            break;
        }
        // The output is checked only before the first size: a copy of that size would count as data.
        settings.destroy = true;
    }
    Ok(output.finish())
}

/// Reports a block size that could not start, after others have run.
fn not_begun(
    settings: &DdSettings,
    pair: &(String, String),
    bs: u64,
    error: Error,
    output: &mut ToolOutput,
) -> Result<(), Error> {
    output.remark(format!("bs={}: the run ended early: {}", shorten(bs), error.what))?;
    let outcome = JobOutcome { ended_early: Some(error.what), ..JobOutcome::default() };
    let words = settings.words(pair, bs);
    output.keep(tool_output::run(format!("bs={}", shorten(bs)), &words, Vec::new(), outcome));
    Ok(())
}

/// Runs all pairs at once with one block size.
fn one_size(
    settings: &DdSettings,
    pairs: &[(String, String)],
    bs: u64,
    output: &mut ToolOutput,
) -> Result<(), Error> {
    let opened = |(index, (input, output)): (usize, &(String, String))| {
        settings.open(&settings.plan((input, output), bs, index)?)
    };
    // Do not reject the second copy because the first one already writes.
    let routes = pairs.iter().enumerate().map(opened).collect::<Result<Vec<_>, _>>()?;
    let result = check_skips(pairs, &routes).and_then(|()| measure(settings, pairs, &routes, bs, output));
    routes.into_iter().for_each(OpenRoute::close);
    result
}

/// Like dd: skipping past the end of a file copies nothing and prints a note; past the end of a disk it is an
/// error.
fn check_skips(pairs: &[(String, String)], routes: &[OpenRoute]) -> Result<(), Error> {
    let is_beyond =
        |(pair, route): &(&(String, String), &OpenRoute)| route.past_end > 0 && !Path::new(&pair.0).is_file();
    match pairs.iter().zip(routes).find(is_beyond) {
        None => Ok(()),
        Some((pair, route)) => Err(refused(
            format!(
                "{}: skip= is {} bytes past the end of the input",
                redact_secrets(&pair.0),
                route.past_end
            ),
            "use a smaller skip=",
        )),
    }
}

fn measure(
    settings: &DdSettings,
    pairs: &[(String, String)],
    routes: &[OpenRoute],
    bs: u64,
    output: &mut ToolOutput,
) -> Result<(), Error> {
    let is_list = settings.sizes.len() > 1 || pairs.len() > 1;
    let outcomes = at_once(settings, routes, bs, &output.handle)?;
    for ((pair, route), outcome) in pairs.iter().zip(routes).zip(&outcomes) {
        if is_list && settings.status.0 {
            let ends = [format!("if={}", pair.0), format!("of={}", pair.1), format!("bs={}", shorten(bs))];
            output.line(tool_output::title("+ dd", &ends))?;
        }
        if route.past_end > 0 {
            output.remark(format!("{}: cannot skip to specified offset", pair.0))?;
        }
        if let Some(why) = &outcome.ended_early {
            output.remark(format!("the run ended early: {why}"))?;
        }
        for line in lines(outcome, bs, settings.status) {
            output.line(line)?;
        }
        output.keep(kept(settings, route, pair, bs, outcome));
    }
    if pairs.len() > 1 && settings.status.1 {
        output.line(aggregate(&outcomes))?;
    }
    Ok(())
}

fn at_once(
    settings: &DdSettings,
    routes: &[OpenRoute],
    bs: u64,
    handle: &RunHandle,
) -> Result<Vec<JobOutcome>, Error> {
    thread::scope(|scope| {
        let start = |route| scope.spawn(move || one(settings, route, bs, handle));
        let running: Vec<_> = routes.iter().map(start).collect();
        let died = || refused("a worker thread panicked", "this is a bug in Lunar: report it");
        running.into_iter().map(|run| run.join().map_err(|_| died())?).collect()
    })
}

fn one(settings: &DdSettings, route: &OpenRoute, bs: u64, handle: &RunHandle) -> Result<JobOutcome, Error> {
    let no_room =
        (route.cut > 0).then(|| format!("no space left: {} bytes of the input were not copied", route.cut));
    if route.bytes == 0 {
        return Ok(JobOutcome { ended_early: no_room, ..JobOutcome::default() });
    }
    let mut outcome = route.opened.run(&settings.job(route, bs), handle)?;
    // As dd does after its time, waits until the data in flight is stable.
    if !settings.flush && outcome.ended_early.is_none() {
        outcome.ended_early = flush(&route.opened).err();
    }
    outcome.ended_early = outcome.ended_early.or(no_room);
    Ok(outcome)
}

fn kept(
    settings: &DdSettings,
    route: &OpenRoute,
    pair: &(String, String),
    bs: u64,
    outcome: &JobOutcome,
) -> JobRun {
    let name = match (route.direction, pair.1.as_str()) {
        (IoDirection::Write, _) => "write",
        (_, "/dev/null" | ".") => "read",
        _ => "copy",
    };
    let label = format!("{name} bs={}", shorten(bs));
    tool_output::run(label, &settings.words(pair, bs), route.measured_targets(), outcome.clone())
}

/// `64k` instead of 65536.
fn shorten(bs: u64) -> String {
    if bs.is_multiple_of(1024) { format!("{}k", bs / 1024) } else { bs.to_string() }
}

/// The last lines of dd of coreutils 9.1.
fn lines(outcome: &JobOutcome, bs: u64, (records, rate): (bool, bool)) -> Vec<String> {
    let (moved, seconds) = (outcome.bytes(), outcome.elapsed_s);
    let (full, rest) = (moved / bs, u8::from(!moved.is_multiple_of(bs)));
    let mut lines = Vec::new();
    if records {
        lines.extend(["in", "out"].map(|direction| format!("{full}+{rest} records {direction}")));
    }
    if rate {
        lines.push(format!(
            "{} copied, {} s, {}",
            human::bytes(moved),
            human::seconds(seconds),
            human::rate(outcome.rate())
        ));
    }
    lines
}

/// The sum of the rates, as in the publication of 2002, and the rate of all bytes over the longest time.
fn aggregate(outcomes: &[JobOutcome]) -> String {
    let sum: f64 = outcomes.iter().map(JobOutcome::rate).sum();
    let moved: u64 = outcomes.iter().map(JobOutcome::bytes).sum();
    let longest = outcomes.iter().map(|outcome| outcome.elapsed_s).fold(0.0, f64::max);
    let whole = if longest > 0.0 { moved as f64 / longest } else { 0.0 };
    format!(
        "aggregate: {} copied, {} s, {}; sum of the rates {}",
        human::bytes(moved),
        human::seconds(longest),
        human::rate(whole),
        human::rate(sum)
    )
}

#[cfg(test)]
mod tests;

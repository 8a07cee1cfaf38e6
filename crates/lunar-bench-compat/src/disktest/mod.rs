//! disktest: threads that seek and transfer, with statistics at every heartbeat.

mod args;
mod lines;
mod numbers;

use super::failures::{CommandFailure, FailureReporter};
use super::tool_output::{self, ToolOutput};
use super::{RunContext, one_core};
pub use args::Args;
use args::{THREADS, TestPhase, TestPlan, order};
use flume::unbounded;
pub use lines::stat;
use lines::{LinePrefix, PassStats, VERSION};
use lunar_bench::device::is_remote;
use lunar_bench::document::JobRun;
use lunar_bench::outcome::IoCounts;
use lunar_bench::{
    Document, Error, JobOutcome, OpenTargets, RunHandle, TargetOptions, TargetSpec, text_report,
};
use lunar_runtime::CoreSelection;
use numbers::SECTOR;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which a device checks whether it is to end.
const TICK: Duration = Duration::from_millis(20);

/// A message of a device during its test.
enum DeviceEvent {
    Line(String),
    Run(Box<JobRun>),
    /// The totals.
    Total(PassStats),
}

/// A device under test.
struct TestedDevice<'a> {
    args: &'a Args,
    plan: &'a TestPlan,
    opened: &'a OpenTargets,
    head: LinePrefix,
    /// The first byte and the number of bytes in use.
    area: (u64, u64),
    /// Failed commands, with -A.
    failed: flume::Receiver<CommandFailure>,
    events: Sender<DeviceEvent>,
    /// Ends this device; the handle of all devices ends it, too.
    handle: RunHandle,
    all: RunHandle,
    started_at: Instant,
}

/// Runs disktest.
///
/// # Errors
/// If a target cannot be opened, is too small or holds data, or an option is not supported.
pub fn run(args: &Args, context: RunContext) -> Result<Document, Error> {
    let mut output = ToolOutput::new(format!("disktest {}", option_words(args).join(" ")), context);
    if args.version {
        output.line(VERSION)?;
        return Ok(output.finish());
    }
    let plan = TestPlan::of(args)?;
    let (mut all_opened, mut failed) = (Vec::new(), Vec::new());
    for (index, target) in plan.targets.iter().enumerate() {
        let mut opened = open(args, &plan, target, index)?;
        failed.push(report_failures(&mut opened, args.continue_on_error));
        all_opened.push(opened);
    }
    let areas =
        all_opened.iter().map(|opened| plan.area(opened.capacity())).collect::<Result<Vec<_>, _>>()?;
    if !plan.direct && plan.targets.iter().any(is_remote) {
        output.remark("remote targets have no page cache on this host: they behave as with -I bd")?;
    }
    let (events, received) = channel();
    let result = thread::scope(|scope| {
        for (index, opened) in all_opened.iter().enumerate() {
            let (args, plan, events, all) = (args, &plan, events.clone(), output.handle.clone());
            let (area, failed, is_one) = (areas[index], failed[index].clone(), all_opened.len() == 1);
            scope.spawn(move || {
                let head = head(args, &plan.targets[index], is_one);
                let (handle, started_at) = (all.child(), Instant::now());
                TestedDevice { args, plan, opened, head, area, failed, events, handle, all, started_at }
                    .test()
            });
        }
        drop(events);
        let result = collect_results(&mut output, &received);
        if result.is_err() {
            output.handle.end();
        }
        result
    });
    all_opened.into_iter().for_each(OpenTargets::close);
    sum(&plan, &result?, &mut output)?;
    Ok(output.finish())
}

fn open(args: &Args, plan: &TestPlan, target: &TargetSpec, index: usize) -> Result<OpenTargets, Error> {
    let cores = if plan.targets.len() == 1 { CoreSelection::All } else { one_core(index)? };
    let opening = TargetOptions {
        direct: plan.direct,
        write: plan.writes,
        destroy: args.destroy,
        cores,
        ..TargetOptions::default()
    };
    OpenTargets::open(std::slice::from_ref(target), &opening)
}

/// Reports failed commands if the test continues on errors. Otherwise the first failure ends the test, and is
/// reported anyway.
fn report_failures(opened: &mut OpenTargets, continue_on_error: bool) -> flume::Receiver<CommandFailure> {
    let (sender, failed) = unbounded();
    if continue_on_error {
        opened.wrap(|_, disk| Arc::new(FailureReporter::reporting(disk, sender.clone())));
    }
    failed
}

fn head(args: &Args, target: &TargetSpec, is_one: bool) -> LinePrefix {
    let thread = || rustix::thread::gettid().as_raw_pid() as u32;
    let pid = if is_one { std::process::id() } else { thread() };
    LinePrefix { pid, device: target.to_string(), is_bare: args.bare, is_quiet: args.quiet }
}

/// Prints and keeps the messages of the devices until all are done; returns their totals.
fn collect_results(output: &mut ToolOutput, events: &Receiver<DeviceEvent>) -> Result<Vec<PassStats>, Error> {
    let mut dones = Vec::new();
    for event in events.iter() {
        match event {
            DeviceEvent::Line(line) => output.line(line)?,
            DeviceEvent::Run(run) => output.keep(*run),
            DeviceEvent::Total(done) => dones.push(done),
        }
    }
    Ok(dones)
}

/// The given options, for the START line and the document.
fn option_words(args: &Args) -> Vec<String> {
    let flags = [
        ("-A", args.continue_on_error),
        ("-c", args.counting),
        ("-n", args.numbers),
        ("-q", args.quiet),
        ("-Q", args.bare),
        ("-r", args.read),
        ("-w", args.write),
        ("-z", args.random),
    ];
    let valued = [
        ("-B", args.blocks.clone()),
        ("-K", args.threads.map(|threads| threads.to_string())),
        ("-p", args.order.clone()),
        ("-I", args.kind.clone()),
        ("-a", args.seed.map(|seed| seed.to_string())),
        ("-C", args.cycles.map(|cycles| cycles.to_string())),
        ("-D", args.duty.clone()),
        ("-E", args.compare.clone()),
        ("-f", args.fixed.clone()),
        ("-h", args.heartbeat.map(time_text)),
        ("-L", args.seeks.clone()),
        ("-N", args.sectors.clone()),
        ("-P", args.statistics.clone()),
        ("-s", args.lba.clone()),
        ("-S", args.block_range.clone()),
        ("-T", args.time.map(time_text)),
    ];
    let flags = flags.into_iter().filter(|flag| flag.1).map(|flag| flag.0.to_owned());
    let valued = valued.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value?)));
    flags.chain(valued).collect()
}

/// A time in disktest's format: whole seconds without a unit.
fn time_text(time: Duration) -> String {
    match time.subsec_nanos() {
        0 => time.as_secs().to_string(),
        _ => lunar_proto::duration::show(time),
    }
}

/// The default options, each in parentheses, in the order of the tool.
fn default_options(args: &Args, plan: &TestPlan, area: u64) -> Vec<String> {
    let has_pattern = args.counting || args.numbers || args.random || args.fixed.is_some();
    let (is_random, reads) = (matches!(order(args), "R" | "r"), plan.phases[0].job.direction.reads_of(100));
    let is_up = args.order.as_ref().is_some_and(|order| order.ends_with('u'));
    let seeks: u64 = plan.phases.iter().map(|phase| plan.seeks_of(phase, area)).sum();
    let options = [
        (args.kind.is_none(), "-I b".to_owned()),
        (args.blocks.is_none(), format!("-B {SECTOR}")),
        (args.sectors.is_none(), format!("-N {}", area / SECTOR)),
        (args.threads.is_none(), format!("-K {THREADS}")),
        (!args.read && !args.write, "-r".to_owned()),
        (!has_pattern, "-c".to_owned()),
        (args.order.is_none(), "-p R".to_owned()),
        (args.seeks.is_none(), format!("-L {seeks}")),
        (!is_random && !is_up, "-p u".to_owned()),
        (is_random && args.duty.is_none(), format!("-D {reads}:{}", 100 - reads)),
    ];
    options.into_iter().filter(|option| option.0).map(|option| format!("({})", option.1)).collect()
}

impl TestedDevice<'_> {
    fn say(&self, level: &str, message: &str) {
        // The receiver may be gone; then the whole test ends.
        _ = self.head.line(level, message).map(|line| self.events.send(DeviceEvent::Line(line)));
    }

    fn test(self) {
        let options = [option_words(self.args), default_options(self.args, self.plan, self.area.1)].concat();
        self.say("START", &format!("Start args: {}", options.join(" ")));
        let mut spent = (0.0, 0.0);
        let why = self.passes(&mut spent);
        let (share, directions) = (self.handle.counts(), directions(&self.plan.phases));
        let overall_s = self.started_at.elapsed().as_secs_f64();
        let total =
            PassStats { share, read_s: spent.0, write_s: spent.1, overall_s, directions, is_total: true };
        self.stat(total);
        _ = self.events.send(DeviceEvent::Total(total));
        if let Err(why) = &why {
            self.say("ERROR", why);
        }
        let verdict = if why.is_ok() { "Passed" } else { "Failed" };
        self.say("END", &format!("Test Done ({verdict})"));
    }

    /// Runs pass after pass. An error explains why passes are missing. `spent` receives the seconds of
    /// reading and of writing.
    fn passes(&self, spent: &mut (f64, f64)) -> Result<(), String> {
        let cycles = self.plan.cycles;
        for pass in 1..=cycles.unwrap_or(u64::MAX) {
            for phase in &self.plan.phases {
                let left = self.plan.time.map(|time| time.saturating_sub(self.started_at.elapsed()));
                if left == Some(Duration::ZERO) || self.all.is_ended() {
                    return Ok(());
                }
                self.say(
                    "INFO",
                    &match phase.name {
                        Some(name) => format!("Starting {name} pass {pass} of {}", cycles.unwrap_or(0)),
                        None => "Starting pass".into(),
                    },
                );
                let (elapsed_s, why) = self.pass(phase, left, pass)?;
                spent.0 += if phase.job.direction.reads() { elapsed_s } else { 0.0 };
                spent.1 += if phase.job.direction.writes() { elapsed_s } else { 0.0 };
                why.map_or(Ok(()), Err)?;
            }
        }
        Ok(())
    }

    /// Runs one pass. Returns its seconds, and the reason if it ended early.
    fn pass(
        &self,
        phase: &TestPhase,
        left: Option<Duration>,
        pass: u64,
    ) -> Result<(f64, Option<String>), String> {
        let mut job = phase.job.clone();
        // The phases of a pass follow each other, so each needs an end.
        let is_bounded = self.plan.seeks_rule || self.plan.phases.len() > 1;
        job.commands = is_bounded.then(|| self.plan.seeks_of(phase, self.area.1));
        job.time = left;
        (job.offset, job.span) = (self.area.0, Some(self.area.1));
        job.seed = job.seed.wrapping_add(pass);
        let (before, start) = (self.handle.counts(), Instant::now());
        let run = || self.opened.run(&job, &self.handle);
        let mut outcome = self.while_it_runs(run, before, start, phase).map_err(|e| e.what)?;
        self.print_failures();
        if outcome.errors > 0 && self.args.continue_on_error {
            // The pass is complete, but it is the last one: the rest of the test is cancelled.
            let failed = text_report::count(outcome.errors as usize, "command");
            outcome.ended_early.get_or_insert_with(|| format!("{failed} failed"));
        }
        if self.plan.heartbeat.is_some() {
            // Until its last command, or the end of its time.
            self.stat_of_pass(since(self.handle.counts(), before), outcome.elapsed_s, phase);
        }
        let ended = (outcome.elapsed_s, outcome.ended_early.clone());
        let label = format!("{} {} {pass}", self.head.device, phase.name.unwrap_or("pass"));
        let words = [("tool", "disktest".to_owned()), ("options", option_words(self.args).join(" "))];
        let run = tool_output::run(label, &words, self.opened.measured_targets(), outcome);
        _ = self.events.send(DeviceEvent::Run(Box::new(run)));
        Ok(ended)
    }

    /// Prints heartbeats until the pass is over.
    fn while_it_runs(
        &self,
        run: impl FnOnce() -> Result<JobOutcome, Error> + Send,
        before: IoCounts,
        start: Instant,
        phase: &TestPhase,
    ) -> Result<JobOutcome, Error> {
        thread::scope(|scope| {
            let (over, ended) = channel::<()>();
            let running = scope.spawn(move || {
                let outcome = run();
                drop(over);
                outcome
            });
            let mut printed = 0;
            while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                if self.all.is_ended() {
                    self.handle.end();
                }
                self.print_failures();
                // The pass starts when its buffers are allocated.
                let started_at = self.handle.measured_from().filter(|started_at| *started_at >= start);
                let passed = started_at.map(|started_at| started_at.elapsed()).unwrap_or_default();
                if let Some(due) = self.plan.heartbeat.and_then(|every| due_heartbeat(passed, every, printed))
                {
                    self.heartbeat(before, started_at, phase);
                    printed = due;
                }
            }
            running.join().unwrap_or_else(|_| {
                Err(super::refused("a thread of disktest panicked", "this is a bug in Lunar: report it"))
            })
        })
    }

    /// Prints each failed command like the tool, with the reason.
    fn print_failures(&self) {
        for CommandFailure { read, offset, len, why } in self.failed.try_iter() {
            let (direction, lba) = (if read { "Read" } else { "Write" }, offset / SECTOR);
            self.say(
                "ERROR",
                &format!("{direction} failed: lba {lba} (0x{lba:X}), asked for = {len}: {why}"),
            );
        }
    }

    /// Counts are updated a few times per second; rates use the time of the last update.
    fn heartbeat(&self, before: IoCounts, started_at: Option<Instant>, phase: &TestPhase) {
        let (updated, share) = self.handle.counts_at_update();
        let passed = updated
            .zip(started_at)
            .map(|(updated, started_at)| updated.saturating_duration_since(started_at));
        self.stat_of_pass(since(share, before), passed.unwrap_or_default().as_secs_f64(), phase);
    }

    /// Prints the statistics of a pass after a number of seconds.
    fn stat_of_pass(&self, share: IoCounts, seconds: f64, phase: &TestPhase) {
        let directions = directions(std::slice::from_ref(phase));
        let [read_s, write_s, overall_s] = [seconds; 3];
        self.stat(PassStats { share, read_s, write_s, overall_s, directions, is_total: false });
    }

    fn stat(&self, done: PassStats) {
        let wanted = self.plan.wanted;
        if wanted.performance {
            _ = self.events.send(DeviceEvent::Line(done.performance(&self.head.device, wanted)));
            return;
        }
        done.messages(wanted).iter().for_each(|message| self.say("STAT", message));
    }
}

/// The number of the heartbeat that is due, if it was not printed. Missed ones are skipped: each line shows the
/// state at its own time.
fn due_heartbeat(passed: Duration, every: Duration, printed: u128) -> Option<u128> {
    let due = passed.as_nanos() / every.as_nanos().max(1);
    (due > printed).then_some(due)
}

/// Whether the phases read, and whether they write.
fn directions(phases: &[TestPhase]) -> (bool, bool) {
    (phases.iter().any(|p| p.job.direction.reads()), phases.iter().any(|p| p.job.direction.writes()))
}

fn since(now: IoCounts, before: IoCounts) -> IoCounts {
    IoCounts {
        read_ios: now.read_ios - before.read_ios,
        read_bytes: now.read_bytes - before.read_bytes,
        write_ios: now.write_ios - before.write_ios,
        write_bytes: now.write_bytes - before.write_bytes,
    }
}

/// Sums up all devices, as the publication did: adds the rates, each over its own time.
fn sum(plan: &TestPlan, dones: &[PassStats], output: &mut ToolOutput) -> Result<(), Error> {
    if plan.targets.len() < 2 || !plan.wanted.throughput || plan.wanted.performance {
        return Ok(());
    }
    let of = |count: fn(&PassStats) -> (u64, f64)| -> u64 {
        let rate = |(n, seconds): (u64, f64)| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        dones.iter().map(|done| rate(count(done))).sum::<f64>().round() as u64
    };
    let share = IoCounts {
        read_ios: of(|done| (done.share.read_ios, done.read_s)),
        read_bytes: of(|done| (done.share.read_bytes, done.read_s)),
        write_ios: of(|done| (done.share.write_ios, done.write_s)),
        write_bytes: of(|done| (done.share.write_bytes, done.write_s)),
    };
    let Some(directions) = dones.first().map(|done| done.directions) else { return Ok(()) };
    let all = PassStats { share, read_s: 1.0, write_s: 1.0, overall_s: 1.0, directions, is_total: true };
    let device = format!("{} devices", dones.len());
    let head = LinePrefix { pid: std::process::id(), device, is_bare: false, is_quiet: false };
    let wanted = lines::ReportOptions { throughput: true, ..lines::ReportOptions::default() };
    all.messages(wanted)
        .iter()
        .filter_map(|message| head.line("STAT", message))
        .try_for_each(|line| output.line(line))
}

#[cfg(test)]
mod tests;

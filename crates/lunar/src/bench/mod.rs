//! `lunar bench`: command line of the benchmarks.

mod progress;

use crate::error_hints;
use crate::exit::{Exit, Failure};
use crate::output;
use clap::{Args, Subcommand};
use lunar_bench::{Document, RunHandle, clean_up_all, compare, overhead, plain, terse, text_report};
use lunar_bench_compat::{self as compat, RunContext};
use lunar_experiments as experiments;
use lunar_server::{Diagnostic, ErrorCode};
use progress::ProgressLine;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::exit;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

const EXAMPLES: &str = "\
MB/s is 10^6 bytes per second, MiB/s is 2^20. Latency counts from the time at which a command is due. Rates count commands that ended
within the run time; latencies also include commands that were in flight at its end.

Examples:
  lunar bench randread iscsi://192.0.2.10/IQN/0 --bs 4k --depth 32
  lunar bench write disk.img --create 1G --bs 1m --amount 1G --flush
  lunar bench randrw /dev/sdb --bs 4k/60:64k/40 --direct --destroy --runtime 1m
  lunar bench randread iscsi://192.0.2.10/IQN/0 --rate 5000 --poisson --json >result.json
  lunar bench randread iscsi://192.0.2.10/IQN/0 --transport iser
  lunar bench null:1T --depth 32               measure the overhead of the benchmark
  lunar bench compare before.json after.json   show changes, and whether they are noise
  lunar bench reproduce scst-srpt-2010 --quick repeat a published experiment

Without --destroy, lunar bench writes only if the first and the last mebibyte hold no data.
SIGINT or SIGTERM ends the run early and prints the results so far; a second signal ends it without results.
Exit status: 0 success, 1 the run ended early, commands failed, --steady was not reached, or no rate meets
--latency-target; 7 invalid arguments, 15 the target holds data, 130 SIGINT, 143 SIGTERM; others as in lunar --help.";

/// Arguments of `lunar bench`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Bench {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    #[command(flatten)]
    plain: Option<plain::Args>,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Options for the output of results.
#[derive(Args, Debug)]
struct OutputArgs {
    /// Print JSON (schema lunar.bench/2)
    #[arg(long, global = true, conflicts_with = "terse")]
    json: bool,

    /// Print one line per run with the fields of fio's terse version 3 that have the same meaning here
    #[arg(long, global = true)]
    terse: bool,

    /// Write an HTML page with tables and plots
    #[arg(long, global = true, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

impl OutputArgs {
    /// Rejects the options that do not apply to a comparison.
    fn of_comparison(&self) -> Result<(), Failure> {
        let other = [("--terse", self.terse), ("--report", self.report.is_some())];
        match other.into_iter().find(|option| option.1) {
            None => Ok(()),
            Some((option, _)) => Err(Failure::new(
                Exit::Invalid,
                format!("{option} does not apply to bench compare"),
                "remove the option, or use --json",
            )),
        }
    }
}

/// Subcommands of `lunar bench`.
#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Repeat a published experiment, and compare its figures with ours
    Reproduce(experiments::Args),
    /// Compare two JSON results
    Compare(CompareArgs),
    BlockdevPerftest(compat::blockdev_perftest::Args),
    Disktest(Box<compat::disktest::Args>),
    #[command(name = "sgp_dd")]
    SgpDd(compat::sgp_dd::Args),
    Dd(compat::dd::Args),
    DbMix(compat::db_mix::Args),
}

// `--terse` and `--report` are global options, but do not apply to a comparison. Defining them here hides them from its
// help; their values still reach `OutputArgs`, which rejects them.
#[derive(Args, Debug)]
struct CompareArgs {
    #[command(flatten)]
    files: compare::Args,
    #[arg(id = "terse", long = "terse", hide = true)]
    _terse: bool,
    #[arg(id = "report", long = "report", hide = true, value_name = "FILE.html")]
    _report: Option<PathBuf>,
}

/// Runs a benchmark or a comparison, and prints the results.
pub fn bench(args: Bench) -> Result<ExitCode, Failure> {
    let Bench { command, plain, output_args } = args;
    if let Some(BenchCommand::Compare(CompareArgs { files, .. })) = &command {
        output_args.of_comparison()?;
        let (text, is_worse) = compare::run(files, output_args.json)?;
        output::stdout(text)?;
        return Ok(if is_worse { Exit::General.into() } else { ExitCode::SUCCESS });
    }
    let report = output_args.report.as_deref().map(ReportFile::begin).transpose()?;
    let handle = RunHandle::default();
    let signal = watch_signals(&handle)?;
    let measured = match (command, plain) {
        (Some(command), _) => run_command(command, output_args.json || output_args.terse, &handle)?,
        (None, Some(plain)) => {
            let progress = ProgressLine::start(&handle);
            let document = plain::run(&plain, &handle).map_err(|e| with_command_hint(e, &plain.targets))?;
            drop(progress);
            BenchResult { text: text_report::text(&document), document, printed: Ok(()), problem: None }
        }
        (None, None) => {
            return Err(Failure::new(
                Exit::Invalid,
                "no target given",
                "give a target, such as iscsi://HOST/TARGET/LUN or null:1T",
            ));
        }
    };
    let text = match (output_args.json, output_args.terse) {
        (true, _) => json(&measured.document)?,
        (_, true) => terse(&measured.document),
        _ => measured.text,
    };
    // Write both before returning an error: one may succeed where the other fails.
    let (printed, written) = (output::stdout(text), report.map(|report| report.write(&measured.document)));
    measured.printed.and(printed)?;
    written.transpose()?;
    match measured.problem {
        Some(problem) => Err(problem.into()),
        None => Ok(ended(&measured.document, signal.load(Ordering::Relaxed))),
    }
}

/// Suggests a subcommand if a target does not exist and its name resembles one.
fn with_command_hint(e: lunar_bench::Error, targets: &[String]) -> Failure {
    let is_missing = matches!(e.kind, lunar_bench::ErrorKind::Medium(ErrorCode::NotFound));
    let mut failure = Failure::from(e);
    let commands = BenchCommand::augment_subcommands(clap::Command::new("bench"));
    let near = |word: &String| {
        lunar_server::nearest(word, commands.get_subcommands().map(|command| command.get_name()))
    };
    let missing = targets.iter().filter(|target| is_missing && !Path::new(target).exists());
    if let Some(command) = missing.into_iter().find_map(near) {
        let meant = format!("did you mean lunar bench {command}?");
        for problem in &mut failure.problems {
            problem.hint =
                Some(problem.hint.take().map_or(meant.clone(), |hint| format!("{hint}; or {meant}")));
        }
    }
    failure
}

/// Results of a run, and the output that was not printed during the run.
struct BenchResult {
    document: Document,
    text: String,
    /// The first error of output during the run.
    printed: Result<(), Diagnostic>,
    problem: Option<lunar_bench::Error>,
}

/// Runs a subcommand. It prints line by line, as the original tool does, unless `silent`.
fn run_command(command: BenchCommand, silent: bool, handle: &RunHandle) -> Result<BenchResult, Failure> {
    let progress = ProgressLine::start(handle);
    if let BenchCommand::Reproduce(seed) = &command {
        let experiments::ExperimentResult { document, text, problem } = experiments::run(seed, handle)?;
        return Ok(BenchResult { document, text, printed: Ok(()), problem });
    }
    let mut lines = (!silent).then(|| progress.suspending_writer(output::StdoutLines::default()));
    let mut nothing = io::sink();
    let out: &mut dyn Write = lines.as_mut().map_or(&mut nothing, |lines| lines);
    let mut document = run_tool(command, RunContext { handle, out })?;
    // A tool that printed nothing prints no note either. `StdoutLines::end` reports a failed write.
    let progress_output =
        lines.as_mut().filter(|lines| lines.has_output()).map(|lines| lines as &mut dyn Write);
    _ = overhead::add_note(&mut document, handle, progress_output);
    // The tools print their notes during the run.
    let printed = lines.map_or(Ok(()), |lines| lines.into_inner().end());
    Ok(BenchResult { document, text: String::new(), printed, problem: None })
}

fn run_tool(command: BenchCommand, context: RunContext) -> Result<Document, lunar_bench::Error> {
    match command {
        BenchCommand::Reproduce(_) | BenchCommand::Compare(_) => unreachable!("not a tool"),
        BenchCommand::BlockdevPerftest(args) => compat::blockdev_perftest::run(&args, context),
        BenchCommand::Disktest(args) => compat::disktest::run(&args, context),
        BenchCommand::SgpDd(args) => compat::sgp_dd::run(&args, context),
        BenchCommand::Dd(args) => compat::dd::run(&args, context),
        BenchCommand::DbMix(args) => compat::db_mix::run(&args, context),
    }
}

/// The file of `--report`. It is opened before the run, so that a path that cannot be written fails early. A new file that
/// stays empty is removed.
struct ReportFile {
    path: PathBuf,
    file: File,
    /// The file was created by this run, and is still empty.
    is_empty: bool,
}

impl ReportFile {
    fn begin(path: &Path) -> Result<ReportFile, Failure> {
        let made = File::options().create_new(true).append(true).open(path);
        let (file, is_empty) = match made {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                (File::options().append(true).open(path), false)
            }
            made => (made, true),
        };
        let file = file.map_err(|e| ReportFile::cannot(path, &e))?;
        Ok(ReportFile { path: path.into(), file, is_empty })
    }

    fn write(mut self, document: &Document) -> Result<(), Failure> {
        let page = lunar_bench::report::html(document);
        self.is_empty = false;
        let written = self.file.set_len(0).and_then(|()| self.file.write_all(page.as_bytes()));
        written.map_err(|e| ReportFile::cannot(&self.path, &e))
    }

    fn cannot(path: &Path, e: &io::Error) -> Failure {
        let what = format!("cannot write the report {}: {e}", path.display());
        Diagnostic::new(what, "choose a writable file").with_code(ErrorCode::from(e.kind())).into()
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        if self.is_empty {
            // An empty file that cannot be removed does no harm.
            _ = std::fs::remove_file(&self.path);
        }
    }
}

/// JSON on one line, because histograms are long.
fn json(document: &Document) -> Result<String, Diagnostic> {
    let text = serde_json::to_string(document);
    let text = text.map_err(|e| Diagnostic::new(format!("cannot write JSON: {e}"), "run without --json"))?;
    Ok(text + "\n")
}

fn ended(document: &Document, signal: i32) -> ExitCode {
    match (signal, document.shortfall()) {
        (0, None) => ExitCode::SUCCESS,
        (0, Some((what, hint))) => {
            let problem = Diagnostic::new(what, hint);
            output::report(&[problem]);
            Exit::General.into()
        }
        (signal, _) => ExitCode::from(128 + signal as u8),
    }
}

/// The first signal ends the run and prints its results. A second one cleans up and ends the process; a third one ends it at
/// once.
fn watch_signals(handle: &RunHandle) -> Result<Arc<AtomicI32>, Diagnostic> {
    let cannot = |e: std::io::Error| {
        Diagnostic::new(format!("cannot watch for signals: {e}"), error_hints::process_limits(&e))
    };
    let (stopping, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI32::new(0)));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, stopping.clone())
            .map_err(cannot)?;
    }
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).map_err(cannot)?;
    let (handle, first) = (handle.clone(), heard.clone());
    std::thread::spawn(move || {
        let mut signals = signals.forever();
        if let Some(signal) = signals.next() {
            first.store(signal, Ordering::Relaxed);
            handle.end();
        }
        if let Some(signal) = signals.next() {
            stopping.store(true, Ordering::Relaxed);
            clean_up_all();
            crate::stderr::settle();
            exit(128 + signal);
        }
    });
    Ok(heard)
}

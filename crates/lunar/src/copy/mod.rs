//! `lunar copy`: copies a disk or a stream to a disk or a stream.
//!
//! The copy runs on one event loop. The main thread handles signals and the timeout, and reports the result.

mod args;
mod ends;
mod journal;
mod prepare;
mod progress;
pub mod report;
mod run;
mod streams;

pub use args::Args;

use crate::exit::{Exit, Failure};
use crate::output;
use lunar_copy::StopFlag;
use lunar_runtime::Cores;
use lunar_server::Diagnostic;
use report::{CopyReport, CopyStatus};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Time after the timeout for requests in flight and a flush.
const GRACE: Duration = Duration::from_secs(2);

/// Events of the main thread.
enum CopyEvent {
    Signal(i32),
    Ended(Box<Result<CopyReport, Failure>>),
    /// The task of the copy ended without a result: it panicked.
    Died,
}

/// Why the copy was stopped early.
#[derive(Clone, Copy)]
enum StopReason {
    Signal(i32),
    Time,
}

/// Copies, and returns the exit status.
pub fn copy(args: Args) -> Result<ExitCode, Failure> {
    let stop = Arc::<StopFlag>::default();
    let (events, inbox) = channel();
    let stopping = Arc::<AtomicBool>::default();
    watch_signals(events.clone(), &stopping).map_err(|e| cannot_start(&e))?;
    let cores = Cores::one().map_err(|e| cannot_start(&e))?;
    let (json, limit, journal) = (args.json, args.timeout, prepare::journal(&args));
    let (flag, notifier) = (stop.clone(), ExitNotifier(Some(events)));
    cores.run_on(0, move || {
        lunar_runtime::spawn(async move { notifier.send(run::run(args, flag).await) });
    });
    let (ended, early) = wait(&inbox, &stop, &stopping, limit);
    match ended {
        Some(report) => Ok(print_report(report?, early, json)?),
        None => {
            let what = "timed out, and requests in flight do not end";
            let hint = match journal.is_some_and(|journal| journal.exists()) {
                true => "repeat the command with --resume to continue from the journal",
                false => "no progress was saved: see --resume and --journal",
            };
            output::report(&[Diagnostic::new(what, hint)]);
            Ok(exit(CopyStatus::Stopped, early))
        }
    }
}

/// Sends the result to the main thread, also after a panic.
struct ExitNotifier(Option<Sender<CopyEvent>>);

impl ExitNotifier {
    fn send(mut self, ended: Result<CopyReport, Failure>) {
        if let Some(events) = self.0.take() {
            // The main thread may have ended.
            _ = events.send(CopyEvent::Ended(Box::new(ended)));
        }
    }
}

impl Drop for ExitNotifier {
    fn drop(&mut self) {
        if let Some(events) = self.0.take() {
            _ = events.send(CopyEvent::Died);
        }
    }
}

/// Waits for the end of the copy. None: it did not end within the timeout and [`GRACE`].
fn wait(
    inbox: &Receiver<CopyEvent>,
    stop: &StopFlag,
    stopping: &AtomicBool,
    limit: Option<Duration>,
) -> (Option<Result<CopyReport, Failure>>, Option<StopReason>) {
    let mut early = None;
    let mut deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let event = match deadline {
            Some(at) => inbox.recv_timeout(at.saturating_duration_since(Instant::now())),
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match event {
            Ok(CopyEvent::Ended(ended)) => return (Some(*ended), early),
            Ok(CopyEvent::Signal(signal)) => {
                stopping.store(true, SeqCst);
                early.get_or_insert(StopReason::Signal(signal));
                stop.stop();
            }
            Err(RecvTimeoutError::Timeout) if matches!(early, Some(StopReason::Time)) => {
                return (None, early);
            }
            Err(RecvTimeoutError::Timeout) => {
                early = Some(StopReason::Time);
                deadline = Some(Instant::now() + GRACE);
                stop.stop();
            }
            Ok(CopyEvent::Died) | Err(RecvTimeoutError::Disconnected) => {
                let problem = Diagnostic::new(
                    "the copy thread panicked: this is a bug in lunar",
                    "report the panic message",
                );
                return (Some(Err(problem.into())), early);
            }
        }
    }
}

fn print_report(report: CopyReport, early: Option<StopReason>, json: bool) -> Result<ExitCode, Diagnostic> {
    if report.summary.complete && !json {
        output::stderr(output::success(report.line));
    }
    if let Some(problem) = report.problem {
        output::report(&[problem]);
    }
    if json {
        output::stdout(report.summary.json()?)?;
    }
    Ok(exit(report.end, early))
}

/// The exit status for a result.
fn exit(end: CopyStatus, early: Option<StopReason>) -> ExitCode {
    let status = match (end, early) {
        (CopyStatus::Complete, _) => 0,
        (CopyStatus::Incomplete, _) => Exit::LeftOut as u8,
        (CopyStatus::Stopped, Some(StopReason::Signal(signal))) => u8::try_from(128 + signal).unwrap_or(1),
        (CopyStatus::Stopped, Some(StopReason::Time)) => Exit::TimedOut as u8,
        (CopyStatus::Failed(exit), _) => exit as u8,
        (CopyStatus::Stopped, None) => Exit::General as u8,
    };
    ExitCode::from(status)
}

/// The first signal stops the copy gracefully; a second one ends the process at once.
fn watch_signals(events: Sender<CopyEvent>, stopping: &Arc<AtomicBool>) -> io::Result<()> {
    let mut wanted = vec![SIGINT, SIGTERM];
    // nohup(1) ignores SIGHUP: keep that.
    if !is_ignored(SIGHUP) {
        wanted.push(SIGHUP);
    }
    for &signal in &wanted {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, stopping.clone())?;
    }
    let mut signals = signal_hook::iterator::Signals::new(wanted)?;
    let watch = move || {
        for signal in signals.forever() {
            if events.send(CopyEvent::Signal(signal)).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map(drop)
}

/// Whether this process was started with a signal ignored (proc(5), SigIgn).
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 != 0
}

fn cannot_start(e: &io::Error) -> Diagnostic {
    Diagnostic::new(format!("cannot start the copy: {e}"), crate::error_hints::process_limits(e))
}

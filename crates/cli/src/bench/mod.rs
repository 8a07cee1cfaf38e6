//! `lunar bench`: what the crate `bench` measures, on the command line.

mod progress;

use crate::exit::{Exit, Failure};
use crate::say;
use bench::{Document, Watch, people, plain, reproduce};
use clap::{Args, Subcommand};
use control::Problem;
use progress::Progress;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

const EXAMPLES: &str = "\
MB/s are 10^6 bytes a second, MiB/s are 2^20. Latency counts from the moment a command was due.

Examples:
  lunar bench randread iscsi://192.0.2.10/IQN/0 --bs 4k --depth 32
  lunar bench write disk.img --create 1G --bs 1m --amount 1G --flush
  lunar bench randrw /dev/sdb --bs 4k/60:64k/40 --direct --destroy --runtime 1m
  lunar bench randread iscsi://192.0.2.10/IQN/0 --rate 5000 --poisson --json >result.json
  lunar bench null:1T --depth 32               what measuring itself costs

Writes are refused where the first or last mebibyte holds data, unless --destroy is given.
SIGINT ends it early: what was measured is told.
Exit status: 0, 1 it ended early, 7 it makes no sense, 15 there is data, 130 SIGINT; of a LUN those of lunar --help.";

/// What `lunar bench` is told.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Bench {
    #[command(subcommand)]
    face: Option<Face>,
    #[command(flatten)]
    plain: Option<plain::Args>,
    #[command(flatten)]
    told: Told,
}

/// How results are told.
#[derive(Args, Debug)]
struct Told {
    /// Print JSON (schema lunar.bench/1)
    #[arg(long, global = true)]
    json: bool,
}

/// Measurements of a kind of their own.
#[derive(Debug, Subcommand)]
enum Face {
    /// Repeat a published experiment, and show its figures beside ours
    Reproduce(reproduce::Args),
}

/// Runs it.
pub fn bench(args: Bench) -> Result<ExitCode, Failure> {
    let watch = Watch::default();
    let signal = heed_signals(&watch)?;
    let progress = Progress::start(&watch);
    let document = match (args.face, args.plain) {
        (Some(Face::Reproduce(seed)), _) => {
            let done = reproduce::run(&seed, &watch)?;
            drop(progress);
            crate::print(&if args.told.json { json(&done.document)? } else { done.text });
            return match done.problem {
                Some(problem) => Err(problem.into()),
                None => Ok(ended(&done.document, signal.load(Ordering::Relaxed))),
            };
        }
        (None, Some(plain)) => plain::run(&plain, &watch)?,
        (None, None) => {
            return Err(Failure::new(Exit::Invalid, "there is nothing to measure", "name a target"));
        }
    };
    drop(progress);
    tell(&document, &args.told)?;
    Ok(ended(&document, signal.load(Ordering::Relaxed)))
}

fn tell(document: &Document, told: &Told) -> Result<(), Failure> {
    let text = if told.json { json(document)? } else { people::text(document) };
    crate::print(&text);
    Ok(())
}

/// On one line: histograms are long, and programs do not mind.
fn json(document: &Document) -> Result<String, Problem> {
    let text = serde_json::to_string(document);
    let text = text.map_err(|e| Problem::new(format!("cannot write JSON: {e}"), "ask without --json"))?;
    Ok(text + "\n")
}

fn ended(document: &Document, signal: i32) -> ExitCode {
    match (signal, document.ended_early()) {
        (0, None) => ExitCode::SUCCESS,
        (0, Some(why)) => {
            let problem =
                Problem::new(format!("it ended early: {why}"), "what was measured until then is told");
            eprint!("{}", say::problems(&[problem], say::colours(&std::io::stderr())));
            Exit::General.into()
        }
        (signal, _) => ExitCode::from(128 + signal as u8),
    }
}

/// The first signal ends what runs, and its results are told; a second one ends the process.
fn heed_signals(watch: &Watch) -> Result<Arc<AtomicI32>, Problem> {
    let cannot =
        |e: std::io::Error| Problem::new(format!("signals cannot be heeded: {e}"), "look at ulimit -a");
    let (stopping, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI32::new(0)));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, stopping.clone())
            .map_err(cannot)?;
    }
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).map_err(cannot)?;
    let (watch, first) = (watch.clone(), heard.clone());
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            first.store(signal, Ordering::Relaxed);
            stopping.store(true, Ordering::Relaxed);
            watch.end();
        }
    });
    Ok(heard)
}

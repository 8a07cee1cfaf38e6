//! Published experiments, repeated on this machine: each result beside the published one.
#![forbid(unsafe_code)]

mod iser;
mod lab;
mod media;
mod mounted;
mod netem;
mod open_iscsi;
mod peers;
mod process;
mod published;
mod relay;
mod results;
mod scst;
mod sn5420;
mod srpt;
mod transport;

pub use transport::RdmaProvider;

use lab::Lab;
use lunar_bench::{Document, Error, RunHandle, TargetTransport, comparison_table, overhead};
use published::Published;
use std::path::PathBuf;

/// A publication whose experiment can be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Experiment {
    /// ISCSI-SCST, IET and STGT with null, file and block storage
    #[value(name = "scst-iet-stgt-2009")]
    Scst,
    /// disktest over two sessions: 256K write, 256K read, 1K read
    #[value(name = "open-iscsi-2005")]
    OpenIscsi,
    /// dd by block size, directly and through a storage router, near and far
    #[value(name = "sn5420-2002")]
    Sn5420,
    /// sgp_dd by block size on null storage, with the CPU of both sides
    #[value(name = "stgt-iser-null-2008")]
    Iser,
    /// blockdev-perftest, direct and buffered
    #[value(name = "scst-srpt-2010")]
    Srpt,
}

impl Experiment {
    /// Its name, as on the command line and in names of files.
    pub fn name(self) -> &'static str {
        match self {
            Experiment::Scst => "scst-iet-stgt-2009",
            Experiment::OpenIscsi => "open-iscsi-2005",
            Experiment::Sn5420 => "sn5420-2002",
            Experiment::Iser => "stgt-iser-null-2008",
            Experiment::Srpt => "scst-srpt-2010",
        }
    }
}

/// Arguments of `lunar bench reproduce`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The publication whose experiment is repeated
    #[arg(value_name = "SEED")]
    pub seed: Experiment,

    /// A target to measure besides Lunar's; can be given several times; none is Lunar's alone [default: stgt and
    /// istgt, where they are installed]
    #[arg(long, value_name = "stgt|istgt|none|URL")]
    pub against: Vec<String>,

    /// Shorter runs of the same shape: about a minute instead of as much data as the original moved
    #[arg(long)]
    pub quick: bool,

    /// The folder for SEED-HOST-DATE.json
    #[arg(long, value_name = "DIR", default_value = "results")]
    pub out: PathBuf,

    /// What carries the commands: all but tcp is RDMA, and of Lunar alone
    #[arg(long, value_name = "NAME", default_value = "tcp")]
    pub transport: TargetTransport,

    /// What carries RDMA [default: verbs where this host has a device that is up, iwarp otherwise]
    #[arg(long, value_name = "NAME")]
    pub provider: Option<RdmaProvider>,

    /// The folder for files that are measured on; some gigabytes [default: the system's temporary folder]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// Overwrite what the disks of --against URL hold
    #[arg(long)]
    pub destroy: bool,

    /// No run takes longer than this many milliseconds
    #[arg(long, hide = true, value_name = "MS")]
    pub brief: Option<u64>,

    /// The program that serves Lunar's disks, if it is not this one
    #[arg(long, hide = true, value_name = "FILE")]
    pub lunar: Option<PathBuf>,
}

/// The result of an experiment.
#[derive(Debug)]
pub struct ExperimentResult {
    /// All measurements; a file keeps them.
    pub document: Document,
    /// The tables and notes as text.
    pub text: String,
    /// The reason why the experiment stopped, or why its results were not saved.
    pub problem: Option<Error>,
}

/// Repeats an experiment and saves its results to a file. If `handle` stops it early, the results up to then are
/// reported and saved.
///
/// # Errors
/// Before anything runs: when an argument is invalid, or the folder is not writable.
pub fn run(args: &Args, handle: &RunHandle) -> Result<ExperimentResult, Error> {
    results::check(&args.out)?;
    let published = Published::of(args.seed);
    let title =
        format!("{}: {} ({}, {})", args.seed.name(), published.title, published.author, published.year);
    let mut lab = Lab::new(args, handle, &title)?;
    let transport = format!("carried by {}", lab.transport().name());
    lab.note(transport);
    let ran = match args.seed {
        Experiment::Scst => scst::run(&mut lab, &published),
        Experiment::OpenIscsi => open_iscsi::run(&mut lab, &published),
        Experiment::Sn5420 => sn5420::run(&mut lab, &published),
        Experiment::Iser => iser::run(&mut lab, &published),
        Experiment::Srpt => srpt::run(&mut lab, &published),
    };
    if lab.is_ended() {
        lab.note("it was asked to end: what was measured until then stands");
    }
    if !lab.is_full() {
        lab.note("shorter runs than the original's: times of whole runs are worked out from rates");
    }
    if !lab.is_ended() {
        lab.note(overhead::note_for_many_jobs());
    }
    let mut text = text(&lab);
    let kept = results::write(&args.out, &lab.document);
    if let Ok(file) = &kept {
        text += &format!("\nkept in {}\n", file.display());
    }
    Ok(ExperimentResult { document: lab.document, text, problem: ran.and(kept.map(drop)).err() })
}

/// The whole result as text.
fn text(lab: &Lab) -> String {
    let mut text = format!("{}\n", lab.document.title);
    for table in &lab.document.tables {
        text += &format!("\n{}", comparison_table::table(table));
    }
    if !lab.lines.is_empty() {
        text += &format!("\n{}\n", lab.lines.join("\n"));
    }
    text += "\n";
    lab.document.notes.iter().for_each(|note| text += &format!("note: {note}\n"));
    text
}

#[cfg(test)]
mod tests;

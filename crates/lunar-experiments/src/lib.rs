//! Repeats published experiments on this machine, and shows each result next to the published one.
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
mod summary;
mod transport;

pub use transport::RdmaProvider;

use lab::Lab;
use lunar_bench::{Document, Error, RunHandle, TargetTransport, comparison_table, machine_load, overhead};
use peers::Peer;
use published::Published;
use std::path::PathBuf;

/// A published experiment.
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
    /// sgp_dd by block size on null storage, with the CPU time of both sides
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
    /// The experiment
    #[arg(value_name = "EXPERIMENT")]
    pub seed: Experiment,

    /// Another target to measure besides Lunar's: stgt, istgt, a URL, or none; may be repeated [default: stgt
    /// and istgt, if they are installed]
    #[arg(long, value_name = "stgt|istgt|none|URL")]
    pub against: Vec<String>,

    /// Shorter runs of the same shape: about a minute, instead of the amount of data of the original
    #[arg(long)]
    pub quick: bool,

    /// Folder for EXPERIMENT-HOST-DATE.json
    #[arg(long, value_name = "DIR", default_value = "results")]
    pub out: PathBuf,

    /// Transport of the commands; all except tcp are RDMA, and only Lunar's target supports them
    #[arg(long, value_name = "NAME", default_value = "tcp")]
    pub transport: TargetTransport,

    /// RDMA provider [default: verbs if this host has an active device, otherwise iwarp]
    #[arg(long, value_name = "NAME")]
    pub provider: Option<RdmaProvider>,

    /// Folder for the files of the disks, some gigabytes [default: the system's temporary folder]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// Overwrite existing data on disks of --against URL
    #[arg(long)]
    pub destroy: bool,

    /// Limit each run to this many milliseconds
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

/// Repeats an experiment and saves its results to a file. If `handle` ends it early, the results up to then are
/// reported and saved.
///
/// # Errors
/// If an argument is invalid, or the folder is not writable; nothing has run then.
pub fn run(args: &Args, handle: &RunHandle) -> Result<ExperimentResult, Error> {
    results::check(&args.out)?;
    let published = Published::of(args.seed);
    let title =
        format!("{}: {} ({}, {})", args.seed.name(), published.title, published.author, published.year);
    let mut lab = Lab::new(args, handle, &title)?;
    let transport = format!("transport: {}", lab.transport().name());
    lab.note(transport);
    let ran = match args.seed {
        Experiment::Scst => scst::run(&mut lab, &published),
        Experiment::OpenIscsi => open_iscsi::run(&mut lab, &published),
        Experiment::Sn5420 => sn5420::run(&mut lab, &published),
        Experiment::Iser => iser::run(&mut lab, &published),
        Experiment::Srpt => srpt::run(&mut lab, &published),
    };
    let targets: Vec<String> = lab.all().iter().map(Peer::name).collect();
    lab.document.summary = Some(summary::summary(&published, &lab.document.tables, &targets));
    if lab.is_ended() {
        lab.note("ended by the user: the results up to then are valid");
    }
    if !lab.is_full() {
        lab.note("the runs are shorter than the original: their times are extrapolated from rates");
    }
    if !lab.is_ended() {
        lab.note(overhead::note_for_many_jobs());
    }
    let mut text = text(&lab);
    let kept = results::write(&args.out, &lab.document);
    if let Ok(file) = &kept {
        text += &format!("\nsaved in {}\n", file.display());
    }
    Ok(ExperimentResult { document: lab.document, text, problem: ran.and(kept.map(drop)).err() })
}

/// The whole result as text.
fn text(lab: &Lab) -> String {
    let mut text = format!("{}\n", lab.document.title);
    if let Some(summary) = &lab.document.summary {
        text += &format!("\n{}", comparison_table::summary(summary));
    }
    for table in &lab.document.tables {
        text += &format!("\n{}", comparison_table::table(table));
    }
    if !lab.lines.is_empty() {
        text += &format!("\n{}\n", lab.lines.join("\n"));
    }
    text += "\n";
    let busy = machine_load::note(&lab.document.runs);
    busy.iter().chain(&lab.document.notes).for_each(|note| text += &format!("note: {note}\n"));
    text
}

#[cfg(test)]
mod tests;

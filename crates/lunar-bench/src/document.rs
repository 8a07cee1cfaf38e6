//! What is kept of a measurement: the file that `--json` prints, and that reports and comparisons read.

use crate::{HostInfo, JobOutcome, text_report};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::SystemTime;

/// The version of this schema. It changes when a field changes its meaning or goes away.
pub const SCHEMA: &str = "lunar.bench/2";
/// The versions before it that are read too. In the first, latencies leave out what was in flight at the end of the
/// time, and documents of experiments have percentiles and no histograms.
pub const OLDER_SCHEMAS: [&str; 1] = ["lunar.bench/1"];

/// A measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`], or one of [`OLDER_SCHEMAS`].
    pub schema: String,
    /// What it is, for people.
    pub title: String,
    /// The command that made it.
    pub command: Vec<String>,
    /// When it began: UTC, `2026-11-20T22:11:51Z`.
    pub begun: String,
    /// Where it ran.
    pub host: HostInfo,
    /// The seed that was repeated, such as `scst-srpt-2010`.
    pub seed: Option<String>,
    /// Each run of a job.
    pub runs: Vec<JobRun>,
    /// Tables beside published figures.
    pub tables: Vec<ResultTable>,
    /// What a reader must know: schedulers that could not be set, what was scaled down, what is missing.
    pub notes: Vec<String>,
    /// Whether rounds of a job became steady, where that was asked for.
    #[serde(default)]
    pub steady: Option<SteadyState>,
    /// The highest rate that keeps a bound on latency, where that was asked for.
    #[serde(default)]
    pub search: Option<RateSearch>,
}

/// What became of rounds until something is steady.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SteadyState {
    /// What must be steady: `iops`, `bw` or `lat`.
    pub figure: String,
    /// It is, in the window.
    pub is_steady: bool,
    /// Rounds that count: neither one that failed, nor one that was cut short.
    pub rounds: usize,
    /// The last rounds; none if there were fewer than are looked at.
    pub window: Option<SteadyWindow>,
}

/// The rounds of the measurement window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SteadyWindow {
    /// How many.
    pub rounds: usize,
    /// Mean of the figure: commands a second, bytes a second, or nanoseconds.
    pub mean: f64,
    /// How far the largest and the smallest are apart, relative to the mean.
    pub excursion: f64,
    /// The most that it may be.
    pub excursion_limit: f64,
    /// How much the fitted line rises or falls over the window, relative to the mean.
    pub slope: f64,
    /// The most that it may be.
    pub slope_limit: f64,
}

/// What became of a search for the highest rate that keeps a bound on latency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateSearch {
    /// So many of a hundred commands must end within the time.
    pub percent: f64,
    /// The time in nanoseconds, from the moment a command is due.
    pub within_ns: u64,
    /// The highest rate at which that was so, in commands a second; none if there is none. Its run is labelled
    /// `highest rate: ...`.
    pub rate: Option<f64>,
    /// The time in which so many of a hundred ended at that rate, in nanoseconds.
    pub latency_ns: Option<u64>,
    /// Commands a second as fast as it goes, with the depth of the job: the first run.
    pub fastest: f64,
    /// What was tried, in order.
    pub tries: Vec<RateTrial>,
    /// Why the search ended before it was done, if it did.
    pub gave_up: Option<String>,
}

/// A rate that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateTrial {
    /// Commands a second.
    pub rate: f64,
    /// The time in which so many of a hundred ended, in nanoseconds.
    pub latency_ns: Option<u64>,
    /// Whether the bound was kept.
    pub verdict: BoundVerdict,
}

/// What a try tells of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoundVerdict {
    /// It was kept.
    Kept,
    /// It was not: commands were too late, failed, or were not served at all.
    NotKept,
    /// There were too few commands to tell.
    TooFew,
}

impl fmt::Display for BoundVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BoundVerdict::Kept => "kept",
            BoundVerdict::NotKept => "not kept",
            BoundVerdict::TooFew => "too few commands",
        })
    }
}

/// One run of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRun {
    /// What sets it apart from the others of the document, such as `4 KiB read`.
    pub label: String,
    /// The job, as (name, value) in the words of the command line.
    pub job: Vec<(String, String)>,
    /// The targets it ran on.
    pub targets: Vec<MeasuredTarget>,
    /// What came of it.
    pub outcome: JobOutcome,
}

/// What a target is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredTarget {
    /// As it was named, without secrets.
    pub name: String,
    /// Sessions with it.
    pub sessions: usize,
    /// Bytes.
    pub capacity: u64,
    /// What it tells of itself and what was negotiated, as (name, value).
    pub facts: Vec<(String, String)>,
}

/// A table of figures, some of which were published before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultTable {
    /// What it shows.
    pub title: String,
    /// Unit of all its figures, such as `MB/s (10^6)`.
    pub unit: String,
    /// Whether a larger figure is the better one.
    pub larger_is_better: bool,
    /// Heads of the columns, without that of the rows.
    pub columns: Vec<String>,
    /// Rows: head, and a cell for each column.
    pub rows: Vec<(String, Vec<TableCell>)>,
}

impl ResultTable {
    /// Whether a column has how far figures were from their average: more or less of it is neither better nor worse.
    pub fn is_spread(&self, column: &str) -> bool {
        column.ends_with("(std")
    }
}

/// A figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TableCell {
    /// What was published.
    pub published: Option<f64>,
    /// What was measured here.
    pub measured: Option<f64>,
    /// `measured / published`.
    pub ratio: Option<f64>,
}

impl Document {
    /// Why a run of it ended early, if one did.
    pub fn ended_early(&self) -> Option<&str> {
        self.runs.iter().find_map(|run| run.outcome.ended_early.as_deref())
    }

    /// An empty one, begun now, on this machine, by this process.
    pub fn new(title: impl Into<String>) -> Document {
        Document {
            schema: SCHEMA.into(),
            title: title.into(),
            command: std::env::args().map(|word| redact_secrets(&word)).collect(),
            begun: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            host: HostInfo::here(),
            seed: None,
            runs: Vec::new(),
            tables: Vec::new(),
            notes: Vec::new(),
            steady: None,
            search: None,
        }
    }

    /// What keeps it from being what was asked for, if something does, and what to do: a run ended early, commands
    /// failed, figures are not steady, no rate was found.
    pub fn shortfall(&self) -> Option<(String, &'static str)> {
        let failed: u64 = self.runs.iter().map(|run| run.outcome.errors).sum();
        let is_unsteady = self.steady.as_ref().is_some_and(|steady| !steady.is_steady);
        let is_unfound = self.search.as_ref().is_some_and(|search| search.rate.is_none());
        match self.ended_early() {
            Some(why) => Some((format!("it ended early: {why}"), "what was measured until then is told")),
            None if failed > 0 => {
                let failed = text_report::count(failed as usize, "command");
                Some((format!("{failed} failed"), "the figures are those of the others"))
            }
            None if is_unsteady => {
                Some(("it did not become steady".into(), "use more --rounds, or a longer --runtime"))
            }
            None if is_unfound => {
                Some(("no rate was found that keeps the bound".into(), "the notes tell what was tried"))
            }
            None => None,
        }
    }
}

/// How URLs begin that may hold a password.
const SCHEMES: [&str; 3] = ["iscsi://", "iser://", "srp://"];

/// A word of a command line; what may be a URL with a password is shown as the URL shows itself.
pub fn redact_secrets(word: &str) -> String {
    let lower = word.to_ascii_lowercase();
    let Some(scheme) = SCHEMES.into_iter().find(|scheme| lower.contains(scheme)) else { return word.into() };
    let (before, at) = word.split_at(lower.find(scheme).unwrap_or(word.len()));
    match lunar_initiator::Url::parse(at) {
        Ok(url) => format!("{before}{url}"),
        Err(_) => format!("{before}{scheme}..."),
    }
}

impl TableCell {
    /// A figure that was measured, beside one that was published, if there are such.
    pub fn new(published: Option<f64>, measured: Option<f64>) -> TableCell {
        let ratio = published.zip(measured).filter(|(p, _)| *p != 0.0).map(|(p, m)| m / p);
        TableCell { published, measured, ratio }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_on_the_command_line_are_not_kept() {
        assert_eq!(redact_secrets("--depth"), "--depth");
        let told = redact_secrets("if=iscsi://me%hidden-word@moon/iqn.2026-11.org.example:disk/0");
        assert!(told.starts_with("if=iscsi://") && !told.contains("hidden"), "{told}");
        assert_eq!(redact_secrets("iscsi://me%hidden@"), "iscsi://...");
        let told = redact_secrets("ISER://me%hidden-word@moon/iqn.2026-11.org.example:disk/0");
        assert!(told.starts_with("iser://me@moon") && !told.contains("hidden"), "{told}");
        assert_eq!(redact_secrets("of=srp://me%hidden@moon"), "of=srp://...", "no URL, and still a secret");
    }

    #[test]
    fn a_ratio_needs_both() {
        assert_eq!(TableCell::new(Some(2.0), Some(6.0)).ratio, Some(3.0));
        assert_eq!(TableCell::new(None, Some(6.0)).ratio, None);
        assert_eq!(TableCell::new(Some(0.0), Some(6.0)).ratio, None);
    }
}

//! The results of a measurement: the file that `--json` prints, and that reports and comparisons read.

use crate::{HostInfo, JobOutcome, text_report};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::SystemTime;

/// The version of this schema. It changes when a field is removed or changes its meaning.
pub const SCHEMA: &str = "lunar.bench/2";
/// Older versions that can still be read. In the first, latencies exclude the commands in flight at the end of
/// the time, and documents of experiments have percentiles but no histograms.
pub const OLDER_SCHEMAS: [&str; 1] = ["lunar.bench/1"];

/// A measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`], or one of [`OLDER_SCHEMAS`].
    pub schema: String,
    /// A title for readers.
    pub title: String,
    /// The command line that made the document.
    pub command: Vec<String>,
    /// The start: UTC, `2026-11-20T22:11:51Z`.
    pub begun: String,
    /// The machine that ran it.
    pub host: HostInfo,
    /// The experiment that was repeated, such as `scst-srpt-2010`.
    pub seed: Option<String>,
    /// The runs of jobs.
    pub runs: Vec<JobRun>,
    /// Tables of measured and published figures.
    pub tables: Vec<ResultTable>,
    /// The most important figures of an experiment.
    #[serde(default)]
    pub summary: Option<SummaryTable>,
    /// Remarks for readers: schedulers that could not be set, reduced sizes, missing parts.
    pub notes: Vec<String>,
    /// Whether rounds of a job reached a steady state, with `--steady`.
    #[serde(default)]
    pub steady: Option<SteadyState>,
    /// The highest rate that meets a latency bound, with `--latency-target`.
    #[serde(default)]
    pub search: Option<RateSearch>,
}

/// The result of running rounds until a metric is steady.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SteadyState {
    /// The metric: `iops`, `bw` or `lat`.
    pub figure: String,
    /// Whether the metric is steady in the window.
    pub is_steady: bool,
    /// The number of valid rounds: rounds without failures that ran for their full time.
    pub rounds: usize,
    /// The last rounds; None if there were too few for a window.
    pub window: Option<SteadyWindow>,
}

/// The rounds of the measurement window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SteadyWindow {
    /// The number of rounds.
    pub rounds: usize,
    /// The mean of the metric: commands per second, bytes per second, or nanoseconds.
    pub mean: f64,
    /// The distance between the largest and the smallest value, relative to the mean.
    pub excursion: f64,
    /// The limit of `excursion`.
    pub excursion_limit: f64,
    /// The rise or fall of the fitted line over the window, relative to the mean.
    pub slope: f64,
    /// The limit of `slope`.
    pub slope_limit: f64,
}

/// The result of a search for the highest rate that meets a latency bound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateSearch {
    /// The percentage of commands that must end within the time.
    pub percent: f64,
    /// The time in nanoseconds, from the moment that a command is due.
    pub within_ns: u64,
    /// The highest rate that meets the bound, in commands per second; None if no rate does. Its run has the
    /// label `highest rate: ...`.
    pub rate: Option<f64>,
    /// The latency of this percentile at that rate, in nanoseconds.
    pub latency_ns: Option<u64>,
    /// Commands per second of the first run, at full speed with the depth of the job.
    pub fastest: f64,
    /// The trials, in order.
    pub tries: Vec<RateTrial>,
    /// The reason, if the search ended before it was complete.
    pub gave_up: Option<String>,
}

/// One trial of a search.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateTrial {
    /// Commands per second.
    pub rate: f64,
    /// The latency of the percentile, in nanoseconds.
    pub latency_ns: Option<u64>,
    /// Whether the bound was met.
    pub verdict: BoundVerdict,
}

/// The result of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoundVerdict {
    /// The bound was met.
    Kept,
    /// The bound was missed: commands were too slow, failed, or did not start.
    NotKept,
    /// There were too few commands to decide.
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
    /// The label that identifies the run in the document, such as `4 KiB read`.
    pub label: String,
    /// The job as (option, value), in terms of the command line.
    pub job: Vec<(String, String)>,
    /// The targets of the job.
    pub targets: Vec<MeasuredTarget>,
    /// The result.
    pub outcome: JobOutcome,
}

/// A target that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredTarget {
    /// Its name, without secrets.
    pub name: String,
    /// Sessions with it.
    pub sessions: usize,
    /// Its size in bytes.
    pub capacity: u64,
    /// Its identification and the negotiated parameters, as (name, value).
    pub facts: Vec<(String, String)>,
}

/// A table of measured figures, with published figures where there are some.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultTable {
    /// Title.
    pub title: String,
    /// The unit of all figures, such as `MB/s`.
    pub unit: String,
    /// Whether larger figures are better.
    pub larger_is_better: bool,
    /// Headings of the columns, without the column of row headings.
    pub columns: Vec<String>,
    /// Rows: heading, and one cell for each column.
    pub rows: Vec<(String, Vec<TableCell>)>,
}

impl ResultTable {
    /// Whether a column holds standard deviations, for which neither a larger nor a smaller value is better.
    pub fn is_spread(&self, column: &str) -> bool {
        // The headings are those of blockdev-perftest. A stored document has no other mark of such a column.
        column.ends_with("(std")
    }
}

/// The most important figures of an experiment: published, and measured with each target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SummaryTable {
    /// The names of the targets.
    pub targets: Vec<String>,
    /// The figures.
    pub rows: Vec<SummaryRow>,
}

/// One figure of a summary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SummaryRow {
    /// Its meaning.
    pub what: String,
    /// Its unit.
    pub unit: String,
    /// Whether larger figures are better.
    pub larger_is_better: bool,
    /// The published value.
    pub published: Option<f64>,
    /// The value measured with each target, in the order of the targets.
    pub measured: Vec<Option<f64>>,
}

/// One figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TableCell {
    /// The published value.
    pub published: Option<f64>,
    /// The value measured here.
    pub measured: Option<f64>,
    /// `measured / published`.
    pub ratio: Option<f64>,
}

impl Document {
    /// The reason why a run ended early, if one did.
    pub fn ended_early(&self) -> Option<&str> {
        self.runs.iter().find_map(|run| run.outcome.ended_early.as_deref())
    }

    /// Creates an empty document that starts now, on this machine.
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
            summary: None,
            notes: Vec::new(),
            steady: None,
            search: None,
        }
    }

    /// The reason why the result is incomplete, and a hint: a run ended early, commands failed, the metric is
    /// not steady, or no rate was found.
    pub fn shortfall(&self) -> Option<(String, &'static str)> {
        let failed: u64 = self.runs.iter().map(|run| run.outcome.errors).sum();
        let is_unsteady = self.steady.as_ref().is_some_and(|steady| !steady.is_steady);
        let is_unfound = self.search.as_ref().is_some_and(|search| search.rate.is_none());
        match self.ended_early() {
            Some(why) => Some((format!("the run ended early: {why}"), "the results up to then are shown")),
            None if failed > 0 => {
                let failed = text_report::count(failed as usize, "command");
                Some((format!("{failed} failed"), "the results cover the remaining commands"))
            }
            None if is_unsteady => {
                Some(("the metric did not become steady".into(), "use more --rounds, or a longer --runtime"))
            }
            None if is_unfound => {
                Some(("no rate meets the latency target".into(), "the notes list the rates that were tried"))
            }
            None => None,
        }
    }
}

/// Prefixes of URLs that may contain a password.
const SCHEMES: [&str; 3] = ["iscsi://", "iser://", "srp://"];

/// Removes secrets from a word of a command line: a URL appears in its `Display` form, which omits them.
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
    /// A cell with the ratio, if both figures exist.
    pub fn new(published: Option<f64>, measured: Option<f64>) -> TableCell {
        let ratio = published.zip(measured).filter(|(p, _)| *p != 0.0).map(|(p, m)| m / p);
        TableCell { published, measured, ratio }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_with_passwords_is_redacted() {
        assert_eq!(redact_secrets("--depth"), "--depth");
        let redacted = redact_secrets("if=iscsi://me%hidden-word@moon/iqn.2026-11.org.example:disk/0");
        assert!(redacted.starts_with("if=iscsi://") && !redacted.contains("hidden"), "{redacted}");
        assert_eq!(redact_secrets("iscsi://me%hidden@"), "iscsi://...");
        let redacted = redact_secrets("ISER://me%hidden-word@moon/iqn.2026-11.org.example:disk/0");
        assert!(redacted.starts_with("iser://me@moon") && !redacted.contains("hidden"), "{redacted}");
        assert_eq!(redact_secrets("of=srp://me%hidden@moon"), "of=srp://...", "no URL, and still a secret");
    }

    #[test]
    fn ratio_without_both_figures_is_none() {
        assert_eq!(TableCell::new(Some(2.0), Some(6.0)).ratio, Some(3.0));
        assert_eq!(TableCell::new(None, Some(6.0)).ratio, None);
        assert_eq!(TableCell::new(Some(0.0), Some(6.0)).ratio, None);
    }
}

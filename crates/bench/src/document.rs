//! What is kept of a measurement: the file that `--json` prints, and that reports and comparisons read.

use crate::{Host, Outcome};
use serde::{Deserialize, Serialize};
use std::time::SystemTime;

/// The version of this schema. It changes when a field changes its meaning or goes away.
pub const SCHEMA: &str = "lunar.bench/2";
/// The versions before it that are read too. In the first, latencies leave out what was in flight at the end of the
/// time, and documents of experiments have percentiles and no histograms.
pub const OLDER: [&str; 1] = ["lunar.bench/1"];

/// A measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`], or one of [`OLDER`].
    pub schema: String,
    /// What it is, for people.
    pub title: String,
    /// The command that made it.
    pub command: Vec<String>,
    /// When it began: UTC, `2026-11-20T22:11:51Z`.
    pub begun: String,
    /// Where it ran.
    pub host: Host,
    /// The seed that was repeated, such as `scst-srpt-2010`.
    pub seed: Option<String>,
    /// Each run of a job.
    pub runs: Vec<Run>,
    /// Tables beside published figures.
    pub tables: Vec<Table>,
    /// What a reader must know: schedulers that could not be set, what was scaled down, what is missing.
    pub notes: Vec<String>,
}

/// One run of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// What sets it apart from the others of the document, such as `4 KiB read`.
    pub label: String,
    /// The job, as (name, value) in the words of the command line.
    pub job: Vec<(String, String)>,
    /// The targets it ran on.
    pub targets: Vec<TargetFacts>,
    /// What came of it.
    pub outcome: Outcome,
}

/// What a target is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetFacts {
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
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Unit of all its figures, such as `MB/s (10^6)`.
    pub unit: String,
    /// Whether a larger figure is the better one.
    pub larger_is_better: bool,
    /// Heads of the columns, without that of the rows.
    pub columns: Vec<String>,
    /// Rows: head, and a cell for each column.
    pub rows: Vec<(String, Vec<Cell>)>,
}

/// A figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cell {
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
            command: std::env::args().map(|word| without_secrets(&word)).collect(),
            begun: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            host: Host::here(),
            seed: None,
            runs: Vec::new(),
            tables: Vec::new(),
            notes: Vec::new(),
        }
    }
}

/// How URLs begin that may hold a password.
const SCHEMES: [&str; 3] = ["iscsi://", "iser://", "srp://"];

/// A word of a command line; what may be a URL with a password is shown as the URL shows itself.
pub(crate) fn without_secrets(word: &str) -> String {
    let lower = word.to_ascii_lowercase();
    let Some(scheme) = SCHEMES.into_iter().find(|scheme| lower.contains(scheme)) else { return word.into() };
    let (before, at) = word.split_at(lower.find(scheme).unwrap_or(word.len()));
    match initiator::Url::parse(at) {
        Ok(url) => format!("{before}{url}"),
        Err(_) => format!("{before}{scheme}..."),
    }
}

impl Cell {
    /// A figure that was measured, beside one that was published, if there are such.
    pub fn new(published: Option<f64>, measured: Option<f64>) -> Cell {
        let ratio = published.zip(measured).filter(|(p, _)| *p != 0.0).map(|(p, m)| m / p);
        Cell { published, measured, ratio }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_on_the_command_line_are_not_kept() {
        assert_eq!(without_secrets("--depth"), "--depth");
        let told = without_secrets("if=iscsi://me%hidden-word@moon/iqn.2026-11.org.example:disk/0");
        assert!(told.starts_with("if=iscsi://") && !told.contains("hidden"), "{told}");
        assert_eq!(without_secrets("iscsi://me%hidden@"), "iscsi://...");
        let told = without_secrets("ISER://me%hidden-word@moon/iqn.2026-11.org.example:disk/0");
        assert!(told.starts_with("iser://me@moon") && !told.contains("hidden"), "{told}");
        assert_eq!(without_secrets("of=srp://me%hidden@moon"), "of=srp://...", "no URL, and still a secret");
    }

    #[test]
    fn a_ratio_needs_both() {
        assert_eq!(Cell::new(Some(2.0), Some(6.0)).ratio, Some(3.0));
        assert_eq!(Cell::new(None, Some(6.0)).ratio, None);
        assert_eq!(Cell::new(Some(0.0), Some(6.0)).ratio, None);
    }
}

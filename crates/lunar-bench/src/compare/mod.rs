//! Compares two documents: improvements, regressions, and differences that may be random.
//!
//! Runs are matched by label. All intervals of a comparison together have a confidence of 95 %: two measurements
//! of the same work show no difference in 19 of 20 comparisons. The assumptions are:
//!
//! - If a label occurs at least twice in both documents, its runs are independent samples, and Welch's t
//!   applies. This assumes the least, and gives an interval to every figure.
//! - Otherwise, Welch's t compares rates by the intervals of the time series (without a short last one). Adjacent
//!   intervals are correlated, so their number is reduced to what they are worth. Single runs also get a standard
//!   deviation between runs of 2 %, which no run can show.
//! - Mean, p50 and p99 of latency come from all commands. Adjacent commands are correlated, so their number is
//!   divided by the design effect: the variance of the means of the time series, relative to that of independent
//!   commands. Quantiles have binomial bounds, widened by the drift of all latencies; their differences use the
//!   method of variance estimates recovery.
//! - A single figure (CPU for each command, cells of tables) has no interval. A difference beyond the threshold
//!   is `unsure` and not a regression.

mod read;
mod rows;
mod statistics;
mod text;

pub use read::read;

use crate::{Document, Error, ErrorKind};
use serde::Serialize;
use std::path::PathBuf;

/// The schema of the JSON output.
const SCHEMA: &str = "lunar.bench.compare/1";

/// Compare two measurements: improvements and regressions from A to B
///
/// Runs are matched by label, tables by title, row and column. Differences have intervals that together hold with
/// 95 %: from repeated runs of a label if both files have them (the most reliable way, and the finest), otherwise
/// from the time series, with 2 % between runs. A row is better or worse if its interval excludes zero and the
/// difference exceeds the threshold. A figure without an interval (CPU for each command, tables) that differs
/// by more than the threshold is unsure.
///
/// Exit status: 0 no row is worse; 1 a row is worse, or a run failed that did not fail before; 7 a file is not
/// a measurement; 21 a file does not exist.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The measurement before: a file of `lunar bench --json`
    pub a: PathBuf,
    /// The measurement after
    pub b: PathBuf,
    /// Ignore differences up to this percentage
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = percent)]
    pub threshold: f64,
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.trim_end_matches('%').parse::<f64>().ok();
    percent.filter(|p| (0.0..=1000.0).contains(p)).ok_or_else(|| "use a percentage from 0 to 1000".into())
}

/// The meaning of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeVerdict {
    /// Better: beyond the threshold, and not by chance.
    Better,
    /// Worse: beyond the threshold, and not by chance.
    Worse,
    /// Within the threshold, or possibly random.
    Same,
    /// Beyond the threshold, but a single figure cannot exclude chance.
    Unsure,
}

/// A figure in both documents.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The label of the run, or the title of the table and the heading of the row.
    pub of: String,
    /// The name of the figure, such as `read IOPS`.
    pub what: String,
    /// The unit of `a` and `b`.
    pub unit: String,
    /// The value before.
    pub a: f64,
    /// The value after.
    pub b: f64,
    /// `b - a` in percent of `a`; None if `a` is zero.
    pub change_percent: Option<f64>,
    /// The interval of the change, in percent of `a`; all intervals of a comparison together hold with 95 %.
    pub interval_percent: Option<(f64, f64)>,
    /// The meaning.
    pub verdict: ChangeVerdict,
}

/// The comparison of two documents.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The version of this schema.
    pub schema: &'static str,
    /// Titles and start times of the documents: before and after.
    pub documents: [String; 2],
    /// Differences up to this percentage are ignored.
    pub threshold_percent: f64,
    /// The figures in both documents.
    pub rows: Vec<Row>,
    /// Remarks for readers: different machines or jobs, runs in one document only.
    pub notes: Vec<String>,
    /// The number of rows that are worse.
    pub worse: usize,
}

impl Comparison {
    /// Whether no row is better or worse.
    pub fn is_same(&self) -> bool {
        !self.rows.iter().any(|row| matches!(row.verdict, ChangeVerdict::Better | ChangeVerdict::Worse))
    }
}

/// Compares two documents.
///
/// # Errors
/// If they have nothing in common.
pub fn compare(a: &Document, b: &Document, threshold_percent: f64) -> Result<Comparison, Error> {
    let (rows, notes) = rows::rows(a, b, threshold_percent);
    if rows.is_empty() {
        let labels = |document: &Document| {
            let labels: Vec<String> =
                document.runs.iter().take(3).map(|run| run.label.escape_debug().to_string()).collect();
            if labels.is_empty() { "no runs".to_owned() } else { format!("\"{}\"", labels.join("\", \"")) }
        };
        let what =
            format!("the measurements have no run in common: A has {}, B has {}", labels(a), labels(b));
        return Err(Error::new(
            ErrorKind::Invalid,
            what,
            "compare two results of the same benchmark command, whose runs have the same labels",
        ));
    }
    let worse = rows.iter().filter(|row| row.verdict == ChangeVerdict::Worse).count();
    let documents = [a, b].map(|document| format!("{}, {}", document.title, document.begun));
    Ok(Comparison { schema: SCHEMA, documents, threshold_percent, rows, notes, worse })
}

/// Reads two files and compares them. Returns the output, as text or JSON, and whether a row is worse.
///
/// # Errors
/// If a file cannot be read, is not a document of this schema, or the documents have nothing in common.
pub fn run(args: &Args, as_json: bool) -> Result<(String, bool), Error> {
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    let comparison = compare(&a, &b, args.threshold)?;
    let text = match as_json {
        true => serde_json::to_string_pretty(&comparison).expect("names and numbers are JSON") + "\n",
        false => text::text(&comparison),
    };
    Ok((text, comparison.worse > 0))
}

#[cfg(test)]
mod noise;
#[cfg(test)]
mod tests;

//! Two documents beside each other: what became better, what became worse, and what chance may have done.
//!
//! Runs are matched by their labels. What is assumed for an interval of 95 %:
//!
//! - Where a label stands twice and more in both documents, its runs are samples of independent figures, and Welch's t
//!   is taken on them. This assumes the least, and gives an interval to every figure.
//! - Otherwise rates are compared by Welch's t on the steps of the time series (without a short last one), as if
//!   steps were independent of each other. Where a disturbance lasts longer than a step, the interval is too
//!   narrow: longer steps or repeated runs help.
//! - Mean, p50 and p99 of latency come from all commands. Commands that are near in time resemble each other, so
//!   their number is divided by the design effect: the variance of the means of the steps over that which
//!   independent commands would give. Quantiles have binomial bounds, and the bounds of a difference are those of
//!   the method of variance estimates recovery.
//! - A figure that stands alone (CPU for each command, cells of tables) has no interval. Beyond the threshold it is
//!   told as `unsure`, and is no regression.
//!
//! One of twenty intervals misses by chance: the threshold is there to keep that from mattering.

mod read;
mod rows;
mod statistics;
mod text;

pub use read::read;

use crate::{Document, Error, ErrorKind};
use serde::Serialize;
use std::path::PathBuf;

/// The version of what `--json` prints.
const SCHEMA: &str = "lunar.bench.compare/1";

/// Compare two measurements: what became better or worse from A to B
///
/// Runs are matched by their labels, tables by title, row and column. Differences have intervals of 95 %: from
/// repeated runs of a label where both files have them (the surest way), otherwise from the steps of the time
/// series, taken as independent of each other. A row is better or worse if its interval does not hold zero and the
/// difference is beyond the threshold. Figures without an interval (CPU for each command, tables) that differ by
/// more are told as unsure.
///
/// Exit status: 0 no row is worse, 1 a row is worse, or a run failed that did not before; 21 there is no such file, 7 a
/// file is no measurement.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The measurement before: a file of `lunar bench --json`
    pub a: PathBuf,
    /// The measurement after
    pub b: PathBuf,
    /// Differences of so many percent, and smaller ones, are none
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = percent)]
    pub threshold: f64,
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.trim_end_matches('%').parse::<f64>().ok();
    percent.filter(|p| (0.0..=1000.0).contains(p)).ok_or_else(|| "a number of percent from 0 to 1000".into())
}

/// What a difference means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeVerdict {
    /// It became better: beyond the threshold, and not by chance.
    Better,
    /// It became worse: beyond the threshold, and not by chance.
    Worse,
    /// Within the threshold, or chance may have made it.
    Same,
    /// Beyond the threshold, but a single figure does not tell whether by chance.
    Unsure,
}

/// A figure in both documents.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Label of the run, or title of the table and head of the row.
    pub of: String,
    /// What is compared, such as `read IOPS`.
    pub what: String,
    /// Unit of `a` and `b`.
    pub unit: String,
    /// Before.
    pub a: f64,
    /// After.
    pub b: f64,
    /// `b - a` in percent of `a`; none if `a` is zero.
    pub change_percent: Option<f64>,
    /// Interval of 95 % of the change, in percent of `a`.
    pub interval_percent: Option<(f64, f64)>,
    /// What it means.
    pub verdict: ChangeVerdict,
}

/// Two documents, compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Version of this schema.
    pub schema: &'static str,
    /// Titles and begins of the documents: before and after.
    pub documents: [String; 2],
    /// Differences of fewer percent are none.
    pub threshold_percent: f64,
    /// Figures that are in both.
    pub rows: Vec<Row>,
    /// What a reader must know: other machines, other jobs, what is in one document only.
    pub notes: Vec<String>,
    /// How many rows are worse.
    pub worse: usize,
}

/// Compares two documents.
///
/// # Errors
/// When they have nothing in common.
pub fn compare(a: &Document, b: &Document, threshold_percent: f64) -> Result<Comparison, Error> {
    let (rows, notes) = rows::rows(a, b, threshold_percent);
    if rows.is_empty() {
        let labels = |document: &Document| {
            let labels: Vec<String> =
                document.runs.iter().take(3).map(|run| run.label.escape_debug().to_string()).collect();
            if labels.is_empty() { "no runs".to_owned() } else { format!("\"{}\"", labels.join("\", \"")) }
        };
        let what =
            format!("the measurements have nothing in common: {} here, {} there", labels(a), labels(b));
        return Err(Error::new(
            ErrorKind::Invalid,
            what,
            "runs are matched by their labels: compare runs of one command",
        ));
    }
    let worse = rows.iter().filter(|row| row.verdict == ChangeVerdict::Worse).count();
    let documents = [a, b].map(|document| format!("{}, {}", document.title, document.begun));
    Ok(Comparison { schema: SCHEMA, documents, threshold_percent, rows, notes, worse })
}

/// Reads both files and compares them: what is to be printed, for people or as JSON, and whether something became
/// worse.
///
/// # Errors
/// When a file cannot be read, is no document of this schema, or they have nothing in common.
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
mod tests;

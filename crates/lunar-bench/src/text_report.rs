//! A document as text for a terminal.

use crate::document::JobRun;
use crate::open_targets::TRANSPORT;
use crate::outcome::{DirectionTotals, JobOutcome, Latency};
use crate::{Document, comparison_table, machine_load};
use std::fmt::Write;

const MB: f64 = 1e6;
const MIB: f64 = (1 << 20) as f64;

/// The document as text: title and machine, runs, tables, notes.
pub fn text(document: &Document) -> String {
    let host = &document.host;
    let mut text =
        format!("{}\nLunar {} on {}, {}, {}\n", document.title, host.lunar, host.name, host.cpu, host.kernel);
    if let Some(summary) = &document.summary {
        text += &format!("\n{}", comparison_table::summary(summary));
    }
    for run in &document.runs {
        text += "\n";
        if document.runs.len() > 1 {
            let _ = writeln!(text, "{}", run.label);
        }
        text += &run_text(run);
    }
    for table in &document.tables {
        text += &format!("\n{}", comparison_table::table(table));
    }
    for note in machine_load::note(&document.runs).iter().chain(&document.notes) {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

/// One run.
pub fn run_text(run: &JobRun) -> String {
    let outcome = &run.outcome;
    let mut text = String::new();
    for target in &run.targets {
        let transport = target.facts.iter().find(|(name, _)| name == TRANSPORT);
        let transport = transport.map(|(_, transport)| format!(", {transport}")).unwrap_or_default();
        let size = lunar_proto::size::show(target.capacity);
        let _ = writeln!(text, "{} ({size}{transport})", target.name);
    }
    let head = ["", "IOPS", "MB/s", "MiB/s", "mean", "p50", "p99", "p99.9", "max"].map(String::from).to_vec();
    let mut rows = vec![head];
    for (name, totals) in [("read", &outcome.read), ("write", &outcome.write)] {
        if totals.ios > 0 || totals.total.count() > 0 {
            rows.push(row(name, totals, outcome.elapsed_s));
        }
    }
    text += &columns(&rows);
    text += &cpu_text(outcome);
    if !outcome.read.submit.histogram.is_empty() || !outcome.write.submit.histogram.is_empty() {
        let _ = writeln!(
            text,
            "latency counts from the moment a command was due; {} were due and had not started at the end",
            outcome.backlog
        );
    }
    if outcome.errors > 0 {
        let _ = writeln!(text, "{} failed", count(outcome.errors as usize, "command"));
    }
    if let Some(why) = &outcome.ended_early {
        let _ = writeln!(text, "the run ended early: {why}");
    }
    text
}

fn row(name: &str, totals: &DirectionTotals, elapsed_s: f64) -> Vec<String> {
    let rate = totals.rate(elapsed_s);
    let mut row = vec![name.to_owned(), whole(totals.iops(elapsed_s)), tenth(rate / MB), tenth(rate / MIB)];
    row.push(time(totals.total.mean_ns));
    row.extend([50.0, 99.0, 99.9].map(|percent| percentile(&totals.total, percent)));
    row.push(time(totals.total.max_ns as f64));
    row
}

fn percentile(latency: &Latency, percent: f64) -> String {
    let found = latency.percentiles.iter().find(|p| p.0 == percent);
    found.map_or("-".into(), |p| time(p.1 as f64))
}

fn cpu_text(outcome: &JobOutcome) -> String {
    let busy = |seconds: f64| seconds / outcome.elapsed_s.max(1e-9);
    let cpu_use = |name: &str, s: f64| match outcome.ios() {
        0 => format!("{name} {s:.2} s"),
        ios => format!("{name} {:.2} µs an I/O ({:.2} cores)", s * 1e6 / ios as f64, busy(s)),
    };
    let target = outcome.cpu.target_s.map(|s| cpu_use(", target", s)).unwrap_or_default();
    format!("CPU: {}{target}, of {}\n", cpu_use("client", outcome.cpu.client_s), outcome.cpu.cores)
}

/// A number with its noun.
pub fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// A figure with about four digits.
pub fn short(figure: f64) -> String {
    match figure.abs() {
        0.0 => "0".into(),
        x if x < 0.1 => format!("{figure:.4}"),
        x if x < 10.0 => format!("{figure:.2}"),
        x if x < 1000.0 => format!("{figure:.1}"),
        _ => whole(figure),
    }
}

fn whole(figure: f64) -> String {
    let digits = format!("{figure:.0}");
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits.as_str()), |rest| ("-", rest));
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|g| std::str::from_utf8(g).unwrap_or("")).collect();
    format!("{sign}{}", groups.join(","))
}

fn tenth(figure: f64) -> String {
    format!("{figure:.1}")
}

/// A duration in a suitable unit.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

/// Aligns rows of cells in columns: the first one left, the others right.
pub fn columns(rows: &[Vec<String>]) -> String {
    let many = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..many).map(|at| width(at).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells =
            cells.map(|(at, (cell, w))| if at == 0 { format!("{cell:<w$}") } else { format!("{cell:>w$}") });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_have_few_digits() {
        assert_eq!(["1,234,567", "999", "-1,000"], [whole(1234567.4), whole(999.0), whole(-1000.0)]);
        assert_eq!(["950 ns", "1.5 µs", "2.50 ms", "3.00 s"], [950.0, 1.5e3, 2.5e6, 3e9].map(time));
        assert_eq!(["0", "0.0123", "1.23", "56.8", "1,235"], [0.0, 0.0123, 1.234, 56.78, 1234.6].map(short));
    }

    #[test]
    fn count_has_plural_except_for_one() {
        assert_eq!([count(0, "LUN"), count(1, "LUN"), count(2, "LUN")], ["0 LUNs", "1 LUN", "2 LUNs"]);
    }

    #[test]
    fn run_text_has_both_units_and_errors() {
        let total = Latency {
            mean_ns: 1500.0,
            max_ns: 9_000_000,
            percentiles: vec![(50.0, 1000), (99.0, 2000), (99.9, 3000)],
            ..Latency::default()
        };
        let read = DirectionTotals { ios: 1000, bytes: 1 << 20, total, ..DirectionTotals::default() };
        let outcome = JobOutcome {
            elapsed_s: 1.0,
            read,
            errors: 2,
            ended_early: Some("a scratch".into()),
            ..JobOutcome::default()
        };
        let run = JobRun { label: "x".into(), job: vec![], targets: vec![], outcome };
        let text = run_text(&run);
        let row: Vec<&str> = text.lines().nth(1).expect("a row").split_whitespace().collect();
        assert_eq!(row.join(" "), "read 1,000 1.0 1.0 1.5 µs 1.0 µs 2.0 µs 3.0 µs 9.00 ms");
        assert!(text.contains("2 commands failed\nthe run ended early: a scratch\n"), "{text}");
        let one = JobRun { outcome: JobOutcome { errors: 1, ..run.outcome }, ..run };
        assert!(run_text(&one).contains("\n1 command failed\n"));
    }
}

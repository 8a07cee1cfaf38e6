//! A comparison for people.

use super::{Comparison, Row, Verdict};
use crate::report::figures::{short, time};
use std::fmt::Write;

/// The whole of it.
pub fn text(comparison: &Comparison) -> String {
    let [a, b] = &comparison.documents;
    let mut out = format!("A: {}\nB: {}\n\n", plain(a), plain(b));
    let head = ["", "", "A", "B", "change", "95 % interval", ""].map(String::from);
    let mut rows = vec![head];
    let mut of = None;
    for row in &comparison.rows {
        let name = if of == Some(&row.of) { String::new() } else { plain(&row.of) };
        of = Some(&row.of);
        rows.push(line(name, row));
    }
    out += &columns(&rows);
    out.push('\n');
    for note in &comparison.notes {
        let _ = writeln!(out, "note: {}", plain(note));
    }
    let count = |verdict| comparison.rows.iter().filter(|row| row.verdict == verdict).count();
    let _ = writeln!(
        out,
        "{} better, {} worse, {} the same, {} unsure, beyond {} %",
        count(Verdict::Better),
        comparison.worse,
        count(Verdict::Same),
        count(Verdict::Unsure),
        comparison.threshold_percent
    );
    out
}

/// Text that does not command the terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn line(name: String, row: &Row) -> [String; 7] {
    let signed = |percent: f64| format!("{percent:+.1} %");
    let verdict = match row.verdict {
        Verdict::Better => "better",
        Verdict::Worse => "WORSE",
        Verdict::Same => "same",
        Verdict::Unsure => "unsure",
    };
    [
        name,
        plain(&row.what),
        figure(row.a, &row.unit),
        figure(row.b, &row.unit),
        row.change_percent.map_or("-".into(), signed),
        row.interval_percent.map_or("-".into(), |(low, high)| format!("{low:+.1} to {high:+.1} %")),
        verdict.into(),
    ]
}

fn figure(figure: f64, unit: &str) -> String {
    match unit {
        "ns" => time(figure),
        "B/s" => format!("{} MB/s", short(figure / 1e6)),
        "1" | "1/s" => short(figure),
        unit => format!("{} {}", short(figure), plain(unit)),
    }
}

/// Names to the left, figures to the right, the verdict behind them.
fn columns(rows: &[[String; 7]]) -> String {
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: [usize; 7] = std::array::from_fn(width);
    let line = |row: &[String; 7]| {
        let cells = row.iter().zip(widths).enumerate().map(|(at, (cell, width))| match at {
            0 | 1 | 6 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

//! A comparison as text.

use super::{ChangeVerdict, Comparison, Row};
use crate::text_report::{columns, short, time};
use std::fmt::Write;

/// The text of a comparison.
pub fn text(comparison: &Comparison) -> String {
    let [a, b] = &comparison.documents;
    let mut out = format!("A: {}\nB: {}\n\n", plain(a), plain(b));
    let head = ["", "A", "B", "change", "95 % interval", ""].map(String::from).to_vec();
    let mut rows = vec![head];
    let mut of = None;
    for row in &comparison.rows {
        if of != Some(&row.of) {
            rows.push(vec![plain(&row.of)]);
        }
        of = Some(&row.of);
        rows.push(line(row));
    }
    out += &columns(&rows);
    out.push('\n');
    for note in &comparison.notes {
        let _ = writeln!(out, "note: {}", plain(note));
    }
    let count = |verdict| comparison.rows.iter().filter(|row| row.verdict == verdict).count();
    let differences = match comparison.is_same() {
        true => "no difference:".to_owned(),
        false => format!("{} better, {} worse,", count(ChangeVerdict::Better), comparison.worse),
    };
    let _ = writeln!(
        out,
        "{differences} {} the same, {} unsure, beyond {} %",
        count(ChangeVerdict::Same),
        count(ChangeVerdict::Unsure),
        comparison.threshold_percent
    );
    out
}

/// Text without control characters for a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn line(row: &Row) -> Vec<String> {
    let signed = |percent: f64| format!("{percent:+.1} %");
    let verdict = match row.verdict {
        ChangeVerdict::Better => "better",
        ChangeVerdict::Worse => "WORSE",
        ChangeVerdict::Same => "same",
        ChangeVerdict::Unsure => "unsure",
    };
    vec![
        format!("  {}", plain(&row.what)),
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

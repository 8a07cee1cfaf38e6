//! The table of figures and limits.

use serde_json::{Value, json};

/// The limit of a figure or ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RatioLimit {
    /// At least
    AtLeast(f64),
    /// At most
    AtMost(f64),
    /// Should be at most, but cannot fail because it is a time
    Reported(f64),
    /// Should be at least, but cannot fail
    ReportedAtLeast(f64),
    /// Reported without a limit
    None,
}

/// One row of the table.
#[derive(Debug)]
pub struct RowResult {
    name: String,
    unit: &'static str,
    lunar: f64,
    /// The reference and its figure
    other: Option<(&'static str, f64)>,
    limit: RatioLimit,
}

impl RowResult {
    /// Lunar's figure and that of a reference.
    pub fn ratio(
        name: &str,
        unit: &'static str,
        lunar: f64,
        other: &'static str,
        its: f64,
        limit: RatioLimit,
    ) -> RowResult {
        RowResult { name: name.into(), unit, lunar, other: Some((other, its)), limit }
    }

    /// A figure of Lunar without a reference.
    pub fn figure(name: &str, unit: &'static str, lunar: f64, limit: RatioLimit) -> RowResult {
        RowResult { name: name.into(), unit, lunar, other: None, limit }
    }

    /// The limited value: the ratio, or the figure if there is no reference.
    fn value(&self) -> f64 {
        self.other.map_or(self.lunar, |(_, its)| self.lunar / its)
    }

    fn is_beyond(&self) -> bool {
        match self.limit {
            RatioLimit::AtLeast(limit) | RatioLimit::ReportedAtLeast(limit) => {
                self.value() < limit || self.value().is_nan()
            }
            RatioLimit::AtMost(limit) | RatioLimit::Reported(limit) => {
                self.value() > limit || self.value().is_nan()
            }
            RatioLimit::None => false,
        }
    }

    /// Whether a binding limit is missed.
    pub fn missed(&self) -> bool {
        self.is_beyond() && !matches!(self.limit, RatioLimit::Reported(_) | RatioLimit::ReportedAtLeast(_))
    }

    fn verdict(&self) -> &'static str {
        match (self.is_beyond(), self.limit) {
            (_, RatioLimit::None) => "none",
            (false, _) => "ok",
            (true, RatioLimit::Reported(_)) => "above",
            (true, RatioLimit::ReportedAtLeast(_)) => "below",
            (true, _) => "MISSED",
        }
    }

    fn cells(&self) -> [String; 6] {
        let limit = match self.limit {
            RatioLimit::AtLeast(limit) | RatioLimit::ReportedAtLeast(limit) => format!(">= {limit:.2}"),
            RatioLimit::AtMost(limit) | RatioLimit::Reported(limit) => format!("<= {limit:.2}"),
            RatioLimit::None => String::new(),
        };
        let other = self.other.map_or(String::new(), |(name, its)| format!("{name} {}", number(its)));
        let ratio = self.other.map_or(String::new(), |_| format!("{:.2}", self.value()));
        let lunar = format!("{} {}", number(self.lunar), self.unit);
        [self.name.clone(), lunar, other, ratio, limit, self.verdict().into()]
    }
}

/// A number with two decimals, or in thousands or millions.
fn number(value: f64) -> String {
    match value {
        large if large >= 1e6 => format!("{:.2} M", large / 1e6),
        large if large >= 1e3 => format!("{:.1} k", large / 1e3),
        small => format!("{small:.2}"),
    }
}

const HEAD: [&str; 6] = ["work", "Lunar", "against", "ratio", "limit", ""];

/// The table in Markdown, with aligned columns.
pub fn text(outcomes: &[RowResult]) -> String {
    let rows: Vec<[String; 6]> = outcomes.iter().map(RowResult::cells).collect();
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).chain([HEAD[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let line = |cells: &[String]| {
        let padded: Vec<String> =
            cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("| {} |\n", padded.join(" | "))
    };
    let head = line(&HEAD.map(String::from));
    let rule =
        format!("|{}|\n", widths.iter().map(|width| "-".repeat(width + 2)).collect::<Vec<_>>().join("|"));
    [head, rule].into_iter().chain(rows.iter().map(|row| line(row))).collect()
}

/// One JSON object per line.
pub fn json(outcomes: &[RowResult]) -> String {
    let lines: Vec<String> = outcomes.iter().map(|outcome| object(outcome).to_string()).collect();
    lines.join("\n")
}

fn object(outcome: &RowResult) -> Value {
    let limit = match outcome.limit {
        RatioLimit::AtLeast(limit) => json!({ "at_least": limit }),
        RatioLimit::AtMost(limit) => json!({ "at_most": limit }),
        RatioLimit::Reported(limit) => json!({ "reported": limit }),
        RatioLimit::ReportedAtLeast(limit) => json!({ "reported_at_least": limit }),
        RatioLimit::None => Value::Null,
    };
    json!({
        "work": outcome.name,
        "unit": outcome.unit,
        "lunar": outcome.lunar,
        "against": outcome.other.map(|(name, _)| name),
        "its": outcome.other.map(|(_, its)| its),
        "value": outcome.value(),
        "limit": limit,
        "verdict": outcome.verdict(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_apply_in_their_direction() {
        let ratio = |lunar, limit| RowResult::ratio("work", "IO/s", lunar, "floor", 100.0, limit);
        assert!(!ratio(70.0, RatioLimit::AtLeast(0.70)).missed());
        assert!(ratio(69.0, RatioLimit::AtLeast(0.70)).missed());
        assert!(!ratio(110.0, RatioLimit::AtMost(1.10)).missed());
        assert!(ratio(111.0, RatioLimit::AtMost(1.10)).missed());
        assert!(RowResult::ratio("work", "µs", 0.0, "1 LUN", 0.0, RatioLimit::AtMost(1.10)).missed());
        let late = RowResult::figure("start", "s", 3.0, RatioLimit::Reported(2.0));
        assert!(!late.missed() && late.verdict() == "above");
        let short = ratio(40.0, RatioLimit::ReportedAtLeast(0.5));
        assert!(!short.missed() && short.verdict() == "below");
        assert_eq!(ratio(50.0, RatioLimit::ReportedAtLeast(0.5)).verdict(), "ok");
        let figure = RowResult::figure("CPU", "ns/IO", 900.0, RatioLimit::None);
        assert!(!figure.missed() && figure.verdict() == "none");
    }

    #[test]
    fn table_is_aligned_and_json_is_valid() {
        let outcomes = [
            RowResult::ratio("short", "IO/s", 1_500_000.0, "floor", 2_000_000.0, RatioLimit::AtLeast(0.7)),
            RowResult::figure("a longer name", "MiB", 12.0, RatioLimit::AtMost(64.0)),
        ];
        let text = text(&outcomes);
        let lengths: Vec<usize> = text.lines().map(str::len).collect();
        assert!(lengths.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
        assert!(text.contains("| 1.50 M IO/s | floor 2.00 M | 0.75  | >= 0.70  | ok |"), "{text}");
        for line in json(&outcomes).lines() {
            assert!(line.parse::<Value>().is_ok());
        }
    }
}

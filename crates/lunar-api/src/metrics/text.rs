//! The text format of Prometheus, version 0.0.4.
//!
//! The format is written here, because `prometheus-client` writes OpenMetrics alone: there the name of the type of a
//! counter lacks `_total`, which `promtool check metrics` rejects.

use std::fmt::{Display, Write};

/// The media type.
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// A sum that only grows.
    Counter,
    /// A value that rises and falls.
    Gauge,
    /// Counts in buckets.
    Histogram,
}

/// Labels, each with its name.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// Metrics as text.
#[derive(Default)]
pub struct MetricsText(String);

impl MetricsText {
    /// Begins a metric. Its samples follow. A metric without samples is left out.
    pub fn metric<'a>(
        &'a mut self,
        name: &'a str,
        metric_type: MetricType,
        help: &'a str,
    ) -> MetricSamples<'a> {
        MetricSamples { text: &mut self.0, name, metric_type, help, has_begun: false }
    }

    /// The text.
    pub fn into_text(self) -> String {
        self.0
    }
}

/// The samples of a metric.
pub struct MetricSamples<'a> {
    text: &'a mut String,
    name: &'a str,
    metric_type: MetricType,
    help: &'a str,
    has_begun: bool,
}

impl MetricSamples<'_> {
    /// Adds a sample.
    pub fn add(&mut self, labels: Labels<'_>, value: impl Display) {
        self.sample("", labels, None, value);
    }

    /// Adds a histogram: the counts of its buckets alone, with their upper bounds. One more bucket has no bound.
    pub fn add_histogram(&mut self, labels: Labels<'_>, bounds: &[f64], counts: &[u64], sum: f64) {
        let (mut count, mut counts) = (0, counts.iter());
        for bound in bounds {
            count += counts.next().copied().unwrap_or_default();
            self.sample("_bucket", labels, Some(&bound.to_string()), count);
        }
        count += counts.sum::<u64>();
        self.sample("_bucket", labels, Some("+Inf"), count);
        self.sample("_sum", labels, None, sum);
        self.sample("_count", labels, None, count);
    }

    fn begin(&mut self) {
        let kind = match self.metric_type {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
        };
        let (name, help) = (self.name, self.help);
        _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        self.has_begun = true;
    }

    fn sample(&mut self, suffix: &str, labels: Labels<'_>, bound: Option<&str>, value: impl Display) {
        if !self.has_begun {
            self.begin();
        }
        _ = write!(self.text, "{}{suffix}", self.name);
        let all = labels.iter().copied().chain(bound.map(|bound| ("le", bound)));
        let mut separator = '{';
        for (name, label) in all {
            _ = write!(self.text, "{separator}{name}=\"");
            escape(self.text, label);
            self.text.push('"');
            separator = ',';
        }
        let end = if separator == ',' { "}" } else { "" };
        _ = writeln!(self.text, "{end} {value}");
    }
}

/// Appends the value of a label.
fn escape(text: &mut String, label: &str) {
    for character in label.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_peers_cannot_write_samples() {
        let mut text = MetricsText::default();
        let label = "a\\b\"} 1\nevil{x=\"\u{e9}";
        text.metric("one", MetricType::Gauge, "One.").add(&[("initiator", label), ("n", "")], 2);
        let expected = "# HELP one One.\n# TYPE one gauge\n\
            one{initiator=\"a\\\\b\\\"} 1\\nevil{x=\\\"\u{e9}\",n=\"\"} 2\n";
        assert_eq!(text.into_text(), expected);
    }

    #[test]
    fn histogram_is_cumulative() {
        let mut text = MetricsText::default();
        let mut metric = text.metric("d_seconds", MetricType::Histogram, "D.");
        metric.add_histogram(&[("op", "read")], &[0.000016, 16.777216], &[2, 0, 1], 20.5);
        let expected = "# HELP d_seconds D.\n# TYPE d_seconds histogram\n\
            d_seconds_bucket{op=\"read\",le=\"0.000016\"} 2\n\
            d_seconds_bucket{op=\"read\",le=\"16.777216\"} 2\n\
            d_seconds_bucket{op=\"read\",le=\"+Inf\"} 3\n\
            d_seconds_sum{op=\"read\"} 20.5\nd_seconds_count{op=\"read\"} 3\n";
        assert_eq!(text.into_text(), expected);
    }

    #[test]
    fn metric_without_samples_is_left_out() {
        let mut text = MetricsText::default();
        text.metric("none", MetricType::Gauge, "None.");
        text.metric("some_total", MetricType::Counter, "Some.").add(&[], 1);
        assert_eq!(text.into_text(), "# HELP some_total Some.\n# TYPE some_total counter\nsome_total 1\n");
    }
}

//! One line for each run in fio's terse format, version 3, for scripts that parse `fio --minimal`.

use crate::Document;
use crate::document::JobRun;
use crate::outcome::{DirectionTotals, IoCounts, JobOutcome, Latency, SeriesStep, widths};

/// fio's percentiles, in its order. Three of its twenty fields are unused.
const PERCENTILES: [f64; 17] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];
/// The number of percentile fields.
const FIELDS: usize = 20;
/// Upper ends of fio's latency buckets in microseconds; the last bucket is unbounded.
const BUCKETS: [u64; 21] = [
    2, 4, 10, 20, 50, 100, 250, 500, 750, 1_000, 2_000, 4_000, 10_000, 20_000, 50_000, 100_000, 250_000,
    500_000, 750_000, 1_000_000, 2_000_000,
];
/// Lower ends of fio's depth buckets.
const DEPTHS: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];

/// One line for each run with the 121 fields of fio's HOWTO, without disk utilization.
///
/// These fields mean the same as in fio: KiB, KiB/s, IOPS, milliseconds; completion latency (our `service`) and
/// its percentiles in microseconds; total latency; bandwidth by interval; latency buckets; the error count.
/// With a given rate, total latency starts when the command was due; fio's starts when it picks the command up.
///
/// `error` is 1 if the run ended early. Submission latency, user and system CPU time, context switches and page
/// faults have no counterpart here and are 0. The bucket of the job's depth has 100 %. In names, `_` replaces
/// `;`.
pub fn terse(document: &Document) -> String {
    document.runs.iter().map(|run| line(run, &document.host.lunar) + "\n").collect()
}

fn line(run: &JobRun, version: &str) -> String {
    let outcome = &run.outcome;
    let name = |text: &str| text.replace([';', '\n', '\r'], "_");
    let error = u8::from(outcome.ended_early.is_some());
    let mut fields =
        vec!["3".into(), format!("lunar-{}", name(version)), name(&run.label), "0".into(), error.to_string()];
    fields.extend(direction(outcome, &outcome.read, |share| share.read_bytes));
    fields.extend(direction(outcome, &outcome.write, |share| share.write_bytes));
    fields.extend(["0.000000%", "0.000000%", "0", "0", "0"].map(String::from));
    fields.extend(depths(run));
    fields.extend(buckets(outcome));
    if outcome.errors > 0 {
        fields.extend([outcome.errors.to_string(), "0".into()]);
    }
    fields.join(";")
}

/// The 41 fields of one direction.
fn direction(outcome: &JobOutcome, totals: &DirectionTotals, bytes: fn(&IoCounts) -> u64) -> Vec<String> {
    let elapsed_s = outcome.elapsed_s;
    let runtime_ms = if totals.ios > 0 { elapsed_s * 1e3 } else { 0.0 };
    let whole = |figure: f64| format!("{figure:.0}");
    let mut fields = vec![
        (totals.bytes / 1024).to_string(),
        whole((totals.rate(elapsed_s) / 1024.0).floor()),
        whole(totals.iops(elapsed_s).floor()),
        whole(runtime_ms),
    ];
    fields.extend(latency(&Latency::default()));
    fields.extend(latency(&totals.service));
    fields.extend(PERCENTILES.iter().map(|percent| {
        let ns = totals.service.quantile(percent / 100.0).unwrap_or(0);
        format!("{percent:.6}%={}", ns / 1000)
    }));
    fields.extend((PERCENTILES.len()..FIELDS).map(|_| "0%=0".into()));
    fields.extend(latency(&totals.total));
    fields.extend(bandwidth(&outcome.series, totals, bytes));
    fields
}

/// Minimum, maximum, mean, standard deviation; microseconds.
fn latency(latency: &Latency) -> [String; 4] {
    let Latency { mean_ns, stddev_ns, min_ns, max_ns, .. } = latency;
    [
        (min_ns / 1000).to_string(),
        (max_ns / 1000).to_string(),
        format!("{:.6}", mean_ns / 1e3),
        format!("{:.6}", stddev_ns / 1e3),
    ]
}

/// Minimum, maximum, share of the group, mean, standard deviation; KiB/s.
fn bandwidth(series: &[SeriesStep], totals: &DirectionTotals, bytes: fn(&IoCounts) -> u64) -> [String; 5] {
    let widths = widths(series);
    let steps = series.iter().zip(widths).filter(|step| step.1 > 0.0 && totals.ios > 0);
    let rates: Vec<f64> = steps.map(|(step, width)| bytes(&step.share) as f64 / width / 1024.0).collect();
    let many = rates.len().max(1) as f64;
    // `sum` of an empty iterator of floats is -0.
    let sum = |of: fn(f64, f64) -> f64, mean: f64| rates.iter().fold(0.0, |sum, rate| sum + of(*rate, mean));
    let mean = sum(|rate, _| rate, 0.0) / many;
    let square = sum(|rate, mean| (rate - mean).powi(2), mean) / (many - 1.0).max(1.0);
    let least = rates.iter().copied().reduce(f64::min).unwrap_or(0.0);
    let max = rates.iter().copied().reduce(f64::max).unwrap_or(0.0);
    let share = if totals.ios > 0 { 100.0 } else { 0.0 };
    let [least, max] = [least, max].map(|rate| format!("{:.0}", rate.floor()));
    [least, max, format!("{share:.6}%"), format!("{mean:.6}"), format!("{:.6}", square.sqrt())]
}

fn depths(run: &JobRun) -> Vec<String> {
    let depth = run.job.iter().find(|word| word.0 == "depth").and_then(|word| word.1.parse::<u64>().ok());
    let bucket = depth.and_then(|depth| DEPTHS.iter().rposition(|begin| *begin <= depth));
    let share = |at| if bucket == Some(at) { "100.0%".into() } else { "0.0%".into() };
    (0..DEPTHS.len()).map(share).collect()
}

/// The share of all commands in each of 22 buckets of total latency: below 2 µs, then below 4 µs, and so on.
fn buckets(outcome: &JobOutcome) -> Vec<String> {
    let mut counts = [0f64; BUCKETS.len() + 1];
    for (ns, many) in outcome.read.total.histogram.iter().chain(&outcome.write.total.histogram) {
        counts[BUCKETS.partition_point(|end| end * 1000 <= *ns)] += *many as f64;
    }
    let all = counts.iter().sum::<f64>().max(1.0);
    counts.iter().map(|count| format!("{:.2}%", count * 100.0 / all)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostInfo, document::SCHEMA};

    fn document() -> Document {
        let latency = Latency {
            mean_ns: 2500.0,
            stddev_ns: 500.0,
            min_ns: 1000,
            max_ns: 5_000_000,
            percentiles: vec![],
            histogram: vec![(1000, 50), (3000, 49), (5_000_000, 1)],
        };
        let read = DirectionTotals {
            ios: 100,
            bytes: 409_600,
            service: latency.clone(),
            total: latency,
            ..DirectionTotals::default()
        };
        let step = |until_s, read_bytes| SeriesStep {
            until_s,
            share: IoCounts { read_bytes, ..IoCounts::default() },
            ..SeriesStep::default()
        };
        let series = vec![step(1.0, 102_400), step(2.0, 307_200)];
        let outcome = JobOutcome { elapsed_s: 2.0, read, series, ..JobOutcome::default() };
        let run = JobRun {
            label: "a;b".into(),
            job: vec![("depth".into(), "32".into())],
            targets: vec![],
            outcome,
        };
        Document {
            schema: SCHEMA.into(),
            title: String::new(),
            command: vec![],
            begun: String::new(),
            host: HostInfo { lunar: "0.1.0".into(), ..HostInfo::here() },
            seed: None,
            runs: vec![run],
            tables: vec![],
            notes: vec![],
            steady: None,
            summary: None,
            search: None,
        }
    }

    #[test]
    fn terse_fields_are_in_fios_order() {
        let line = terse(&document());
        let fields: Vec<&str> = line.trim_end().split(';').collect();
        assert_eq!(fields.len(), 121);
        assert_eq!(fields[..9], ["3", "lunar-0.1.0", "a_b", "0", "0", "400", "200", "50", "2000"]);
        assert_eq!(fields[9..13], ["0", "0", "0.000000", "0.000000"], "submission");
        assert_eq!(fields[13..17], ["1", "5000", "2.500000", "0.500000"], "completion");
        assert_eq!(
            (fields[17], fields[23], fields[33], fields[34]),
            ("1.000000%=1", "50.000000%=1", "99.990000%=5000", "0%=0")
        );
        assert_eq!(fields[37..41], fields[13..17], "total");
        assert_eq!(fields[41..46], ["100", "300", "100.000000%", "200.000000", "141.421356"]);
        assert_eq!(fields[46..50], ["0", "0", "0", "0"], "nothing was written");
        assert_eq!(fields[92..99], ["0.0%", "0.0%", "0.0%", "0.0%", "0.0%", "100.0%", "0.0%"]);
        for (depth, at) in [(1, 92), (3, 93), (48, 97), (64, 98), (1000, 98)] {
            let mut document = document();
            document.runs[0].job = vec![("depth".into(), depth.to_string())];
            assert_eq!(terse(&document).split(';').nth(at), Some("100.0%"), "{depth}");
        }
        assert_eq!((fields[99], fields[100], fields[110]), ("50.00%", "49.00%", "0.00%"));
        assert_eq!(fields[111], "1.00%", "from 4 ms to 10 ms");
    }

    #[test]
    fn terse_line_with_errors_has_two_more_fields() {
        let mut document = document();
        document.runs[0].outcome.errors = 7;
        document.runs[0].outcome.ended_early = Some("why".into());
        let line = terse(&document);
        let fields: Vec<&str> = line.trim_end().split(';').collect();
        assert_eq!((fields.len(), fields[4], fields[121], fields[122]), (123, "1", "7", "0"));
    }

    /// Compares the names and the shape of the values, field by field.
    #[test]
    fn terse_fields_match_real_fio() {
        let fio = interop::tool::Tool { program: "fio", package: "fio" };
        if !interop::tool::have(&[fio]) {
            return;
        }
        let theirs = interop::tool::must(
            "fio",
            &["--minimal", "--name=a", "--ioengine=null", "--size=1m", "--bs=4k", "--rw=read"],
        );
        let shape =
            |field: &str| field.chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect::<String>();
        let shapes = |line: &str| -> Vec<String> {
            let fields = line.trim_end().split(';').skip(3).map(shape);
            fields.map(|field| field.replace("99", "9").replace("99", "9").replace("99", "9")).collect()
        };
        let line = theirs.lines().find(|line| line.starts_with("3;")).expect("a terse line");
        assert_eq!(shapes(&terse(&document())), shapes(line));
    }
}

//! Matches the figures of two documents, and compares them.

use super::statistics::{
    BoundedFigure, LatencyDrift, MeanEstimate, difference, moments, quantile, welch, worth,
};
use super::{ChangeVerdict, Row};
use crate::Document;
use crate::document::{JobRun, ResultTable};
use crate::outcome::{DirectionTotals, IoCounts, JobOutcome, Latency, widths};
use crate::rounds::TRY;
use std::collections::HashSet;

/// The minimum number of intervals of a time series.
const STEPS: usize = 3;

/// A figure of one direction of a run.
struct Metric {
    name: &'static str,
    unit: &'static str,
    larger_is_better: bool,
    /// Its value in a run.
    figure: fn(&JobOutcome, &DirectionTotals) -> Option<f64>,
    /// Its variation within a run.
    spread: Spread,
}

/// The source of the variation of a figure within a run.
enum Spread {
    /// A rate: the counts of the time series.
    Steps(fn(bool, &IoCounts) -> u64),
    /// A mean of all commands.
    Mean,
    /// A quantile of all commands.
    Quantile(f64),
}

const METRICS: [Metric; 5] = [
    Metric {
        name: "IOPS",
        unit: "1/s",
        larger_is_better: true,
        figure: |outcome, totals| Some(totals.iops(outcome.elapsed_s)),
        spread: Spread::Steps(|read, share| if read { share.read_ios } else { share.write_ios }),
    },
    Metric {
        name: "bandwidth",
        unit: "B/s",
        larger_is_better: true,
        figure: |outcome, totals| Some(totals.rate(outcome.elapsed_s)),
        spread: Spread::Steps(|read, share| if read { share.read_bytes } else { share.write_bytes }),
    },
    Metric {
        name: "mean latency",
        unit: "ns",
        larger_is_better: false,
        figure: |_, totals| (totals.total.count() > 0).then_some(totals.total.mean_ns),
        spread: Spread::Mean,
    },
    Metric {
        name: "p50 latency",
        unit: "ns",
        larger_is_better: false,
        figure: |_, totals| totals.total.quantile(0.5).map(|ns| ns as f64),
        spread: Spread::Quantile(0.5),
    },
    Metric {
        name: "p99 latency",
        unit: "ns",
        larger_is_better: false,
        figure: |_, totals| totals.total.quantile(0.99).map(|ns| ns as f64),
        spread: Spread::Quantile(0.99),
    },
];

/// The probability that some interval of a comparison is wrong.
const CHANCE: f64 = 0.05;

/// The conditions of a verdict.
#[derive(Clone, Copy)]
struct VerdictRule {
    /// Differences up to this percentage are ignored.
    threshold: f64,
    /// The probability that one interval is wrong.
    chance: f64,
}

/// All rows, and remarks for readers.
pub fn rows(a: &Document, b: &Document, threshold: f64) -> (Vec<Row>, Vec<String>) {
    let (rows, notes) = rows_by(a, b, VerdictRule { threshold, chance: CHANCE });
    let is_tested = |row: &&Row| row.interval_percent.is_some();
    let subjects: HashSet<_> =
        rows.iter().filter(is_tested).map(|row| (&row.of, row.what.split_whitespace().next())).collect();
    if subjects.is_empty() {
        return (rows, notes);
    }
    // All intervals of a comparison hold together (Bonferroni). The five figures of a direction are worth two:
    // rates and usual latencies say the same, and the tail is another matter.
    let chance = CHANCE / (2 * subjects.len()) as f64;
    rows_by(a, b, VerdictRule { threshold, chance })
}

fn rows_by(a: &Document, b: &Document, rule: VerdictRule) -> (Vec<Row>, Vec<String>) {
    let mut notes = machines(a, b);
    let mut rows = Vec::new();
    if let ([before], [after]) = (&a.runs[..], &b.runs[..])
        && before.label != after.label
    {
        // With a single run in each document, the labels may differ: the user chose these files.
        let label = format!("{}, then {}", before.label, after.label);
        notes.extend(condition_notes(&label, &[before], &[after]));
        notes.extend(of_targets(before, after));
        return (of_runs(&label, &[before], &[after], rule), notes);
    }
    for label in labels(a) {
        let (before, after) = (of_label(a, label), of_label(b, label));
        if after.is_empty() {
            notes.extend(only_in("A", label));
            continue;
        }
        notes.extend(condition_notes(label, &before, &after));
        for note in of_targets(before[0], after[0]) {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        rows.extend(of_runs(label, &before, &after, rule));
    }
    let only = labels(b).into_iter().filter(|label| of_label(a, label).is_empty());
    notes.extend(only.filter_map(|label| only_in("B", label)));
    rows.extend(a.tables.iter().flat_map(|table| of_table(table, b, rule)));
    (rows, notes)
}

/// Trials of two searches have different rates, so no note is needed.
fn only_in(file: &str, label: &str) -> Option<String> {
    (!label.starts_with(TRY)).then(|| format!("only in {file}: {label}"))
}

/// The distinct labels of runs.
fn labels(document: &Document) -> Vec<&str> {
    let mut seen = HashSet::new();
    document.runs.iter().map(|run| run.label.as_str()).filter(|label| seen.insert(*label)).collect()
}

fn of_label<'a>(document: &'a Document, label: &str) -> Vec<&'a JobRun> {
    document.runs.iter().filter(|run| run.label == label).collect()
}

fn machines(a: &Document, b: &Document) -> Vec<String> {
    let (x, y) = (&a.host, &b.host);
    let pairs = [
        ("machine", &x.name, &y.name),
        ("kernel", &x.kernel, &y.kernel),
        ("processor", &x.cpu, &y.cpu),
        ("version of Lunar", &x.lunar, &y.lunar),
        ("schema", &a.schema, &b.schema),
    ];
    let differ = pairs.into_iter().filter(|(_, a, b)| a != b);
    let mut notes: Vec<String> =
        differ.map(|(what, a, b)| format!("different {what}: {a}, then {b}")).collect();
    if x.cores != y.cores {
        notes.push(format!("different number of cores: {}, then {}", x.cores, y.cores));
    }
    if x.governor != y.governor {
        let [x, y] = [x, y].map(|host| host.governor.as_deref().unwrap_or("unknown"));
        notes.push(format!("different frequency policy: {x}, then {y}"));
    }
    // The kernel reserves a varying amount.
    if x.memory.abs_diff(y.memory) > x.memory / 20 {
        let [x, y] = [x, y].map(|host| host.memory >> 20);
        notes.push(format!("different memory size: {x} MiB, then {y} MiB"));
    }
    notes
}

/// The differences of the targets of two runs and of their negotiated parameters.
fn of_targets(a: &JobRun, b: &JobRun) -> Vec<String> {
    let mut notes = Vec::new();
    for (x, y) in a.targets.iter().zip(&b.targets) {
        let [x_facts, y_facts] = [x, y].map(|target| {
            let capacity = ("capacity".to_owned(), target.capacity.to_string());
            [vec![capacity], target.facts.clone()].concat()
        });
        let differ = differences(&x_facts, &y_facts);
        notes.extend(differ.map(|(name, x, y)| format!("different {name} of the target: {x}, then {y}")));
    }
    if a.targets.len() != b.targets.len() {
        notes.push(format!("different number of targets: {}, then {}", a.targets.len(), b.targets.len()));
    }
    notes
}

/// The names whose values differ, with both values.
fn differences<'a>(
    a: &'a [(String, String)],
    b: &'a [(String, String)],
) -> impl Iterator<Item = (&'a str, &'a str, &'a str)> {
    let value = |of: &'a [(String, String)], name: &str| {
        of.iter().find(|pair| pair.0 == name).map_or("not set", |pair| pair.1.as_str())
    };
    let mut names: Vec<&str> = a.iter().chain(b).map(|pair| pair.0.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(move |name| (name, value(a, name), value(b, name))).filter(|(_, x, y)| x != y)
}

/// The differences of two jobs, and their early ends.
fn condition_notes(label: &str, before: &[&JobRun], after: &[&JobRun]) -> Vec<String> {
    let mut notes = Vec::new();
    let (a, b) = (before[0], after[0]);
    let differ = differences(&a.job, &b.job);
    notes.extend(differ.map(|(name, x, y)| format!("{label}: {name} was {x}, then {y}")));
    if before.len() != after.len() && before.len().min(after.len()) == 1 {
        let (a, b) = (before.len(), after.len());
        notes.push(format!("{label}: {a} runs in A and {b} in B; only the first of each is compared"));
    }
    for (file, runs) in [("A", before), ("B", after)] {
        let early = runs.iter().filter_map(|run| run.outcome.ended_early.as_ref());
        notes.extend(early.map(|why| format!("{label}: ended early in {file}: {why}")));
    }
    notes
}

fn of_runs(label: &str, before: &[&JobRun], after: &[&JobRun], rule: VerdictRule) -> Vec<Row> {
    let judge = RowBuilder { of: label, rule };
    let mut rows = Vec::new();
    for is_read in [true, false] {
        let is_there = |runs: &[&JobRun]| runs.iter().any(|run| totals(&run.outcome, is_read).ios > 0);
        let direction = if is_read { "read" } else { "write" };
        match (is_there(before), is_there(after)) {
            (true, true) => {
                let of_metric =
                    |metric: &Metric| of_metric(&judge, metric, (direction, is_read), before, after);
                rows.extend(METRICS.iter().filter_map(of_metric));
            }
            (true, false) => rows.push(vanished_row(label, (direction, is_read), before)),
            (false, _) => {}
        }
    }
    rows.extend(of_cpu(&judge, before, after));
    rows.extend(of_errors(label, before, after));
    rows
}

/// One direction of a run.
fn totals(outcome: &JobOutcome, is_read: bool) -> &DirectionTotals {
    if is_read { &outcome.read } else { &outcome.write }
}

/// The row of a direction whose commands are all missing after the change.
fn vanished_row(label: &str, (direction, is_read): (&str, bool), before: &[&JobRun]) -> Row {
    let Metric { name, unit, .. } = METRICS[0];
    let rate = |run: &&JobRun| totals(&run.outcome, is_read).iops(run.outcome.elapsed_s);
    Row {
        of: label.into(),
        what: format!("{direction} {name}"),
        unit: unit.into(),
        a: before.iter().map(rate).sum::<f64>() / before.len() as f64,
        b: 0.0,
        change_percent: Some(-100.0),
        interval_percent: None,
        verdict: ChangeVerdict::Worse,
    }
}

fn of_metric(
    judge: &RowBuilder,
    metric: &Metric,
    (direction, is_read): (&str, bool),
    before: &[&JobRun],
    after: &[&JobRun],
) -> Option<Row> {
    let figure = |run: &&JobRun| (metric.figure)(&run.outcome, totals(&run.outcome, is_read));
    let figures = [before, after].map(|runs| runs.iter().filter_map(figure).collect::<Vec<f64>>());
    let within = || within_run(metric, is_read, [&before[0].outcome, &after[0].outcome], judge.rule.chance);
    let what = format!("{direction} {}", metric.name);
    judge.samples(what, metric.unit, metric.larger_is_better, figures, within)
}

/// The interval of a difference, from the data of two single runs.
fn within_run(metric: &Metric, is_read: bool, [a, b]: [&JobOutcome; 2], chance: f64) -> Option<(f64, f64)> {
    match metric.spread {
        Spread::Steps(count) => {
            let mean = |outcome: &JobOutcome| {
                let rates = rates(outcome, |share| count(is_read, share))?;
                // A target that falls silent and stays so is no noise, which a memory could explain.
                let is_silent = rates.last() == Some(&0.0);
                let mean = if is_silent { MeanEstimate::of(&rates) } else { MeanEstimate::of_series(&rates) };
                mean.map(MeanEstimate::of_any_run)
            };
            Some(welch(mean(a)?, mean(b)?, chance))
        }
        Spread::Mean => {
            let mean = |outcome: &JobOutcome| {
                let LatencyDrift { effect, freedom, .. } = drift(outcome)?;
                let DirectionTotals { ios, total: Latency { mean_ns, stddev_ns, .. }, .. } =
                    totals(outcome, is_read);
                let error2 = stddev_ns.powi(2) * effect / (*ios).max(1) as f64;
                Some(MeanEstimate { mean: *mean_ns, error2, freedom }.of_any_run())
            };
            Some(welch(mean(a)?, mean(b)?, chance))
        }
        Spread::Quantile(share) => {
            let bounded = |outcome: &JobOutcome| -> Option<BoundedFigure> {
                quantile(&totals(outcome, is_read).total, share, drift(outcome)?, chance)
            };
            Some(difference(bounded(a)?, bounded(b)?))
        }
    }
}

/// The rates of the complete intervals; None if there are too few.
fn rates(outcome: &JobOutcome, count: impl Fn(&IoCounts) -> u64) -> Option<Vec<f64>> {
    let widths = widths(&outcome.series);
    let usual = widths.iter().copied().fold(0.0, f64::max);
    let whole = outcome.series.iter().zip(widths).filter(|(_, width)| *width > 0.9 * usual);
    let rates: Vec<f64> = whole.map(|(step, width)| count(&step.share) as f64 / width).collect();
    (rates.len() >= STEPS).then_some(rates)
}

/// The variation of latencies between the intervals of a run; None if there are too few.
fn drift(outcome: &JobOutcome) -> Option<LatencyDrift> {
    let ios = |share: &IoCounts| (share.read_ios as f64) + (share.write_ios as f64);
    let busy: Vec<_> = outcome.series.iter().filter(|step| ios(&step.share) > 0.0).collect();
    if busy.len() < STEPS {
        return None;
    }
    let means: Vec<f64> = busy.iter().map(|step| step.mean_ns).collect();
    let each = busy.iter().map(|step| ios(&step.share)).sum::<f64>() / busy.len() as f64;
    let (_, between) = moments(&means)?;
    let all = outcome.ios().max(1) as f64;
    let (read, write) = (&outcome.read, &outcome.write);
    let share = |totals: &DirectionTotals| totals.ios as f64 / all;
    let mean = [read, write].map(|totals| totals.total.mean_ns * share(totals)).iter().sum::<f64>();
    // Use both directions together: in a mix they differ, and their shares vary between intervals.
    let variance = |totals: &DirectionTotals| {
        let Latency { mean_ns, stddev_ns, .. } = totals.total;
        (stddev_ns.powi(2) + (mean_ns - mean).powi(2)) * share(totals)
    };
    let within = variance(read) + variance(write);
    let (many, worth) = (busy.len() as f64, worth(&means));
    let effect = if within > 0.0 { between * each / within * many / worth } else { 1.0 };
    let level = ((between - within / each).max(0.0) / worth).sqrt() / mean.max(1.0);
    Some(LatencyDrift { effect: effect.max(1.0), level, freedom: worth - 1.0 })
}

fn of_cpu(judge: &RowBuilder, before: &[&JobRun], after: &[&JobRun]) -> Vec<Row> {
    type Seconds = fn(&JobOutcome) -> Option<f64>;
    let sides: [(&str, Seconds); 2] = [
        ("client CPU/IO", |o| Some(o.cpu.client_s).filter(|s| *s > 0.0)),
        ("target CPU/IO", |o| o.cpu.target_s),
    ];
    let of_side = |(what, seconds): (&str, Seconds)| {
        let each = |run: &&JobRun| {
            let ios = run.outcome.ios();
            seconds(&run.outcome).filter(|_| ios > 0).map(|s| s * 1e9 / ios as f64)
        };
        let figures = [before, after].map(|runs| runs.iter().filter_map(each).collect::<Vec<f64>>());
        judge.samples(what.into(), "ns", false, figures, || None)
    };
    sides.into_iter().filter_map(of_side).collect()
}

/// Failed commands and runs that ended early, without a test for chance.
fn of_errors(label: &str, before: &[&JobRun], after: &[&JobRun]) -> Option<Row> {
    let failed =
        |run: &&JobRun| run.outcome.errors as f64 + f64::from(u8::from(run.outcome.ended_early.is_some()));
    let mean = |runs: &[&JobRun]| runs.iter().map(failed).sum::<f64>() / runs.len() as f64;
    let (a, b) = (mean(before), mean(after));
    let verdict = match b.total_cmp(&a) {
        std::cmp::Ordering::Greater => ChangeVerdict::Worse,
        std::cmp::Ordering::Less => ChangeVerdict::Better,
        std::cmp::Ordering::Equal => ChangeVerdict::Same,
    };
    (a > 0.0 || b > 0.0).then(|| Row {
        of: label.into(),
        what: "failures".into(),
        unit: "1".into(),
        a,
        b,
        change_percent: (a > 0.0).then(|| (b - a) / a * 100.0),
        interval_percent: None,
        verdict,
    })
}

fn of_table(table: &ResultTable, b: &Document, rule: VerdictRule) -> Vec<Row> {
    let Some(other) = b.tables.iter().find(|other| other.title == table.title && other.unit == table.unit)
    else {
        return Vec::new();
    };
    let mut rows = Vec::new();
    for (head, cells) in &table.rows {
        let Some((_, others)) = other.rows.iter().find(|row| row.0 == *head) else { continue };
        let of = format!("{}, {head}", table.title);
        let judge = RowBuilder { of: &of, rule };
        for (column, cell) in table.columns.iter().zip(cells).filter(|(column, _)| !table.is_spread(column)) {
            let at = other.columns.iter().position(|name| name == column);
            let figures = [Some(cell), at.and_then(|at| others.get(at))]
                .map(|cell| cell.and_then(|cell| cell.measured).into_iter().collect::<Vec<f64>>());
            rows.extend(judge.samples(column.clone(), &table.unit, table.larger_is_better, figures, || None));
        }
    }
    rows
}

/// Builds rows and their verdicts.
struct RowBuilder<'a> {
    of: &'a str,
    rule: VerdictRule,
}

impl RowBuilder<'_> {
    /// A row from the figures of all runs before and after; `within` returns the interval if there is only one
    /// run of each.
    fn samples(
        &self,
        what: String,
        unit: &str,
        larger_is_better: bool,
        [before, after]: [Vec<f64>; 2],
        within: impl FnOnce() -> Option<(f64, f64)>,
    ) -> Option<Row> {
        let (first_a, first_b) = (*before.first()?, *after.first()?);
        let (a, b, interval) = match (MeanEstimate::of(&before), MeanEstimate::of(&after)) {
            (Some(a), Some(b)) => (a.mean, b.mean, Some(welch(a, b, self.rule.chance))),
            _ => (first_a, first_b, within()),
        };
        let in_percent = |difference: f64| difference / a * 100.0;
        let change_percent = (a > 0.0).then(|| in_percent(b - a));
        let interval_percent =
            interval.filter(|_| a > 0.0).map(|(low, high)| (in_percent(low), in_percent(high)));
        let verdict = self.verdict(change_percent?, interval_percent, larger_is_better);
        let (of, unit) = (self.of.to_owned(), unit.to_owned());
        Some(Row { of, what, unit, a, b, change_percent, interval_percent, verdict })
    }

    fn verdict(&self, change: f64, interval: Option<(f64, f64)>, larger_is_better: bool) -> ChangeVerdict {
        let is_chance = interval.is_some_and(|(low, high)| low <= 0.0 && high >= 0.0);
        match interval {
            _ if change.abs() <= self.rule.threshold || is_chance => ChangeVerdict::Same,
            None => ChangeVerdict::Unsure,
            Some(_) if (change > 0.0) == larger_is_better => ChangeVerdict::Better,
            Some(_) => ChangeVerdict::Worse,
        }
    }
}

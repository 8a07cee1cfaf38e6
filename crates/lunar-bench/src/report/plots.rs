//! The plots of a document.

use super::chart::{Axis, COLOURS, Chart, PlotLine};
use super::figures::{self, read_size};
use super::scale::{Quantity, ScaleKind};
use super::series::{SeriesPoint, moments};
use super::sweep::{Sweep, SweepPoint};
use super::tables::{PERCENTILES, directions, of_percentile, title};
use crate::document::{JobRun, ResultTable, TableCell};
use crate::outcome::{Latency, SeriesStep};

/// A plot of the full width of the page.
const LARGE: (f64, f64) = (800.0, 320.0);
/// One of two plots side by side.
const SMALL: (f64, f64) = (380.0, 170.0);
/// The maximum number of points of a time series or percentile curve.
const POINTS: usize = 240;
/// If the largest and smallest figure differ by more than this factor, the axis is logarithmic.
const RANGE: f64 = 60.0;
/// The maximum number of percentile curves of a sweep in one plot.
const CURVES: usize = 5;

/// A plot and its caption.
pub struct CaptionedChart {
    /// The plot.
    pub chart: Chart,
    /// The caption.
    pub caption: String,
}

fn axis(name: &str, division: ScaleKind, quantity: Quantity) -> Axis {
    Axis { name: name.into(), division, quantity }
}

fn sizes() -> Axis {
    axis("block size", ScaleKind::Sizes(Vec::new()), Quantity::Figure)
}

/// A linear axis from zero, or a logarithmic one if the figures differ too much.
fn suited<'a>(name: &str, lines: impl IntoIterator<Item = &'a PlotLine>) -> Axis {
    let values = lines.into_iter().flat_map(|line| line.points.iter().map(|p| p.1)).filter(|v| *v > 0.0);
    let (low, high) = values.fold((f64::MAX, 0f64), |(low, high), v| (low.min(v), high.max(v)));
    match high > low * RANGE {
        true => axis(&format!("{name}, logarithmic"), ScaleKind::Decades, Quantity::Figure),
        false => axis(name, ScaleKind::Even, Quantity::Figure),
    }
}

/// A table as plots, if its rows or columns are block sizes, with a few lines in each.
pub fn of_table(table: &ResultTable) -> Vec<CaptionedChart> {
    if !are_sizes(table.rows.iter().map(|row| &row.0)) && are_sizes(&table.columns) {
        return of_rows(&turned(table));
    }
    of_rows(table)
}

fn are_sizes<'a>(heads: impl IntoIterator<Item = &'a String>) -> bool {
    let read: Vec<Option<u64>> = heads.into_iter().map(|head| read_size(head)).collect();
    read.len() > 2 && read.iter().all(Option::is_some)
}

/// The table with rows and columns exchanged.
fn turned(table: &ResultTable) -> ResultTable {
    let row = |(at, head): (usize, &String)| {
        let cells = table.rows.iter().map(|row| row.1.get(at).copied().unwrap_or_default());
        (head.clone(), cells.collect())
    };
    ResultTable {
        columns: table.rows.iter().map(|row| row.0.clone()).collect(),
        rows: table.columns.iter().enumerate().map(row).collect(),
        ..table.clone()
    }
}

fn of_rows(table: &ResultTable) -> Vec<CaptionedChart> {
    if !are_sizes(table.rows.iter().map(|row| &row.0)) {
        return Vec::new();
    }
    let place = |row: &(String, Vec<TableCell>)| Some((read_size(&row.0)? as f64, head(&row.0)));
    let heads: Vec<(f64, String)> = table.rows.iter().filter_map(place).collect();
    // Deviations are much smaller than the averages that they belong to: they have plots of their own.
    let (spreads, figures): (Vec<usize>, Vec<usize>) =
        (0..table.columns.len()).partition(|at| table.is_spread(&table.columns[*at]));
    let each = |columns: &[usize]| columns.len().div_ceil(columns.len().div_ceil(4).max(1)).max(1);
    let groups: Vec<&[usize]> =
        [&figures, &spreads].into_iter().flat_map(|columns| columns.chunks(each(columns))).collect();
    let of = |(n, group): (usize, &&[usize])| of_columns(table, &heads, group, (n, groups.len()));
    groups.iter().enumerate().filter_map(of).collect()
}

/// The unit of block sizes: a table may name it in its title and have bare figures.
fn size_axis(table: &ResultTable) -> &'static str {
    let is_bare = |row: &(String, Vec<TableCell>)| row.0.parse::<u64>().is_ok_and(|figure| figure < 512);
    match table.title.contains("KiB") && table.rows.iter().any(is_bare) {
        true => "block size, KiB",
        false => "block size",
    }
}

/// A row heading as a tick label.
fn head(text: &str) -> String {
    match text.parse::<u64>() {
        Ok(bytes) if bytes >= 512 => figures::size(bytes as f64),
        _ => text.trim().to_owned(),
    }
}

fn of_columns(
    table: &ResultTable,
    heads: &[(f64, String)],
    columns: &[usize],
    (part, parts): (usize, usize),
) -> Option<CaptionedChart> {
    type CellField = (&'static str, fn(&TableCell) -> Option<f64>);
    let kinds: [CellField; 2] = [("measured", |cell| cell.measured), ("published", |cell| cell.published)];
    let line = |at: usize, (kind, figure): CellField| {
        let value = |row: &(String, Vec<TableCell>)| row.1.get(at).and_then(figure);
        let points = heads.iter().zip(&table.rows).filter_map(|(head, row)| Some((head.0, value(row)?)));
        let mut points: Vec<(f64, f64)> = points.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let name = &table.columns[at];
        let label = if name.is_empty() { kind.to_owned() } else { format!("{name}, {kind}") };
        PlotLine { label, colour: at - columns[0], is_faint: kind == "published", has_marks: true, points }
    };
    let lines = columns.iter().flat_map(|at| kinds.map(|kind| line(*at, kind)));
    let lines: Vec<PlotLine> = lines.filter(|line| line.points.len() > 1).collect();
    let is_published = lines.iter().any(|line| line.is_faint);
    let mut heads = heads.to_vec();
    heads.sort_by(|a, b| a.0.total_cmp(&b.0));
    let of = if parts > 1 { format!(" ({} of {parts})", part + 1) } else { String::new() };
    let is_spread = table.is_spread(&table.columns[columns[0]]);
    let what = if is_spread { ", standard deviations" } else { "" };
    let chart = Chart {
        title: format!("{}{what}{of}", table.title),
        about: format!("{} by block size; the values are in the table", table.unit),
        x: axis(size_axis(table), ScaleKind::Sizes(heads), Quantity::Figure),
        y: suited(&table.unit, &lines),
        lines,
        size: LARGE,
    };
    let legend = if is_published { " Solid: measured here; dashed: published." } else { "" };
    let caption = format!("{}.{legend}", chart.title);
    (!chart.lines.is_empty()).then_some(CaptionedChart { chart, caption })
}

/// Throughput by block size.
pub fn throughput(sweeps: &[Sweep]) -> Vec<CaptionedChart> {
    let line = |(n, sweep): (usize, &Sweep)| {
        let points = sweep.points.iter().map(|p| (p.bytes as f64, p.rate / 1e6)).collect();
        PlotLine { label: sweep.name.clone(), colour: n, is_faint: false, has_marks: true, points }
    };
    let figure = |sweeps: &[Sweep]| {
        let lines: Vec<PlotLine> = sweeps.iter().enumerate().map(line).collect();
        let chart = Chart {
            title: "Throughput by block size".into(),
            about: "Megabytes a second over the size of commands; the values are in the table of runs".into(),
            x: sizes(),
            y: suited("MB/s", &lines),
            lines,
            size: LARGE,
        };
        let caption = format!("Throughput by block size{}.", repeated(sweeps));
        CaptionedChart { chart, caption }
    };
    sweeps.chunks(COLOURS).map(figure).collect()
}

fn repeated(sweeps: &[Sweep]) -> &'static str {
    let is_repeated = sweeps.iter().flat_map(|sweep| &sweep.points).any(|point| point.runs.len() > 1);
    if is_repeated { "; means of the runs of a size" } else { "" }
}

/// Latency by block size: mean and 99 percent.
pub fn latency(sweeps: &[Sweep]) -> Vec<CaptionedChart> {
    let line = |n: usize, sweep: &Sweep, is_p99: bool| {
        let value = |point: &SweepPoint| if is_p99 { point.p99_ns } else { Some(point.mean_ns) };
        let points =
            sweep.points.iter().filter_map(|p| Some((p.bytes as f64, value(p).filter(|ns| *ns > 0.0)?)));
        let label = format!("{}, {}", sweep.name, if is_p99 { "p99" } else { "mean" });
        PlotLine { label, colour: n, is_faint: is_p99, has_marks: true, points: points.collect() }
    };
    let figure = |sweeps: &[Sweep]| {
        let both = |(n, sweep)| [line(n, sweep, false), line(n, sweep, true)];
        let lines: Vec<PlotLine> =
            sweeps.iter().enumerate().flat_map(both).filter(|line| line.points.len() > 1).collect();
        let chart = Chart {
            title: "Latency by block size".into(),
            about: "Total latency over the size of commands; the values are in the table of runs".into(),
            x: sizes(),
            y: axis("total latency, logarithmic", ScaleKind::Decades, Quantity::Time),
            lines,
            size: LARGE,
        };
        let caption = format!("Latency by block size{}. Solid: mean; dashed: p99.", repeated(sweeps));
        (!chart.lines.is_empty()).then_some(CaptionedChart { chart, caption })
    };
    sweeps.chunks(COLOURS / 2).filter_map(figure).collect()
}

/// Percentiles of latency: a plot for each sweep, and plots of a few of the other runs.
pub fn percentiles(runs: &[&JobRun], sweeps: &[Sweep]) -> Vec<CaptionedChart> {
    let mut figures: Vec<CaptionedChart> = sweeps.iter().filter_map(percentiles_of_sweep).collect();
    let is_in = |run: &JobRun| {
        sweeps.iter().flat_map(|s| &s.points).flat_map(|p| &p.runs).any(|of| std::ptr::eq(of.0, run))
    };
    let rest: Vec<PlotLine> = runs.iter().filter(|run| !is_in(run)).flat_map(|run| curves(run)).collect();
    for lines in rest.chunks(COLOURS) {
        let lines: Vec<PlotLine> =
            lines.iter().enumerate().map(|(n, line)| PlotLine { colour: n, ..line.clone() }).collect();
        figures.push(percentile_figure("Percentiles of latency".into(), lines));
    }
    figures
}

fn curves(run: &JobRun) -> Vec<PlotLine> {
    let curve = |(direction, totals): (&'static str, &crate::outcome::DirectionTotals)| {
        let total = PlotLine { label: title(run, direction), ..curve(&totals.total) };
        let is_paced = !totals.submit.histogram.is_empty();
        let service =
            PlotLine { label: format!("{}, service", title(run, direction)), ..curve(&totals.service) };
        [total].into_iter().chain(is_paced.then_some(service))
    };
    directions(&run.outcome).flat_map(curve).filter(|line| line.points.len() > 1).collect()
}

fn percentiles_of_sweep(sweep: &Sweep) -> Option<CaptionedChart> {
    let many = sweep.points.len();
    let shown = many.min(CURVES);
    let points: Vec<&SweepPoint> =
        (0..shown).map(|n| &sweep.points[n * (many - 1) / (shown - 1).max(1)]).collect();
    let line = |(n, point): (usize, &&SweepPoint)| {
        let label = figures::size(point.bytes as f64);
        Some(PlotLine { label, colour: n, ..curve(&point.runs.first()?.2.total) })
    };
    let lines: Vec<PlotLine> =
        points.iter().enumerate().filter_map(line).filter(|line| line.points.len() > 1).collect();
    let some = if shown < many { format!("; {shown} of {many} block sizes") } else { String::new() };
    let name = format!("Percentiles of latency, {}{some}", sweep.name);
    (!lines.is_empty()).then(|| percentile_figure(name, lines))
}

fn percentile_figure(title: String, lines: Vec<PlotLine>) -> CaptionedChart {
    let caption = format!(
        "{title}. The horizontal axis shows the percentage of commands that took no longer; each nine has the same width."
    );
    let chart = Chart {
        title,
        about: "Latency over the percentage of commands that took no longer".into(),
        x: axis("percent of commands", ScaleKind::Nines, Quantity::Figure),
        y: axis("total latency, logarithmic", ScaleKind::Decades, Quantity::Time),
        lines,
        size: LARGE,
    };
    CaptionedChart { chart, caption }
}

/// A distribution as a curve: the percentiles of the table, and as much of the rest as can be seen, up to the
/// second slowest command.
fn curve(latency: &Latency) -> PlotLine {
    let count = latency.count() as f64;
    let listed = PERCENTILES.iter().filter_map(|percent| Some((*percent, of_percentile(latency, *percent)?)));
    let mut points: Vec<(f64, f64)> = listed.filter(|point| point.1 > 0.0).collect();
    let (mut below, mut drawn) = (0f64, -1.0);
    let step = count.max(10.0).log10() / POINTS as f64;
    for (ns, many) in &latency.histogram {
        below += *many as f64;
        let nines = -(1.0 - below / count.max(1.0)).log10();
        if below < count && nines - drawn >= step && *ns > 0 {
            points.push((100.0 * below / count, *ns as f64));
            drawn = nines;
        }
    }
    if latency.histogram.is_empty() {
        points = latency.percentiles.iter().filter(|p| p.0 < 100.0).map(|p| (p.0, p.1 as f64)).collect();
    }
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    PlotLine { label: String::new(), colour: 0, is_faint: false, has_marks: false, points }
}

/// Throughput and latency over time, and their points; None if there are too few.
pub fn over_time(run: &JobRun) -> Option<(Chart, Chart, Vec<SeriesPoint>)> {
    let moments = moments(&run.outcome.series, POINTS);
    (moments.len() > 2).then(|| (rates(run, &moments), latencies(run, &moments), moments))
}

fn along(
    moments: &[SeriesPoint],
    label: &str,
    colour: usize,
    value: impl Fn(&SeriesPoint) -> f64,
) -> PlotLine {
    let points = moments.iter().map(|moment| (moment.middle_s, value(moment))).collect();
    PlotLine { label: label.into(), colour, is_faint: false, has_marks: false, points }
}

fn rates(run: &JobRun, moments: &[SeriesPoint]) -> Chart {
    let both = [along(moments, "read", 0, |m| m.read / 1e6), along(moments, "write", 1, |m| m.write / 1e6)];
    let names: Vec<&str> = directions(&run.outcome).map(|direction| direction.0).collect();
    Chart {
        title: format!("Throughput over time: {}", run.label),
        about: "Megabytes a second in each step; the values are in the table below".into(),
        x: axis("seconds", ScaleKind::Even, Quantity::Figure),
        y: axis("MB/s", ScaleKind::Even, Quantity::Figure),
        lines: both.into_iter().filter(|line| names.contains(&line.label.as_str())).collect(),
        size: SMALL,
    }
}

fn latencies(run: &JobRun, moments: &[SeriesPoint]) -> Chart {
    let busy: Vec<SeriesPoint> = moments.iter().filter(|moment| moment.iops > 0.0).copied().collect();
    let longest = PlotLine { is_faint: true, ..along(&busy, "longest", 2, |m| m.max_ns as f64) };
    Chart {
        title: format!("Latency over time: {}", run.label),
        about: "Mean and longest total latency in each step; the values are in the table below".into(),
        x: axis("seconds", ScaleKind::Even, Quantity::Figure),
        y: axis("total latency, logarithmic", ScaleKind::Decades, Quantity::Time),
        lines: vec![along(&busy, "mean", 2, |m| m.mean_ns), longest],
        size: SMALL,
    }
}

/// The runs whose time series are shown: all, or some evenly spaced ones.
pub fn with_series<'a>(runs: &[&'a JobRun], many: usize) -> (Vec<&'a JobRun>, usize) {
    let has = |series: &[SeriesStep]| moments(series, POINTS).len() > 2;
    let there: Vec<&JobRun> = runs.iter().filter(|run| has(&run.outcome.series)).copied().collect();
    let shown = there.len().min(many);
    let pick = |n: usize| there[n * (there.len() - 1) / (shown - 1).max(1)];
    ((0..shown).map(pick).collect(), there.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn curve_reaches_the_last_percentile_of_the_table() {
        for ios in [12, 1000, 300_000, 90_000_000] {
            let latency = sample::latency(1e5, ios);
            let points = curve(&latency).points;
            for percent in PERCENTILES {
                let ns = of_percentile(&latency, percent).expect("a value in the table");
                assert!(points.contains(&(percent, ns)), "p{percent} of {ios} commands: {points:?}");
            }
            assert!(points.last().is_some_and(|last| last.0 >= 99.999), "{ios} commands: {points:?}");
            assert!(points.windows(2).all(|two| two[0].0 <= two[1].0 && two[0].1 <= two[1].1), "{points:?}");
        }
    }

    #[test]
    fn deviations_have_axes_of_their_own() {
        let cell = |figure: f64| TableCell::new(Some(figure), Some(figure * 1.1));
        let row = |size: &str| (size.to_owned(), [1000.0, 0.5, 2000.0, 0.7].map(cell).to_vec());
        let table = ResultTable {
            title: "rates".into(),
            unit: "MiB/s".into(),
            larger_is_better: true,
            columns: ["W(avg", "W(std", "R(avg", "R(std"].map(String::from).to_vec(),
            rows: ["4096", "8192", "16384"].map(row).to_vec(),
        };
        let plots = of_table(&table);
        let labels: Vec<Vec<&str>> = plots
            .iter()
            .map(|plot| plot.chart.lines.iter().step_by(2).map(|line| line.label.as_str()).collect())
            .collect();
        let expected = [["W(avg, measured", "R(avg, measured"], ["W(std, measured", "R(std, measured"]];
        assert_eq!(labels, expected);
        assert_eq!(plots[1].chart.title, "rates, standard deviations (2 of 2)");
        assert!(plots.iter().all(|plot| plot.chart.y.division == ScaleKind::Even), "no wide range");
    }
}

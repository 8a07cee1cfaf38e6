//! The tables of the page.

use super::figures::{escape, percentile, short, time, whole};
use crate::document::{JobRun, ResultTable, SummaryTable, TableCell};
use crate::outcome::{DirectionTotals, JobOutcome, Latency};

/// The percentiles with a column.
pub const PERCENTILES: [f64; 6] = [50.0, 90.0, 99.0, 99.9, 99.99, 99.999];
/// A ratio that differs from one by more than this is coloured.
const NOTABLE: f64 = 0.05;

/// A table: caption and headings are text, cells are markup.
fn table(caption: &str, heads: &[&str], rows: Vec<Vec<String>>) -> String {
    let heads: String = heads.iter().map(|head| format!("<th scope=\"col\">{}</th>", escape(head))).collect();
    let body: String = rows.into_iter().map(row).collect();
    framed(caption, &format!("<thead><tr>{heads}</tr></thead><tbody>\n{body}</tbody>"))
}

/// A table in a frame that scrolls sideways, with the keyboard as well, and shows when there is more.
fn framed(caption: &str, content: &str) -> String {
    let caption = escape(caption);
    format!(
        "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\"><table><caption><span>{caption} \
         <b class=\"cue\">Scroll sideways to see all columns.</b></span></caption>{content}</table></div>\n"
    )
}

/// The most important figures of an experiment, of all targets side by side.
pub fn summary(summary: &SummaryTable) -> String {
    let mut heads = vec!["", "unit", "published"];
    heads.extend(summary.targets.iter().map(String::as_str));
    let rows = summary.rows.iter().map(|line| {
        let figure = |figure: Option<f64>| figure.map_or("–".into(), short);
        let measured = line.measured.iter().map(|measured| {
            let ratio = TableCell::new(line.published, *measured).ratio;
            let ratio = ratio.map(|ratio| {
                let class = judged(line.larger_is_better, Some(ratio));
                format!(" <small class=\"ratio{class}\">×{}</small>", short(ratio))
            });
            figure(*measured) + &ratio.unwrap_or_default()
        });
        let published = format!("<span class=\"published\">{}</span>", figure(line.published));
        let better = if line.larger_is_better { "" } else { ", smaller is better" };
        let head = [escape(&line.what), escape(&format!("{}{better}", line.unit)), published];
        head.into_iter().chain(measured).collect()
    });
    table(
        "Published figures, and those measured here with their ratio to the published ones.",
        &heads,
        rows.collect(),
    )
}

fn row(cells: Vec<String>) -> String {
    let mut cells = cells.into_iter();
    let head = cells.next().unwrap_or_default();
    let rest: String = cells.map(|cell| format!("<td>{cell}</td>")).collect();
    format!("<tr><th scope=\"row\">{head}</th>{rest}</tr>\n")
}

/// The directions of a run that have commands.
pub fn directions(outcome: &JobOutcome) -> impl Iterator<Item = (&'static str, &DirectionTotals)> {
    [("read", &outcome.read), ("write", &outcome.write)].into_iter().filter(|(_, totals)| totals.ios > 0)
}

/// Published and measured figures, in groups of columns: published, measured, ratio.
pub fn published(table: &ResultTable) -> String {
    let has = |figure: fn(&TableCell) -> Option<f64>| {
        table.rows.iter().flat_map(|row| &row.1).any(|cell| figure(cell).is_some())
    };
    type CellField = (&'static str, fn(&TableCell) -> Option<f64>);
    let groups: [CellField; 3] = [
        ("published", |cell| cell.published),
        ("measured here", |cell| cell.measured),
        ("ratio", |cell| cell.ratio),
    ];
    let groups: Vec<CellField> = groups.into_iter().filter(|group| has(group.1)).collect();
    let columns = table.columns.len();
    let over: String = groups
        .iter()
        .map(|group| {
            format!(
                "<th class=\"group first\" scope=\"colgroup\" colspan=\"{}\">{}</th>",
                columns.max(1),
                group.0
            )
        })
        .collect();
    let heads: String = groups.iter().map(|_| heads(&table.columns)).collect();
    let mut body = String::new();
    for (head, cells) in &table.rows {
        body += &format!("<tr><th scope=\"row\">{}</th>", escape(head));
        for (name, figure) in &groups {
            body.extend((0..columns).map(|at| cell_of(table, name, cells.get(at).and_then(figure), at)));
        }
        body += "</tr>\n";
    }
    framed(
        &format!("{}. {}.", table.unit, better(table)),
        &format!("<thead><tr><td></td>{over}</tr><tr><th></th>{heads}</tr></thead><tbody>\n{body}</tbody>"),
    )
}

fn better(table: &ResultTable) -> &'static str {
    if table.larger_is_better { "Larger is better" } else { "Smaller is better" }
}

fn heads(columns: &[String]) -> String {
    let head = |(at, column): (usize, &String)| {
        format!("<th scope=\"col\"{}>{}</th>", if at == 0 { " class=\"first\"" } else { "" }, escape(column))
    };
    columns.iter().enumerate().map(head).collect()
}

fn cell_of(table: &ResultTable, group: &str, figure: Option<f64>, at: usize) -> String {
    let is_spread = table.columns.get(at).is_some_and(|column| table.is_spread(column));
    let mut class = match group {
        "published" => "published".to_owned(),
        "ratio" => format!("ratio{}", judged(table.larger_is_better, figure.filter(|_| !is_spread))),
        _ => String::new(),
    };
    if at == 0 {
        class += " first";
    }
    format!("<td class=\"{}\">{}</td>", class.trim(), figure.map_or("–".into(), short))
}

fn judged(larger_is_better: bool, ratio: Option<f64>) -> &'static str {
    let Some(gain) = ratio.map(|ratio| if larger_is_better { ratio - 1.0 } else { 1.0 - ratio }) else {
        return "";
    };
    match gain {
        gain if gain > NOTABLE => " better",
        gain if gain < -NOTABLE => " worse",
        _ => "",
    }
}

/// The results of each run, with a row for each direction. Columns without values are omitted.
pub fn runs(runs: &[&JobRun]) -> String {
    const HEADS: [&str; 11] =
        ["run", "IOPS", "MB/s", "MiB/s", "mean", "p50", "p99", "max", "CPU/IO", "target CPU/IO", "errors"];
    let is_shown = |head: &str| match head {
        "target CPU/IO" => runs.iter().any(|run| run.outcome.cpu.target_s.is_some()),
        "errors" => runs.iter().any(|run| run.outcome.errors > 0),
        _ => true,
    };
    let heads: Vec<&str> = HEADS.into_iter().filter(|head| is_shown(head)).collect();
    let shown_cells = |row: [String; 11]| {
        row.into_iter()
            .zip(HEADS)
            .filter(|(_, head)| is_shown(head))
            .map(|(cell, _)| cell)
            .collect::<Vec<_>>()
    };
    let rows = runs
        .iter()
        .flat_map(|run| directions(&run.outcome).map(|direction| shown_cells(row_of(run, direction))));
    let caption = "MB/s is 10⁶ bytes a second, MiB/s 2²⁰. Latency is total: from the moment a command was due until \
                   its end. CPU time is that of the process, shared out among all commands of the run.";
    table(caption, &heads, rows.collect())
}

fn row_of(run: &JobRun, (direction, totals): (&str, &DirectionTotals)) -> [String; 11] {
    let outcome = &run.outcome;
    let rate = totals.rate(outcome.elapsed_s);
    let each = |seconds: f64| time(seconds * 1e9 / outcome.ios().max(1) as f64);
    let at = |percent| of_percentile(&totals.total, percent).map_or("–".into(), time);
    [
        name(run, direction),
        whole(totals.iops(outcome.elapsed_s)),
        short(rate / 1e6),
        short(rate / 1048576.0),
        time(totals.total.mean_ns),
        at(50.0),
        at(99.0),
        time(totals.total.max_ns as f64),
        each(outcome.cpu.client_s),
        outcome.cpu.target_s.map_or("–".into(), each),
        whole(outcome.errors as f64),
    ]
}

/// The label of a run as markup, with the direction if there are two.
fn name(run: &JobRun, direction: &str) -> String {
    escape(&title(run, direction))
}

/// The label of a run, with the direction if there are two.
pub fn title(run: &JobRun, direction: &str) -> String {
    match directions(&run.outcome).count() {
        0 | 1 => run.label.clone(),
        _ => format!("{}, {direction}", run.label),
    }
}

/// A listed percentile, or one from the histogram, in nanoseconds.
pub fn of_percentile(latency: &Latency, percent: f64) -> Option<f64> {
    let listed = latency.percentiles.iter().find(|p| p.0 == percent).map(|p| p.1 as f64);
    listed.or_else(|| latency.quantile(percent / 100.0).map(|ns| ns as f64))
}

/// Percentiles of each run and direction.
pub fn percentiles(runs: &[&JobRun]) -> String {
    let heads: Vec<String> = PERCENTILES.iter().map(|p| percentile(*p)).collect();
    let mut names = vec!["run"];
    names.extend(heads.iter().map(String::as_str));
    names.push("max");
    let row = |run: &JobRun, direction: &str, totals: &DirectionTotals| {
        let figures = PERCENTILES.iter().map(|p| of_percentile(&totals.total, *p).map_or("–".into(), time));
        let max = time(totals.total.max_ns as f64);
        [name(run, direction)].into_iter().chain(figures).chain([max]).collect()
    };
    let each = runs
        .iter()
        .flat_map(|run| directions(&run.outcome).map(move |(name, totals)| row(run, name, totals)));
    table("Total latency.", &names, each.collect())
}

/// The time series.
pub fn steps(steps: &[super::series::SeriesPoint]) -> String {
    let heads = ["until", "read MB/s", "write MB/s", "IOPS", "mean latency", "longest"];
    let row = |step: &super::series::SeriesPoint| {
        vec![
            format!("{:.2}\u{a0}s", step.until_s),
            short(step.read / 1e6),
            short(step.write / 1e6),
            whole(step.iops),
            time(step.mean_ns),
            time(step.max_ns as f64),
        ]
    };
    table("Rates of each interval; MB/s is 10⁶ bytes a second.", &heads, steps.iter().map(row).collect())
}

//! A plot as SVG: lines over two axes, with a label at the end of each line, or with a legend.

use super::figures::{escape, wrapped};
use super::labels::{self, LineEnd, class};
use super::scale::{Quantity, Scale, ScaleKind};
use std::fmt::Write;

/// The number of colours and marks in the style sheet.
pub const COLOURS: usize = 6;
/// The approximate width of a character in pixels.
const CHARACTER: f64 = 6.1;
/// The space right of the last tick label in pixels.
const EDGE: f64 = 24.0;
/// The space above the plot area for the name of an axis, and below it for ticks and the other name.
const ABOVE: f64 = 22.0;
const BELOW: f64 = 38.0;
/// The width of a plot for narrow screens, and its height without the legend.
const NARROW: (f64, f64) = (360.0, 250.0);

/// The layout of a plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChartLayout {
    /// Its own size, with labels right of the lines.
    Broad,
    /// The width of a telephone, with a legend below.
    Narrow,
}

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Its name, with the unit.
    pub name: String,
    /// How it is divided.
    pub division: ScaleKind,
    /// The type of its values.
    pub quantity: Quantity,
}

/// A line.
#[derive(Clone, Debug)]
pub struct PlotLine {
    /// Its label.
    pub label: String,
    /// The index of its colour and mark.
    pub colour: usize,
    /// Drawn faintly: published figures, or a second percentile.
    pub is_faint: bool,
    /// Points have a mark that shows its values under the pointer.
    pub has_marks: bool,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// A plot.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Its title, for screen readers.
    pub title: String,
    /// A longer description.
    pub about: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The lines.
    pub lines: Vec<PlotLine>,
    /// Width and height in pixels.
    pub size: (f64, f64),
}

/// The pixels inside the axes.
pub struct PlotArea {
    /// The horizontal axis begins.
    pub left: f64,
    /// It ends.
    pub right: f64,
    /// The vertical axis ends.
    pub top: f64,
    /// It begins.
    pub bottom: f64,
}

/// The SVG element; `id` makes its element ids unique in the page.
pub fn svg(chart: &Chart, id: usize, layout: ChartLayout) -> String {
    let is_labelled = chart.lines.len() > 1;
    let is_beside = is_labelled && layout == ChartLayout::Broad;
    let (width, over) = match layout {
        ChartLayout::Broad if is_beside => {
            (chart.size.0, chart.size.1.max(labels::height(&chart.lines) + ABOVE + BELOW))
        }
        ChartLayout::Broad => chart.size,
        ChartLayout::Narrow => NARROW,
    };
    let legend = if is_labelled && !is_beside { labels::legend_height(&chart.lines) } else { 0.0 };
    let height = over + legend;
    let (x, y, frame) = scales(chart, (width, over), is_beside);
    let name = if layout == ChartLayout::Broad { "broad" } else { "narrow" };
    let mut out = format!(
        "<svg class=\"{name}\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" \
         aria-labelledby=\"plot{id}t plot{id}d\"><title id=\"plot{id}t\">{}</title><desc id=\"plot{id}d\">{}</desc>\n",
        escape(&chart.title),
        escape(&chart.about)
    );
    draw_axes(&mut out, chart, &frame, &x, &y);
    let ends: Vec<LineEnd> =
        chart.lines.iter().filter_map(|line| draw_line(&mut out, line, chart, &x, &y)).collect();
    match (is_labelled, is_beside) {
        (true, true) => labels::draw_at_ends(&mut out, &frame, ends),
        (true, false) => labels::draw_legend(&mut out, over, ends),
        (false, _) => {}
    }
    out += "</svg>\n";
    out
}

/// The axes of a plot of this size, and the pixels between them.
fn scales(chart: &Chart, (width, height): (f64, f64), is_beside: bool) -> (Scale, Scale, PlotArea) {
    let points = || chart.lines.iter().flat_map(|line| line.points.iter());
    let (top, bottom) = (ABOVE, height - BELOW);
    let y_axis = &chart.y;
    let y = Scale::new(y_axis.division.clone(), y_axis.quantity, points().map(|p| p.1), (bottom, top + 4.0));
    let widest = y.ticks().iter().map(|tick| tick.1.chars().count()).max().unwrap_or(1);
    let room = if is_beside { labels::longest(&chart.lines) as f64 * CHARACTER + 26.0 } else { EDGE };
    let left = (widest as f64 * CHARACTER + 12.0).max(30.0);
    let frame = PlotArea { left, right: width - room, top, bottom };
    let range = (frame.left, frame.right);
    let x = Scale::new(chart.x.division.clone(), chart.x.quantity, points().map(|p| p.0), range);
    (x, y, frame)
}

fn draw_axes(out: &mut String, chart: &Chart, frame: &PlotArea, x: &Scale, y: &Scale) {
    let PlotArea { left, right, top, bottom } = *frame;
    for (at, text) in y.ticks() {
        let _ = writeln!(out, "<path class=\"grid\" d=\"M{left:.1} {at:.1}H{right:.1}\"/>");
        let _ = writeln!(
            out,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 7.0,
            at + 3.8,
            escape(&text)
        );
    }
    let _ = writeln!(out, "<path class=\"axis\" d=\"M{left:.1} {bottom:.1}H{right:.1}\"/>");
    let ticks = x.ticks();
    let every = thinned(&ticks);
    for (n, (at, text)) in ticks.iter().enumerate() {
        let _ = writeln!(out, "<path class=\"axis\" d=\"M{at:.1} {bottom:.1}v4\"/>");
        if n.is_multiple_of(every) {
            let _ = writeln!(
                out,
                "<text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                escape(text)
            );
        }
    }
    let _ = writeln!(
        out,
        "<text class=\"name\" x=\"0\" y=\"{:.1}\">{}</text>",
        top - 10.0,
        escape(&short_name(&chart.y.name, right))
    );
    let _ = writeln!(
        out,
        "<text class=\"name\" x=\"{right:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        bottom + 32.0,
        escape(&short_name(&chart.x.name, right))
    );
}

/// The words of a name that fit into this width.
fn short_name(name: &str, width: f64) -> String {
    let rows = wrapped(name, (width / CHARACTER) as usize);
    let first = rows.first().cloned().unwrap_or_default();
    if rows.len() > 1 { first + " …" } else { first }
}

/// Every how many ticks a label fits.
fn thinned(ticks: &[(f64, String)]) -> usize {
    let half = |tick: &(f64, String)| tick.1.chars().count() as f64 * CHARACTER / 2.0;
    let fits = |every: usize| {
        let named: Vec<_> = ticks.iter().step_by(every).collect();
        named.windows(2).all(|pair| (pair[1].0 - pair[0].0).abs() >= half(pair[0]) + half(pair[1]) + 6.0)
    };
    (1..=ticks.len()).find(|every| fits(*every)).unwrap_or(1)
}

/// Draws a line and its marks; returns its end.
fn draw_line<'a>(
    out: &mut String,
    line: &'a PlotLine,
    chart: &Chart,
    x: &Scale,
    y: &Scale,
) -> Option<LineEnd<'a>> {
    let places: Vec<(f64, f64, &(f64, f64))> =
        line.points.iter().filter_map(|point| Some((x.place(point.0)?, y.place(point.1)?, point))).collect();
    let (last_x, last_y, _) = places.last()?;
    let path: Vec<String> = places.iter().map(|(px, py, _)| format!("{px:.1} {py:.1}")).collect();
    let class = class(line);
    let _ = writeln!(out, "<path class=\"line {class}\" d=\"M{}\"/>", path.join("L"));
    if line.has_marks {
        for (px, py, point) in &places {
            let value_text = format!(
                "{}: {}, {}",
                line.label,
                value_text(&chart.x, point.0),
                value_text(&chart.y, point.1)
            );
            let _ = writeln!(
                out,
                "<path class=\"mark {class}\" d=\"{}\"><title>{}</title></path>",
                mark(line.colour, *px, *py),
                escape(&value_text)
            );
        }
    }
    Some((line, *last_x, *last_y))
}

/// A value as text.
fn value_text(axis: &Axis, value: f64) -> String {
    match (&axis.division, axis.quantity) {
        (ScaleKind::Sizes(heads), _) => {
            let head = heads.iter().find(|head| head.0 == value);
            head.map_or_else(|| super::figures::size(value), |head| head.1.clone())
        }
        (ScaleKind::Nines, _) => super::figures::percentile(value),
        (_, Quantity::Time) => super::figures::time(value),
        (_, Quantity::Figure) => format!("{} {}", super::figures::short(value), axis.name),
    }
}

/// The outline of a mark. Marks differ in shape as well as in colour.
pub fn mark(colour: usize, x: f64, y: f64) -> String {
    match colour % COLOURS {
        0 => format!("M{:.1} {y:.1}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0Z", x - 3.0),
        1 => format!("M{:.1} {:.1}h5.4v5.4h-5.4Z", x - 2.7, y - 2.7),
        2 => format!("M{x:.1} {:.1}l3.5 6h-7Z", y - 3.8),
        3 => format!("M{x:.1} {:.1}l3.7 3.7l-3.7 3.7l-3.7 -3.7Z", y - 3.7),
        4 => format!("M{x:.1} {:.1}l3.5 -6h-7Z", y + 3.8),
        _ => format!("M{:.1} {:.1}h6.6v3h-6.6Z", x - 3.3, y - 1.5),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plot_has_escaped_title_and_description() {
        let axis =
            |name: &str| Axis { name: name.into(), division: ScaleKind::Even, quantity: Quantity::Figure };
        let line = |label: &str| PlotLine {
            label: label.into(),
            colour: 0,
            is_faint: false,
            has_marks: true,
            points: vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0)],
        };
        let chart = Chart {
            title: "T<".into(),
            about: "D&".into(),
            x: axis("s"),
            y: axis("MB/s"),
            lines: vec![line("<script>"), line("b")],
            size: (400.0, 200.0),
        };
        let svg = svg(&chart, 7, ChartLayout::Broad);
        assert!(svg.contains("<title id=\"plot7t\">T&lt;</title><desc id=\"plot7d\">D&amp;</desc>"));
        assert!(!svg.contains("<script>") && !svg.contains("NaN"), "{svg}");
        assert_eq!(svg.matches("class=\"mark c0\"").count(), 4, "{svg}");
    }
    #[test]
    fn narrow_plot_has_its_labels_below() {
        let axis =
            |name: &str| Axis { name: name.into(), division: ScaleKind::Even, quantity: Quantity::Figure };
        let line = |label: &str, colour| PlotLine {
            label: label.into(),
            colour,
            is_faint: false,
            has_marks: true,
            points: vec![(0.0, 1.0), (2.0, 3.0)],
        };
        let label = "a label of several words that needs more than one row beside its line";
        let chart = Chart {
            title: "T".into(),
            about: "D".into(),
            x: axis("s"),
            y: axis("MB/s"),
            lines: vec![line(label, 0), line("b", 1)],
            size: (800.0, 320.0),
        };
        let broad = svg(&chart, 1, ChartLayout::Broad);
        assert!(broad.contains("viewBox=\"0 0 800 320\""), "{broad}");
        for row in ["a label of several words that", "needs more than one row beside its", "line"] {
            assert!(broad.contains(&format!(">{row}</tspan>")), "{broad}");
        }
        let narrow = svg(&chart, 2, ChartLayout::Narrow);
        assert!(narrow.contains("class=\"narrow\" viewBox=\"0 0 360 298\""), "{narrow}");
        assert!(narrow.contains("x=\"32.0\" y=\"291.8\">b</text>"), "{narrow}");
        let many = Chart { lines: vec![line(label, 0); 9], ..chart };
        assert!(svg(&many, 3, ChartLayout::Broad).contains("viewBox=\"0 0 800 438\""), "labels need room");
    }
}

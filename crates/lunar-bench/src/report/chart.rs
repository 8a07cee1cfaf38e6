//! A plot as SVG: lines over two axes, with a label at the end of each line.

use super::figures::{cut, escape};
use super::scale::{Quantity, Scale, ScaleKind};
use std::fmt::Write;

/// The number of colours and marks in the style sheet.
pub const COLOURS: usize = 6;
/// The approximate width of a character in pixels.
const CHARACTER: f64 = 6.1;
/// The distance between the base lines of two labels in pixels.
const LEADING: f64 = 14.0;
/// The space right of the last tick label in pixels.
const EDGE: f64 = 24.0;
/// The maximum length of a label in characters.
const LABEL: usize = 34;

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
struct PlotArea {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// The SVG element; `id` makes its element ids unique in the page.
pub fn svg(chart: &Chart, id: usize) -> String {
    let (width, height) = chart.size;
    let points = || chart.lines.iter().flat_map(|line| line.points.iter());
    let (top, bottom) = (22.0, height - 38.0);
    let y_axis = &chart.y;
    let y = Scale::new(y_axis.division.clone(), y_axis.quantity, points().map(|p| p.1), (bottom, top + 4.0));
    let widest = y.ticks().iter().map(|tick| tick.1.chars().count()).max().unwrap_or(1);
    let labels = if chart.lines.len() > 1 { label_width(chart) } else { EDGE };
    let left = (widest as f64 * CHARACTER + 12.0).max(30.0);
    let frame = PlotArea { left, right: width - labels, top, bottom };
    let x_axis = &chart.x;
    let range = (frame.left, frame.right);
    let x = Scale::new(x_axis.division.clone(), x_axis.quantity, points().map(|p| p.0), range);
    let mut out = format!(
        "<svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" \
         aria-labelledby=\"plot{id}t plot{id}d\"><title id=\"plot{id}t\">{}</title><desc id=\"plot{id}d\">{}</desc>\n",
        escape(&chart.title),
        escape(&chart.about)
    );
    draw_axes(&mut out, chart, &frame, &x, &y);
    let ends: Vec<_> =
        chart.lines.iter().filter_map(|line| draw_line(&mut out, line, chart, &x, &y)).collect();
    if chart.lines.len() > 1 {
        draw_labels(&mut out, &frame, ends);
    }
    out += "</svg>\n";
    out
}

fn label_width(chart: &Chart) -> f64 {
    let longest = chart.lines.iter().map(|line| line.label.chars().count().min(LABEL)).max().unwrap_or(0);
    longest as f64 * CHARACTER + 26.0
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
                escape(&cut(text, LABEL))
            );
        }
    }
    let _ = writeln!(
        out,
        "<text class=\"name\" x=\"0\" y=\"{:.1}\">{}</text>",
        top - 10.0,
        escape(&chart.y.name)
    );
    let _ = writeln!(
        out,
        "<text class=\"name\" x=\"{right:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        bottom + 32.0,
        escape(&chart.x.name)
    );
}

/// Every how many ticks a label fits.
fn thinned(ticks: &[(f64, String)]) -> usize {
    let half = |tick: &(f64, String)| tick.1.chars().count().min(LABEL) as f64 * CHARACTER / 2.0;
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
) -> Option<(&'a PlotLine, f64, f64)> {
    let places: Vec<(f64, f64, &(f64, f64))> =
        line.points.iter().filter_map(|point| Some((x.place(point.0)?, y.place(point.1)?, point))).collect();
    let (last_x, last_y, _) = places.last()?;
    let path: Vec<String> = places.iter().map(|(px, py, _)| format!("{px:.1} {py:.1}")).collect();
    let class = format!("c{}{}", line.colour % COLOURS, if line.is_faint { " faint" } else { "" });
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
fn mark(colour: usize, x: f64, y: f64) -> String {
    match colour % COLOURS {
        0 => format!("M{:.1} {y:.1}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0Z", x - 3.0),
        1 => format!("M{:.1} {:.1}h5.4v5.4h-5.4Z", x - 2.7, y - 2.7),
        2 => format!("M{x:.1} {:.1}l3.5 6h-7Z", y - 3.8),
        3 => format!("M{x:.1} {:.1}l3.7 3.7l-3.7 3.7l-3.7 -3.7Z", y - 3.7),
        4 => format!("M{x:.1} {:.1}l3.5 -6h-7Z", y + 3.8),
        _ => format!("M{:.1} {:.1}h6.6v3h-6.6Z", x - 3.3, y - 1.5),
    }
}

/// Draws labels right of the lines, without overlap. A thin line connects a label that had to move.
fn draw_labels(out: &mut String, frame: &PlotArea, mut ends: Vec<(&PlotLine, f64, f64)>) {
    ends.sort_by(|a, b| a.2.total_cmp(&b.2));
    let wanted: Vec<f64> = ends.iter().map(|end| end.2).collect();
    let places = apart(&wanted, frame.top + 4.0, frame.bottom);
    for ((line, end_x, end_y), y) in ends.into_iter().zip(places) {
        let x = frame.right + 20.0;
        if end_x < frame.right - 4.0 || (end_y - y).abs() > 3.0 {
            let _ = writeln!(
                out,
                "<path class=\"leader\" d=\"M{:.1} {end_y:.1}L{:.1} {end_y:.1}L{:.1} {y:.1}\"/>",
                end_x + 5.0,
                frame.right.max(end_x + 5.0) + 2.0,
                x - 4.0
            );
        }
        let class = format!("c{}{}", line.colour % COLOURS, if line.is_faint { " faint" } else { "" });
        let _ = writeln!(
            out,
            "<text class=\"label {class}\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            y + 3.8,
            escape(&cut(&line.label, LABEL))
        );
    }
}

/// Moves positions apart, in order and within the frame.
fn apart(wanted: &[f64], top: f64, bottom: f64) -> Vec<f64> {
    let mut places = wanted.to_vec();
    for n in 1..places.len() {
        places[n] = places[n].max(places[n - 1] + LEADING);
    }
    let over = places.last().map_or(0.0, |last| (last - bottom).max(0.0));
    let mut limit = bottom;
    for place in places.iter_mut().rev().take_while(|_| over > 0.0) {
        *place = place.min(limit);
        limit = *place - LEADING;
    }
    let under = places.first().map_or(0.0, |first| (top - LEADING - first).max(0.0));
    places.iter().map(|place| place + under).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_labels_do_not_overlap_and_stay_in_the_frame() {
        for wanted in [vec![50.0, 51.0, 52.0], vec![99.0, 99.5, 100.0], vec![0.0, 0.0], vec![20.0, 80.0]] {
            let places = apart(&wanted, 0.0, 100.0);
            assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= LEADING - 1e-9), "{places:?}");
            assert!(places.iter().all(|place| (-LEADING..=100.0).contains(place)), "{places:?}");
        }
        assert_eq!(apart(&[20.0, 80.0], 0.0, 100.0), [20.0, 80.0], "labels with enough room stay");
    }

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
        let svg = svg(&chart, 7);
        assert!(svg.contains("<title id=\"plot7t\">T&lt;</title><desc id=\"plot7d\">D&amp;</desc>"));
        assert!(!svg.contains("<script>") && !svg.contains("NaN"), "{svg}");
        assert_eq!(svg.matches("class=\"mark c0\"").count(), 4, "{svg}");
    }
}

//! The labels of a plot: right of the ends of its lines, or as a legend below a narrow plot.

use super::chart::{COLOURS, PlotArea, PlotLine, mark};
use super::figures::{escape, wrapped};
use std::fmt::Write;

/// The distance between the base lines of two rows of labels in pixels.
pub const LEADING: f64 = 14.0;
/// The characters of a row right of the lines, and of a row of the legend.
const AT_END: usize = 34;
const IN_LEGEND: usize = 50;
/// The maximum number of rows of a label.
const ROWS: usize = 4;

/// A line, and where it ends.
pub type LineEnd<'a> = (&'a PlotLine, f64, f64);

/// The rows of a label. The end of one that is too long is replaced by an ellipsis.
fn rows(line: &PlotLine, many: usize) -> Vec<String> {
    let mut rows = wrapped(&line.label, many);
    if rows.len() > ROWS {
        rows.truncate(ROWS);
        rows[ROWS - 1] += " …";
    }
    rows
}

/// The classes of a line and of its label.
pub fn class(line: &PlotLine) -> String {
    format!("c{}{}", line.colour % COLOURS, if line.is_faint { " faint" } else { "" })
}

/// The characters of the longest row right of the lines.
pub fn longest(lines: &[PlotLine]) -> usize {
    let rows = lines.iter().flat_map(|line| rows(line, AT_END));
    rows.map(|row| row.chars().count()).max().unwrap_or(0)
}

/// The height that labels right of the lines need.
pub fn height(lines: &[PlotLine]) -> f64 {
    lines.iter().map(|line| block(rows(line, AT_END).len())).sum()
}

/// The height of a label.
fn block(rows: usize) -> f64 {
    rows.max(1) as f64 * LEADING
}

/// The height of a legend.
pub fn legend_height(lines: &[PlotLine]) -> f64 {
    lines.iter().map(|line| block(rows(line, IN_LEGEND).len()) + 3.0).sum()
}

/// Draws labels right of the lines, without overlap. A thin line connects a label that had to move.
pub fn draw_at_ends(out: &mut String, frame: &PlotArea, mut ends: Vec<LineEnd>) {
    ends.sort_by(|a, b| a.2.total_cmp(&b.2));
    let wanted: Vec<(f64, f64)> =
        ends.iter().map(|(line, _, y)| (*y, block(rows(line, AT_END).len()))).collect();
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
        draw(out, line, rows(line, AT_END), (x, y));
    }
}

/// Draws a legend from this height down, with a piece of each line.
pub fn draw_legend(out: &mut String, mut y: f64, ends: Vec<LineEnd>) {
    for (line, ..) in ends {
        let (rows, class) = (rows(line, IN_LEGEND), class(line));
        let height = block(rows.len());
        let middle = y + LEADING / 2.0;
        let _ = writeln!(out, "<path class=\"line {class}\" d=\"M2 {middle:.1}H26\"/>");
        if line.has_marks {
            let _ = writeln!(out, "<path class=\"mark {class}\" d=\"{}\"/>", mark(line.colour, 14.0, middle));
        }
        draw(out, line, rows, (32.0, y + height / 2.0));
        y += height + 3.0;
    }
}

/// Draws a label around this middle.
fn draw(out: &mut String, line: &PlotLine, rows: Vec<String>, (x, middle): (f64, f64)) {
    let first = middle + 3.8 - (rows.len().max(1) - 1) as f64 * LEADING / 2.0;
    let _ = write!(out, "<text class=\"label {}\" x=\"{x:.1}\" y=\"{first:.1}\">", class(line));
    match &rows[..] {
        [row] => *out += &escape(row),
        rows => {
            for (n, row) in rows.iter().enumerate() {
                let down = if n == 0 { 0.0 } else { LEADING };
                let _ = write!(out, "<tspan x=\"{x:.1}\" dy=\"{down}\">{}</tspan>", escape(row));
            }
        }
    }
    *out += "</text>\n";
}

/// Moves middles of blocks with these heights apart, in order and within the frame.
fn apart(wanted: &[(f64, f64)], top: f64, bottom: f64) -> Vec<f64> {
    let half = |n: usize| wanted[n].1 / 2.0;
    let mut places: Vec<f64> = wanted.iter().map(|block| block.0).collect();
    for n in 1..places.len() {
        places[n] = places[n].max(places[n - 1] + half(n - 1) + half(n));
    }
    let mut limit = bottom + LEADING / 2.0;
    for (n, place) in places.iter_mut().enumerate().rev() {
        *place = place.min(limit - half(n));
        limit = *place - half(n);
    }
    let least = top - 1.5 * LEADING;
    let under = places.first().map_or(0.0, |first| (least - (first - half(0))).max(0.0));
    places.iter().map(|place| place + under).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_labels_do_not_overlap_and_stay_in_the_frame() {
        for wanted in [
            vec![(50.0, 14.0), (51.0, 14.0), (52.0, 14.0)],
            vec![(99.0, 28.0), (99.5, 14.0), (100.0, 28.0)],
            vec![(0.0, 14.0), (0.0, 42.0)],
            vec![(20.0, 14.0), (80.0, 14.0)],
        ] {
            let places = apart(&wanted, 0.0, 100.0);
            for (n, pair) in places.windows(2).enumerate() {
                let room = (wanted[n].1 + wanted[n + 1].1) / 2.0;
                assert!(pair[1] - pair[0] >= room - 1e-9, "{places:?}");
            }
            for (place, (_, height)) in places.iter().zip(&wanted) {
                let (first, last) = (place - height / 2.0, place + height / 2.0);
                assert!(first >= -1.5 * LEADING && last <= 100.0 + LEADING, "{places:?}");
            }
        }
        assert_eq!(apart(&[(20.0, 14.0), (80.0, 14.0)], 0.0, 100.0), [20.0, 80.0], "enough room");
    }

    #[test]
    fn label_that_is_too_long_ends_at_a_word() {
        let label = "several words ".repeat(30);
        let line = PlotLine { label, colour: 0, is_faint: false, has_marks: false, points: Vec::new() };
        let rows = rows(&line, AT_END);
        assert_eq!((rows.len(), rows[ROWS - 1].as_str()), (ROWS, "several words several words …"));
    }
}

//! Rows as a table: filtered, sorted, and fitted to a width.

use super::row::{Cell, Column, Row, View};
use std::cmp::Ordering;

/// The order and the choice of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrangement {
    /// The column that decides; a view without it uses its default.
    pub sort: Column,
    /// Reverses the order, which is descending for measured values.
    pub is_reversed: bool,
    /// Words that each row must have.
    pub filter: String,
}

/// Text columns are cut to this width if a terminal is narrow.
const MIN_TEXT: usize = 10;
/// The space between two columns.
pub const GAP: &str = "  ";

impl Arrangement {
    /// The column by which this view is sorted.
    pub fn column(&self, view: View) -> Column {
        match view.columns().contains(&self.sort) {
            true => self.sort,
            false => Column::Reads,
        }
    }

    /// The rows of the view in their order.
    pub fn apply<'r>(&self, view: View, rows: &'r [Row]) -> Vec<&'r Row> {
        let column = self.column(view);
        let mut found: Vec<&Row> = rows.iter().filter(|row| row.matches(view, &self.filter)).collect();
        found.sort_by(|a, b| {
            let order = compare(&a.cell(column), &b.cell(column));
            let order = if self.is_reversed { order.reverse() } else { order };
            order.then_with(|| a.place.cmp(&b.place))
        });
        found
    }
}

/// Names ascend, measured values descend, and missing ones are the last.
fn compare(a: &Cell, b: &Cell) -> Ordering {
    match (a, b) {
        (Cell::Number(a), Cell::Number(b)) => b.unwrap_or(-1.0).total_cmp(&a.unwrap_or(-1.0)),
        (Cell::Index(a), Cell::Index(b)) => a.cmp(b),
        (Cell::Text(a), Cell::Text(b)) => a.cmp(b),
        _ => Ordering::Equal,
    }
}

/// A table as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The columns that fit.
    pub columns: Vec<Column>,
    /// The header of each, in its width.
    pub head: Vec<String>,
    /// A line for each row.
    pub lines: Vec<String>,
}

impl Table {
    /// A table of at most `width` characters. None: without limit.
    pub fn new(view: View, rows: &[&Row], width: Option<usize>) -> Table {
        let columns = view.columns();
        let head: Vec<String> = columns.iter().map(|column| column.head()).collect();
        let cells: Vec<Vec<(Cell, String)>> = rows.iter().map(|row| shown(row, columns)).collect();
        let is_text = |at: usize| matches!(cells.first().map(|row| &row[at].0), Some(Cell::Text(_)));
        let natural = |at: usize| {
            let cells = cells.iter().map(|row| row[at].1.chars().count());
            cells.chain([head[at].chars().count()]).max().unwrap_or_default()
        };
        let mut widths: Vec<(usize, bool)> =
            (0..columns.len()).map(|at| (natural(at), is_text(at))).collect();
        fit(&mut widths, width.unwrap_or(usize::MAX));
        let fitted = |texts: &mut dyn Iterator<Item = &String>| -> Vec<String> {
            texts.zip(&widths).map(|(text, (width, is_text))| aligned(text, *width, *is_text)).collect()
        };
        let line = |row: &Vec<(Cell, String)>| joined(&fitted(&mut row.iter().map(|(_, text)| text)));
        Table {
            columns: columns[..widths.len()].to_vec(),
            head: fitted(&mut head.iter()),
            lines: cells.iter().map(line).collect(),
        }
    }

    /// The header and all lines.
    pub fn text(&self) -> String {
        let head = joined(&self.head);
        std::iter::once(&head).chain(&self.lines).flat_map(|line| [line, "\n"]).collect()
    }
}

fn joined(cells: &[String]) -> String {
    cells.join(GAP).trim_end().to_owned()
}

/// Narrows the widest text columns, and then removes columns at the end.
fn fit(widths: &mut Vec<(usize, bool)>, limit: usize) {
    let total = |widths: &[(usize, bool)]| {
        widths.iter().map(|(width, _)| width).sum::<usize>() + GAP.len() * widths.len().saturating_sub(1)
    };
    while total(widths) > limit {
        let can_shrink = |at: &usize| matches!(widths[*at], (width, true) if width > MIN_TEXT);
        match (0..widths.len()).filter(can_shrink).max_by_key(|at| widths[*at].0) {
            Some(at) => widths[at].0 -= 1,
            None if widths.len() > 1 => drop(widths.pop()),
            None => return,
        }
    }
}

/// A text in its column. The end of a name distinguishes it, so its start is cut.
fn aligned(text: &str, width: usize, is_text: bool) -> String {
    let over = text.chars().count().saturating_sub(width);
    match (over > 0 && width > 0, is_text) {
        (true, _) => format!("…{}", text.chars().skip(over + 1).collect::<String>()),
        (false, true) => format!("{text:width$}"),
        (false, false) => format!("{text:>width$}"),
    }
}

fn shown(row: &Row, columns: &[Column]) -> Vec<(Cell, String)> {
    let text = |column: &Column| {
        let cell = row.cell(*column);
        let text = match &cell {
            Cell::Text(text) => text.clone(),
            Cell::Index(index) => index.to_string(),
            Cell::Number(None) => "-".into(),
            Cell::Number(Some(value)) => number(*column, *value),
        };
        (cell, text)
    };
    columns.iter().map(text).collect()
}

/// A measured value with its unit.
pub fn number(column: Column, value: f64) -> String {
    match column {
        Column::Read | Column::Written => scaled(value, &[" B/s", " kB/s", " MB/s", " GB/s"]),
        Column::Mean | Column::P50 | Column::P99 => latency(value),
        _ => scaled(value, &["", "k", "M", "G"]),
    }
}

/// Three digits, with a decimal prefix.
fn scaled(value: f64, units: &[&str]) -> String {
    let (mut value, mut at) = (value, 0);
    // 999.5 would be shown as 1000.
    while value >= 999.5 && at + 1 < units.len() {
        (value, at) = (value / 1000.0, at + 1);
    }
    let digits = match (at, value) {
        (0, _) if value.fract() == 0.0 => 0,
        (_, 99.95..) => 0,
        (_, 9.995..) => 1,
        _ => 2,
    };
    format!("{value:.digits$}{}", units[at])
}

fn latency(seconds: f64) -> String {
    match seconds {
        1.0.. => format!("{seconds:.2} s"),
        1e-3.. => format!("{:.2} ms", seconds * 1e3),
        _ => format!("{:.0} µs", seconds * 1e6),
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::activity::Activity;
    use super::super::row::Place;
    use super::*;

    /// LUNs of targets with these names and reads a second.
    pub fn luns(rows: &[(&str, u16, Option<f64>)]) -> Vec<Row> {
        let row = |(target, lun, reads_s): &(&str, u16, Option<f64>)| Row {
            place: Place::Lun { target: (*target).to_owned(), lun: *lun },
            state: None,
            activity: Activity {
                reads_s: *reads_s,
                read_bytes_s: reads_s.map(|reads| reads * 4096.0),
                latency_p99_s: reads_s.map(|reads| reads / 1e6),
                in_flight: Some(u64::from(*lun) * 10),
                ..Activity::default()
            },
        };
        rows.iter().map(row).collect()
    }

    fn arrangement(sort: Column) -> Arrangement {
        Arrangement { sort, is_reversed: false, filter: String::new() }
    }

    fn order(arrangement: &Arrangement, rows: &[Row]) -> Vec<String> {
        let found = arrangement.apply(View::Luns, rows);
        found.iter().map(|row| format!("{:?}", row.cell(Column::Lun))).collect()
    }

    #[test]
    fn each_sort_column_has_its_order() {
        let rows = luns(&[("b", 1, Some(5.0)), ("a", 2, None), ("a", 10, Some(50.0))]);
        let lun = |order: [u8; 3]| order.map(|lun| format!("Index({lun})")).to_vec();
        for (column, expected) in [
            (Column::Reads, [10, 1, 2]),
            (Column::P99, [10, 1, 2]),
            (Column::Lun, [1, 2, 10]),
            (Column::Target, [2, 10, 1]),
            (Column::InFlight, [10, 2, 1]),
            // Without a value, the names decide.
            (Column::Writes, [2, 10, 1]),
            // The view has no such column: reads decide.
            (Column::State, [10, 1, 2]),
        ] {
            assert_eq!(order(&arrangement(column), &rows), lun(expected), "{column:?}");
        }
        let reversed = Arrangement { is_reversed: true, ..arrangement(Column::Lun) };
        assert_eq!(order(&reversed, &rows), lun([10, 2, 1]));
    }

    #[test]
    fn filter_finds_words_of_names_in_any_order() {
        let rows = luns(&[("iqn.x:Disks", 1, None), ("iqn.x:tapes", 2, None), ("iqn.y:disks", 12, None)]);
        let found = |filter: &str| {
            let filtered = Arrangement { filter: filter.into(), ..arrangement(Column::Lun) };
            order(&filtered, &rows).len()
        };
        assert_eq!(
            [found(""), found("disks"), found("disks iqn.x"), found("12"), found("none")],
            [3, 2, 1, 1, 0]
        );
    }

    #[test]
    fn control_characters_of_names_are_escaped() {
        let rows = luns(&[("iqn\u{1b}[2J\n", 0, Some(1.0))]);
        let table = Table::new(View::Luns, &[&rows[0]], None);
        assert!(table.lines[0].starts_with("iqn\\u{1b}[2J\\n  "), "{table:?}");
    }

    #[test]
    fn table_is_aligned_and_has_units() {
        let rows = luns(&[("iqn.t", 0, Some(12_345.0)), ("iqn.t", 17, None)]);
        let all: Vec<&Row> = rows.iter().collect();
        let text = Table::new(View::Luns, &all, None).text();
        let expected = "\
TARGET  LUN  READS/S  WRITES/S       READ  WRITTEN  IN FLIGHT  MEAN  P50       P99  ERRORS/S
iqn.t     0    12.3k         -  50.6 MB/s        -          0     -    -  12.35 ms         -
iqn.t    17        -         -          -        -        170     -    -         -         -
";
        assert_eq!(text, expected);
    }

    #[test]
    fn narrow_table_cuts_names_and_then_columns() {
        let rows = luns(&[("iqn.2026-11.org.example:disks", 0, Some(7.0))]);
        let at = |width| Table::new(View::Luns, &[&rows[0]], Some(width));
        let cut = at(80);
        assert!(cut.lines[0].contains("…") && cut.lines[0].contains("disks  "), "{cut:?}");
        assert_eq!(at(40).columns, [Column::Target, Column::Lun, Column::Reads, Column::Writes]);
        for width in 0..200 {
            let table = at(width);
            assert!(width < MIN_TEXT || joined(&table.head).chars().count() <= width, "{width}: {table:?}");
        }
    }

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (column, value, expected) in [
            (Column::Reads, 0.0, "0"),
            (Column::Reads, 0.5, "0.50"),
            (Column::Reads, 999.7, "1.00k"),
            (Column::Read, 1_234_567.0, "1.23 MB/s"),
            (Column::Written, 123_456_789_012.0, "123 GB/s"),
            (Column::Mean, 0.000_123, "123 µs"),
            (Column::P50, 0.012_345, "12.35 ms"),
            (Column::P99, 2.5, "2.50 s"),
        ] {
            assert_eq!(number(column, value), expected);
        }
    }
}

//! Tables as text: published and measured figures and their ratio, side by side.

use crate::document::{ResultTable, SummaryTable, TableCell};
use crate::text_report;

/// The maximum width of a line, where the layout permits.
const WIDTH: usize = 110;

/// One of the three groups of columns.
type CellField = (&'static str, fn(&TableCell) -> Option<f64>);

const GROUPS: [CellField; 3] =
    [("published", |cell| cell.published), ("measured", |cell| cell.measured), ("ratio", |cell| cell.ratio)];

/// A table with its groups side by side if they fit, otherwise one below the other.
pub fn table(table: &ResultTable) -> String {
    let measured = table.rows.iter().flat_map(|row| &row.1).any(|cell| cell.measured.is_some());
    let groups = if measured { &GROUPS[..] } else { &GROUPS[..1] };
    let mut text = format!("{} [{}]\n", table.title, table.unit);
    let wide = lines(table, groups);
    match wide.iter().all(|line| line.chars().count() <= WIDTH) {
        true => text += &joined(&wide),
        false => groups.iter().for_each(|group| text += &joined(&lines(table, std::slice::from_ref(group)))),
    }
    text
}

/// The most important figures of an experiment, of all targets side by side, with their ratio to the published ones.
pub fn summary(summary: &SummaryTable) -> String {
    let figure = |figure: Option<f64>| figure.map_or("-".to_owned(), short);
    let mut rows = vec![["summary", "unit", "published"].map(String::from).to_vec()];
    for target in &summary.targets {
        rows[0].extend([target.clone(), "ratio".into()]);
    }
    for row in &summary.rows {
        let cells = row.measured.iter().map(|measured| TableCell::new(row.published, *measured));
        let measured = cells.flat_map(|cell| [figure(cell.measured), figure(cell.ratio)]);
        let head = [row.what.clone(), row.unit.clone(), figure(row.published)];
        rows.push(head.into_iter().chain(measured).collect());
    }
    text_report::columns(&rows)
}

fn joined(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn lines(table: &ResultTable, groups: &[CellField]) -> Vec<String> {
    let first = table.rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0);
    let figure = |(_, of): &CellField, cell: &TableCell| of(cell).map_or("-".to_owned(), short);
    let width = |group: &CellField, at: usize| {
        let cells = table.rows.iter().filter_map(|row| row.1.get(at)).map(|cell| figure(group, cell).len());
        cells.chain([table.columns[at].chars().count()]).max().unwrap_or(0)
    };
    let mut names = " ".repeat(first);
    let mut heads = names.clone();
    let mut rows: Vec<String> = table.rows.iter().map(|row| format!("{:<first$}", row.0)).collect();
    for group in groups {
        let widths: Vec<usize> = (0..table.columns.len()).map(|at| width(group, at)).collect();
        let sum = widths.iter().map(|width| width + 2).sum::<usize>().max(group.0.len() + 1);
        names += &format!(" | {:<w$}", group.0, w = sum - 1);
        let line = |cells: Vec<String>| {
            let cells: String =
                cells.iter().zip(&widths).map(|(cell, width)| format!("  {cell:>width$}")).collect();
            format!(" |{cells:<sum$}")
        };
        heads += &line(table.columns.clone());
        for (text, row) in rows.iter_mut().zip(&table.rows) {
            *text += &line(row.1.iter().map(|cell| figure(group, cell)).collect());
        }
    }
    [names, heads].into_iter().chain(rows).collect()
}

/// A figure with at least three digits.
fn short(figure: f64) -> String {
    match figure.abs() {
        0.0 => "0".into(),
        x if x < 0.1 => format!("{figure:.4}"),
        x if x < 100.0 => format!("{figure:.2}"),
        x if x < 10_000.0 => format!("{figure:.1}"),
        _ => format!("{figure:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(columns: usize, measured: Option<f64>) -> ResultTable {
        ResultTable {
            title: "Reads".into(),
            unit: "MB/s".into(),
            larger_is_better: true,
            columns: (0..columns).map(|n| format!("column {n}")).collect(),
            rows: vec![("NULLIO".into(), vec![TableCell::new(Some(106.0), measured); columns])],
        }
    }

    #[test]
    fn groups_are_side_by_side() {
        let expected = [
            "Reads [MB/s]",
            "       | published | measured  | ratio",
            "       |  column 0 |  column 0 |  column 0",
            "NULLIO |     106.0 |    2120.0 |     20.00",
        ];
        assert_eq!(table(&example(1, Some(2120.0))).lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn summary_has_targets_side_by_side() {
        let text = summary(crate::sample::large().summary.as_ref().expect("a summary"));
        let expected = [
            "summary unit published Lunar ratio STGT ratio istgt ratio",
            "write, 64 MiB MiB/s 1031.8 1800.0 1.74 1031.0 1.00 700.0 0.68",
            "read, 64 MiB MiB/s 2850.7 2500.0 0.88 - - 1900.0 0.67",
        ];
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(text.lines().map(words).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn groups_of_a_wide_table_are_stacked() {
        let text = table(&example(6, Some(1.0)));
        assert_eq!(text.lines().count(), 1 + 3 * 3, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }

    #[test]
    fn table_without_measurements_has_one_group() {
        let text = table(&example(2, None));
        assert!(!text.contains("ratio") && text.contains("106.0"), "{text}");
    }
}

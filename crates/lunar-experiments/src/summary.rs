//! The most important figures of an experiment, published and measured with each target.

use crate::published::{KeyFigure, Published, figure};
use lunar_bench::document::{ResultTable, SummaryRow, SummaryTable};

/// The summary of finished tables, with a column for each of these targets.
pub fn summary(published: &Published, tables: &[ResultTable], targets: &[String]) -> SummaryTable {
    let row = |key: &KeyFigure| {
        let of = published.table(&key.table);
        let measured = targets.iter().map(|target| measured(key, &of, tables, target)).collect();
        SummaryRow {
            what: key.what.clone(),
            published: figure(&of, &key.row, &key.column),
            unit: of.unit,
            larger_is_better: of.larger_is_better,
            measured,
        }
    };
    SummaryTable { targets: targets.to_vec(), rows: published.summary.iter().map(row).collect() }
}

/// The figure that was measured with a target: in a table of its own, or in its column of a table of all targets.
fn measured(key: &KeyFigure, of: &ResultTable, tables: &[ResultTable], target: &str) -> Option<f64> {
    let is_of = |table: &&ResultTable, title: &str| table.title == title && table.unit == of.unit;
    let own = format!("{}, {target}", of.title);
    if let Some(table) = tables.iter().find(|table| is_of(table, &own)) {
        return cell(table, |head| head == key.row, |column| column == key.column);
    }
    let table = tables.iter().find(|table| is_of(table, &of.title))?;
    // The heading of a row may end with its scheduler, and that of a column with the target of the publication.
    let begins = |text: &str, with: &str| {
        text.strip_prefix(with).is_some_and(|rest| rest.is_empty() || rest.starts_with(" ("))
    };
    cell(table, |head| begins(head, &key.row), |column| begins(column, target))
}

fn cell(table: &ResultTable, is_row: impl Fn(&str) -> bool, is_column: impl Fn(&str) -> bool) -> Option<f64> {
    let at = table.columns.iter().position(|column| is_column(column))?;
    let (_, cells) = table.rows.iter().find(|(head, _)| is_row(head))?;
    cells.get(at)?.measured
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Experiment;
    use crate::published::put;
    use lunar_bench::document::TableCell;

    #[test]
    fn key_figures_of_all_experiments_are_published() {
        use clap::ValueEnum;
        for seed in Experiment::value_variants() {
            let summary = summary(&Published::of(*seed), &[], &["Lunar".into()]);
            assert!(summary.rows.len() > 2, "{seed:?}");
            for row in summary.rows {
                assert!(row.published.is_some() && row.measured == [None], "{seed:?}: {row:?}");
            }
        }
    }

    #[test]
    fn tables_of_each_target_are_side_by_side() {
        let published = Published::of(Experiment::OpenIscsi);
        let table = |target: &str, row: &str, total| {
            let mut table = published.table(if row == "1K read" { "iops" } else { "throughput" });
            put(&mut table, row, "Total", Some(total));
            table.title += &format!(", {target}");
            table
        };
        let tables = [
            table("Lunar", "256K read", 900.0),
            table("Lunar", "1K read", 50_000.0),
            table("STGT", "256K read", 700.0),
        ];
        let summary = summary(&published, &tables, &["Lunar", "STGT", "istgt"].map(String::from));
        let rows: Vec<_> =
            summary.rows.iter().map(|row| (row.published, row.unit.as_str(), &row.measured[..])).collect();
        assert_eq!(rows[0], (Some(810.0), "MiB/s", &[None; 3][..]));
        assert_eq!(rows[1], (Some(550.0), "MiB/s", &[Some(900.0), Some(700.0), None][..]));
        assert_eq!(rows[2], (Some(76000.0), "IOPS", &[Some(50_000.0), None, None][..]));
    }

    #[test]
    fn columns_of_a_shared_table_are_side_by_side() {
        let published = Published::of(Experiment::Scst);
        let mut table = published.table("direct-read");
        table.columns = ["Lunar (ISCSI-SCST)", "STGT", "IET"].map(String::from).to_vec();
        table.rows = vec![
            ("NULLIO".into(), [1.0, 2.0, 3.0].map(|figure| TableCell::new(None, Some(figure))).to_vec()),
            ("FILEIO/deadline (mq-deadline)".into(), vec![TableCell::new(None, Some(4.0))]),
        ];
        let summary = summary(&published, &[table], &["Lunar".into(), "STGT".into()]);
        assert_eq!(summary.rows[0].measured, [Some(1.0), Some(2.0)]);
        assert_eq!(summary.rows[1].measured, [Some(4.0), None]);
    }
}

//! The published figures of each experiment, as data.

use crate::Experiment;
use lunar_bench::document::{ResultTable, TableCell};
use serde::Deserialize;

/// The figures of a publication.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The title.
    pub title: String,
    /// The authors.
    pub author: String,
    /// The year.
    pub year: u16,
    /// The figures at the beginning of the results.
    pub summary: Vec<KeyFigure>,
    #[serde(rename = "table")]
    tables: Vec<PublishedTable>,
}

/// A figure of the summary.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFigure {
    /// Its meaning.
    pub what: String,
    /// The id of its table.
    pub table: String,
    /// Its row.
    pub row: String,
    /// Its column.
    pub column: String,
}

/// One table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedTable {
    id: String,
    title: String,
    unit: String,
    larger_is_better: bool,
    columns: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    head: String,
    /// NaN if there is no published figure.
    cells: Vec<f64>,
}

impl Published {
    /// The publication of an experiment.
    pub fn of(seed: Experiment) -> Published {
        let text = match seed {
            Experiment::Scst => include_str!("../seeds/scst-iet-stgt-2009.toml"),
            Experiment::OpenIscsi => include_str!("../seeds/open-iscsi-2005.toml"),
            Experiment::Sn5420 => include_str!("../seeds/sn5420-2002.toml"),
            Experiment::Iser => include_str!("../seeds/stgt-iser-null-2008.toml"),
            Experiment::Srpt => include_str!("../seeds/scst-srpt-2010.toml"),
        };
        toml::from_str(text).expect("the figures of an experiment are well-formed")
    }

    /// A table with its published figures, and nothing measured yet.
    ///
    /// # Panics
    /// If the table does not exist: its id is a constant.
    pub fn table(&self, id: &str) -> ResultTable {
        let found = self.tables.iter().find(|table| table.id == id);
        let figures = found.unwrap_or_else(|| panic!("{} has no table {id}", self.title));
        let cell = |figure: &f64| TableCell::new(Some(*figure).filter(|figure| !figure.is_nan()), None);
        ResultTable {
            title: figures.title.clone(),
            unit: figures.unit.clone(),
            larger_is_better: figures.larger_is_better,
            columns: figures.columns.clone(),
            rows: figures
                .rows
                .iter()
                .map(|row| (row.head.clone(), row.cells.iter().map(cell).collect()))
                .collect(),
        }
    }
}

/// The published figure of a cell.
pub fn figure(table: &ResultTable, row: &str, column: &str) -> Option<f64> {
    let at = table.columns.iter().position(|head| head == column)?;
    let (_, cells) = table.rows.iter().find(|(head, _)| head == row)?;
    cells.get(at)?.published
}

/// Sets the measured figure of a cell.
///
/// # Panics
/// If the cell does not exist: rows and columns are constants.
pub fn put(table: &mut ResultTable, row: &str, column: &str, measured: Option<f64>) {
    let at = table.columns.iter().position(|head| head == column);
    let is_spread = table.is_spread(column);
    let cells = table.rows.iter_mut().find(|(head, _)| head == row);
    let place = at.zip(cells).and_then(|(at, (_, cells))| cells.get_mut(at));
    let cell = place.unwrap_or_else(|| panic!("{} has no cell {row}, {column}", table.title));
    *cell = TableCell::new(cell.published, measured);
    if is_spread {
        // A ratio of standard deviations is meaningless.
        cell.ratio = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(seed: Experiment) -> Vec<String> {
        Published::of(seed).tables.iter().map(|table| table.id.clone()).collect()
    }

    fn cell(seed: Experiment, id: &str, row: &str, column: &str) -> Option<f64> {
        figure(&Published::of(seed).table(id), row, column)
    }

    #[test]
    fn all_published_tables_exist_and_are_rectangular() {
        let all = [
            (
                Experiment::Scst,
                "direct-read direct-write fs-read fs-write db-mix two-path session-parameters",
            ),
            (Experiment::OpenIscsi, "throughput iops"),
            (Experiment::Sn5420, "read write two-reads window"),
            (
                Experiment::Iser,
                "bandwidth-c-b cpu-c-b bandwidth-b-c cpu-b-c bandwidth-b-a cpu-b-a kiops two-initiators \
                 two-initiators-cpu two-instances two-instances-cpu bidirectional chain",
            ),
            (
                Experiment::Srpt,
                "rates-d iops-d seconds-d rates-a iops-a seconds-a rates-jd iops-jd seconds-jd rates-ja \
                 iops-ja seconds-ja",
            ),
        ];
        for (seed, ids) in all {
            assert_eq!(tables(seed), ids.split_whitespace().collect::<Vec<_>>(), "{seed:?}");
            let published = Published::of(seed);
            assert!(published.year > 2000 && !published.author.is_empty());
            for table in &published.tables {
                assert!(!table.rows.is_empty(), "{}", table.id);
                assert!(!table.unit.contains(['^', '(']), "one spelling of units: {}", table.unit);
                for row in &table.rows {
                    assert_eq!(row.cells.len(), table.columns.len(), "{} {}", table.id, row.head);
                }
            }
        }
    }

    #[test]
    fn published_figures_match_samples() {
        let samples = [
            (Experiment::Scst, "direct-read", "FILEIO/CFQ", "IET", Some(57.0)),
            (Experiment::Scst, "direct-read", "BLOCKIO/CFQ", "STGT", None),
            (Experiment::Scst, "fs-write", "BLOCKIO/deadline", "ISCSI-SCST", Some(112.0)),
            (Experiment::Scst, "db-mix", "FILEIO/CFQ", "ISCSI-SCST", Some(285.0)),
            (Experiment::Scst, "db-mix", "BLOCKIO/deadline", "IET", Some(1405.0)),
            (Experiment::Scst, "two-path", "BLOCKIO/deadline", "ISCSI-SCST", Some(17.0)),
            (Experiment::Scst, "session-parameters", "DefaultTime2Retain", "IET", Some(20.0)),
            (Experiment::Scst, "session-parameters", "MaxRecvDataSegmentLength", "STGT", Some(2097152.0)),
            (Experiment::OpenIscsi, "throughput", "256K read", "Session #1", Some(281.18)),
            (Experiment::OpenIscsi, "iops", "1K read", "Total", Some(76000.0)),
            (Experiment::Sn5420, "read", "Remote Linux/with iSCSI", "2048k", Some(3.2)),
            (Experiment::Sn5420, "write", "Linux/with Fibre", "64k", Some(94.47)),
            (Experiment::Sn5420, "two-reads", "Sun/with Fibre", "aggregate", Some(66.15)),
            (Experiment::Sn5420, "window", "8 MB, 4 runs", "last run", Some(10.94)),
            (Experiment::Iser, "bandwidth-c-b", "16", "READ 10 threads", Some(578.87)),
            (Experiment::Iser, "bandwidth-b-c", "1", "WRITE 2 threads", Some(30.48)),
            (Experiment::Iser, "cpu-b-a", "256", "WRITE 2 threads Tgt", Some(4.0)),
            (Experiment::Iser, "two-instances", "2 devs", "READ 10 threads, second", Some(52.89)),
            (Experiment::Iser, "bidirectional", "bi-dir 1 ini", "WRITE", Some(795.0)),
            (Experiment::Iser, "chain", "512", "READ", Some(800.0)),
            (Experiment::Srpt, "rates-d", "67108864", "W(avg", Some(1031.838)),
            (Experiment::Srpt, "seconds-a", "4096", "R 3", Some(1.095)),
            (Experiment::Srpt, "iops-jd", "512", "W", None),
            (Experiment::Srpt, "iops-ja", "4096", "R", Some(221843.583)),
        ];
        for (seed, id, row, column, figure) in samples {
            assert_eq!(cell(seed, id, row, column), figure, "{id} {row} {column}");
        }
    }

    #[test]
    fn measured_figure_is_next_to_published() {
        let mut table = Published::of(Experiment::Scst).table("direct-write");
        put(&mut table, "NULLIO", "STGT", Some(228.0));
        assert_eq!(table.rows[0].1[2], TableCell::new(Some(114.0), Some(228.0)));
        assert_eq!(table.rows[0].1[2].ratio, Some(2.0));
    }

    #[test]
    fn standard_deviation_has_no_ratio() {
        let mut table = Published::of(Experiment::Srpt).table("rates-d");
        for column in ["W(avg", "W(std", "R(std"] {
            put(&mut table, "67108864", column, Some(10.0));
        }
        let at = |head: &str| table.columns.iter().position(|column| column == head).expect("a column");
        let cell = |column: &str| table.rows[0].1[at(column)];
        assert!(cell("W(avg").ratio.is_some());
        for column in ["W(std", "R(std"] {
            let TableCell { published, measured, ratio } = cell(column);
            assert!(published.is_some() && measured == Some(10.0) && ratio.is_none(), "{column}");
        }
    }
}

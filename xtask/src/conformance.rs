//! `cargo xtask conformance`: which rows of RFC 7143 have a test, from `interop/conformance/rows.tsv`.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::root::{self, Step};

const ROWS: &str = "interop/conformance/rows.tsv";
const PAGE: &str = "docs/conformance.md";
/// What this target negotiates: rows with other features alone do not bind it.
const FEATURES: [&str; 5] = ["ERL0", "Digest", "CHAP", "Discovery", "FastAbort"];
const WRITE_IT: &str = "cargo xtask conformance --write";

/// Options of `cargo xtask conformance`.
#[derive(Debug, Args)]
pub struct Options {
    /// Write docs/conformance.md
    #[arg(long)]
    write: bool,
}

/// One testable rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    id: String,
    section: String,
    role: String,
    level: String,
    feature: String,
    requirement: String,
    /// The test that covers it; empty if none does
    test: String,
    /// Why none does
    reason: String,
}

impl Row {
    /// Does it bind a target with our features?
    fn is_ours(&self) -> bool {
        ["T", "both"].contains(&self.role.as_str())
            && FEATURES.iter().any(|feature| self.feature.contains(feature))
    }

    fn is_covered(&self) -> bool {
        !self.test.is_empty()
    }

    /// FRM of FRM-001.
    fn group(&self) -> &str {
        self.id.split('-').next().unwrap_or(&self.id)
    }
}

/// Prints the sums, and what is uncovered; fails where a named test does not exist.
pub fn run(options: &Options) -> Result<Step> {
    let rows = ours(&read(ROWS)?)?;
    let page = page(&rows);
    print!("{}", summary(&rows));
    if options.write {
        fs::write(root::path().join(PAGE), page).with_context(|| format!("cannot write {PAGE}"))?;
    }
    let lost = without_function(&rows, &tests()?);
    for row in &lost {
        println!(
            "{ROWS}: {}: there is no test function {}; name the one that covers the row",
            row.id, row.test
        );
    }
    Ok(if lost.is_empty() { Step::Ok } else { Step::Failed(format!("{} tests do not exist", lost.len())) })
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(root::path().join(path)).with_context(|| format!("cannot read {path}"))
}

/// The rows that bind us. The first line names the columns.
fn ours(text: &str) -> Result<Vec<Row>> {
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().context("no rows")?.split('\t').collect();
    let column =
        |name: &str| head.iter().position(|h| *h == name).with_context(|| format!("no column {name}"));
    let [id, section, role, level] = [column("id")?, column("section")?, column("role")?, column("level")?];
    let [feature, requirement] = [column("feature")?, column("requirement")?];
    let [test, reason] = [column("test")?, column("reason")?];
    let mut rows = Vec::new();
    for line in lines {
        let cells: Vec<&str> = line.split('\t').collect();
        ensure!(cells.len() == head.len(), "{} columns instead of {}: {line}", cells.len(), head.len());
        let cell = |column: usize| cells[column].trim().to_string();
        rows.push(Row {
            id: cell(id),
            section: cell(section),
            role: cell(role),
            level: cell(level),
            feature: cell(feature),
            requirement: cell(requirement),
            test: cell(test),
            reason: cell(reason),
        });
    }
    rows.retain(Row::is_ours);
    Ok(rows)
}

/// The names of all functions in interop's tests.
fn tests() -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(root::path().join("interop/tests"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(functions(&fs::read_to_string(path)?));
        }
    }
    Ok(names)
}

fn functions(source: &str) -> Vec<String> {
    let name = |line: &str| Some(line.trim_start().strip_prefix("fn ")?.split_once('(')?.0.to_string());
    source.lines().filter_map(name).collect()
}

fn without_function(rows: &[Row], tests: &BTreeSet<String>) -> Vec<Row> {
    rows.iter().filter(|row| row.is_covered() && !tests.contains(&row.test)).cloned().collect()
}

/// Group, covered, total: in the order of the table.
fn groups(rows: &[Row]) -> Vec<(&str, usize, usize)> {
    let mut groups: Vec<(&str, usize, usize)> = Vec::new();
    for row in rows {
        if groups.iter().all(|(name, ..)| *name != row.group()) {
            groups.push((row.group(), 0, 0));
        }
        for group in groups.iter_mut().filter(|(name, ..)| *name == row.group()) {
            group.1 += usize::from(row.is_covered());
            group.2 += 1;
        }
    }
    groups
}

fn summary(rows: &[Row]) -> String {
    let mut text = String::new();
    for (group, covered, total) in groups(rows) {
        text += &format!("{group:<6}{covered:>4}/{total}\n");
    }
    text += &format!("all   {:>4}/{}\n", rows.iter().filter(|row| row.is_covered()).count(), rows.len());
    for row in rows.iter().filter(|row| !row.is_covered()) {
        text += &format!("uncovered: {} {} ({})\n", row.id, row.requirement, row.reason);
    }
    text
}

/// docs/conformance.md.
fn page(rows: &[Row]) -> String {
    let mut text = format!(
        "# Conformance to RFC 7143 and 7144\n\n\
         Made by `{WRITE_IT}` from [{ROWS}](../{ROWS}). Each row is a rule for a target with error recovery\n\
         level 0 and one connection per session; its test speaks raw PDUs to the running server.\n\n\
         | group | covered | rows |\n|---|---|---|\n"
    );
    for (group, covered, total) in groups(rows) {
        text += &format!("| {group} | {covered} | {total} |\n");
    }
    text += "\n## Not covered\n\n| row | section | level | rule | why |\n|---|---|---|---|---|\n";
    for row in rows.iter().filter(|row| !row.is_covered()) {
        let cells = [&row.id, &row.section, &row.level, &row.requirement, &row.reason];
        text += &line(&cells.map(|cell| escaped(cell)));
    }
    text += "\n## Covered\n\n| row | section | level | rule | test |\n|---|---|---|---|---|\n";
    for row in rows.iter().filter(|row| row.is_covered()) {
        let test = format!("`{}`", row.test);
        let cells = [&row.id, &row.section, &row.level, &row.requirement].map(|cell| escaped(cell));
        text += &line(&[&cells[..], &[test]].concat());
    }
    text
}

fn line(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn escaped(cell: &str) -> String {
    cell.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "id\tsection\trole\tlevel\trequirement\ttest\treason\tfeature\n\
        FRM-001\t11\tboth\tMUST\tOne.\tfrm_001_one\t\tERL0\n\
        FRM-002\t11\tT\tMUST\tTwo | more.\t\tIPsec\tDigest\n\
        FRM-003\t11\tI\tMUST\tThree.\t\tinitiator\tERL0\n\
        LOG-001\t6\tT\tMUST\tFour.\tlog_001_four\t\tCHAP\n\
        LOG-002\t6\tT\tMUST\tFive.\t\tone connection\tMC/S\n";

    #[test]
    fn only_rows_of_this_target_count() {
        let rows = ours(TEXT).expect("rows");
        assert_eq!(groups(&rows), [("FRM", 1, 2), ("LOG", 1, 1)]);
        assert!(summary(&rows).contains("uncovered: FRM-002 Two | more. (IPsec)"));
        assert!(page(&rows).contains("| FRM-002 | 11 | MUST | Two \\| more. | IPsec |"));
    }

    #[test]
    fn a_test_that_is_not_there_is_found() {
        let there = functions("#[test]\nfn frm_001_one() {\n}\n").into_iter().collect();
        let lost = without_function(&ours(TEXT).expect("rows"), &there);
        assert_eq!(lost.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["LOG-001"]);
    }

    #[test]
    fn a_row_of_another_width_is_refused() {
        assert!(ours("id\tsection\nFRM-001\n").is_err());
    }

    #[test]
    fn the_page_is_fresh_and_every_named_test_exists() {
        let rows = ours(&read(ROWS).expect("rows")).expect("rows");
        assert_eq!(without_function(&rows, &super::tests().expect("tests")), []);
        assert_eq!(read(PAGE).expect(PAGE), page(&rows), "{PAGE} is stale; run: {WRITE_IT}");
    }
}

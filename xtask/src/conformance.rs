//! `cargo xtask conformance`: shows which rows of RFC 7143 have a test, from `interop/conformance/rows.tsv`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::root::{self, StepResult};

const ROWS: &str = "interop/conformance/rows.tsv";
const PAGE: &str = "docs/conformance.md";
/// The folders of the initiator's unit tests. The table names tests as crate::module::function.
const UNIT_TESTS: [(&str, &str); 2] =
    [("initiator", "crates/lunar-initiator/src"), ("proto", "crates/lunar-proto/src/initiator")];
/// The features that target and initiator negotiate. Rows of other features do not apply.
const FEATURES: [&str; 5] = ["ERL0", "Digest", "CHAP", "Discovery", "FastAbort"];
const WRITE_IT: &str = "cargo xtask conformance --write";

/// Options of `cargo xtask conformance`.
#[derive(Debug, Args)]
pub struct Options {
    /// Write docs/conformance.md
    #[arg(long)]
    write: bool,
}

/// A role with rules, its letter in the table, and its columns of tests and reasons.
struct ConformanceRole {
    name: &'static str,
    letter: &'static str,
    test: &'static str,
    reason: &'static str,
}

const ROLES: [ConformanceRole; 2] = [
    ConformanceRole { name: "target", letter: "T", test: "test", reason: "reason" },
    ConformanceRole { name: "initiator", letter: "I", test: "test_i", reason: "reason_i" },
];

/// One testable rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    id: String,
    section: String,
    role: String,
    level: String,
    feature: String,
    requirement: String,
    /// The test that covers it; empty if there is none
    test: String,
    /// The reason why there is none
    reason: String,
}

impl Row {
    /// Whether the row applies to this role with the supported features.
    fn binds(&self, role: &ConformanceRole) -> bool {
        [role.letter, "both"].contains(&self.role.as_str())
            && FEATURES.iter().any(|feature| self.feature.contains(feature))
    }

    fn is_covered(&self) -> bool {
        !self.test.is_empty()
    }

    /// The group: FRM of FRM-001.
    fn group(&self) -> &str {
        self.id.split('-').next().unwrap_or(&self.id)
    }
}

/// Prints the counts and the uncovered rows; fails if a named test does not exist.
pub fn run(options: &Options) -> Result<StepResult> {
    let text = read(ROWS)?;
    let there = tests()?;
    let mut lost = 0;
    for role in &ROLES {
        let rows = ours(&text, role)?;
        print!("{}:\n{}", role.name, summary(&rows));
        for row in without_function(&rows, &there) {
            println!(
                "{ROWS}: {}: test function {} does not exist; name the one that covers the row",
                row.id, row.test
            );
            lost += 1;
        }
    }
    if options.write {
        fs::write(root::path().join(PAGE), page(&text)?).with_context(|| format!("cannot write {PAGE}"))?;
    }
    Ok(if lost == 0 { StepResult::Ok } else { StepResult::Failed(format!("{lost} tests do not exist")) })
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(root::path().join(path)).with_context(|| format!("cannot read {path}"))
}

/// The rows that apply to a role. The first line names the columns.
fn ours(text: &str, role: &ConformanceRole) -> Result<Vec<Row>> {
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().context("no rows")?.split('\t').collect();
    let column =
        |name: &str| head.iter().position(|h| *h == name).with_context(|| format!("no column {name}"));
    let [id, section, whom, level] = [column("id")?, column("section")?, column("role")?, column("level")?];
    let [feature, requirement] = [column("feature")?, column("requirement")?];
    let [test, reason] = [column(role.test)?, column(role.reason)?];
    let mut rows = Vec::new();
    for line in lines {
        let cells: Vec<&str> = line.split('\t').collect();
        ensure!(cells.len() == head.len(), "{} columns instead of {}: {line}", cells.len(), head.len());
        let cell = |column: usize| cells[column].trim().to_string();
        rows.push(Row {
            id: cell(id),
            section: cell(section),
            role: cell(whom),
            level: cell(level),
            feature: cell(feature),
            requirement: cell(requirement),
            test: cell(test),
            reason: cell(reason),
        });
    }
    rows.retain(|row| row.binds(role));
    Ok(rows)
}

/// The folders of black-box tests.
const TESTS: [&str; 2] = ["interop/tests", "crates/lunar-initiator/tests"];

/// The names of all functions in black-box tests and in the initiator's unit tests.
fn tests() -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for folder in TESTS {
        for path in sources(&root::path().join(folder))? {
            names.extend(functions(&fs::read_to_string(path)?));
        }
    }
    for (name, folder) in UNIT_TESTS {
        for path in sources(&root::path().join(folder))? {
            let module = module(&path);
            let qualified = |function| format!("{name}::{module}::{function}");
            names.extend(functions(&fs::read_to_string(&path)?).into_iter().map(qualified));
        }
    }
    Ok(names)
}

/// All source files below a folder.
fn sources(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(found)
}

/// The name of a module: that of its file, or of the folder of a mod.rs.
fn module(path: &Path) -> String {
    let named = if path.ends_with("mod.rs") { path.parent() } else { Some(path) };
    named.and_then(Path::file_stem).unwrap_or_default().to_string_lossy().into_owned()
}

fn functions(source: &str) -> Vec<String> {
    let name = |line: &str| Some(line.trim_start().strip_prefix("fn ")?.split_once('(')?.0.to_string());
    source.lines().filter_map(name).collect()
}

fn without_function(rows: &[Row], tests: &BTreeSet<String>) -> Vec<Row> {
    rows.iter().filter(|row| row.is_covered() && !tests.contains(&row.test)).cloned().collect()
}

/// Group, covered rows, and all rows, in the order of the table.
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

/// The content of docs/conformance.md.
fn page(text: &str) -> Result<String> {
    let mut page = format!(
        "# Conformance to RFC 7143 and 7144\n\n\
         `{WRITE_IT}` generates this page from [{ROWS}](../{ROWS}). Each row is a rule for error\n\
         recovery level 0 and one connection per session. Tests of the target send raw PDUs to the running server. Tests\n\
         of the initiator run `lunar` against a scripted target. Tests with `::` in their names are unit tests of the\n\
         protocol.\n"
    );
    for role in &ROLES {
        page += &part(&ours(text, role)?, role);
    }
    Ok(page)
}

/// The section of one role.
fn part(rows: &[Row], role: &ConformanceRole) -> String {
    let name = role.name;
    let mut text = format!("\n## The {name}\n\n| group | covered | rows |\n|---|---|---|\n");
    for (group, covered, total) in groups(rows) {
        text += &format!("| {group} | {covered} | {total} |\n");
    }
    let covered = rows.iter().filter(|row| row.is_covered()).count();
    text += &format!("| all | {covered} | {} |\n", rows.len());
    text += &format!(
        "\n### Not covered by the {name}\n\n| row | section | level | rule | why |\n|---|---|---|---|---|\n"
    );
    for row in rows.iter().filter(|row| !row.is_covered()) {
        let cells = [&row.id, &row.section, &row.level, &row.requirement, &row.reason];
        text += &line(&cells.map(|cell| escaped(cell)));
    }
    text += &format!(
        "\n### Covered by the {name}\n\n| row | section | level | rule | test |\n|---|---|---|---|---|\n"
    );
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

    const TEXT: &str = "id\tsection\trole\tlevel\trequirement\ttest\treason\tfeature\ttest_i\treason_i\n\
        FRM-001\t11\tboth\tMUST\tOne.\tfrm_001_one\t\tERL0\t\tnone yet\n\
        FRM-002\t11\tT\tMUST\tTwo | more.\t\tIPsec\tDigest\t\t\n\
        FRM-003\t11\tI\tMUST\tThree.\t\tinitiator\tERL0\tinitiator::rows::three\t\n\
        LOG-001\t6\tT\tMUST\tFour.\tlog_001_four\t\tCHAP\t\t\n\
        LOG-002\t6\tT\tMUST\tFive.\t\tone connection\tMC/S\t\t\n";
    const TARGET: &ConformanceRole = &ROLES[0];
    const INITIATOR: &ConformanceRole = &ROLES[1];

    #[test]
    fn only_rows_of_the_role_count() {
        let rows = ours(TEXT, TARGET).expect("rows");
        assert_eq!(groups(&rows), [("FRM", 1, 2), ("LOG", 1, 1)]);
        assert!(summary(&rows).contains("uncovered: FRM-002 Two | more. (IPsec)"));
        assert_eq!(groups(&ours(TEXT, INITIATOR).expect("rows")), [("FRM", 1, 2)]);
        let page = page(TEXT).expect("a page");
        for line in [
            "| FRM-002 | 11 | MUST | Two \\| more. | IPsec |",
            "| FRM-001 | 11 | MUST | One. | none yet |",
            "| FRM-003 | 11 | MUST | Three. | `initiator::rows::three` |",
        ] {
            assert!(page.contains(line), "{line}");
        }
    }

    #[test]
    fn missing_test_is_reported() {
        let there = functions("#[test]\nfn frm_001_one() {\n}\n").into_iter().collect();
        let lost = without_function(&ours(TEXT, TARGET).expect("rows"), &there);
        assert_eq!(lost.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["LOG-001"]);
        let lost = without_function(&ours(TEXT, INITIATOR).expect("rows"), &there);
        assert_eq!(lost.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["FRM-003"]);
    }

    #[test]
    fn module_name_comes_from_its_file() {
        assert_eq!(module(Path::new("session/tests/rows.rs")), "rows");
        assert_eq!(module(Path::new("initiator/tests/mod.rs")), "tests");
    }

    #[test]
    fn row_with_missing_columns_is_an_error() {
        assert!(ours("id\tsection\nFRM-001\n", TARGET).is_err());
    }

    #[test]
    fn page_is_current_and_named_tests_exist() {
        let text = read(ROWS).expect("rows");
        for role in &ROLES {
            let rows = ours(&text, role).expect("rows");
            assert_eq!(without_function(&rows, &super::tests().expect("tests")), []);
        }
        assert_eq!(read(PAGE).expect(PAGE), page(&text).expect("a page"), "{PAGE} is stale; run: {WRITE_IT}");
    }
}

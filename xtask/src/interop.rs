//! `cargo xtask interop`: the RDMA peers that Lunar works with, by provider, proven by the lab's tests.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::root::{self, Profile, StepResult};
use crate::test::cargo::{self, OutputLine};

/// Options of `cargo xtask interop`.
#[derive(Debug, Args)]
pub struct Options {
    /// Print the matrix as JSON
    #[arg(long)]
    json: bool,
}

/// The columns: the RDMA provider of Lunar, and the driver in the guest.
const PROVIDERS: [&str; 3] = ["iwarp", "verbs/siw", "verbs/rxe"];
/// The module of the tests in `interop/tests/lab`.
const MODULE: &str = "rdma::";
/// More failures than this are not caused by a busy machine.
const FEW: usize = 3;

/// The proof of a cell.
#[derive(Clone, Copy, Debug)]
enum CellProof {
    /// These tests must pass
    Tests(&'static [&'static str]),
    /// No test, with the reason
    None(&'static str),
}
use CellProof::{None as No, Tests};

/// A peer, and its cells in the order of [`PROVIDERS`].
struct Row {
    peer: &'static str,
    /// Lunar's role towards the peer.
    role: &'static str,
    cells: [CellProof; 3],
}

const TO_SIW: CellProof =
    Tests(&["kernels_iser_initiator_to_verbs_over_siw", "file_system_to_verbs_over_siw_outlives_kill_9"]);
const TO_RXE: CellProof =
    Tests(&["kernels_iser_initiator_to_verbs_over_rxe", "file_system_to_verbs_over_rxe_outlives_kill_9"]);
const ISERT_SIW: CellProof = Tests(&["our_iser_initiator_by_verbs_over_siw_against_isert"]);
const ISERT_RXE: CellProof = Tests(&["our_iser_initiator_by_verbs_over_rxe_against_isert"]);
const STGT_SIW: CellProof = Tests(&["our_iser_initiator_by_verbs_over_siw_against_stgt"]);
const STGT_RXE: CellProof = Tests(&["our_iser_initiator_by_verbs_over_rxe_against_stgt"]);
const SRP_TO_SIW: CellProof = Tests(&["kernels_srp_initiator_to_verbs_over_siw"]);
const SRP_TO_RXE: CellProof = Tests(&["kernels_srp_initiator_to_verbs_over_rxe"]);
const SRPT_SIW: CellProof = Tests(&["our_srp_initiator_by_verbs_over_siw"]);
const SRPT_RXE: CellProof = Tests(&["our_srp_initiator_by_verbs_over_rxe"]);
const LIBISCSI: CellProof = No(
    "iscsi-test-cu 1.19.0 crashes over iSER (munmap_chunk, SIGSEGV), with LIO as well, and does not get into STGT",
);
const OWN: CellProof = Tests(&["lunar_and_lunar"]);

const ROWS: [Row; 7] = [
    Row {
        peer: "ib_iser",
        role: "target",
        cells: [
            Tests(&[
                "kernels_iser_initiator_over_siw",
                "file_system_over_iser_outlives_kill_9_of_the_server",
                "multipath_over_two_portals_of_iser",
            ]),
            TO_SIW,
            TO_RXE,
        ],
    },
    Row {
        peer: "isert",
        role: "initiator",
        cells: [Tests(&["our_iser_initiator_against_the_kernels_target"]), ISERT_SIW, ISERT_RXE],
    },
    Row {
        peer: "ib_srp",
        role: "target",
        cells: [Tests(&["kernels_srp_initiator_over_siw"]), SRP_TO_SIW, SRP_TO_RXE],
    },
    Row {
        peer: "ib_srpt",
        role: "initiator",
        cells: [Tests(&["our_srp_initiator_against_the_kernels_target"]), SRPT_SIW, SRPT_RXE],
    },
    Row {
        peer: "STGT iSER",
        role: "initiator",
        cells: [Tests(&["our_iser_initiator_against_stgt"]), STGT_SIW, STGT_RXE],
    },
    Row { peer: "libiscsi", role: "target", cells: [LIBISCSI, LIBISCSI, LIBISCSI] },
    Row { peer: "Lunar", role: "both", cells: [OWN, OWN, OWN] },
];

/// The result of a cell, or of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CellOutcome {
    Ok,
    Failed(String),
    /// It was skipped, with the reason
    Not(String),
}

/// The results of tests, by name.
type TestOutcomes = BTreeMap<String, CellOutcome>;

/// Runs the tests and prints the matrix; fails if a cell fails.
pub fn run(options: &Options) -> Result<StepResult> {
    root::lunar(Profile::Test)?;
    let outcomes = run_tests()?;
    let text = if options.json { format!("{:#}", as_json(&outcomes)) } else { table(&outcomes) };
    println!("{}", text.trim_end());
    let failed =
        cells().filter(|(_, _, proof)| matches!(of(proof, &outcomes), CellOutcome::Failed(_))).count();
    Ok(if failed == 0 { StepResult::Ok } else { StepResult::Failed(format!("{failed} cells failed")) })
}

/// Each peer, provider and proof.
fn cells() -> impl Iterator<Item = (&'static Row, &'static str, &'static CellProof)> {
    ROWS.iter().flat_map(|row| PROVIDERS.iter().zip(&row.cells).map(move |(p, proof)| (row, *p, proof)))
}

/// The names of all tests, without duplicates.
fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = Vec::new();
    for (_, _, proof) in cells() {
        if let Tests(tests) = proof {
            names.extend(tests.iter().filter(|test| !names.contains(test)).collect::<Vec<_>>());
        }
    }
    names
}

/// Runs all tests; if only few fail, runs these once more, like `cargo xtask test`.
fn run_tests() -> Result<TestOutcomes> {
    let mut outcomes = TestOutcomes::new();
    run_these(&names(), &mut outcomes)?;
    let again = failed(&outcomes);
    if (1..=FEW).contains(&again.len()) {
        run_these(&again.iter().map(String::as_str).collect::<Vec<_>>(), &mut outcomes)?;
    }
    Ok(outcomes)
}

fn failed(outcomes: &TestOutcomes) -> Vec<String> {
    let has_failed = |outcome: &CellOutcome| matches!(outcome, CellOutcome::Failed(_));
    outcomes.iter().filter(|(_, outcome)| has_failed(outcome)).map(|(name, _)| name.clone()).collect()
}

/// Runs tests, one guest at a time; prints their output to stderr.
fn run_these(names: &[&str], outcomes: &mut TestOutcomes) -> Result<()> {
    let names: Vec<String> = names.iter().map(|name| format!("{MODULE}{name}")).collect();
    let options = ["--test-threads=1", "--exact"].into_iter().chain(names.iter().map(String::as_str));
    let (selection, mut section) = (["--package", "interop", "--test", "lab"], String::new());
    cargo::run(&selection, &options.collect::<Vec<_>>(), |line| {
        let (OutputLine::Out(text) | OutputLine::Err(text)) = line;
        eprintln!("{text}");
        if let OutputLine::Out(text) = line {
            take(text, &mut section, outcomes);
        }
    })
}

/// Processes one line of output; `section` is the test that printed it.
fn take(line: &str, section: &mut String, outcomes: &mut TestOutcomes) {
    if let Some((name, result)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) {
        let outcome = match result {
            "ok" => CellOutcome::Ok,
            other => CellOutcome::Failed(other.to_owned()),
        };
        outcomes.insert(plain(name), outcome);
    } else if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
        *section = plain(name);
    } else if line.starts_with("skipped: ") && outcomes.contains_key(section) {
        outcomes.insert(section.clone(), CellOutcome::Not(line.to_owned()));
    }
}

fn plain(name: &str) -> String {
    name.strip_prefix(MODULE).unwrap_or(name).to_owned()
}

/// The result of a cell: that of its first test that is not ok.
fn of(proof: &CellProof, outcomes: &TestOutcomes) -> CellOutcome {
    let tests = match proof {
        No(why) => return CellOutcome::Not((*why).to_owned()),
        Tests(tests) => *tests,
    };
    let missing = |test: &str| CellOutcome::Failed(format!("{test} did not run"));
    let all = tests.iter().map(|test| outcomes.get(*test).cloned().unwrap_or_else(|| missing(test)));
    let worst = |outcome: &CellOutcome| match outcome {
        CellOutcome::Failed(_) => 2,
        CellOutcome::Not(_) => 1,
        CellOutcome::Ok => 0,
    };
    all.max_by_key(worst).unwrap_or(CellOutcome::Ok)
}

/// The matrix, with numbered reasons below.
fn table(outcomes: &TestOutcomes) -> String {
    let mut reasons: Vec<String> = Vec::new();
    let mut text = format!("{:<10} {:<10}", "peer", "Lunar is");
    PROVIDERS.iter().for_each(|provider| _ = write!(text, " {provider:<10}"));
    for row in &ROWS {
        _ = write!(text, "\n{:<10} {:<10}", row.peer, row.role);
        for proof in &row.cells {
            _ = write!(text, " {:<10}", word(of(proof, outcomes), &mut reasons));
        }
    }
    text.push('\n');
    for (number, reason) in reasons.iter().enumerate() {
        _ = writeln!(text, "[{}] {reason}", number + 1);
    }
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn word(outcome: CellOutcome, reasons: &mut Vec<String>) -> String {
    match outcome {
        CellOutcome::Ok => "ok".into(),
        CellOutcome::Failed(_) => "FAILED".into(),
        CellOutcome::Not(why) => {
            let known = reasons.iter().position(|reason| *reason == why);
            let number = known.unwrap_or_else(|| {
                reasons.push(why);
                reasons.len() - 1
            });
            format!("[{}]", number + 1)
        }
    }
}

fn as_json(outcomes: &TestOutcomes) -> Value {
    let cell = |(row, provider, proof): (&Row, &str, &CellProof)| {
        let (result, reason) = match of(proof, outcomes) {
            CellOutcome::Ok => ("ok", None),
            CellOutcome::Failed(why) => ("failed", Some(why)),
            CellOutcome::Not(why) => ("none", Some(why)),
        };
        let tests: &[&str] = if let Tests(tests) = proof { tests } else { &[] };
        json!({ "peer": row.peer, "lunar": row.role, "provider": provider, "result": result,
            "tests": tests, "reason": reason })
    };
    cells().map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output when all tests pass, except those in `more`.
    fn outcomes(more: &[&str]) -> TestOutcomes {
        let (mut outcomes, mut section) = (TestOutcomes::new(), String::new());
        let passed = names().into_iter().map(|name| format!("test {MODULE}{name} ... ok"));
        for line in passed.chain(more.iter().map(|line| line.to_string())) {
            take(&line, &mut section, &mut outcomes);
        }
        outcomes
    }

    #[test]
    fn every_named_test_exists() {
        let source = std::fs::read_to_string(root::path().join("interop/tests/lab/rdma.rs")).expect("read");
        for name in names() {
            assert!(source.contains(&format!("fn {name}()")), "{name}");
        }
    }

    #[test]
    fn cell_is_ok_if_all_its_tests_are() {
        let failed = outcomes(&["test rdma::multipath_over_two_portals_of_iser ... FAILED"]);
        let line = |text: &str, peer: &str| text.lines().find(|l| l.starts_with(peer)).map(str::to_owned);
        let row = line(&table(&failed), "ib_iser").expect("a row");
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["ib_iser", "target", "FAILED", "ok", "ok"]);
        assert!(!table(&outcomes(&[])).contains("FAILED"));
        assert!(table(&TestOutcomes::new()).contains("FAILED"), "a test that did not run is not ok");
    }

    #[test]
    fn test_that_passes_on_second_run_is_ok() {
        let name = "multipath_over_two_portals_of_iser";
        let line = |result: &str| format!("test {MODULE}{name} ... {result}");
        assert_eq!(failed(&outcomes(&[&line("FAILED")])), [name]);
        assert_eq!(failed(&outcomes(&[&line("FAILED"), &line("ok")])), [] as [&str; 0]);
    }

    #[test]
    fn skipped_test_has_its_reason_below_the_matrix() {
        let why = "skipped: needs fio (apt-get install fio)";
        let skipped =
            outcomes(&["---- rdma::our_iser_initiator_against_the_kernels_target stdout ----", why]);
        let text = table(&skipped);
        assert!(text.contains("[1]") && text.contains(&format!("[1] {why}\n")), "{text}");
        let json = as_json(&skipped);
        let of = |cell: &Value| cell["peer"] == "isert" && cell["provider"] == "iwarp";
        let cell = json.as_array().and_then(|cells| cells.iter().find(|cell| of(cell))).expect("a cell");
        assert_eq!((&cell["result"], &cell["reason"]), (&json!("none"), &json!(why)));
    }
}

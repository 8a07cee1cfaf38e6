//! Every test of libiscsi's `iscsi-test-cu`, each in its own process and against its own server. The remains of a
//! test (reservations, an ejected medium) would make others fail.

use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use interop::tool::{self, Tool};

use crate::{Lun, server, url};

pub const TOOL: Tool = Tool { program: "iscsi-test-cu", package: "libiscsi-bin" };
const LIMIT: Duration = Duration::from_secs(180);
/// Time limit of a test whose results are compared: a test that hangs with one target must hang with the other.
const SHORT_LIMIT: Duration = Duration::from_secs(25);
const WORKERS: usize = 2;
/// Workers for tests whose results are compared. These tests mostly wait for a target of another project.
const COMPARE_WORKERS: usize = 8;
const MAX_SKIPPED: usize = 8;
/// With fewer tests than this, the list was not understood.
const MIN_TESTS: usize = 200;

/// Suites (ending in a dot) and tests that need another LUN than the thin one.
const LUNS: [(&str, Lun); 7] = [
    ("ALL.PreventAllow.", Lun::Removable),
    ("ALL.StartStopUnit.", Lun::Removable),
    ("ALL.NoMedia.", Lun::Removable),
    ("ALL.ReadOnly.", Lun::ReadOnly),
    ("ALL.Sanitize.Reset", Lun::Slow), // needs an operation that is still in progress
    ("ALL.GetLBAStatus.UnmapSingle", Lun::Small), // mixes up logical and physical blocks
    ("ALL.WriteSame16.Unmap", Lun::Small), // else it writes more at once than MAXIMUM TRANSFER LENGTH
];

/// Tests that fail or skip through no fault of the target, and why. A test that passes nevertheless is an error.
const EXCUSED: [(&str, TestResult, &str); 12] = [
    (
        "ALL.iSCSITMF.LUNResetSimpleAsync",
        TestResult::Failed,
        "asserts that the reset has been answered before its answer can have arrived (mended after 1.19)",
    ),
    ("ALL.iSCSIResiduals.Write10Residuals", TestResult::Failed, SHORT_WRITE),
    ("ALL.iSCSIResiduals.Write12Residuals", TestResult::Failed, SHORT_WRITE),
    ("ALL.iSCSIResiduals.Write16Residuals", TestResult::Failed, SHORT_WRITE),
    ("ALL.iSCSIResiduals.WriteVerify10Residuals", TestResult::Failed, SHORT_WRITE),
    ("ALL.iSCSIResiduals.WriteVerify12Residuals", TestResult::Failed, SHORT_WRITE),
    ("ALL.iSCSIResiduals.WriteVerify16Residuals", TestResult::Failed, SHORT_WRITE),
    ("ALL.Sanitize.CryptoErase", TestResult::Skipped, NO_CRYPTO_ERASE),
    ("ALL.Sanitize.Readonly", TestResult::Skipped, NO_CRYPTO_ERASE),
    ("ALL.Sanitize.Reservations", TestResult::Skipped, NO_CRYPTO_ERASE),
    ("ALL.WriteSame10.ZeroBlocks", TestResult::Skipped, WSNZ),
    ("ALL.WriteSame16.ZeroBlocks", TestResult::Skipped, WSNZ),
];
const SHORT_WRITE: &str = "asserts GOOD for less Data-Out than the CDB asks for; later versions take 05/0E/03 of FCP-4 section 9.4.2, too";
const NO_CRYPTO_ERASE: &str = "there is no key to forget: CRYPTOGRAPHIC ERASE is optional and not offered";
const WSNZ: &str =
    "the Block Limits page says WSNZ: a zero length is refused, which this test then does not try";

/// The result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestResult {
    Passed,
    Failed,
    Skipped,
}

/// A test, its result, and the tool's output.
struct Row {
    test: String,
    outcome: TestResult,
    said: String,
}

#[test]
fn every_test_of_iscsi_test_cu() {
    if !tool::have(&[TOOL]) {
        return;
    }
    let tests = list();
    assert!(tests.len() >= MIN_TESTS, "only {} tests were listed", tests.len());
    let rows = run_all(tests);
    let count = |outcome| rows.iter().filter(|row| row.outcome == outcome).count();
    let skipped = count(TestResult::Skipped);
    println!(
        "iscsi-test-cu: {} passed, {} failed, {skipped} skipped",
        count(TestResult::Passed),
        count(TestResult::Failed)
    );
    let surprises: Vec<&Row> = rows.iter().filter(|row| excused(row).is_none()).collect();
    for row in &surprises {
        println!("--- {} {:?}\n{}", row.test, row.outcome, row.said);
    }
    for row in rows.iter().filter(|row| row.outcome != TestResult::Passed) {
        println!("{} {:?}: {}", row.test, row.outcome, excused(row).unwrap_or("NOT EXCUSED"));
    }
    assert!(surprises.is_empty(), "{} tests did not end as they should", surprises.len());
    assert!(skipped <= MAX_SKIPPED, "{skipped} tests skipped");
}

/// All tests: the lines of the list with family, suite and test.
fn list() -> Vec<String> {
    let list = tool::must(TOOL.program, &["-l"]);
    let is_test = |line: &&str| line.starts_with("ALL.") && line.matches('.').count() == 2;
    list.lines().map(str::trim).filter(is_test).map(String::from).collect()
}

/// Why the result of a row is accepted. None: it is not.
fn excused(row: &Row) -> Option<&'static str> {
    match EXCUSED.iter().find(|(test, ..)| *test == row.test) {
        Some((_, outcome, reason)) => (*outcome == row.outcome).then_some(reason),
        None => (row.outcome == TestResult::Passed).then_some("passed"),
    }
}

fn run_all(tests: Vec<String>) -> Vec<Row> {
    in_parallel(WORKERS, tests, run_one)
}

/// Runs `work` for each test, on several threads.
fn in_parallel<R: Send>(workers: usize, tests: Vec<String>, work: impl Fn(String) -> R + Sync) -> Vec<R> {
    let queue = Mutex::new(tests.into_iter());
    let next = || queue.lock().expect("no worker panics while it holds the lock").next();
    let work = || std::iter::from_fn(next).map(&work).collect::<Vec<R>>();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect()
    })
}

fn run_one(name: String) -> Row {
    let server = server();
    let is_it = |row: &str| if row.ends_with('.') { name.starts_with(row) } else { name == row };
    let lun = LUNS.iter().find(|(row, _)| is_it(row)).map_or(Lun::Thin, |(_, lun)| *lun);
    let (outcome, said) = test(&name, &[url(&server, 0, lun), url(&server, 1, lun)], LIMIT);
    Row { test: name, outcome, said }
}

/// Result and output of a test with a LUN at two portals and a short time limit.
pub fn outcome(name: &str, urls: &[String; 2]) -> (TestResult, String) {
    test(name, urls, SHORT_LIMIT)
}

/// Result and output of a test with a LUN at two portals.
fn test(name: &str, urls: &[String; 2], limit: Duration) -> (TestResult, String) {
    let mut command = Command::new(TOOL.program);
    command.args(["--dataloss", "--allow-sanitize", "--fail", "--test", name]).args(urls);
    let ran = tool::run(&mut command, limit);
    let outcome = match (ran.ok(), is_skipped(&ran.said)) {
        (false, _) => TestResult::Failed,
        (true, true) => TestResult::Skipped,
        (true, false) => TestResult::Passed,
    };
    let ended = if ran.status.is_none() { "ended by the time limit\n" } else { "" };
    (outcome, format!("{}{ended}", ran.said))
}

/// Whether the test itself was skipped. Before it, the tool prints the same word about features that other tests use.
fn is_skipped(said: &str) -> bool {
    said.split_once("Suite: ").is_some_and(|(_, test)| test.contains("[SKIPPED]"))
}

/// Runs every test of some families in two ways, which must have the same result. If the results differ, both ways
/// get a second try, because some tests depend on timing.
pub fn compared(
    families: &[&str],
    one: impl Fn(&str) -> (TestResult, String) + Sync,
    other: impl Fn(&str) -> (TestResult, String) + Sync,
) {
    let is_wanted = |name: &String| name.split('.').nth(1).is_some_and(|family| families.contains(&family));
    let tests: Vec<String> = list().into_iter().filter(is_wanted).collect();
    assert!(tests.len() >= families.len(), "families are missing: {tests:?}");
    let pairs = in_parallel(COMPARE_WORKERS, tests, |name| {
        let both = || (one(&name), other(&name));
        let (a, b) = both();
        let (a, b) = if a.0 == b.0 { (a, b) } else { both() };
        (name, a, b)
    });
    let passed = pairs.iter().filter(|(_, a, _)| a.0 == TestResult::Passed).count();
    println!("iscsi-test-cu: {passed} of {} passed", pairs.len());
    let other: Vec<_> = pairs.iter().filter(|(_, a, b)| a.0 != b.0).collect();
    for (name, a, b) in &other {
        println!("--- {name}: {:?}\n{}\n--- and: {:?}\n{}", a.0, a.1, b.0, b.1);
    }
    assert!(other.is_empty(), "{} tests have different results", other.len());
}

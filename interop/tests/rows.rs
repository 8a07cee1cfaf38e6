//! The table of conformance rows fits the tests.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// Name of each test function with the comment before it.
fn tests() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut all = Vec::new();
    let files = fs::read_dir(folder).expect("tests").flatten().filter(|entry| entry.path().is_file());
    for file in files {
        let mut comment = String::new();
        for line in fs::read_to_string(file.path()).expect("a test file").lines() {
            match line.strip_prefix("fn ").and_then(|l| l.split_once('(')) {
                Some((name, _)) => all.push((name.to_string(), std::mem::take(&mut comment))),
                None if line.starts_with("///") || line.starts_with("#[") => comment += line,
                None => comment.clear(),
            }
        }
    }
    all.retain(|(_, comment)| comment.contains("#[test]"));
    all
}

#[test]
fn each_row_names_a_test_that_names_the_row_or_a_reason() {
    let tests = tests();
    let mut seen = HashSet::new();
    let rows = include_str!("../conformance/rows.tsv");
    for line in rows.lines().skip(1) {
        let row: Vec<&str> = line.split('\t').collect();
        assert_eq!(row.len(), 8, "{line}");
        let (id, role, test, reason, feature) = (row[0], row[2], row[5], row[6], row[7]);
        assert!(seen.insert(id), "{id} is there twice");
        assert_ne!(test.is_empty(), reason.is_empty(), "{id}: a test or a reason");
        let found = tests.iter().find(|(name, _)| name == test);
        assert!(test.is_empty() || found.is_some_and(|(_, comment)| comment.contains(id)), "{id}: {test}");
        let ours = ["ERL0", "Digest", "CHAP", "Discovery", "FastAbort"].iter().any(|f| feature.contains(f));
        let excused =
            ["IPsec", "nothing an initiator", "a logout frees"].iter().any(|r| reason.starts_with(r));
        assert!(role == "I" || !ours || !test.is_empty() || excused, "{id} has no test");
    }
    assert_eq!(seen.len(), 454);
}

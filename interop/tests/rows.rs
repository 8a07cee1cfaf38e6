//! Checks that the table of conformance rows matches the tests.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// Name of each test function, and the comment before it. Integration tests have their plain names. Unit tests are
/// named crate::module::function.
fn tests() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = Vec::new();
    for (prefix, place) in [
        ("", "tests"),
        ("", "../crates/lunar-initiator/tests"),
        ("initiator", "../crates/lunar-initiator/src"),
        ("proto", "../crates/lunar-proto/src/initiator"),
    ] {
        collect(prefix, &folder.join(place), &mut all);
    }
    all.retain(|(_, comment)| comment.contains("#[test]"));
    all
}

fn collect(prefix: &str, folder: &Path, all: &mut Vec<(String, String)>) {
    for path in fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect(prefix, &path, all);
        } else {
            let named = if path.ends_with("mod.rs") { folder } else { &path };
            let module = named.file_stem().expect("a name").to_string_lossy().into_owned();
            let qualifier = if prefix.is_empty() { String::new() } else { format!("{prefix}::{module}::") };
            functions(&qualifier, &fs::read_to_string(&path).expect("a source"), all);
        }
    }
}

fn functions(qualifier: &str, source: &str, all: &mut Vec<(String, String)>) {
    let mut comment = String::new();
    for line in source.lines().map(str::trim_start) {
        match line.strip_prefix("fn ").and_then(|l| l.split_once('(')) {
            Some((name, _)) => all.push((format!("{qualifier}{name}"), std::mem::take(&mut comment))),
            None if line.starts_with("///") || line.starts_with("#[") => comment += &format!("{line} "),
            None => comment.clear(),
        }
    }
}

/// Whether a comment names a row, alone or in a range: SEC-001, or SEC-001 to SEC-003.
fn names(comment: &str, id: &str) -> bool {
    let (group, number) = id.split_once('-').expect("an id");
    let words: Vec<&str> = comment.split([' ', ',', ':', '.', '(', ')']).filter(|w| !w.is_empty()).collect();
    let in_group = |word: &str| word.strip_prefix(group)?.strip_prefix('-')?.parse::<u32>().ok();
    let number: u32 = number.parse().expect("a number");
    let in_range = |w: &[&str]| match (in_group(w[0]), w[1], in_group(w[2])) {
        (Some(first), "to", Some(last)) => (first..=last).contains(&number),
        _ => false,
    };
    comment.contains(id) || words.windows(3).any(in_range)
}

#[test]
fn rows_name_a_test_or_a_reason() {
    let tests = tests();
    let mut seen = HashSet::new();
    let rows = include_str!("../conformance/rows.tsv");
    for line in rows.lines().skip(1) {
        let row: Vec<&str> = line.split('\t').collect();
        assert_eq!(row.len(), 10, "{line}");
        let (id, role, test, reason, feature) = (row[0], row[2], row[5], row[6], row[7]);
        let (test_i, reason_i) = (row[8], row[9]);
        assert!(seen.insert(id), "{id} occurs twice");
        assert_ne!(test.is_empty(), reason.is_empty(), "{id}: a test or a reason");
        let found = |test: &str| tests.iter().any(|(name, c)| name == test && names(c, id));
        assert!(test.is_empty() || found(test), "{id}: {test}");
        assert!(test_i.is_empty() || found(test_i), "{id}: {test_i}");
        assert_eq!(
            role == "T",
            test_i.is_empty() && reason_i.is_empty(),
            "{id}: the initiator's test or reason"
        );
        assert!(test_i.is_empty() || reason_i.is_empty(), "{id}: a test or a reason");
        let ours = ["ERL0", "Digest", "CHAP", "Discovery", "FastAbort"].iter().any(|f| feature.contains(f));
        let excused =
            ["IPsec", "nothing an initiator", "a logout frees"].iter().any(|r| reason.starts_with(r));
        assert!(role == "I" || !ours || !test.is_empty() || excused, "{id} has no test");
    }
    assert_eq!(seen.len(), 454);
}

//! Rules for names: of types across the workspace, and of tests.

use std::collections::BTreeMap;

use super::TidyFinding;
use super::project::SourceFile;
use super::rust::{is_product, lines_without_tests};

/// A type name with more definitions than this is not specific.
const MAX_DEFINITIONS: usize = 2;

/// Names that a convention permits everywhere.
const CONVENTIONAL: [(&str, &str); 7] = [
    ("Args", "arguments of a command, as clap's examples call them"),
    ("Error", "the error of a module or crate, as in std"),
    ("Options", "options of one function or command"),
    ("Request", "a request of the protocol that the module is named after"),
    ("Response", "a response of the protocol that the module is named after"),
    ("Row", "a row of the table that the module prints"),
    ("State", "the state of the type that the module is named after"),
];

const MAX_TEST_NAME: usize = 60;
const MIN_TEST_WORDS: usize = 3;
/// A test name has a subject, a condition and a result. It is not a sentence.
const SENTENCE_STARTS: [&str; 7] = ["a", "an", "the", "it", "who", "what", "nothing"];

/// Type names that the product code defines too often.
pub fn types(files: &[SourceFile]) -> Vec<TidyFinding> {
    let mut places: BTreeMap<String, Vec<(&str, usize)>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs") && is_product(&file.path)) {
        for (line, name) in definitions(file) {
            places.entry(name).or_default().push((&file.path, line));
        }
    }
    let is_allowed = |name: &str| CONVENTIONAL.iter().any(|(allowed, _)| *allowed == name);
    let too_often = places.iter().filter(|(name, at)| at.len() > MAX_DEFINITIONS && !is_allowed(name));
    too_often
        .flat_map(|(name, at)| {
            let what = format!("type {name} is defined {} times", at.len());
            at.iter().map(move |(path, line)| {
                TidyFinding::new(path, *line, what.clone(), "give it a specific name")
            })
        })
        .collect()
}

/// Line and name of each type that the code, without its tests, defines. An indented `type` is an associated one.
fn definitions(file: &SourceFile) -> Vec<(usize, String)> {
    let code = file.code();
    let lines = code.lines().take(lines_without_tests(&file.path, code)).enumerate();
    lines.filter_map(|(n, line)| Some((n + 1, definition(line)?))).collect()
}

fn definition(line: &str) -> Option<String> {
    let is_indented = line.starts_with(' ');
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub") || *word == "unsafe");
    let keyword = words.next()?;
    if !["struct", "enum", "trait", "union"].contains(&keyword) && (keyword != "type" || is_indented) {
        return None;
    }
    let name: String = words.next()?.chars().take_while(|c| c.is_alphanumeric()).collect();
    name.starts_with(char::is_uppercase).then_some(name)
}

/// Names of tests that are too long or that read like a sentence.
pub fn tests(file: &SourceFile) -> Vec<TidyFinding> {
    let code = file.code();
    let lines: Vec<&str> = code.lines().collect();
    let names = lines.iter().enumerate().filter_map(|(n, line)| Some((n, test_name(&lines[..n], line)?)));
    names
        .filter_map(|(n, name)| {
            Some(TidyFinding::new(&file.path, n + 1, fault(name)?, "name it subject_condition_result"))
        })
        .collect()
}

/// The name of the test on `line`, whose attributes are directly above it.
fn test_name<'a>(above: &[&str], line: &'a str) -> Option<&'a str> {
    let name = line.trim_start().trim_start_matches("async ").strip_prefix("fn ")?.split('(').next()?;
    let mut attributes = above.iter().rev().map(|line| line.trim()).take_while(|line| line.starts_with("#["));
    attributes.any(|line| line.contains("test]") || line.contains("test(")).then_some(name)
}

fn fault(name: &str) -> Option<String> {
    let words: Vec<&str> = name.split('_').collect();
    if name.len() > MAX_TEST_NAME {
        return Some(format!("test name {name} has {} characters, more than {MAX_TEST_NAME}", name.len()));
    }
    if words.len() < MIN_TEST_WORDS {
        return Some(format!("test name {name} has fewer than {MIN_TEST_WORDS} words"));
    }
    SENTENCE_STARTS.contains(&words[0]).then(|| format!("test name {name} begins with \"{}\"", words[0]))
}

#[cfg(test)]
mod unit_tests {
    use super::*;
    use crate::tidy::project::file;

    #[test]
    fn type_name_defined_three_times_is_reported_at_each_place() {
        let text = "pub struct Line;\nimpl T for Line {\n    type Output = u8;\n}\n";
        let path = |n: usize| format!("crates/x{n}/src/lib.rs");
        let two = [file(&path(1), text), file(&path(2), text)];
        assert_eq!(types(&two), []);
        let three = [file(&path(1), text), file(&path(2), text), file(&path(3), "\nenum Line {}\n")];
        let at: Vec<(String, usize)> =
            types(&three).into_iter().map(|found| (found.file, found.line)).collect();
        assert_eq!(at, [(path(1), 1), (path(2), 1), (path(3), 2)]);
    }

    #[test]
    fn conventional_names_and_types_of_tests_are_not_counted() {
        let files: Vec<SourceFile> =
            (0..3).map(|n| file(&format!("crates/x{n}/src/lib.rs"), "struct Error;\n")).collect();
        assert_eq!(types(&files), []);
        let tests: Vec<SourceFile> =
            (0..3).map(|n| file(&format!("crates/x{n}/src/tests.rs"), "struct Fake;\n")).collect();
        assert_eq!(types(&tests), []);
    }

    #[test]
    fn test_names_that_are_long_short_or_sentences_are_reported() {
        let faults =
            |name: &str| tests(&file("crates/x/src/x.rs", &format!("#[test]\nfn {name}() {{}}\n"))).len();
        assert_eq!(faults("read_past_end_is_refused"), 0);
        assert_eq!(faults("a_read_past_the_end_is_refused"), 1);
        assert_eq!(faults("read_fails"), 1);
        assert_eq!(faults(&"read_past_end_".repeat(5)), 1);
        assert_eq!(tests(&file("crates/x/src/x.rs", "#[inline]\nfn a_thing() {}\n")), []);
    }
}

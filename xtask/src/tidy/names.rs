//! Rules for names: of types across the workspace, and of tests.

use std::collections::BTreeMap;

use super::TidyFinding;
use super::project::SourceFile;
use super::rust::{is_product, lines_without_tests};

/// A type name with more definitions than this is not specific.
const MAX_DEFINITIONS: usize = 2;

/// Names that a convention permits, with the maximum number of `pub` definitions in one crate. Any number may be
/// private to a module, or restricted as with `pub(crate)`: their crate names them by their module, `alua::State`.
const CONVENTIONAL: [(&str, usize, &str); 7] = [
    ("Args", usize::MAX, "arguments of a command, as clap's examples call them"),
    ("Error", 1, "the error of a crate, as in std"),
    ("Options", usize::MAX, "options of one function or command"),
    ("Request", 1, "a request of the protocol of the crate"),
    ("Response", 1, "a response of the protocol of the crate"),
    ("Row", 1, "a row of the table that the module prints"),
    ("State", 1, "the state of the type that the module is named after"),
];

const MAX_TEST_NAME: usize = 60;
const MIN_TEST_WORDS: usize = 3;
/// A test name has a subject, a condition and a result. It is not a sentence.
const SENTENCE_STARTS: [&str; 7] = ["a", "an", "the", "it", "who", "what", "nothing"];

/// A definition of a type.
struct Definition {
    line: usize,
    name: String,
    /// `pub` without a restriction
    is_public: bool,
}

/// The definitions of one name: the path and the line of each.
type Places<'a> = Vec<(&'a str, usize)>;

/// Type names that the product code defines too often.
pub fn types(files: &[SourceFile]) -> Vec<TidyFinding> {
    let mut specific: BTreeMap<String, Places> = BTreeMap::new();
    let mut generic: BTreeMap<(String, &str), Places> = BTreeMap::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs") && is_product(&file.path)) {
        for found in definitions(file) {
            let place = (file.path.as_str(), found.line);
            if most_public(&found.name).is_none() {
                specific.entry(found.name).or_default().push(place);
            } else if found.is_public {
                generic.entry((found.name, crate_of(&file.path))).or_default().push(place);
            }
        }
    }
    let specific = specific.iter().filter(|(_, at)| at.len() > MAX_DEFINITIONS);
    let generic =
        generic.iter().filter(|((name, _), at)| most_public(name).is_some_and(|most| at.len() > most));
    let specific = specific.flat_map(|(name, at)| findings(format!("type {name} is defined"), at));
    let generic = generic
        .flat_map(|((name, of), at)| findings(format!("in {of}, type {name} is public and defined"), at));
    specific.chain(generic).collect()
}

fn findings(what: String, at: &Places) -> Vec<TidyFinding> {
    let what = format!("{what} {} times", at.len());
    at.iter()
        .map(|(path, line)| TidyFinding::new(path, *line, what.clone(), "give it a specific name"))
        .collect()
}

/// The maximum number of public definitions of a conventional name in one crate.
fn most_public(name: &str) -> Option<usize> {
    CONVENTIONAL.iter().find(|(allowed, ..)| *allowed == name).map(|(_, most, _)| *most)
}

fn crate_of(path: &str) -> &str {
    path.split('/').nth(1).unwrap_or(path)
}

/// Each type that the code, without its tests, defines. An indented `type` is an associated one.
fn definitions(file: &SourceFile) -> Vec<Definition> {
    let code = file.code();
    let lines = code.lines().take(lines_without_tests(&file.path, code)).enumerate();
    lines
        .filter_map(|(n, line)| {
            let is_public = line.trim_start().starts_with("pub ");
            Some(Definition { line: n + 1, name: definition(line)?, is_public })
        })
        .collect()
}

fn definition(line: &str) -> Option<String> {
    let is_indented = line.starts_with(' ');
    let is_visibility = |word: &str| word.starts_with("pub") || word.ends_with(')');
    let mut words = line.split_whitespace().skip_while(|word| is_visibility(word) || *word == "unsafe");
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
    fn second_public_conventional_name_in_a_crate_is_reported() {
        let found = |texts: [&str; 3]| {
            let path = |n: usize| format!("crates/x/src/m{n}.rs");
            let files: Vec<SourceFile> = (0..3).map(|n| file(&path(n), texts[n])).collect();
            types(&files).into_iter().map(|found| found.file).collect::<Vec<_>>()
        };
        let two = ["crates/x/src/m0.rs", "crates/x/src/m2.rs"];
        assert_eq!(found(["pub struct State;\n", "struct State;\n", "pub enum State {}\n"]), two);
        assert!(found(["pub struct State;\n", "pub(super) struct State;\n", "struct State;\n"]).is_empty());
        assert!(found(["pub struct Args;\n", "pub struct Args;\n", "pub struct Args;\n"]).is_empty());
        let crates = ["a", "b"].map(|name| file(&format!("crates/{name}/src/lib.rs"), "pub struct State;\n"));
        assert_eq!(types(&crates), []);
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

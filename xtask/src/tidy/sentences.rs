//! Rules for the first word of a sentence, in comments, messages and pages.

use super::TidyFinding;
use super::project::SourceFile;

/// Words that do not begin a sentence. Only there they have a capital.
const STARTS: [&str; 3] = ["What", "Whatever", "Whoever"];

/// Words after `That` as the subject. Verbs of the third person count too: see [`is_verb`].
const AFTER_THAT: [&str; 18] = [
    "also", "alone", "can", "could", "did", "had", "may", "might", "must", "never", "of", "only", "should",
    "then", "too", "were", "will", "would",
];

/// Files that may have such a sentence: a part of the line, and the reason.
const EXCEPTIONS: [(&str, &str, &str); 1] =
    [("xtask/src/tidy/sentences.rs", "", "it lists these words, and its tests have such sentences")];

const REMEDY: &str = "begin the sentence with the actor or the object";

/// Reports sentences whose subject is `What` or `That`. A heading is no sentence.
pub fn check(file: &SourceFile) -> Vec<TidyFinding> {
    let is_source = file.path.ends_with(".rs");
    if !is_source && ![".md", ".toml"].iter().any(|end| file.path.ends_with(end)) {
        return Vec::new();
    }
    let mut code = if is_source { file.code() } else { "" }.lines();
    let prose: Vec<String> = file.text.lines().map(|line| prose(line, code.next().unwrap_or(""))).collect();
    let mut findings = Vec::new();
    for (n, line) in prose.iter().enumerate().filter(|(_, line)| !is_heading(line)) {
        let next = prose.get(n + 1).map_or("", String::as_str);
        let found = start(line, next).filter(|_| !is_excepted(file, n));
        findings.extend(found.map(|word| {
            TidyFinding::new(&file.path, n + 1, format!("a sentence begins with \"{word}\""), REMEDY)
        }));
    }
    findings
}

fn is_excepted(file: &SourceFile, n: usize) -> bool {
    let line = file.text.lines().nth(n).unwrap_or("");
    EXCEPTIONS.iter().any(|(path, part, _)| *path == file.path && line.contains(part))
}

/// The line with blanks instead of code, and of everything between backticks.
fn prose(line: &str, code: &str) -> String {
    let mut code = code.chars();
    let mut is_quoted = false;
    let mut blanked = |c: char| {
        is_quoted ^= c == '`';
        is_quoted || c == '`' || code.next().is_some_and(|code| !code.is_whitespace())
    };
    line.chars().map(|c| if blanked(c) { ' ' } else { c }).collect()
}

/// A heading of a page or of a doc comment.
fn is_heading(line: &str) -> bool {
    line.trim_start().trim_start_matches("//!").trim_start_matches("///").trim_start().starts_with("# ")
        || line.starts_with("##")
}

/// The forbidden word with which a sentence in this line begins.
fn start(line: &str, next: &str) -> Option<&'static str> {
    let words =
        || line.match_indices(|c: char| c.is_uppercase()).map(|(at, _)| at).filter(|at| begins(line, *at));
    words().find_map(|at| {
        let mut rest = line[at..].split(|c: char| !is_word(c)).filter(|word| !word.is_empty());
        let word = rest.next()?;
        if word == "That" {
            let mut below = next.split(|c: char| !is_word(c)).filter(|word| !word.is_empty());
            return rest.next().or_else(|| below.next()).is_some_and(is_verb).then_some("That");
        }
        STARTS.into_iter().find(|start| *start == word)
    })
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '\''
}

/// Whether a word begins here, other than the title of a link or an emphasized title.
fn begins(line: &str, at: usize) -> bool {
    !line[..at].ends_with(|c: char| is_word(c) || c == '[' || c == '*')
}

/// A verb of the third person ends with one `s`, as no singular noun of the project but those with `us`.
fn is_verb(word: &str) -> bool {
    AFTER_THAT.contains(&word)
        || word.ends_with('s') && !word.ends_with("ss") && !word.ends_with("us") && !word.ends_with("'s")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::project::file;

    const NONE: [usize; 0] = [];

    /// The lines with a finding.
    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&file(path, text)).iter().map(|found| found.line).collect()
    }

    #[test]
    fn forbidden_subject_in_page_comment_or_message_is_reported() {
        assert_eq!(
            lines("docs/x.md", "It ends. What it holds is freed.\nWhoever asks.\n- That is it.\n"),
            [1, 2, 3]
        );
        let source = "//! What it does.\n/// That of another.\nfn f() { // Whatever happens\n  g(\"x. That needs root\") }\n";
        assert_eq!(lines("crates/x/src/x.rs", source), [1, 2, 3, 4]);
    }

    #[test]
    fn verb_in_the_next_line_is_found() {
        assert_eq!(lines("docs/x.md", "It ends. That\nmeans a loss.\n"), [1]);
    }

    #[test]
    fn heading_link_title_and_code_are_not_reported() {
        let page = "# What it is\n## What else\nSee [What it is](#x), *What else* and `What`.\n";
        assert_eq!(lines("docs/x.md", page), NONE);
        assert_eq!(lines("crates/x/src/x.rs", "//! # What it is\nlet x = What::That;\n"), NONE);
    }

    #[test]
    fn that_before_a_noun_is_not_reported() {
        assert_eq!(
            lines("docs/x.md", "That lock is held. That process ends.\nThat bus is slow: what it is.\n"),
            NONE
        );
    }
}

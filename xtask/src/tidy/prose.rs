//! Rules for the words of comments, messages and pages.

use super::TidyFinding;
use super::project::SourceFile;

/// Words that the project does not use, and what to write for them.
const BANNED: [(&str, &str); 6] = [
    ("tell", "write report, show, return, log or reject"),
    ("tells", "write reports, shows, returns, logs or rejects"),
    ("told", "write reported, shown, returned, logged or rejected"),
    ("telling", "write reporting, showing, returning, logging or rejecting"),
    ("Who", "begin the sentence with the actor"),
    ("nobody", "name the actor, or use the passive"),
];

/// Files that may hold such words, and why.
const EXCEPTIONS: [(&str, &str); 1] = [("xtask/src/tidy/prose.rs", "it lists them")];

/// Reports banned words in the comments and strings of a source, or anywhere in a page.
pub fn check(file: &SourceFile) -> Vec<TidyFinding> {
    let is_source = file.path.ends_with(".rs");
    let is_text = is_source || [".md", ".toml"].iter().any(|end| file.path.ends_with(end));
    if !is_text || EXCEPTIONS.iter().any(|(path, _)| *path == file.path) {
        return Vec::new();
    }
    let mut code = if is_source { file.code() } else { "" }.lines();
    let mut findings = Vec::new();
    for (n, line) in file.text.lines().enumerate() {
        let code = code.next().unwrap_or("");
        let words: Vec<&str> = words(line, code).collect();
        for (word, remedy) in BANNED.iter().filter(|(word, _)| words.contains(word)) {
            findings.push(TidyFinding::new(&file.path, n + 1, format!("the word \"{word}\""), remedy));
        }
    }
    findings
}

/// The words of a line that are not code.
fn words<'a>(line: &'a str, code: &'a str) -> impl Iterator<Item = &'a str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '\'';
    let in_code: Vec<&str> = code.split(move |c| !is_word(c)).filter(|word| !word.is_empty()).collect();
    line.split(move |c| !is_word(c)).filter(move |word| !word.is_empty() && !in_code.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::project::file;

    /// A banned word, which this file may contain.
    const TOLD: &str = "told";

    #[test]
    fn banned_word_in_comment_string_or_page_is_reported() {
        let count = |path: &str, text: &str| check(&file(path, text)).len();
        assert_eq!(count("crates/x/src/x.rs", &format!("// it is {TOLD}\n")), 1);
        assert_eq!(count("crates/x/src/x.rs", &format!("let x = \"{TOLD} so\";\n")), 1);
        assert_eq!(count("docs/x.md", &format!("Hosts are {TOLD}.\n")), 1);
        assert_eq!(count("docs/x.md", "Hosts see it. The WHO does not.\n"), 0);
    }

    #[test]
    fn banned_word_that_is_an_identifier_is_left_to_names() {
        assert_eq!(check(&file("crates/x/src/x.rs", &format!("let {TOLD} = untold;\n"))), []);
    }
}

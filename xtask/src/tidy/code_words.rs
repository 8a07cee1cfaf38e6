//! The rule for names of code in comments: a word in snake case stands in backticks. Then rustdoc shows it as code, and
//! a rename of the item does not put its new name into a sentence.

use super::TidyFinding;
use super::project::SourceFile;
use super::source::comments_only;

/// Names of programs and interfaces. Help texts, which are comments in the source, print them without backticks.
const PROPER_NAMES: [&str; 5] = ["io_uring", "io_trash", "sg3_utils", "sg_persist", "sgp_dd"];
/// Beginning and end of the target of an inline link, of a reference to the end of its line, and of a bare URL.
const LINK_TARGETS: [(&str, &str); 3] = [("](", ")"), ("]: ", "\n"), ("<http", ">")];
const REMEDY: &str = "put a name of code in backticks, or write words";

/// Words in snake case in the comments of a source, outside backticks, code fences and link targets.
pub fn check(file: &SourceFile) -> Vec<TidyFinding> {
    let mut prose = Prose::default();
    let mut findings = Vec::new();
    for (n, line) in comments_only(&file.text).lines().enumerate() {
        let text = prose.outside_code(line);
        for word in snake_words(&text).filter(|word| !PROPER_NAMES.contains(word)) {
            let what = format!("the word {word} outside backticks");
            findings.push(TidyFinding::new(&file.path, n + 1, what, REMEDY));
        }
    }
    findings
}

/// The place in a comment of several lines.
#[derive(Default)]
struct Prose {
    in_fence: bool,
    in_backticks: bool,
}

impl Prose {
    /// The prose of a line, which has only its comment left.
    fn outside_code(&mut self, line: &str) -> String {
        let text = line.trim_start().trim_start_matches(['/', '!', '*']).trim_start();
        if line.trim().is_empty() {
            *self = Prose::default();
        }
        if text.starts_with("```") {
            self.in_fence = !self.in_fence;
            return String::new();
        }
        if self.in_fence { String::new() } else { without_targets(&self.outside_backticks(text)) }
    }

    fn outside_backticks(&mut self, text: &str) -> String {
        let mut out = String::new();
        for (n, part) in text.split('`').enumerate() {
            self.in_backticks ^= n > 0;
            out.push_str(if self.in_backticks { " " } else { part });
        }
        out
    }
}

/// The text without the targets of links.
fn without_targets(text: &str) -> String {
    LINK_TARGETS.iter().fold(text.to_owned(), |text, (start, end)| without_parts(&text, start, end))
}

/// The text without the parts from `start` to `end`.
fn without_parts(text: &str, start: &str, end: &str) -> String {
    let mut parts = text.split(start);
    let mut out = parts.next().unwrap_or("").to_owned();
    for part in parts {
        out.push(' ');
        out.push_str(part.split_once(end).map_or("", |(_, after)| after));
    }
    out
}

/// Lower-case words with an underscore inside, except pages of the manual such as name(7).
fn snake_words(text: &str) -> impl Iterator<Item = &str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = &rest[rest.find(is_word)?..];
        let (word, after) = rest.split_at(rest.find(|c| !is_word(c)).unwrap_or(rest.len()));
        rest = after;
        Some((word, after))
    })
    .filter(|(word, after)| is_snake(word) && !is_manual_section(after))
    .map(|(word, _)| word)
}

fn is_snake(word: &str) -> bool {
    word.trim_matches('_').contains('_') && !word.contains(char::is_uppercase)
}

/// Whether the text begins with a section of the manual, such as (7).
fn is_manual_section(text: &str) -> bool {
    text.strip_prefix('(').is_some_and(|inner| inner.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::project::file;

    /// The line and the word of each finding.
    fn found(text: &str) -> Vec<(usize, String)> {
        let findings = check(&file("crates/x/src/x.rs", text)).into_iter();
        findings.map(|found| (found.line, found.what.split(' ').nth(2).unwrap_or("").to_string())).collect()
    }

    #[test]
    fn snake_word_in_any_comment_is_reported() {
        let text = "//! one_a\n/// (two_b).\nfn f() { // three_c four_d\n}\n/* five_e */\n";
        let words = [(1, "one_a"), (2, "two_b"), (3, "three_c"), (3, "four_d"), (5, "five_e")];
        assert_eq!(found(text), words.map(|(line, word)| (line, word.to_string())));
    }

    #[test]
    fn snake_word_of_code_is_not_reported() {
        assert_eq!(found("fn a_b() {\n    let c_d = \"e_f // g_h\";\n}\n"), []);
        assert_eq!(found("/// `a_b`, and `a long\n/// c_d` of two lines.\n"), []);
        assert_eq!(found("//! ```\n//! let a_b = c_d;\n//! ```\n//! e_f\n"), [(4, "e_f".to_string())]);
    }

    #[test]
    fn open_backtick_ends_with_its_comment() {
        assert_eq!(found("/// A ` alone.\nfn f() {}\n/// a_b\n"), [(3, "a_b".to_string())]);
    }

    #[test]
    fn link_target_is_not_reported() {
        assert_eq!(
            found("/// [`A`](crate::a_b) and [c](d_e), <https://x.example/f_g>.\n/// [`h`]: i_j\n"),
            []
        );
        assert_eq!(found("/// [`A`](crate::a_b) c_d\n"), [(1, "c_d".to_string())]);
    }

    #[test]
    fn constant_name_and_manual_page_are_no_code_words() {
        assert_eq!(found("// O_DIRECT, I_T_L, __, mount_namespaces(7), io_uring, Mixed_case\n"), []);
        assert_eq!(found("// a_b() is called\n"), [(1, "a_b".to_string())]);
    }
}

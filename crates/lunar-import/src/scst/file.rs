//! The grammar of `scst.conf`: attributes with values, and sections in braces.

use crate::ImportError;

/// Limit of nested sections. The deepest of SCST has 4: a LUN of a group of a target of a driver.
const MAX_DEPTH: usize = 8;

/// An attribute, or a section with its content.
#[derive(Debug, Default)]
pub(super) struct ScstEntry {
    /// The first word.
    pub(super) key: String,
    /// The other words.
    pub(super) args: Vec<String>,
    /// The line, from 1.
    pub(super) line: usize,
    /// The content of a section.
    pub(super) entries: Vec<ScstEntry>,
}

impl ScstEntry {
    /// Where the entry is.
    pub(super) fn place(&self) -> String {
        format!("line {}", self.line)
    }

    /// The first argument.
    pub(super) fn arg(&self) -> &str {
        self.args.first().map_or("", String::as_str)
    }

    /// The entry with this key; the last one counts.
    pub(super) fn find(&self, key: &str) -> Option<&ScstEntry> {
        self.entries.iter().rfind(|entry| entry.key == key)
    }

    /// The value of an attribute that is not empty.
    pub(super) fn value(&self, key: &str) -> Option<&str> {
        self.find(key).map(ScstEntry::arg).filter(|value| !value.is_empty())
    }

    /// Whether an attribute is set to a number other than 0.
    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        self.value(key).map(|value| value != "0")
    }

    /// The entries with this key.
    pub(super) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a ScstEntry> {
        self.entries.iter().filter(move |entry| entry.key == key)
    }
}

/// Reads a file. The result is an entry without key that contains all others.
pub(super) fn parse(text: &str) -> Result<ScstEntry, ImportError> {
    let mut open = vec![ScstEntry::default()];
    for (number, line) in text.lines().enumerate() {
        let mut words = Vec::new();
        for token in tokens(line, number + 1)? {
            match token {
                ScstToken::Word(word) => words.push(word),
                ScstToken::Open => {
                    let section = entry(std::mem::take(&mut words), number + 1);
                    open.push(section.ok_or_else(|| error(number + 1, "a section has no name"))?);
                    if open.len() > MAX_DEPTH {
                        return Err(error(number + 1, "the sections are nested too deeply"));
                    }
                }
                ScstToken::Close => {
                    add(&mut open, entry(std::mem::take(&mut words), number + 1));
                    if open.len() == 1 {
                        return Err(error(number + 1, "a } has no section"));
                    }
                    let section = open.pop();
                    add(&mut open, section);
                }
            }
        }
        if words.first().is_some_and(|word| word.starts_with('[')) {
            return Err(ImportError::new(
                format!("line {}: the file has the form of SCST 1", number + 1),
                "load it with the scstadmin of that version, and save it with one of SCST 2 or later",
            ));
        }
        add(&mut open, entry(words, number + 1));
    }
    match open.len() {
        1 => Ok(open.pop().unwrap_or_default()),
        _ => Err(error(open.last().map_or(0, |section| section.line), "the section is not closed")),
    }
}

fn error(line: usize, what: &str) -> ImportError {
    ImportError::new(format!("line {line}: {what}"), "give the file that scstadmin -write_config saves")
}

fn add(open: &mut [ScstEntry], entry: Option<ScstEntry>) {
    if let Some(parent) = open.last_mut() {
        parent.entries.extend(entry);
    }
}

/// An entry of words; None without words.
fn entry(words: Vec<String>, line: usize) -> Option<ScstEntry> {
    let mut words = words.into_iter();
    let key = words.next()?;
    Some(ScstEntry { key, args: words.collect(), line, entries: Vec::new() })
}

enum ScstToken {
    Word(String),
    Open,
    Close,
}

/// The words and braces of a line. A quoted word may be empty, and may have blanks and braces.
fn tokens(line: &str, number: usize) -> Result<Vec<ScstToken>, ImportError> {
    let mut tokens = Vec::new();
    let mut word: Option<String> = None;
    let mut is_quoted = false;
    let mut chars = without_comment(line).chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => word.get_or_insert_default().extend(chars.next()),
            '"' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            '{' | '}' if !is_quoted => {
                tokens.extend(word.take().map(ScstToken::Word));
                tokens.push(if c == '{' { ScstToken::Open } else { ScstToken::Close });
            }
            c if c.is_whitespace() && !is_quoted => tokens.extend(word.take().map(ScstToken::Word)),
            c => word.get_or_insert_default().push(c),
        }
    }
    tokens.extend(word.map(ScstToken::Word));
    match is_quoted {
        true => Err(error(number, "a quote is not closed")),
        false => Ok(tokens),
    }
}

/// A line without its comment. As in scstadmin, a `#` takes the character before it, unless that is a backslash.
fn without_comment(line: &str) -> &str {
    if line.starts_with('#') {
        return "";
    }
    let mut before: Option<(usize, char)> = None;
    for (at, c) in line.char_indices() {
        match before {
            Some((start, last)) if c == '#' && last != '\\' => return &line[..start],
            _ => before = Some((at, c)),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_escaped_and_cut_at_comments() {
        let file = parse("a \"b c\" d\\#e # f\n# g\nS x { k 1 }\nT { k\n}").expect("a file");
        let shown: Vec<_> = file.entries.iter().map(|e| (e.key.as_str(), e.args.join("|"), e.line)).collect();
        assert_eq!(shown, [("a", "b c|d#e".into(), 1), ("S", "x".into(), 3), ("T", String::new(), 4)]);
        assert_eq!((file.entries[1].value("k"), file.entries[2].value("k")), (Some("1"), None));
    }

    #[test]
    fn broken_file_is_an_error_with_its_line() {
        for (text, what) in [
            ("a {\n", "line 1: the section is not closed"),
            ("a\n}", "line 2: a } has no section"),
            ("\n{", "line 2: a section has no name"),
            ("a \"b", "line 1: a quote is not closed"),
            ("[HANDLER vdisk]", "line 1: the file has the form of SCST 1"),
            ("a { b { c { d { e { f { g { h {", "line 1: the sections are nested too deeply"),
        ] {
            assert_eq!(parse(text).expect_err(text).what, what);
        }
    }
}

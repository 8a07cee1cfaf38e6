//! The grammar of `targets.conf`: blocks and keys as in the configuration of Apache. A key and its value are separated
//! by blanks or `=`. A backslash continues a line, and `#` begins a comment.

use super::include::included;
use crate::ImportError;
use crate::files::Reader;

/// The largest depth of includes and of blocks.
const MAX_DEPTH: usize = 8;
/// Limit of files that includes may name.
const MAX_FILES: usize = 1000;

/// A key, or a block.
#[derive(Debug, PartialEq)]
pub(super) struct TgtEntry {
    pub(super) key: String,
    /// The value of a key, or the name of a block.
    pub(super) value: String,
    /// The entries of a block; None: a key.
    pub(super) block: Option<Vec<TgtEntry>>,
    pub(super) place: String,
}

/// The entries of a file, with those of its includes.
#[derive(Debug, Default)]
pub(super) struct TgtFile {
    pub(super) entries: Vec<TgtEntry>,
    /// Includes that could not be read: place and reason.
    pub(super) missing: Vec<(String, String)>,
}

/// Reads a file and its includes.
pub(super) fn parse(text: &str, reader: Reader<'_>) -> Result<TgtFile, ImportError> {
    let mut parser = TgtParser { reader, missing: Vec::new(), files: 0, depth: 0 };
    let entries = parser.file(text, "")?;
    Ok(TgtFile { entries, missing: parser.missing })
}

pub(super) struct TgtParser<'a> {
    pub(super) reader: Reader<'a>,
    pub(super) missing: Vec<(String, String)>,
    files: usize,
    depth: usize,
}

/// An open block: its key, its name, its place and its entries so far.
type OpenBlock = (String, String, String, Vec<TgtEntry>);

impl TgtParser<'_> {
    fn file(&mut self, text: &str, name: &str) -> Result<Vec<TgtEntry>, ImportError> {
        let mut open: Vec<OpenBlock> = vec![Default::default()];
        for (place, line) in lines(text, name) {
            self.line(&line, place, &mut open)?;
        }
        let (key, block, place, entries) = open.pop().unwrap_or_default();
        match open.is_empty() {
            true => Ok(entries),
            false => Err(syntax(&place, format!("<{key} {block}> has no </{key}>"))),
        }
    }

    fn line(&mut self, line: &str, place: String, open: &mut Vec<OpenBlock>) -> Result<(), ImportError> {
        let tag = line.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')).map(str::trim);
        match tag {
            Some(tag) => match tag.strip_prefix('/') {
                Some(key) => close(key.trim(), &place, open),
                None => begin(tag, place, open),
            },
            None => {
                let (key, value) = key_and_value(line);
                let entries = match key.eq_ignore_ascii_case("include") && !value.is_empty() {
                    true => self.include(&value, &place)?,
                    false => vec![TgtEntry { key, value, block: None, place }],
                };
                add(open, entries);
                Ok(())
            }
        }
    }

    fn include(&mut self, pattern: &str, place: &str) -> Result<Vec<TgtEntry>, ImportError> {
        let mut entries = Vec::new();
        for (path, text) in included(self, pattern, place)? {
            self.files += 1;
            if self.depth == MAX_DEPTH || self.files > MAX_FILES {
                return Err(syntax(place, format!("include {pattern}: too many files include each other")));
            }
            self.depth += 1;
            entries.extend(self.file(&text, &path)?);
            self.depth -= 1;
        }
        Ok(entries)
    }
}

pub(super) fn syntax(place: &str, what: String) -> ImportError {
    ImportError::new(format!("{place}: {what}"), "correct the file, or give the output of tgt-admin --dump")
}

fn begin(tag: &str, place: String, open: &mut Vec<OpenBlock>) -> Result<(), ImportError> {
    if open.len() > MAX_DEPTH {
        return Err(syntax(&place, format!("<{tag}>: blocks are nested too deeply")));
    }
    let (key, name) = tag.split_once(char::is_whitespace).unwrap_or((tag, ""));
    open.push((key.into(), unquoted(name.trim()).into(), place, Vec::new()));
    Ok(())
}

fn close(key: &str, place: &str, open: &mut Vec<OpenBlock>) -> Result<(), ImportError> {
    let fits = open.len() > 1 && open.last().is_some_and(|(begun, ..)| begun == key);
    if !fits {
        return Err(syntax(place, format!("</{key}> closes no block")));
    }
    if let Some((key, value, place, entries)) = open.pop() {
        let entry = TgtEntry { key, value, block: Some(entries), place };
        add(open, [entry]);
    }
    Ok(())
}

/// Adds entries to the innermost block.
fn add(open: &mut [OpenBlock], entries: impl IntoIterator<Item = TgtEntry>) {
    if let Some((.., all)) = open.last_mut() {
        all.extend(entries);
    }
}

/// The lines without comments, each with its place. Continued lines and here-documents are one line.
fn lines(text: &str, name: &str) -> Vec<(String, String)> {
    let place =
        |n: usize| if name.is_empty() { format!("line {}", n + 1) } else { format!("{name}:{}", n + 1) };
    let mut all: Vec<(String, String)> = Vec::new();
    let mut rest = text.lines().enumerate();
    while let Some((n, line)) = rest.next() {
        let mut line = line.trim().to_owned();
        if line.starts_with("/*") {
            let ends = |line: &str| line.contains("*/");
            _ = ends(&line) || rest.any(|(_, line)| ends(line));
            continue;
        }
        while line.ends_with('\\')
            && let Some((_, next)) = rest.next()
        {
            line.pop();
            line += next.trim();
        }
        let mut line = without_comment(&line);
        if let Some((start, end)) = line.clone().split_once("<<").filter(|(_, end)| is_word(end)) {
            let document = rest.by_ref().map(|(_, line)| line.trim()).take_while(|line| *line != end);
            line = format!("{start}{}", document.collect::<Vec<_>>().join(" "));
        }
        if !line.is_empty() {
            all.push((place(n), line));
        }
    }
    all
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// A `#` after a backslash stands for itself.
fn without_comment(line: &str) -> String {
    let mut before = ' ';
    let is_comment = |c: char| std::mem::replace(&mut before, c) != '\\' && c == '#';
    let end = line.find(is_comment).unwrap_or(line.len());
    line[..end].replace("\\#", "#").trim_end().to_owned()
}

fn key_and_value(line: &str) -> (String, String) {
    let end = line.find(|c: char| c.is_whitespace() || c == '=').unwrap_or(line.len());
    let (key, rest) = line.split_at(end);
    let rest = rest.trim_start();
    let rest = rest.strip_prefix('=').unwrap_or(rest).trim();
    (key.into(), unquoted(rest).into())
}

fn unquoted(text: &str) -> &str {
    let within = |quote| text.strip_prefix(quote).and_then(|text: &str| text.strip_suffix(quote));
    within('"').or_else(|| within('\'')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_key_value_and_no_comment() {
        for (line, key, value) in [
            ("backing-store /dev/a # first", "backing-store", "/dev/a"),
            ("lun = 3", "lun", "3"),
            ("lun=3", "lun", "3"),
            ("product_id \"Fast Disk\"", "product_id", "Fast Disk"),
            ("params a=1,b=2", "params", "a=1,b=2"),
            ("incominguser a b\\#c", "incominguser", "a b#c"),
            ("readonly", "readonly", ""),
        ] {
            assert_eq!(key_and_value(&without_comment(line)), (key.into(), value.into()), "{line}");
        }
    }

    #[test]
    fn continued_lines_are_one_line() {
        let text = "a \\\n  b\n/* c\nd */\n#e\nf <<END\ng h\nEND\ni";
        let shown = [("line 1", "a b"), ("line 6", "f g h"), ("line 9", "i")];
        assert_eq!(lines(text, ""), shown.map(|(place, line)| (place.to_owned(), line.to_owned())));
    }
}

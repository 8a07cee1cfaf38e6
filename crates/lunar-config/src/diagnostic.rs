//! What is wrong with a configuration, told so that it can be put right.

use lunar_proto::duration::NotationError;
pub use lunar_proto::nearest::nearest;
use lunar_runtime::CoreSelectionError;
pub use lunar_runtime::error::ErrorCode;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A line and a column, both from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Something wrong, where it stands, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file it stands in or is about; None for arguments.
    pub file: Option<PathBuf>,
    /// Where in the file, when it stands at a place.
    pub position: Option<Position>,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub hint: Option<String>,
    /// Its kind, for programs.
    pub code: ErrorCode,
}

impl Diagnostic {
    /// A problem that stands in no file.
    pub fn new(what: impl Into<String>, hint: impl Into<String>) -> Diagnostic {
        let (what, hint) = (what.into(), Some(hint.into()));
        Diagnostic { file: None, position: None, what, hint, code: ErrorCode::Other }
    }

    /// Where it stands and what is wrong, without the hint.
    pub fn fault(&self) -> String {
        let position = self.position.map_or(String::new(), |position| format!("{position}:"));
        let place = self.file.as_ref().map(|file| format!("{}:{position} ", file.display()));
        place.unwrap_or_default() + &self.what
    }

    /// All on one line, for a log.
    pub fn line(&self) -> String {
        let hint = self.hint.as_ref().map_or(String::new(), |hint| format!("; hint: {hint}"));
        format!("{}{hint}", self.fault())
    }

    /// The same with a code.
    pub fn with_code(self, code: ErrorCode) -> Diagnostic {
        Diagnostic { code, ..self }
    }
}

impl std::error::Error for Diagnostic {}

impl From<NotationError> for Diagnostic {
    fn from(e: NotationError) -> Diagnostic {
        Diagnostic::new(e.what, e.hint)
    }
}

impl From<CoreSelectionError> for Diagnostic {
    fn from(e: CoreSelectionError) -> Diagnostic {
        Diagnostic::new(e.what, e.hint).with_code(ErrorCode::from(e.kind))
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fault())?;
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

/// What is wrong with one value: the text without a place.
#[derive(Debug, PartialEq, Eq)]
pub struct InvalidValue {
    /// The fault.
    pub what: String,
    /// The fix.
    pub hint: String,
}

/// A value on the command line.
impl From<InvalidValue> for Diagnostic {
    fn from(invalid: InvalidValue) -> Diagnostic {
        Diagnostic::new(invalid.what, invalid.hint).with_code(ErrorCode::InvalidArgument)
    }
}

impl From<NotationError> for InvalidValue {
    fn from(e: NotationError) -> InvalidValue {
        InvalidValue { what: e.what, hint: e.hint }
    }
}

impl From<CoreSelectionError> for InvalidValue {
    fn from(e: CoreSelectionError) -> InvalidValue {
        InvalidValue { what: e.what, hint: e.hint }
    }
}

/// Makes the `Err` of a value that is wrong.
pub fn invalid<T>(what: impl Into<String>, hint: impl Into<String>) -> Result<T, InvalidValue> {
    Err(InvalidValue { what: what.into(), hint: hint.into() })
}

/// A word that is none of `names`: what it was to name, and what to do unless one of them was meant.
pub fn unknown<'a>(
    kind: &str,
    text: &str,
    names: impl IntoIterator<Item = &'a str>,
    otherwise: impl Into<String>,
) -> InvalidValue {
    let hint = nearest(text, names).map(|meant| format!("did you mean \"{meant}\"?"));
    let what = format!("unknown {kind} \"{}\"", text.escape_debug());
    InvalidValue { what, hint: hint.unwrap_or_else(|| otherwise.into()) }
}

/// Collects the problems of one file.
pub struct Diagnostics<'a> {
    file: &'a Path,
    source: &'a str,
    list: Vec<Diagnostic>,
}

impl<'a> Diagnostics<'a> {
    /// No problem yet, of this file with this text.
    pub fn new(file: &'a Path, source: &'a str) -> Diagnostics<'a> {
        Diagnostics { file, source, list: Vec::new() }
    }

    /// Notes a problem at a stretch of bytes of the file.
    pub fn add(&mut self, at: &Range<usize>, what: impl Into<String>, hint: impl Into<String>) {
        let position = Some(self.position(at.start));
        let hint = Some(hint.into());
        let (file, what) = (Some(self.file.to_path_buf()), what.into());
        self.list.push(Diagnostic { file, position, what, hint, code: ErrorCode::Other });
    }

    /// Notes a value that is wrong; None, to go on without it.
    pub fn check<T>(&mut self, at: &Range<usize>, result: Result<T, InvalidValue>) -> Option<T> {
        result.map_err(|invalid| self.add(at, invalid.what, invalid.hint)).ok()
    }

    /// No problem so far.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The mode of the file, if others than its owner can read or write it.
    pub fn open_to_others(&self) -> Option<u32> {
        use std::os::unix::fs::MetadataExt;
        let mode = self.file.metadata().ok()?.mode() & 0o7777;
        (mode & 0o077 != 0).then_some(mode)
    }

    /// The file.
    pub fn file(&self) -> &'a Path {
        self.file
    }

    /// The text of a stretch of bytes of the file.
    pub fn text(&self, at: &Range<usize>) -> &'a str {
        self.source.get(at.clone()).unwrap_or("")
    }

    /// Line and column of a byte of the file.
    pub fn position(&self, offset: usize) -> Position {
        let before = self.source.get(..offset).unwrap_or(self.source);
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        Position {
            line: 1 + before.bytes().filter(|b| *b == b'\n').count(),
            column: 1 + before[start..].chars().count(),
        }
    }

    /// The problems in the order of the file.
    pub fn into_list(mut self) -> Vec<Diagnostic> {
        self.list.sort_by_key(|problem| problem.position);
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_characters() {
        let problems = Diagnostics::new(Path::new("x"), "a\nüb = 1\n");
        assert_eq!(problems.position(0), Position { line: 1, column: 1 });
        assert_eq!(problems.position(4), Position { line: 2, column: 2 });
        assert_eq!(problems.position(900).line, 3);
    }

    #[test]
    fn a_problem_reads_as_one_line_and_a_hint() {
        let mut problems = Diagnostics::new(Path::new("lunar.toml"), "a = 1");
        problems.add(&(4..5), "a is wrong", "take another");
        assert_eq!(problems.into_list()[0].to_string(), "lunar.toml:1:5: a is wrong\n  hint: take another");
        assert_eq!(Diagnostic::new("no disk", "bring one").to_string(), "no disk\n  hint: bring one");
    }
}

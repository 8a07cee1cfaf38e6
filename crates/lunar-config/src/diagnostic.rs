//! Diagnostics of a configuration: fault, position and hint.

use lunar_proto::duration::NotationError;
pub use lunar_proto::nearest::nearest;
use lunar_runtime::CoreSelectionError;
pub use lunar_runtime::error::ErrorCode;
use lunar_runtime::error::without_errno;
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

/// A fault with its position and a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// File of the fault; None for arguments.
    pub file: Option<PathBuf>,
    /// Position in the file, if known.
    pub position: Option<Position>,
    /// The fault.
    pub what: String,
    /// The fix.
    pub hint: Option<String>,
    /// Error code, for programs.
    pub code: ErrorCode,
}

impl Diagnostic {
    /// A fault without a file.
    pub fn new(what: impl Into<String>, hint: impl Into<String>) -> Diagnostic {
        let (what, hint) = (without_errno(&what.into()), Some(hint.into()));
        Diagnostic { file: None, position: None, what, hint, code: ErrorCode::Other }
    }

    /// File, position and fault, without the hint.
    pub fn fault(&self) -> String {
        let position = self.position.map_or(String::new(), |position| format!("{position}:"));
        let place = self.file.as_ref().map(|file| format!("{}:{position} ", file.display()));
        place.unwrap_or_default() + &self.what
    }

    /// Fault and hint on one line, for a log.
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

/// An invalid value, without a position.
#[derive(Debug, PartialEq, Eq)]
pub struct InvalidValue {
    /// The fault.
    pub what: String,
    /// The fix.
    pub hint: String,
    /// The code; [`ErrorCode::Other`] for a value that is wrong by itself.
    pub code: ErrorCode,
}

/// Conversion of an invalid argument of the command line.
impl From<InvalidValue> for Diagnostic {
    fn from(invalid: InvalidValue) -> Diagnostic {
        let code = if invalid.code == ErrorCode::Other { ErrorCode::InvalidArgument } else { invalid.code };
        Diagnostic::new(invalid.what, invalid.hint).with_code(code)
    }
}

impl From<NotationError> for InvalidValue {
    fn from(e: NotationError) -> InvalidValue {
        InvalidValue { what: e.what, hint: e.hint, code: ErrorCode::Other }
    }
}

impl From<CoreSelectionError> for InvalidValue {
    fn from(e: CoreSelectionError) -> InvalidValue {
        InvalidValue { what: e.what, hint: e.hint, code: ErrorCode::Other }
    }
}

/// An `Err` with an [`InvalidValue`].
pub fn invalid<T>(what: impl Into<String>, hint: impl Into<String>) -> Result<T, InvalidValue> {
    Err(InvalidValue { what: what.into(), hint: hint.into(), code: ErrorCode::Other })
}

/// Reports a `text` that is none of `names`. `otherwise` is the hint if no name is similar.
pub fn unknown<'a>(
    kind: &str,
    text: &str,
    names: impl IntoIterator<Item = &'a str>,
    otherwise: impl Into<String>,
) -> InvalidValue {
    let hint = nearest(text, names).map(|meant| format!("did you mean \"{meant}\"?"));
    let what = format!("unknown {kind} \"{}\"", text.escape_debug());
    InvalidValue { what, hint: hint.unwrap_or_else(|| otherwise.into()), code: ErrorCode::Other }
}

/// Collects the diagnostics of one file.
pub struct Diagnostics<'a> {
    file: &'a Path,
    source: &'a str,
    list: Vec<Diagnostic>,
}

impl<'a> Diagnostics<'a> {
    /// An empty list for a file and its text.
    pub fn new(file: &'a Path, source: &'a str) -> Diagnostics<'a> {
        Diagnostics { file, source, list: Vec::new() }
    }

    /// Adds a fault at a byte range of the file.
    pub fn add(&mut self, at: &Range<usize>, what: impl Into<String>, hint: impl Into<String>) {
        let position = Some(self.position(at.start));
        let hint = Some(hint.into());
        let (file, what) = (Some(self.file.to_path_buf()), without_errno(&what.into()));
        self.list.push(Diagnostic { file, position, what, hint, code: ErrorCode::Other });
    }

    /// Adds the fault of an invalid value; None if there is one.
    pub fn check<T>(&mut self, at: &Range<usize>, result: Result<T, InvalidValue>) -> Option<T> {
        let add = |InvalidValue { what, hint, code }| {
            self.add(at, what, hint);
            if let Some(added) = self.list.last_mut() {
                added.code = code;
            }
        };
        result.map_err(add).ok()
    }

    /// True if there is no diagnostic yet.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Mode of the file, if other users can access it.
    pub fn open_to_others(&self) -> Option<u32> {
        use std::os::unix::fs::MetadataExt;
        let mode = self.file.metadata().ok()?.mode() & 0o7777;
        (mode & 0o077 != 0).then_some(mode)
    }

    /// The file.
    pub fn file(&self) -> &'a Path {
        self.file
    }

    /// Text of a byte range of the file.
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

    /// The diagnostics in file order.
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
    fn problem_reads_as_one_line_and_a_hint() {
        let mut problems = Diagnostics::new(Path::new("lunar.toml"), "a = 1");
        problems.add(&(4..5), "a is wrong", "take another");
        assert_eq!(problems.into_list()[0].to_string(), "lunar.toml:1:5: a is wrong\n  hint: take another");
        assert_eq!(Diagnostic::new("no disk", "bring one").to_string(), "no disk\n  hint: bring one");
        let missing = std::fs::File::open("/proc/none").expect_err("no such file");
        let missing = Diagnostic::new(format!("cannot read x: {missing}; stop"), "");
        assert_eq!(missing.what, "cannot read x: no such file or directory; stop");
    }
}

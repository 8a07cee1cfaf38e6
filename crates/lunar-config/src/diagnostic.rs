//! Diagnostics of a configuration: fault, position and hint.

use lunar_proto::duration::NotationError;
pub use lunar_proto::nearest::nearest;
use lunar_runtime::CoreSelectionError;
pub use lunar_runtime::error::ErrorCode;
use lunar_runtime::error::without_errno;
use std::cell::OnceCell;
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

impl From<Diagnostic> for Vec<Diagnostic> {
    fn from(fault: Diagnostic) -> Vec<Diagnostic> {
        vec![fault]
    }
}

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

/// A file of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// Its path, for diagnostics.
    pub path: PathBuf,
    /// Its text.
    pub text: String,
    /// Whether it exists only in the memory of a server.
    pub is_transient: bool,
}

/// Collects the diagnostics of a configuration, which may consist of several files. A byte range is one of all files
/// in their order, with one byte between a file and the next.
pub struct Diagnostics<'a> {
    files: Vec<FileText<'a>>,
    /// Each with its byte.
    list: Vec<(usize, Diagnostic)>,
}

struct FileText<'a> {
    path: &'a Path,
    text: &'a str,
    /// The byte at which it begins.
    start: usize,
    /// The bytes of `text` at which its lines begin: a search for each place of a long file would take too long.
    lines: OnceCell<Vec<usize>>,
}

impl<'a> FileText<'a> {
    fn new(path: &'a Path, text: &'a str, start: usize) -> FileText<'a> {
        FileText { path, text, start, lines: OnceCell::new() }
    }

    /// Line and column of a byte of all files.
    fn position(&self, offset: usize) -> Position {
        let starts = || [0].into_iter().chain(self.text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let lines = self.lines.get_or_init(starts);
        let at = offset.saturating_sub(self.start).min(self.text.len());
        let line = lines.partition_point(|start| *start <= at);
        let begin = lines.get(line.saturating_sub(1)).copied().unwrap_or(0);
        Position { line, column: 1 + self.text.get(begin..at).unwrap_or("").chars().count() }
    }
}

impl<'a> Diagnostics<'a> {
    /// An empty list for a file and its text.
    pub fn new(path: &'a Path, text: &'a str) -> Diagnostics<'a> {
        Diagnostics { files: vec![FileText::new(path, text, 0)], list: Vec::new() }
    }

    /// An empty list for the files of a configuration, of which there is at least one.
    pub fn of(files: &'a [ConfigFile]) -> Diagnostics<'a> {
        let mut start = 0;
        let begin = |file: &'a ConfigFile| {
            let begins = start;
            start += file.text.len() + 1;
            FileText::new(&file.path, &file.text, begins)
        };
        Diagnostics { files: files.iter().map(begin).collect(), list: Vec::new() }
    }

    /// Text and first byte of each file.
    pub(crate) fn texts(&self) -> Vec<(&'a str, usize)> {
        self.files.iter().map(|file| (file.text, file.start)).collect()
    }

    /// The file of a byte.
    fn file_at(&self, offset: usize) -> &FileText<'a> {
        let next = self.files.partition_point(|file| file.start <= offset);
        &self.files[next.saturating_sub(1)]
    }

    /// Adds a fault at a byte range.
    pub fn add(&mut self, at: &Range<usize>, what: impl Into<String>, hint: impl Into<String>) {
        self.add_coded(at, what.into(), hint.into(), ErrorCode::Other);
    }

    fn add_coded(&mut self, at: &Range<usize>, what: String, hint: String, code: ErrorCode) {
        let (file, position) = self.place(at.start);
        let (file, position) = (Some(file.to_path_buf()), Some(position));
        let (what, hint) = (without_errno(&what), Some(hint));
        self.list.push((at.start, Diagnostic { file, position, what, hint, code }));
    }

    /// Adds the fault of an invalid value; None if there is one.
    pub fn check<T>(&mut self, at: &Range<usize>, result: Result<T, InvalidValue>) -> Option<T> {
        result.map_err(|invalid| self.add_coded(at, invalid.what, invalid.hint, invalid.code)).ok()
    }

    /// True if there is no diagnostic yet.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The file of a byte range, and its mode if other users can access it.
    pub fn open_to_others(&self, at: &Range<usize>) -> Option<(&'a Path, u32)> {
        use std::os::unix::fs::MetadataExt;
        let path = self.file_at(at.start).path;
        let mode = path.metadata().ok()?.mode() & 0o7777;
        (mode & 0o077 != 0).then_some((path, mode))
    }

    /// Text of a byte range.
    pub fn text(&self, at: &Range<usize>) -> &'a str {
        let file = self.file_at(at.start);
        at.end.checked_sub(file.start).and_then(|end| file.text.get(at.start - file.start..end)).unwrap_or("")
    }

    /// File, line and column of a byte.
    pub fn place(&self, offset: usize) -> (&'a Path, Position) {
        let file = self.file_at(offset);
        (file.path, file.position(offset))
    }

    /// The place of a byte for a diagnostic at the byte `from`: line and column, and the file if it is another one.
    pub fn reference(&self, offset: usize, from: usize) -> String {
        let (file, position) = self.place(offset);
        match self.file_at(from).path == file {
            true => position.to_string(),
            false => format!("{}:{position}", file.display()),
        }
    }

    /// The diagnostics in the order of files and positions.
    pub fn into_list(mut self) -> Vec<Diagnostic> {
        self.list.sort_by_key(|(offset, _)| *offset);
        self.list.into_iter().map(|(_, diagnostic)| diagnostic).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_characters() {
        let problems = Diagnostics::new(Path::new("x"), "a\nüb = 1\n");
        assert_eq!(problems.place(0).1, Position { line: 1, column: 1 });
        assert_eq!(problems.place(4).1, Position { line: 2, column: 2 });
        assert_eq!(problems.place(900).1.line, 3);
    }

    #[test]
    fn byte_of_a_later_file_names_that_file() {
        let file =
            |path: &str, text: &str| ConfigFile { path: path.into(), text: text.into(), is_transient: false };
        let files = [file("a", "x = 1"), file("b", ""), file("c", "\ny = 2\n")];
        let mut problems = Diagnostics::of(&files);
        // Files begin at 0, 6 and 7; the end of a file belongs to it.
        let places = [0, 5, 6, 7, 8].map(|byte| problems.reference(byte, 0));
        assert_eq!(places, ["1:1", "1:6", "b:1:1", "c:1:1", "c:2:1"]);
        assert_eq!((problems.text(&(0..5)), problems.text(&(8..9))), ("x = 1", "y"));
        problems.add(&(8..9), "second", "");
        problems.add(&(0..1), "first", "");
        let list: Vec<_> = problems.into_list().iter().map(Diagnostic::fault).collect();
        assert_eq!(list, ["a:1:1: first", "c:2:1: second"]);
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

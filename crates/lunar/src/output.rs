//! Output of the command. Colours are for terminals only, and problems go to stderr. Only this module and `stderr` write to
//! stdout and stderr: a stream that is full, blocked or closed is an error or a lost line, and never a panic.

use crate::exit::common_code;
use crate::stderr;
use lunar_api::ProblemDetail;
pub use lunar_bench::text_report::count;
use lunar_server::Diagnostic;
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use utoipa::ToSchema;

/// Whether output to this stream has colours.
pub fn colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Whether stdout is a pipe to another program.
pub fn is_pipe() -> bool {
    use rustix::fs::FileType;
    let kind = rustix::fs::fstat(rustix::stdio::stdout()).map(|stat| FileType::from_raw_mode(stat.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::Socket))
}

/// Limit of printed problems.
const MAX_PROBLEMS: usize = 50;

/// Formats problems.
fn problems(list: &[Diagnostic], coloured: bool) -> String {
    let (red, cyan, end) = if coloured { ("\x1b[1;31m", "\x1b[36m", "\x1b[0m") } else { ("", "", "") };
    let mut text = String::new();
    for problem in list.iter().take(MAX_PROBLEMS) {
        let hint = problem.hint.as_ref().map(|hint| format!("\n  {cyan}hint:{end} {hint}"));
        text += &format!("{red}error:{end} {}{}\n", problem.fault(), hint.unwrap_or_default());
    }
    if list.len() > MAX_PROBLEMS {
        text += &format!("and {}\n", count(list.len() - MAX_PROBLEMS, "more problem"));
    }
    text
}

/// Whether only errors are printed, beside what a command was asked to show.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Limits the output to errors, and to what a command was asked to show: `--quiet`.
pub fn set_quiet(is_quiet: bool) {
    IS_QUIET.store(is_quiet, Ordering::Relaxed);
}

/// Whether stderr has errors only, so that progress is not shown either.
pub fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// The text of a success, which `--quiet` leaves out. Data that a command was asked to show is none.
pub fn success(text: String) -> String {
    if is_quiet() { String::new() } else { text }
}

/// Writes a line to stderr that is no error, such as a warning.
pub fn stderr_line(text: impl Display) {
    if !is_quiet() {
        stderr::put(format!("{text}\n"));
    }
}

/// Writes text to stderr as it is.
pub fn stderr(text: impl Into<Vec<u8>>) {
    stderr::put(text);
}

/// Whether errors are JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Makes errors JSON: `--json`.
pub fn set_json(is_json: bool) {
    IS_JSON.store(is_json, Ordering::Relaxed);
}

/// The error of a command with `--json`.
#[derive(Serialize, ToSchema)]
pub struct ErrorReport {
    error: CommandError,
}

/// An error.
#[derive(Serialize, ToSchema)]
struct CommandError {
    /// The code that all faults have; `other` if they differ.
    code: &'static str,
    /// The first fault: object, fault, value.
    detail: String,
    /// Its fix.
    hint: Option<String>,
    /// All faults.
    errors: Vec<ProblemDetail>,
}

/// Formats problems as JSON on one line, so that it is a line among others of stderr.
fn problems_as_json(list: &[Diagnostic]) -> String {
    let first = list.first();
    let error = CommandError {
        code: common_code(list).name(),
        detail: first.map(|problem| problem.what.clone()).unwrap_or_default(),
        hint: first.and_then(|problem| problem.hint.clone()),
        errors: list.iter().map(ProblemDetail::from).collect(),
    };
    serde_json::to_string(&ErrorReport { error }).unwrap_or_default() + "\n"
}

/// Writes problems to stderr.
pub fn report(list: &[Diagnostic]) {
    stderr::put(match IS_JSON.load(Ordering::Relaxed) {
        true => problems_as_json(list),
        false => problems(list, colours(&io::stderr())),
    });
}

/// Writes to stdout, after the lines that are queued for stderr.
///
/// # Errors
/// When not all bytes could be written.
pub fn stdout(bytes: impl AsRef<[u8]>) -> Result<(), Diagnostic> {
    stdout_is_read(bytes).map(drop)
}

/// As [`stdout`], for output that has no end. False if the reader of stdout has closed it.
///
/// # Errors
/// As [`stdout`].
pub fn stdout_is_read(bytes: impl AsRef<[u8]>) -> Result<bool, Diagnostic> {
    stderr::settle();
    let mut out = io::stdout().lock();
    let written = out.write_all(bytes.as_ref()).and_then(|()| out.flush());
    let is_closed = written.as_ref().is_err_and(|e| e.kind() == ErrorKind::BrokenPipe);
    stdout_result(written).map(|()| !is_closed)
}

/// The result of a write to stdout. A closed pipe is no error: its reader has read enough.
///
/// # Errors
/// Any other error of the write.
pub fn stdout_result(result: io::Result<()>) -> Result<(), Diagnostic> {
    match result {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(stdout_problem(&e)),
        _ => Ok(()),
    }
}

/// stdout for a display of the whole terminal.
pub type ScreenWriter = io::BufWriter<io::Stdout>;

/// stdout for a display. It writes a frame of a usual size at once.
pub fn screen_writer() -> ScreenWriter {
    io::BufWriter::with_capacity(1 << 16, io::stdout())
}

fn stdout_problem(e: &io::Error) -> Diagnostic {
    let why = lunar_runtime::error::text(e);
    let hint = match e.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free space where stdout is written",
        _ => "check where stdout is redirected",
    };
    Diagnostic::new(format!("cannot write to stdout: {why}"), format!("{hint}; the output is lost"))
}

/// stdout for output line by line. It keeps the first error, and ignores later ones.
#[derive(Default)]
pub struct StdoutLines(Option<io::Error>);

impl StdoutLines {
    /// The result of all writes.
    ///
    /// # Errors
    /// As [`stdout_result`].
    pub fn end(self) -> Result<(), Diagnostic> {
        stdout_result(self.0.map_or(Ok(()), Err))
    }

    fn keep(&mut self, result: io::Result<()>) {
        if let Err(e) = result {
            self.0.get_or_insert(e);
        }
    }
}

impl Write for StdoutLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.keep(io::stdout().write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.keep(io::stdout().flush());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_have_colours_only_when_wanted() {
        let list = [Diagnostic::new("no disk", "bring one")];
        assert_eq!(problems(&list, false), "error: no disk\n  hint: bring one\n");
        assert_eq!(
            problems(&list, true),
            "\x1b[1;31merror:\x1b[0m no disk\n  \x1b[36mhint:\x1b[0m bring one\n"
        );
    }

    #[test]
    fn problems_as_json_have_their_code_and_place() {
        let file = Some("/l.toml".into());
        let position = Some(lunar_server::Position { line: 3, column: 7 });
        let none = Diagnostic::new("no disk", "bring one").with_code(lunar_server::ErrorCode::NotFound);
        let placed = Diagnostic { file, position, ..none.clone() };
        let text = problems_as_json(&[placed, none]);
        assert_eq!(
            text,
            "{\"error\":{\"code\":\"not-found\",\"detail\":\"no disk\",\"hint\":\"bring one\",\"errors\":[{\"detail\":\"no disk\",\
             \"hint\":\"bring one\",\"file\":\"/l.toml\",\"line\":3,\"column\":7},{\"detail\":\"no disk\",\"hint\":\"bring one\"}]}}\n"
        );
    }

    #[test]
    fn more_problems_than_anybody_reads_are_counted() {
        let list = vec![Diagnostic::new("no disk", "bring one"); MAX_PROBLEMS + 2];
        let text = problems(&list, false);
        assert_eq!(text.lines().count(), 2 * MAX_PROBLEMS + 1);
        assert!(text.ends_with("\nand 2 more problems\n"));
    }

    #[test]
    fn closed_stdout_is_no_error() {
        let result = |kind: ErrorKind| stdout_result(Err(kind.into()));
        assert_eq!((stdout_result(Ok(())), result(ErrorKind::BrokenPipe)), (Ok(()), Ok(())));
        let problem = result(ErrorKind::StorageFull).unwrap_err();
        assert_eq!((problem.code, problem.hint.is_some()), (lunar_server::ErrorCode::Other, true));
        assert!(problem.what.starts_with("cannot write to stdout: "), "{problem}");
    }
}

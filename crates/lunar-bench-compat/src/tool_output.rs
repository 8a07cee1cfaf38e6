//! What a face prints and keeps.

use crate::RunContext;
use lunar_bench::document::{JobRun, MeasuredTarget, redact_secrets};
use lunar_bench::{Document, Error, ErrorKind, JobOutcome, RunHandle};
use std::fmt::Display;
use std::io::Write;

/// Runs that a document keeps; passes over a tiny disk could be any number.
const RUNS: usize = 1000;

/// The lines of a face, and its document as it grows.
pub struct ToolOutput<'a> {
    pub document: Document,
    pub handle: RunHandle,
    out: &'a mut dyn Write,
    left_out: usize,
}

impl<'a> ToolOutput<'a> {
    /// An empty one.
    pub fn new(title: impl Into<String>, context: RunContext<'a>) -> ToolOutput<'a> {
        ToolOutput {
            document: Document::new(title),
            handle: context.handle.clone(),
            out: context.out,
            left_out: 0,
        }
    }

    /// Prints a line, at once.
    ///
    /// # Errors
    /// When nobody can read it: nothing more is measured then.
    pub fn line(&mut self, text: impl Display) -> Result<(), Error> {
        let written = writeln!(self.out, "{text}").and_then(|()| self.out.flush());
        written.map_err(|e| {
            Error::new(ErrorKind::System, format!("the output cannot be written: {e}"), "look at it")
        })
    }

    /// Prints a line that a reader of the document must know too.
    ///
    /// # Errors
    /// Those of [`ToolOutput::line`].
    pub fn remark(&mut self, text: impl Into<String>) -> Result<(), Error> {
        let text = text.into();
        self.line(format_args!("# {text}"))?;
        self.document.notes.push(text);
        Ok(())
    }

    /// Keeps what came of a job.
    pub fn keep(&mut self, run: JobRun) {
        match self.document.runs.len() < RUNS {
            true => self.document.runs.push(run),
            false => self.left_out += 1,
        }
    }

    /// The document.
    pub fn finish(mut self) -> Document {
        if self.left_out > 0 {
            // All else has been told: if nobody reads any more, that is no failure of the measurement.
            _ = self.remark(format!("{} further runs are not kept", self.left_out));
        }
        self.document
    }
}

/// Words of a command line as a title: without secrets.
pub fn title(tool: &str, words: &[String]) -> String {
    let words = words.iter().map(|word| redact_secrets(word));
    std::iter::once(tool.to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// A run of a face: its label, its options as (name, value), its targets and what came of it.
pub fn run(
    label: String,
    words: &[(&str, String)],
    targets: Vec<MeasuredTarget>,
    outcome: JobOutcome,
) -> JobRun {
    let job = words.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    JobRun { label, job, targets, outcome }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_kept() {
        let words = ["if=iscsi://ann%hush@127.0.0.1/iqn.2026-11.org.example:a/0", "of=."].map(String::from);
        let told = title("dd", &words);
        assert!(
            told.starts_with("dd if=iscsi://") && told.ends_with(" of=.") && !told.contains("hush"),
            "{told}"
        );
    }
}

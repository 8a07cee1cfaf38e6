//! The output of an emulated tool, and its document.

use crate::RunContext;
use lunar_bench::document::{JobRun, MeasuredTarget, redact_secrets};
use lunar_bench::{Document, Error, ErrorKind, JobOutcome, RunHandle};
use std::fmt::Display;
use std::io::Write;

/// The maximum number of runs in a document: passes over a tiny disk may be any number.
const RUNS: usize = 1000;

/// Prints lines and collects the document.
pub struct ToolOutput<'a> {
    pub document: Document,
    pub handle: RunHandle,
    out: &'a mut dyn Write,
    left_out: usize,
}

impl<'a> ToolOutput<'a> {
    /// Creates an empty document.
    pub fn new(title: impl Into<String>, context: RunContext<'a>) -> ToolOutput<'a> {
        ToolOutput {
            document: Document::new(title),
            handle: context.handle.clone(),
            out: context.out,
            left_out: 0,
        }
    }

    /// Prints a line and flushes.
    ///
    /// # Errors
    /// If the output fails; nothing more is measured then.
    pub fn line(&mut self, text: impl Display) -> Result<(), Error> {
        let written = writeln!(self.out, "{text}").and_then(|()| self.out.flush());
        written.map_err(|e| {
            Error::new(
                ErrorKind::System,
                format!("cannot write the output of the benchmark: {e}"),
                "check the file or pipe that receives the output",
            )
        })
    }

    /// Prints a line, and adds it to the notes of the document.
    ///
    /// # Errors
    /// As [`ToolOutput::line`].
    pub fn remark(&mut self, text: impl Into<String>) -> Result<(), Error> {
        let text = text.into();
        self.line(format_args!("# {text}"))?;
        self.document.notes.push(text);
        Ok(())
    }

    /// Adds a run to the document.
    pub fn keep(&mut self, run: JobRun) {
        match self.document.runs.len() < RUNS {
            true => self.document.runs.push(run),
            false => self.left_out += 1,
        }
    }

    /// The document.
    pub fn finish(mut self) -> Document {
        if self.left_out > 0 {
            // All other lines are printed. A failed output does not make the measurement fail.
            _ = self.remark(format!("{} more runs are not in the stored result", self.left_out));
        }
        self.document
    }
}

/// A command line as a title, without secrets.
pub fn title(tool: &str, words: &[String]) -> String {
    let words = words.iter().map(|word| redact_secrets(word));
    std::iter::once(tool.to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// A run: its label, its options as (name, value), its targets and its result.
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
    fn title_and_words_have_no_secrets() {
        let words = ["if=iscsi://ann%hush@127.0.0.1/iqn.2026-11.org.example:a/0", "of=."].map(String::from);
        let title = title("dd", &words);
        assert!(
            title.starts_with("dd if=iscsi://") && title.ends_with(" of=.") && !title.contains("hush"),
            "{title}"
        );
    }
}

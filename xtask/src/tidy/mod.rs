//! `cargo xtask tidy`: checks the limits of the style and the layers. rustfmt and clippy check the rest.

mod code_words;
mod cycles;
mod floors;
mod names;
pub mod project;
mod prose;
mod published;
mod rust;
mod sentences;
mod source;
mod text;
mod unsafe_places;

use std::fmt;

use anyhow::Result;

use crate::public_api;
use crate::root::{self, StepResult};

/// A finding.
#[derive(Debug, PartialEq, Eq)]
pub struct TidyFinding {
    /// Path from the project's root
    pub file: String,
    /// Line, from 1
    pub line: usize,
    /// The fault
    pub what: String,
    /// The fix
    pub remedy: &'static str,
}

impl TidyFinding {
    pub fn new(file: &str, line: usize, what: impl Into<String>, remedy: &'static str) -> TidyFinding {
        TidyFinding { file: file.into(), line, what: what.into(), remedy }
    }
}

impl fmt::Display for TidyFinding {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}:{}: {}; {}", self.file, self.line, self.what, self.remedy)
    }
}

/// Checks every file that git tracks or would add; prints the findings.
pub fn run() -> Result<StepResult> {
    let files = project::read(&root::path())?;
    let findings = check(&files);
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {} files, {} findings", files.len(), findings.len());
    Ok(if findings.is_empty() {
        StepResult::Ok
    } else {
        StepResult::Failed(format!("{} findings", findings.len()))
    })
}

fn check(files: &[project::SourceFile]) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for file in files {
        findings.extend(text::check(file));
        findings.extend(prose::check(file));
        findings.extend(sentences::check(file));
        if file.path.ends_with(".rs") {
            findings.extend(rust::check(file));
            findings.extend(code_words::check(file));
            findings.extend(unsafe_places::check(file));
            findings.extend(names::tests(file));
        }
        if file.path.ends_with(".md") {
            findings.extend(text::links(file, files));
        }
    }
    findings.extend(names::types(files));
    findings.extend(floors::check(files));
    findings.extend(cycles::check(files));
    findings.extend(public_api::check(files));
    findings.extend(published::check(files));
    findings
}

//! The files of the history: one for each tree, by its number. The first line is a comment with the entry as JSON, and the
//! rest is the tree as `lunar config show` prints it.

use super::{AppliedTree, KEPT};
use crate::staged_files::{NewFile, commit, stage};
use lunar_admin::{ControlError, ControlErrorKind, HistoryEntry, HistoryTree};
use lunar_config::io_text;
use lunar_server::config::shown;
use lunar_server::{Diagnostic, ErrorCode};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

/// A tree on the disk.
#[derive(Debug)]
pub struct KeptTree {
    /// The entry.
    pub entry: HistoryEntry,
    /// Its file.
    pub path: PathBuf,
    /// The text of the file.
    pub text: String,
}

impl From<KeptTree> for HistoryTree {
    fn from(tree: KeptTree) -> HistoryTree {
        let toml = tree.text.split_once('\n').map_or("", |(_, toml)| toml).to_owned();
        HistoryTree { entry: tree.entry, toml }
    }
}

/// The files of a history, which only one thread writes.
pub(super) struct HistoryStore {
    folder: PathBuf,
    /// The entries, the oldest first.
    entries: Vec<HistoryEntry>,
    /// The warning about the last tree that could not be written.
    warned: Option<String>,
}

impl HistoryStore {
    /// The history in a folder, which may be missing.
    pub(super) fn open(folder: PathBuf) -> HistoryStore {
        let mut entries = Vec::new();
        for number in numbers(&folder) {
            match first_line(&path(&folder, number)).and_then(|line| entry(&line)) {
                Ok(entry) if entry.number == number => entries.push(entry),
                Ok(_) => tracing::warn!("{} has another number", path(&folder, number).display()),
                Err(e) => tracing::warn!("cannot read {}: {}", path(&folder, number).display(), io_text(&e)),
            }
        }
        entries.sort_unstable_by_key(|entry: &HistoryEntry| entry.number);
        HistoryStore { folder, entries, warned: None }
    }

    /// The entries, the newest first.
    pub(super) fn entries(&self) -> Vec<HistoryEntry> {
        self.entries.iter().rev().cloned().collect()
    }

    /// Keeps a tree, unless it is the newest one. A failure is logged once.
    pub(super) fn keep(&mut self, tree: AppliedTree) {
        let text = shown(&tree.sources);
        let file = tree.sources.whole.display().to_string();
        if self.is_newest(&file, &text) {
            return;
        }
        // Also beyond files that cannot be read, which stay until they are the oldest.
        let number = numbers(&self.folder).into_iter().max().unwrap_or(0) + 1;
        let entry = HistoryEntry { number, time: tree.time, cause: tree.cause, asker: tree.asker, file };
        match self.write(&entry, &text) {
            Ok(()) => {
                self.entries.push(entry);
                if self.warned.take().is_some() {
                    tracing::info!("applied configurations are kept again in {}", self.folder.display());
                }
                self.remove_oldest();
            }
            Err((path, e)) => self.warn(format!("cannot write {}: {}", path.display(), io_text(&e))),
        }
    }

    fn is_newest(&self, file: &str, text: &str) -> bool {
        let newest = self.entries.last().filter(|entry| entry.file == file);
        let kept = newest.and_then(|entry| std::fs::read_to_string(path(&self.folder, entry.number)).ok());
        kept.is_some_and(|kept| kept.split_once('\n').is_some_and(|(_, kept)| kept == text))
    }

    fn write(&self, entry: &HistoryEntry, text: &str) -> Result<(), (PathBuf, io::Error)> {
        let path = path(&self.folder, entry.number);
        let line = serde_json::to_string(entry).map_err(|e| (path.clone(), e.into()))?;
        let text = format!("# {line}\n{text}");
        commit(stage([NewFile::private(&path, Some(text.as_bytes()))])?)
    }

    /// Removes the files of the oldest trees.
    fn remove_oldest(&mut self) {
        let mut numbers = numbers(&self.folder);
        numbers.sort_unstable();
        for number in &numbers[..numbers.len().saturating_sub(KEPT)] {
            let path = path(&self.folder, *number);
            if let Err(e) = std::fs::remove_file(&path) {
                self.warn(format!("cannot remove {}: {}", path.display(), io_text(&e)));
            }
            self.entries.retain(|entry| entry.number != *number);
        }
    }

    fn warn(&mut self, what: String) {
        if self.warned.as_ref() != Some(&what) {
            tracing::warn!("{what}; the applied configuration is not in the history");
            self.warned = Some(what);
        }
    }
}

/// The numbers of the files.
fn numbers(folder: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |name: std::ffi::OsString| name.to_str()?.strip_suffix(".toml")?.parse().ok();
    entries.filter_map(|entry| number(entry.file_name())).collect()
}

fn path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:08}.toml"))
}

fn first_line(path: &Path) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(File::open(path)?).read_line(&mut line)?;
    Ok(line)
}

fn entry(line: &str) -> io::Result<HistoryEntry> {
    let json = line.strip_prefix("# ").unwrap_or_default();
    serde_json::from_str(json)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("damaged: {e}")))
}

/// Reads a tree.
pub(super) fn read(folder: &Path, number: u64) -> Result<KeptTree, (PathBuf, io::Error)> {
    let path = path(folder, number);
    let read = || {
        let text = std::fs::read_to_string(&path)?;
        let entry = entry(text.split_once('\n').map_or("", |(line, _)| line))?;
        Ok(KeptTree { entry, path: path.clone(), text })
    };
    read().map_err(|e| (path.clone(), e))
}

/// The error of a tree that cannot be read.
pub(super) fn unreadable((path, e): (PathBuf, io::Error)) -> ControlError {
    let what = format!("cannot read {}: {}", path.display(), io_text(&e));
    let problem = Diagnostic::new(what, "choose another entry: lunar history shows them");
    ControlError::one(ControlErrorKind::Conflict, problem.with_code(ErrorCode::from(e.kind())))
}

//! The file with the ISIDs of a router. Only the process that holds its lock reads and writes it: to any other
//! process, its sessions are alive.

use super::{MAX, PathSessions, SessionEntry, State};
use lunar_block::lock_file::{LockFile, has_no_locks};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The ISIDs by path.
pub(super) type Paths = BTreeMap<String, PathSessions>;

/// The record file of a router in this process.
#[derive(Debug)]
pub(super) struct IsidRecord {
    file: PathBuf,
    /// Held as long as the process lives. None: another process has it, or the file system does not support locks.
    _lock: Option<LockFile>,
    /// Whether the file must not be written: another process writes it, or it could not be read completely.
    is_left_alone: bool,
    /// Held during a write, so that the last write contains the last change.
    writing: Mutex<()>,
}

impl IsidRecord {
    /// Opens the file, and reads its ISIDs.
    pub(super) fn open(file: PathBuf) -> (IsidRecord, Paths) {
        let lock = match LockFile::lock(&file.with_extension("isids.lock")) {
            Ok(Some(lock)) => Some(lock),
            Ok(None) => {
                let hint = "set another state_dir in this server, or rename the router";
                return IsidRecord::left_alone(file, "another server uses this ISID record", hint);
            }
            // On such a file system, no server locks.
            Err(e) if has_no_locks(&e) => {
                tracing::warn!(
                    "{}: the ISID record is not locked against other servers: {e}",
                    file.display()
                );
                None
            }
            // Another server may hold the lock.
            Err(e) => {
                let hint = "give the server write access to the folder, and restart the server";
                return IsidRecord::left_alone(file, &format!("cannot lock the ISID record: {e}"), hint);
            }
        };
        lunar_target::remove_leftovers(&file);
        let (paths, fault) = load(&file);
        if let Some(fault) = &fault {
            warn(&file, fault, "move the file away, and restart the server");
        }
        (IsidRecord { file, _lock: lock, is_left_alone: fault.is_some(), writing: Mutex::default() }, paths)
    }

    fn left_alone(file: PathBuf, fault: &str, hint: &str) -> (IsidRecord, Paths) {
        warn(&file, fault, hint);
        (IsidRecord { file, _lock: None, is_left_alone: true, writing: Mutex::default() }, Paths::new())
    }

    /// Writes the result of `text`, called when it is this write's turn. None means nothing to write. Returns false
    /// on failure. `is_again`: an earlier failure was logged.
    pub(super) fn save(&self, text: impl FnOnce() -> Option<String>, is_again: bool) -> bool {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let written = match text().filter(|_| !self.is_left_alone) {
            Some(text) => lunar_target::replace_file(&self.file, text.as_bytes()),
            None => Ok(()),
        };
        match &written {
            Err(e) if !is_again => {
                warn(&self.file, &e.to_string(), "check the space and the permissions of the folder");
            }
            Ok(()) if is_again => tracing::info!(
                "{}: the ISID record was written after an earlier failure",
                self.file.display()
            ),
            _ => {}
        }
        written.is_ok()
    }
}

fn warn(file: &Path, fault: &str, hint: &str) {
    let effect = "if this router is killed, its next process cannot end the old sessions";
    tracing::warn!(hint, "{}: {fault}; {effect}", file.display());
}

/// The ISIDs in a file, and the reason if they are incomplete.
fn load(file: &Path) -> (Paths, Option<String>) {
    match fs::read_to_string(file) {
        Ok(text) => {
            let (paths, bad) = read(&text);
            (paths, bad.map(|number| format!("line {number} of the ISID record is damaged")))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => (Paths::new(), None),
        Err(e) => (Paths::new(), Some(e.to_string())),
    }
}

/// The prefixes of initiator name, user and target port in a line.
const INITIATOR: &str = "as=";
const USER: &str = "user=";
const AT: &str = "at=";
/// The port of a session that ended gracefully or never logged in. Its ISID is kept, because it may be registered at
/// targets.
const NOWHERE: &str = "none";

/// One line for each session: twelve hexadecimal digits, the initiator name, the user, the target port, and the path,
/// separated by spaces. Lines of older versions have only the first and the last field, and such a session has not
/// ended.
pub(super) fn written(paths: &Paths) -> String {
    let line = |path: &str, entry: &SessionEntry| {
        let digits: String = entry.isid.iter().map(|byte| format!("{byte:02x}")).collect();
        let word = |key: &str, value: Option<&str>| value.map(|value| format!(" {key}{value}"));
        let at = if entry.state == State::Ended { Some(NOWHERE) } else { entry.at.as_deref() };
        let words =
            [word(INITIATOR, entry.initiator.as_deref()), word(USER, entry.user.as_deref()), word(AT, at)];
        format!("{digits}{} {path}\n", words.into_iter().flatten().collect::<String>())
    };
    let entries = paths.iter().flat_map(|(path, of)| of.all.iter().map(move |entry| (path, entry)));
    let kept = entries.filter(|(_, entry)| entry.state != State::Ended || entry.initiator.is_some());
    kept.map(|(path, entry)| line(path, entry)).collect()
}

/// The sessions of all lines, and the number of the first invalid line.
pub(super) fn read(text: &str) -> (Paths, Option<usize>) {
    let (mut paths, mut bad) = (Paths::new(), None);
    for (at, text) in text.lines().enumerate() {
        let Some((entry, path)) = line(text) else {
            bad = bad.or(Some(at + 1));
            continue;
        };
        let recorded = paths.entry(path.to_owned()).or_default();
        if recorded.all.len() < MAX && !recorded.all.iter().any(|other| other.is_same(&entry)) {
            recorded.all.push(entry);
        }
    }
    (paths, bad)
}

fn line(text: &str) -> Option<(SessionEntry, &str)> {
    let (digits, rest) = text.split_once(' ')?;
    let isid = lunar_initiator::parse_isid(digits)?;
    let (initiator, rest) = word(INITIATOR, rest);
    let (user, rest) = word(USER, rest);
    let (at, path) = word(AT, rest);
    // Without a port, recording the port failed: commands may be left.
    let state = if at.as_deref() == Some(NOWHERE) { State::Ended } else { State::Left };
    let at = at.filter(|_| state == State::Left);
    Some((SessionEntry { isid, initiator, user, at, state, ..SessionEntry::default() }, path))
}

/// The value of a word with this key at the start of the text, if any, and the rest.
fn word<'t>(key: &str, text: &'t str) -> (Option<String>, &'t str) {
    let word = text.strip_prefix(key).and_then(|rest| rest.split_once(' '));
    word.map_or((None, text), |(value, rest)| (Some(value.to_owned()), rest))
}

//! The file that keeps the ISIDs of a router. Only the process that holds its lock reads and writes it: for another one
//! the sessions in it are alive.

use super::{Entry, MOST, Recorded, State};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use target::LockFile;

/// The ISIDs by path.
pub(super) type Paths = BTreeMap<String, Recorded>;

/// The file of a router in this process.
#[derive(Debug)]
pub(super) struct Record {
    file: PathBuf,
    /// Kept as long as the process lives. None: another process has it, or the file system has no locks.
    _lock: Option<LockFile>,
    /// Another process writes it, or it could not be read as a whole.
    is_left_alone: bool,
    /// Held during a write: what is written last is what was recorded last.
    writing: Mutex<()>,
}

impl Record {
    /// The file, and the ISIDs in it.
    pub(super) fn open(file: PathBuf) -> (Record, Paths) {
        let lock = match LockFile::lock(&file.with_extension("isids.lock")) {
            Ok(None) => {
                let hint = "give this server another state_dir, or the router another name";
                warn(&file, "another server uses it", hint);
                return (
                    Record { file, _lock: None, is_left_alone: true, writing: Mutex::default() },
                    Paths::new(),
                );
            }
            Ok(lock) => lock,
            Err(e) => {
                tracing::warn!("{}: it is not locked against other servers: {e}", file.display());
                None
            }
        };
        target::remove_leftovers(&file);
        let (paths, fault) = load(&file);
        if let Some(fault) = &fault {
            warn(&file, fault, "move the file away, and start the server again");
        }
        (Record { file, _lock: lock, is_left_alone: fault.is_some(), writing: Mutex::default() }, paths)
    }

    /// Writes what `text` returns when it is this write's turn.
    pub(super) fn save(&self, text: impl FnOnce() -> String) {
        if self.is_left_alone {
            return;
        }
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(e) = target::replace_file(&self.file, text().as_bytes()) {
            warn(&self.file, &e.to_string(), "look at the space and the permissions of the folder");
        }
    }
}

fn warn(file: &Path, fault: &str, hint: &str) {
    let effect = "sessions that this router leaves behind if it is killed are not replaced by the next one";
    tracing::warn!(hint, "{}: {fault}; {effect}", file.display());
}

/// The ISIDs in a file, and why these are not all.
fn load(file: &Path) -> (Paths, Option<String>) {
    match fs::read_to_string(file) {
        Ok(text) => {
            let (paths, bad) = read(&text);
            (paths, bad.map(|number| format!("line {number} is damaged")))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => (Paths::new(), None),
        Err(e) => (Paths::new(), Some(e.to_string())),
    }
}

/// The name of the initiator, and the port of the target, in a line.
const INITIATOR: &str = "as=";
const AT: &str = "at=";

/// A line for each: twelve hexadecimal digits, the name of the initiator and the port of the target, and the path, with spaces
/// between them. Lines of older versions have neither name nor port. What is over is left out.
pub(super) fn written(paths: &Paths) -> String {
    let line = |path: &str, entry: &Entry| {
        let digits: String = entry.isid.iter().map(|byte| format!("{byte:02x}")).collect();
        let word = |key: &str, value: &Option<String>| value.as_ref().map(|value| format!(" {key}{value}"));
        let words = [word(INITIATOR, &entry.initiator), word(AT, &entry.at)].into_iter().flatten();
        format!("{digits}{} {path}\n", words.collect::<String>())
    };
    let entries = paths.iter().flat_map(|(path, of)| of.all.iter().map(move |entry| (path, entry)));
    let kept = entries.filter(|(_, entry)| entry.state != State::Ended);
    kept.map(|(path, entry)| line(path, entry)).collect()
}

/// The sessions of all lines, and the number of the first line that has none.
pub(super) fn read(text: &str) -> (Paths, Option<usize>) {
    let (mut paths, mut bad) = (Paths::new(), None);
    for (at, text) in text.lines().enumerate() {
        let Some((entry, path)) = line(text) else {
            bad = bad.or(Some(at + 1));
            continue;
        };
        let recorded = paths.entry(path.to_owned()).or_default();
        if recorded.all.len() < MOST && !recorded.all.contains(&entry) {
            recorded.all.push(entry);
        }
    }
    (paths, bad)
}

fn line(text: &str) -> Option<(Entry, &str)> {
    let (digits, rest) = text.split_once(' ')?;
    let is_plain = digits.len() == 12 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = is_plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()?;
    let (initiator, rest) = word(INITIATOR, rest);
    let (at, path) = word(AT, rest);
    let isid = number.to_be_bytes()[2..].try_into().ok()?;
    // With a name and without a port it has never logged in.
    let state = if initiator.is_some() && at.is_none() { State::Ended } else { State::Left };
    Some((Entry { isid, initiator, at, state }, path))
}

/// A word with this key, if the text begins with one, and what follows.
fn word<'t>(key: &str, text: &'t str) -> (Option<String>, &'t str) {
    let word = text.strip_prefix(key).and_then(|rest| rest.split_once(' '));
    word.map_or((None, text), |(value, rest)| (Some(value.to_owned()), rest))
}

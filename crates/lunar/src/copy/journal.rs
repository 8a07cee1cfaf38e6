//! The journal of a copy: a small file that holds its progress, for `--resume`.

use super::ends::CopyEnd;
use lunar_server::{Diagnostic, ErrorCode};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Version of the file format.
const FORMAT_VERSION: u32 = 1;
/// Limit of the file size, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// Identity and size of an end: a resumed copy must have equal ones.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct EndFingerprint {
    identity: String,
    size: u64,
}

impl EndFingerprint {
    /// Fingerprint of a disk; a stream has size 0.
    pub fn of(end: &CopyEnd) -> EndFingerprint {
        EndFingerprint { identity: end.identity.clone(), size: end.size().unwrap_or(0) }
    }
}

/// Contents of the journal.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    form: u32,
    source: EndFingerprint,
    destination: EndFingerprint,
    /// All bytes before this offset are copied and flushed.
    pub stable: u64,
    /// Unreadable ranges before that offset.
    pub unreadable: Vec<Range<u64>>,
}

/// A journal file, which may not exist yet.
#[derive(Clone, Debug)]
pub struct CopyJournal {
    path: PathBuf,
}

impl CopyJournal {
    /// A journal at this path.
    pub fn at(path: PathBuf) -> CopyJournal {
        CopyJournal { path }
    }

    /// The default journal of a destination file.
    pub fn beside(file: &Path) -> CopyJournal {
        CopyJournal::at(with_end(file, ".lunar-copy"))
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file exists.
    pub fn exists(&self) -> bool {
        self.path.symlink_metadata().is_ok()
    }

    /// Reads the state of an interrupted copy; None if the file does not exist.
    pub fn read(&self) -> Result<Option<State>, Diagnostic> {
        let damaged = |why: String| {
            let what = format!("{} is not a copy journal: {why}", self.path.display());
            Diagnostic::new(what, "remove the file to start over, or choose another --journal")
        };
        let text = match fs::metadata(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Ok(found) if found.len() > MAX_BYTES => return Err(damaged("the file is too large".into())),
            _ => fs::read(&self.path)
                .map_err(|e| damaged(e.to_string()).with_code(ErrorCode::from(e.kind())))?,
        };
        let state: State = serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
        match state {
            State { form, .. } if form != FORMAT_VERSION => {
                Err(damaged(format!("the format version is {form}, not {FORMAT_VERSION}")))
            }
            State { stable, ref source, .. } if stable > source.size => {
                Err(damaged("the recorded offset is beyond the end of the source".into()))
            }
            state => Ok(Some(state)),
        }
    }

    /// Replaces the file atomically and durably.
    pub fn save(
        &self,
        ends: &(EndFingerprint, EndFingerprint),
        stable: u64,
        unreadable: &[Range<u64>],
    ) -> io::Result<()> {
        let (source, destination) = ends.clone();
        let state =
            State { form: FORMAT_VERSION, source, destination, stable, unreadable: unreadable.to_vec() };
        let new = self.new_path();
        let replaced = self.replace(&new, &serde_json::to_vec(&state)?);
        if replaced.is_err() {
            // A partial file is useless.
            _ = fs::remove_file(&new);
        }
        replaced
    }

    fn replace(&self, new: &Path, text: &[u8]) -> io::Result<()> {
        // A killed copy may have left this file. `create_new` follows no link that another process creates meanwhile.
        _ = fs::remove_file(new);
        let mut file = File::options().write(true).create_new(true).open(new)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(new, &self.path)?;
        self.folder()?.sync_all()
    }

    /// Path of the temporary file.
    fn new_path(&self) -> PathBuf {
        with_end(&self.path, ".new")
    }

    /// Removes the journal, durably.
    pub fn remove(&self) -> io::Result<()> {
        // A killed copy may have left it.
        _ = fs::remove_file(self.new_path());
        match fs::remove_file(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.and_then(|()| self.folder()?.sync_all()),
        }
    }

    fn folder(&self) -> io::Result<File> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))
    }
}

impl State {
    /// Checks that the journal belongs to these ends.
    pub fn check(&self, ends: &(EndFingerprint, EndFingerprint), journal: &Path) -> Result<(), Diagnostic> {
        match () {
            () if self.source != ends.0 => Err(other("source", &self.source, &ends.0, journal)),
            () if self.destination != ends.1 => {
                Err(other("destination", &self.destination, &ends.1, journal))
            }
            () => Ok(()),
        }
    }
}

/// The error for an end that differs from that of the interrupted copy.
fn other(side: &str, then: &EndFingerprint, now: &EndFingerprint, journal: &Path) -> Diagnostic {
    let what = format!(
        "the {side} differs from that of the interrupted copy, or has changed: the {side} was {then}, and is now {now}"
    );
    let journal = journal.display();
    let hint = format!("give the same {side}; to start over, remove the journal {journal} and add --force");
    Diagnostic::new(what, hint)
}

impl fmt::Display for EndFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.identity, self.size)
    }
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(end);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(identity: &str) -> EndFingerprint {
        EndFingerprint { identity: identity.into(), size: 100 }
    }

    #[test]
    fn journal_is_restored_and_other_ends_are_rejected() {
        let path = std::env::temp_dir().join(format!("lunar-journal-{}", std::process::id()));
        let (journal, ends) = (CopyJournal::at(path), (fingerprint("a"), fingerprint("b")));
        assert_eq!(journal.read(), Ok(None));
        journal.save(&ends, 7, std::slice::from_ref(&(2..3))).unwrap();
        journal.save(&ends, 70, &[2..3, 60..70]).unwrap();
        let state = journal.read().unwrap().unwrap();
        assert_eq!((state.stable, &state.unreadable[..]), (70, &[2..3, 60..70][..]));
        assert_eq!(state.check(&ends, journal.path()), Ok(()));
        assert!(
            state
                .check(&(fingerprint("c"), fingerprint("b")), journal.path())
                .unwrap_err()
                .what
                .contains("the source differs")
        );
        assert!(
            state
                .check(&(fingerprint("a"), fingerprint("c")), journal.path())
                .unwrap_err()
                .what
                .contains("the destination differs")
        );
        for damage in ["", "{}", "[1]", &fs::read_to_string(journal.path()).unwrap().replace("70,", "101,")] {
            fs::write(journal.path(), damage).unwrap();
            assert!(journal.read().unwrap_err().what.contains("is not a copy journal"), "{damage}");
        }
        fs::write(journal.new_path(), "half").unwrap();
        journal.remove().unwrap();
        assert!(!journal.exists() && !journal.new_path().exists());
        journal.remove().unwrap();
    }

    #[test]
    fn link_in_the_place_of_a_new_journal_is_not_followed() {
        let folder = std::env::temp_dir().join(format!("lunar-journal-link-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (journal, other) = (CopyJournal::at(folder.join("journal")), folder.join("other"));
        fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, journal.new_path()).unwrap();
        journal.save(&(fingerprint("a"), fingerprint("b")), 7, &[]).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "kept");
        assert!(journal.path().symlink_metadata().unwrap().is_file());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn failed_journal_write_leaves_no_file() {
        let folder = std::env::temp_dir().join(format!("lunar-journal-in-the-way-{}", std::process::id()));
        fs::create_dir_all(folder.join("x")).unwrap();
        let journal = CopyJournal::at(folder.clone());
        journal.save(&(fingerprint("a"), fingerprint("b")), 7, &[]).unwrap_err();
        assert!(!journal.new_path().exists());
        fs::remove_dir_all(folder).unwrap();
    }
}

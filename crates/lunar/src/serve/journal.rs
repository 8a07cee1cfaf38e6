//! The journal of a change that may be undone: the files of the API as they were before. It is on the disk before the first
//! of them changes, and is removed when the change is confirmed. The next start puts them back if it still exists.

use crate::staged_files::{NewFile, commit, stage};
use lunar_config::{ErrorCode, io_text};
use lunar_server::Diagnostic;
use lunar_server::config::TrialRecord;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// A path and the error of the file system.
type FileError = (PathBuf, io::Error);

/// A journal on the disk.
#[derive(Debug)]
pub struct Journal {
    whole: PathBuf,
    pub record: TrialRecord,
    /// Locked while the process runs, so that the start of another one does not undo the trial.
    _lock: File,
}

impl Journal {
    /// Writes the journal of the configuration at `whole`, or replaces it.
    pub fn write(whole: &Path, record: TrialRecord) -> Result<Journal, FileError> {
        let path = TrialRecord::path(whole);
        let exists = path.exists();
        let staged = stage([NewFile::private(&path, Some(record.text().as_bytes()))])?;
        if let Err(e) = commit(staged) {
            // Without its trial, a journal that is there after all would undo later changes.
            _ = (!exists).then(|| std::fs::remove_file(&path));
            return Err(e);
        }
        let lock = File::open(&path).map_err(|e| (path, e))?;
        // Some file systems have no locks.
        _ = flock(&lock, FlockOperation::NonBlockingLockExclusive);
        Ok(Journal { whole: whole.to_path_buf(), record, _lock: lock })
    }

    /// The path of the configuration.
    pub fn whole(&self) -> &Path {
        &self.whole
    }

    /// Puts the files back, and removes the journal.
    pub fn undo(&self) -> Result<(), FileError> {
        put_back(&self.whole, &self.record)?;
        self.remove()
    }

    /// Removes the journal: the files stay as they are.
    pub fn remove(&self) -> Result<(), FileError> {
        remove(&self.whole)
    }
}

fn put_back(whole: &Path, record: &TrialRecord) -> Result<(), FileError> {
    let files = record.before(whole);
    let files = files.iter().map(|(path, text)| NewFile::private(path, text.map(str::as_bytes)));
    commit(stage(files)?)
}

fn remove(whole: &Path) -> Result<(), FileError> {
    commit(stage([NewFile::private(&TrialRecord::path(whole), None)])?)
}

/// Undoes what an earlier process left unconfirmed. The configuration is read after it.
///
/// # Errors
/// When the files cannot be put back: the server must not serve an unconfirmed configuration.
pub fn recover(whole: &Path) -> Result<(), Diagnostic> {
    let Some(record) = TrialRecord::read(whole)? else { return Ok(()) };
    let path = TrialRecord::path(whole);
    let opened = File::open(&path).map_err(|e| unwritable((path.clone(), e)))?;
    if flock(&opened, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK) {
        tracing::warn!("another server has a configuration on trial, which {} records", path.display());
        return Ok(());
    }
    put_back(whole, &record).and_then(|()| remove(whole)).map_err(unwritable)?;
    let folder = path.parent().unwrap_or(whole);
    tracing::warn!(
        name: "config.reverted",
        "the configuration on trial was not confirmed before the server ended: {} in {} put back",
        match record.files.len() {
            1 => "1 file".to_owned(),
            files => format!("{files} files"),
        },
        folder.display()
    );
    for file in &record.others {
        tracing::warn!("{} was on trial too, and stays as it is", file.display());
    }
    Ok(())
}

fn unwritable((path, e): FileError) -> Diagnostic {
    let what = format!("cannot undo the unconfirmed configuration: {}: {}", path.display(), io_text(&e));
    let hint = "make the folder writable for the user of the server, and free some space";
    Diagnostic::new(what, hint).with_code(ErrorCode::from(e.kind()))
}

#[cfg(test)]
mod tests;

//! Files of the API: written beside their places first, and put there when the change is in force.

use crate::private_file;
use lunar_server::config::FileWrite;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// A file to be renamed or removed.
pub(super) struct StagedFile {
    staged: Option<PathBuf>,
    path: PathBuf,
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        self.staged.take().into_iter().for_each(|staged| _ = std::fs::remove_file(staged));
    }
}

/// Writes the new files beside their places. So a full disk is found before the change is applied.
pub(super) fn stage(writes: &[FileWrite]) -> Result<Vec<StagedFile>, (PathBuf, io::Error)> {
    let one = |write: &FileWrite| {
        let name = write.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let staged = write.path.with_file_name(format!(".{name}.new"));
        if let Some(text) = &write.text {
            write.path.parent().map_or(Ok(()), private_file::create_folder)?;
            // A crash may have left one.
            _ = std::fs::remove_file(&staged);
            private_file::write_new(&staged, text.as_bytes())?;
        }
        Ok(StagedFile { staged: write.text.as_ref().map(|_| staged), path: write.path.clone() })
    };
    writes.iter().map(|write| one(write).map_err(|e| (write.path.clone(), e))).collect()
}

/// Puts the files into their places.
pub(super) fn commit(staged: Vec<StagedFile>) -> Result<(), (PathBuf, io::Error)> {
    for mut file in staged {
        let done = match &file.staged {
            Some(staged) => std::fs::rename(staged, &file.path),
            None => match std::fs::remove_file(&file.path) {
                // A transient object has no file.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                removed => removed,
            },
        };
        if done.is_ok() {
            file.staged = None;
        }
        let folder = file.path.parent().unwrap_or(Path::new("."));
        done.and_then(|()| File::open(folder)?.sync_all()).map_err(|e| (file.path.clone(), e))?;
    }
    Ok(())
}

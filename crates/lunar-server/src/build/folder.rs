//! Creates the folders of state.

use crate::{Diagnostic, io_text};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Creates a folder, and its missing parents, with access for this user only.
pub fn create_folder(folder: &Path) -> Result<(), Diagnostic> {
    create_folder_or(folder, STATE_FOLDER_HINT)
}

/// As [`create_folder`], with this hint in its error.
pub(crate) fn create_folder_or(folder: &Path, hint: &str) -> Result<(), Diagnostic> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|e| cannot_create(folder, &e, hint))
}

/// Checks that [`create_folder`] would succeed, by creating and removing a copy of the missing folders. Permissions alone
/// do not show it: /proc accepts no folder, and a file system may be out of inodes.
pub(crate) fn can_create(folder: &Path) -> Result<(), Diagnostic> {
    let Some(there) = folder.ancestors().find(|folder| folder.symlink_metadata().is_ok()) else {
        return Ok(());
    };
    let made = match there.is_dir() {
        true if there == folder => Ok(()),
        true => {
            let copy = there.join(TRIAL.to_owned() + &std::process::id().to_string());
            let below: PathBuf = folder.strip_prefix(there).into_iter().flatten().skip(1).collect();
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(copy.join(below));
            // Removes whatever was created. It is not an error if nothing was.
            _ = std::fs::remove_dir_all(copy);
            made
        }
        false if there == folder => Err(rustix::io::Errno::EXIST.into()),
        false => Err(rustix::io::Errno::NOTDIR.into()),
    };
    made.map_err(|e| cannot_create(folder, &e, STATE_FOLDER_HINT))
}

/// Prefix of the name of a trial folder or file; the process id follows.
pub(super) const TRIAL: &str = ".lunar-check-";

const STATE_FOLDER_HINT: &str =
    "set XDG_STATE_HOME, or state_dir in the configuration, to a folder that this user can write";

fn cannot_create(folder: &Path, e: &std::io::Error, hint: &str) -> Diagnostic {
    Diagnostic::new(format!("cannot create the folder {}: {}", folder.display(), io_text(e)), hint)
}

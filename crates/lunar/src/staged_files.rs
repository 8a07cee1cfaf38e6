//! Files that change together: written beside their places first, and put there when nothing else can fail.

use crate::private_file;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// The user and group of a file.
pub type FileOwner = (u32, u32);

/// A file to write or to remove.
#[derive(Clone, Debug)]
pub struct NewFile<'a> {
    /// Its path.
    pub path: &'a Path,
    /// Its content; None: the file is removed.
    pub content: Option<&'a [u8]>,
    /// Its mode. Other users can enter missing folders if they can read the file.
    pub mode: u32,
    /// Its owner, and that of missing folders; None: the user of this process.
    pub owner: Option<FileOwner>,
}

impl<'a> NewFile<'a> {
    /// A file that only the user of this process can access.
    pub fn private(path: &'a Path, content: Option<&'a [u8]>) -> NewFile<'a> {
        NewFile { path, content, mode: 0o600, owner: None }
    }
}

/// A file to be renamed or removed.
pub struct StagedFile {
    staged: Option<PathBuf>,
    path: PathBuf,
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        self.staged.take().into_iter().for_each(|staged| _ = std::fs::remove_file(staged));
    }
}

/// Writes the new files beside their places. So a full disk is found before anything has changed.
///
/// # Errors
/// The path and the error of the file system.
pub fn stage<'a>(
    files: impl IntoIterator<Item = NewFile<'a>>,
) -> Result<Vec<StagedFile>, (PathBuf, io::Error)> {
    files.into_iter().map(|file| one(&file).map_err(|e| (file.path.to_path_buf(), e))).collect()
}

fn one(file: &NewFile<'_>) -> io::Result<StagedFile> {
    let path = file.path.to_path_buf();
    let Some(content) = file.content else { return Ok(StagedFile { staged: None, path }) };
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let staged = path.with_file_name(format!(".{name}.new"));
    path.parent().map_or(Ok(()), |folder| create_folders(folder, file))?;
    // A crash may have left one.
    _ = std::fs::remove_file(&staged);
    let mut opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&staged)?;
    let staged = StagedFile { staged: Some(staged), path };
    if let Some((user, group)) = file.owner {
        fchown(&opened, Some(user), Some(group))?;
    }
    opened.set_permissions(Permissions::from_mode(file.mode))?;
    opened.write_all(content)?;
    opened.sync_all()?;
    Ok(staged)
}

/// Creates a folder and its missing parents for a file.
fn create_folders(folder: &Path, file: &NewFile<'_>) -> io::Result<()> {
    let Some((user, group)) = file.owner.filter(|_| !folder.exists()) else {
        return match file.mode & 0o044 {
            0 => private_file::create_folder(folder),
            _ => std::fs::create_dir_all(folder),
        };
    };
    folder.parent().map_or(Ok(()), |parent| create_folders(parent, file))?;
    std::fs::create_dir(folder)?;
    std::os::unix::fs::chown(folder, Some(user), Some(group))?;
    let mode = if file.mode & 0o044 == 0 { 0o700 } else { 0o755 };
    std::fs::set_permissions(folder, Permissions::from_mode(mode))
}

/// Puts the files into their places, in their order.
///
/// # Errors
/// The path and the error of the file system. The files before it have changed.
pub fn commit(staged: Vec<StagedFile>) -> Result<(), (PathBuf, io::Error)> {
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

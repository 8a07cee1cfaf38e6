//! Files that change together: written beside their places first, and then put there.

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
    /// The new file beside its place, or an empty file whose name a removed file gets until all files have changed.
    staged: Option<PathBuf>,
    path: PathBuf,
    is_removal: bool,
    is_removed: bool,
}

impl StagedFile {
    fn new(staged: PathBuf, path: PathBuf, is_removal: bool) -> StagedFile {
        StagedFile { staged: Some(staged), path, is_removal, is_removed: false }
    }

    /// Puts the file into its place, or removes it.
    fn put(&mut self) -> io::Result<()> {
        let Some(staged) = &self.staged else { return Ok(()) };
        if self.is_removal {
            std::fs::rename(&self.path, staged)?;
            self.is_removed = true;
        } else {
            std::fs::rename(staged, &self.path)?;
            self.staged = None;
        }
        let folder = self.path.parent().unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }

    /// Brings a removed file back.
    fn bring_back(&mut self) {
        if let Some(staged) = self.staged.take_if(|_| self.is_removed)
            && let Err(e) = std::fs::rename(&staged, &self.path)
        {
            tracing::error!("cannot rename {} back to {}: {e}", staged.display(), self.path.display());
        }
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        self.staged.take().into_iter().for_each(|staged| _ = std::fs::remove_file(staged));
    }
}

/// Writes the new files beside their places, and checks that the folders of files to remove can change. So a full disk
/// or a read-only folder is found before anything has changed.
///
/// # Errors
/// The path and the error of the file system.
pub fn stage<'a>(
    files: impl IntoIterator<Item = NewFile<'a>>,
) -> Result<Vec<StagedFile>, (PathBuf, io::Error)> {
    // A transient object has no file.
    let files =
        files.into_iter().filter(|file| file.content.is_some() || file.path.symlink_metadata().is_ok());
    files.map(|file| one(&file).map_err(|e| (file.path.to_path_buf(), e))).collect()
}

fn one(file: &NewFile<'_>) -> io::Result<StagedFile> {
    let path = file.path.to_path_buf();
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some(content) = file.content else {
        let staged = path.with_file_name(format!(".{name}.old"));
        create_new(&staged)?;
        return Ok(StagedFile::new(staged, path, true));
    };
    let staged = path.with_file_name(format!(".{name}.new"));
    path.parent().map_or(Ok(()), |folder| create_folders(folder, file))?;
    let mut opened = create_new(&staged)?;
    let staged = StagedFile::new(staged, path, false);
    if let Some((user, group)) = file.owner {
        fchown(&opened, Some(user), Some(group))?;
    }
    opened.set_permissions(Permissions::from_mode(file.mode))?;
    opened.write_all(content)?;
    opened.sync_all()?;
    Ok(staged)
}

fn create_new(path: &Path) -> io::Result<File> {
    // A crash may have left one.
    _ = std::fs::remove_file(path);
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
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
/// The path and the error of the file system. Removed files are back. Files that were written before it have changed.
pub fn commit(mut staged: Vec<StagedFile>) -> Result<(), (PathBuf, io::Error)> {
    let Some((at, e)) = staged.iter_mut().enumerate().find_map(|(at, file)| Some((at, file.put().err()?)))
    else {
        return Ok(());
    };
    staged[..=at].iter_mut().for_each(StagedFile::bring_back);
    Err((staged[at].path.clone(), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        /// A folder with two files.
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("lunar-staged-{name}-{}", std::process::id()));
            _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir(&path).expect("a folder");
            for name in ["a", "b"] {
                std::fs::write(path.join(name), name).expect("written");
            }
            Folder(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(&self.0).expect("there").flatten();
            let mut names: Vec<_> =
                entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        }

        fn removals(&self) -> Vec<StagedFile> {
            let paths = ["a", "b", "transient"].map(|name| self.0.join(name));
            stage(paths.iter().map(|path| NewFile::private(path, None))).expect("staged")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn removal_takes_effect_at_commit() {
        let folder = Folder::new("remove");
        drop(folder.removals());
        assert_eq!(folder.names(), ["a", "b"]);
        commit(folder.removals()).expect("removed");
        assert!(folder.names().is_empty(), "{:?}", folder.names());
    }

    #[test]
    fn removed_files_are_back_after_a_failure() {
        let folder = Folder::new("fail");
        let staged = folder.removals();
        // The second file cannot be renamed over a folder.
        std::fs::remove_file(folder.0.join(".b.old")).expect("there");
        std::fs::create_dir(folder.0.join(".b.old")).expect("created");
        assert_eq!(commit(staged).expect_err("refused").0, folder.0.join("b"));
        std::fs::remove_dir(folder.0.join(".b.old")).expect("there");
        assert_eq!(folder.names(), ["a", "b"]);
        assert_eq!(std::fs::read(folder.0.join("a")).expect("there"), b"a");
    }

    #[test]
    fn folder_that_cannot_change_rejects_a_removal() {
        let folder = Folder::new("refused");
        std::fs::create_dir(folder.0.join(".b.old")).expect("created");
        let path = folder.0.join("b");
        assert!(stage([NewFile::private(&path, None)]).is_err());
        assert_eq!(folder.names(), [".b.old", "a", "b"]);
    }
}

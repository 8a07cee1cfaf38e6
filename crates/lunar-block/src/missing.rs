//! Detection of an open medium whose path leads elsewhere.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The identity of a file or device, independent of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileId {
    /// A file: the device of its file system, and its inode.
    File(u64, u64),
    /// A block device by its number.
    Device(u64),
}

impl FileId {
    /// The identity in metadata.
    pub fn of(found: &Metadata) -> FileId {
        match found.file_type().is_block_device() {
            true => FileId::Device(found.rdev()),
            false => FileId::File(found.dev(), found.ino()),
        }
    }

    /// The identity of an open file.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn of_open(file: &File) -> io::Result<FileId> {
        Ok(FileId::of(&file.metadata()?))
    }

    /// Whether the path leads to it.
    pub fn is_at(&self, path: impl AsRef<Path>) -> bool {
        fs::metadata(path).is_ok_and(|found| FileId::of(&found) == *self)
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |of: u64| format!("device {}:{}", rustix::fs::major(of), rustix::fs::minor(of));
        match self {
            FileId::File(device, inode) => write!(f, "inode {inode} of {}", number(*device)),
            FileId::Device(device) => f.write_str(&number(*device)),
        }
    }
}

/// A medium that is missing from the path that it was opened by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingMedium {
    /// The path.
    pub path: PathBuf,
    /// Whether the medium is a block device.
    pub is_device: bool,
    /// The open medium; None if unknown.
    pub served: Option<FileId>,
    /// The other file or device that is at the path now.
    pub there: Option<FileId>,
    /// Whether the path is a symbolic link.
    pub is_link: bool,
    /// Whether the file has no name any more, so that its data ends with its last descriptor.
    pub is_unlinked: bool,
    /// The current name of the file, if known.
    pub name_now: Option<PathBuf>,
    /// The descriptor of this process.
    pub descriptor: i32,
}

impl MissingMedium {
    /// Whether another file or device is at the path now.
    pub fn is_replaced(&self) -> bool {
        self.there.is_some()
    }

    /// The command that copies the data that only this process can still reach.
    fn save(&self) -> String {
        let (process, fd) = (std::process::id(), self.descriptor);
        let mut saved = self.path.clone().into_os_string();
        saved.push(".saved");
        format!("cp --sparse=always /proc/{process}/fd/{fd} {}", shell_word(saved.as_ref()))
    }

    /// The fix: a copy command if the data would be lost, otherwise how to restore the path.
    pub fn remedy(&self) -> String {
        let path = shell_word(&self.path);
        match &self.name_now {
            _ if self.is_device => {
                format!("attach the device again, or serve another path than {path}")
            }
            _ if self.is_unlinked => {
                format!("stop the writes of hosts, and copy the data before the server ends: {}", self.save())
            }
            Some(now) if self.is_link => format!("point the link back: ln -sfn {} {path}", shell_word(now)),
            Some(now) => format!("move the file back: mv {} {path}", shell_word(now)),
            None => format!("move the file back to {path}, or copy the data: {}", self.save()),
        }
    }
}

/// A path as one word of a shell command (POSIX.1, section 2.2.2 of Shell Command Language).
pub fn shell_word(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%=".contains(c);
    match text.chars().all(is_plain) && !text.starts_with('-') {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// The object and the fault; both media if another one is at the path.
impl fmt::Display for MissingMedium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match (self.there, &self.name_now) {
            (Some(FileId::File(..)), _) if self.is_device => write!(f, "{path} is no longer a block device")?,
            (Some(_), _) if self.is_device => write!(f, "{path} leads to another device")?,
            (None, _) if self.is_device => write!(f, "{path} does not exist any more")?,
            (None, _) if self.is_unlinked => write!(f, "{path} was deleted")?,
            (Some(_), Some(now)) if self.is_link => {
                write!(f, "{path} leads to another file than {}", now.display())?;
            }
            (Some(_), Some(now)) => {
                write!(f, "{path} was moved to {} and replaced by another file", now.display())?;
            }
            (None, Some(now)) => write!(f, "{path} was moved to {}", now.display())?,
            (Some(_), None) => write!(f, "{path} was replaced by another file")?,
            (None, None) => write!(f, "{path} was removed, and its file has another name")?,
        }
        match (self.served, self.there) {
            (Some(served), Some(there)) => write!(f, " ({served} is served, {there} is at the path)"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_with_special_characters_is_one_shell_word() {
        for path in ["/d/a.img", "/d/my disk.img", "/d/it's;touch x", "-f", "/d/$(x)\"\n"] {
            let command = format!("printf %s {}", shell_word(Path::new(path)));
            let _turn = crate::fork_lock::lock();
            let said = std::process::Command::new("sh").args(["-c", &command]).output().expect("a shell");
            assert_eq!(String::from_utf8_lossy(&said.stdout), path, "{command}");
        }
    }

    #[test]
    fn each_way_to_be_missing_names_object_and_remedy() {
        let gone = MissingMedium {
            path: "/d/a.img".into(),
            is_device: false,
            served: Some(FileId::File(0x801, 12)),
            there: None,
            is_link: false,
            is_unlinked: true,
            name_now: None,
            descriptor: 7,
        };
        let (there, now) = (Some(FileId::File(0x801, 34)), Some("/d/b.img".into()));
        let copy = format!("cp --sparse=always /proc/{}/fd/7 /d/a.img.saved", std::process::id());
        let moved = MissingMedium { is_unlinked: false, name_now: now, ..gone.clone() };
        let linked = MissingMedium { is_link: true, there, ..moved.clone() };
        let device = MissingMedium {
            is_device: true,
            is_unlinked: false,
            served: Some(FileId::Device(0x810)),
            ..gone.clone()
        };
        let both = "(inode 12 of device 8:1 is served, inode 34 of device 8:1 is at the path)";
        let replaced = format!("/d/a.img was replaced by another file {both}");
        let after = format!("/d/a.img was moved to /d/b.img and replaced by another file {both}");
        let switched = format!("/d/a.img leads to another file than /d/b.img {both}");
        let other = "/d/a.img leads to another device (device 8:16 is served, device 8:32 is at the path)";
        for (missing, what, remedy) in [
            (gone.clone(), "/d/a.img was deleted", copy.as_str()),
            (MissingMedium { there, ..gone }, &replaced, &copy),
            (moved.clone(), "/d/a.img was moved to /d/b.img", "mv /d/b.img /d/a.img"),
            (MissingMedium { there, ..moved }, &after, "mv /d/b.img /d/a.img"),
            (
                MissingMedium { name_now: None, there: None, ..linked.clone() },
                "/d/a.img was removed, and its file has another name",
                "cp --sparse=always",
            ),
            (linked, &switched, "ln -sfn /d/b.img /d/a.img"),
            (device.clone(), "/d/a.img does not exist any more", "attach the device again"),
            (
                MissingMedium { there: Some(FileId::Device(0x820)), ..device },
                other,
                "attach the device again",
            ),
        ] {
            assert_eq!(missing.to_string(), what);
            assert!(missing.remedy().contains(remedy), "{}", missing.remedy());
        }
    }
}

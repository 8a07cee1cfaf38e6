//! What the experiments measure on: files and loop devices of our own, and the I/O schedulers below them.

use crate::{Error, Kind};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use rustix::fs::{Advice, fadvise, major, minor};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of our own, removed on drop.
pub struct Folder(PathBuf);

impl Folder {
    /// Makes it below a folder that exists.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn below(parent: &Path) -> Result<Folder, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("lunar-reproduce-{}-{count}", std::process::id()));
        fs::create_dir(&path).map_err(|e| cannot("make", &path, &e))?;
        Ok(Folder(path))
    }

    /// Makes a file of this size with bytes that do not compress, all of it on the disk.
    ///
    /// # Errors
    /// When there is no room.
    pub fn file(&self, name: &str, size: u64) -> Result<PathBuf, Error> {
        const CHUNK: u64 = 1 << 20;
        let path = self.0.join(name);
        let mut chunk = vec![0; CHUNK as usize];
        SmallRng::seed_from_u64(size).fill_bytes(&mut chunk);
        let write = || -> io::Result<()> {
            let mut file = File::create(&path)?;
            let mut left = size;
            while left > 0 {
                let len = left.min(CHUNK);
                file.write_all(&chunk[..len as usize])?;
                left -= len;
            }
            file.sync_all()
        };
        write().map_err(|e| cannot("write", &path, &e))?;
        Ok(path)
    }
}

impl std::ops::Deref for Folder {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn cannot(what: &str, path: &Path, e: &io::Error) -> Error {
    let hint = "--dir names a folder with room for the files of the experiment";
    Error::new(Kind::System, format!("cannot {what} {}: {e}", path.display()), hint)
}

/// The folder for files that are to be in memory.
pub fn memory_folder() -> PathBuf {
    let shm = PathBuf::from("/dev/shm");
    if shm.is_dir() { shm } else { std::env::temp_dir() }
}

/// Takes a file or a block device out of the page cache, as far as it is stable.
pub fn make_cold(path: &Path) {
    // What cannot be done makes reads faster, and the note of the experiment says so.
    if let Ok(file) = File::open(path) {
        let _ = file.sync_all();
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
    }
}

/// What a LUN is made of.
#[derive(Clone, Debug)]
pub enum Medium {
    /// Reads are zeros, writes go nowhere.
    Null,
    /// Through the page cache.
    Cached(PathBuf),
    /// Past the page cache.
    Direct(PathBuf),
}

/// A disk to be served.
#[derive(Clone, Debug)]
pub struct Disk {
    /// What it is made of.
    pub medium: Medium,
    /// Bytes.
    pub size: u64,
    /// Bytes a second at most; 0 is no limit. Lunar alone can do it.
    pub bytes_per_s: u64,
}

impl Disk {
    /// Without a limit.
    pub fn new(medium: Medium, size: u64) -> Disk {
        Disk { medium, size, bytes_per_s: 0 }
    }

    /// Where it is, if anywhere.
    pub fn path(&self) -> Option<&Path> {
        match &self.medium {
            Medium::Null => None,
            Medium::Cached(path) | Medium::Direct(path) => Some(path),
        }
    }
}

/// A block device over a file, until it is dropped.
pub struct Loop(PathBuf);

impl Loop {
    /// Makes one; None where this user or this host cannot.
    pub fn over(file: &Path) -> Option<Loop> {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show"]).arg(file).stdin(Stdio::null()).stderr(Stdio::null());
        let made = command.output().ok().filter(|made| made.status.success())?;
        Some(Loop(String::from_utf8(made.stdout).ok()?.trim().into()))
    }

    /// Its device.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).stderr(Stdio::null()).status();
    }
}

/// An I/O scheduler that was set; the one before comes back on drop.
pub struct Scheduler {
    file: PathBuf,
    before: String,
}

impl Scheduler {
    /// Sets it for the disk below a file, or for a block device; None where that cannot be done.
    pub fn set(path: &Path, name: &str) -> Option<Scheduler> {
        let file = queue(path)?.join("scheduler");
        let before = chosen(&fs::read_to_string(&file).ok()?)?;
        let set = Scheduler { before, file };
        fs::write(&set.file, name).ok()?;
        Some(set)
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let _ = fs::write(&self.file, &self.before);
    }
}

/// The one in brackets.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// The folder of the queue of a disk.
fn queue(path: &Path) -> Option<PathBuf> {
    let found = fs::metadata(path).ok()?;
    let id = if found.file_type().is_block_device() { found.rdev() } else { found.dev() };
    let device = fs::canonicalize(format!("/sys/dev/block/{}:{}", major(id), minor(id))).ok()?;
    let is_partition = device.join("partition").exists();
    let disk = if is_partition { device.parent()? } else { &device };
    Some(disk.join("queue"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_holds_files_and_goes_away() {
        let folder = Folder::below(&std::env::temp_dir()).expect("a folder");
        let file = folder.file("disk", (1 << 20) + 7).expect("a file");
        assert_eq!(fs::metadata(&file).expect("it").len(), (1 << 20) + 7);
        make_cold(&file);
        let gone = folder.to_path_buf();
        drop(folder);
        assert!(!gone.exists());
        assert_eq!(Folder::below(&gone).err().map(|e| e.kind), Some(Kind::System));
    }

    #[test]
    fn the_scheduler_in_use_stands_in_brackets() {
        assert_eq!(chosen("none [mq-deadline] kyber bfq\n").as_deref(), Some("mq-deadline"));
        assert_eq!(chosen("none\n"), None);
    }
}

//! The media of an experiment: files, loop devices, and the I/O schedulers below them.

use lunar_bench::CleanupGuard;
use lunar_bench::{Error, ErrorKind};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use rustix::fs::{Advice, fadvise, fstatfs, major, minor};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder, removed on drop.
pub struct WorkDir {
    path: PathBuf,
    _cleanup: CleanupGuard,
}

impl WorkDir {
    /// Creates a folder in an existing one.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn below(parent: &Path) -> Result<WorkDir, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("lunar-reproduce-{}-{count}", std::process::id()));
        let remove = |path: PathBuf| move || _ = fs::remove_dir_all(path);
        let made = CleanupGuard::create(|| fs::create_dir(&path).map(|()| ((), remove(path.clone()))));
        let ((), cleanup) = made.map_err(|e| cannot("make", &path, &e))?;
        Ok(WorkDir { path, _cleanup: cleanup })
    }

    /// Creates a file of this size with incompressible data, written to the disk.
    ///
    /// # Errors
    /// If there is no space.
    pub fn file(&self, name: &str, size: u64) -> Result<PathBuf, Error> {
        let path = self.path.join(name);
        write_file(&path, size).map_err(|e| cannot("write", &path, &e))?;
        Ok(path)
    }
}

/// Writes and flushes a file of this size with incompressible data.
///
/// # Errors
/// If there is no space.
pub fn write_file(path: &Path, size: u64) -> io::Result<()> {
    const CHUNK: u64 = 1 << 20;
    let mut chunk = vec![0; CHUNK as usize];
    SmallRng::seed_from_u64(size).fill_bytes(&mut chunk);
    let mut file = File::create(path)?;
    let mut left = size;
    while left > 0 {
        let len = left.min(CHUNK);
        file.write_all(&chunk[..len as usize])?;
        left -= len;
    }
    file.sync_all()
}

impl std::ops::Deref for WorkDir {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.path
    }
}

fn cannot(what: &str, path: &Path, e: &io::Error) -> Error {
    let hint = "use --dir with a folder that has enough space";
    Error::new(ErrorKind::System, format!("cannot {what} {}: {e}", path.display()), hint)
}

/// The folder for files in memory.
pub fn memory_dir() -> PathBuf {
    let shm = PathBuf::from("/dev/shm");
    if shm.is_dir() { shm } else { std::env::temp_dir() }
}

/// The note if files cannot be dropped from the page cache.
pub const WARM: &str = "reads come from memory: the files cannot be dropped from the page cache, or are \
                        in a file system in memory (use --dir for another folder)";

/// Drops a file or a block device from the page cache; false if it stays in memory. The notes of an experiment
/// report which: reads from memory are faster.
pub fn make_cold(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    // Dirty pages stay in the cache.
    let is_dropped = file.sync_all().is_ok() && fadvise(&file, 0, None, Advice::DontNeed).is_ok();
    is_dropped && !is_in_memory(&file)
}

/// Whether a file exists only in memory. For a block device, its folder is in memory, but the device is not.
fn is_in_memory(file: &File) -> bool {
    /// The numbers of tmpfs and ramfs in statfs(2).
    const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];
    let is_file = file.metadata().is_ok_and(|found| found.is_file());
    is_file && fstatfs(file).is_ok_and(|system| IN_MEMORY.contains(&(system.f_type as u32)))
}

/// The medium of a LUN.
#[derive(Clone, Debug)]
pub enum DiskMedium {
    /// Reads return zeros, writes are discarded.
    Null,
    /// Through the page cache.
    Cached(PathBuf),
    /// Bypassing the page cache.
    Direct(PathBuf),
}

/// A disk to serve.
#[derive(Clone, Debug)]
pub struct ServedDisk {
    /// Its medium.
    pub medium: DiskMedium,
    /// Bytes.
    pub size: u64,
    /// A limit in bytes per second; 0 is none. Only Lunar supports it.
    pub bytes_per_s: u64,
}

impl ServedDisk {
    /// Without a limit.
    pub fn new(medium: DiskMedium, size: u64) -> ServedDisk {
        ServedDisk { medium, size, bytes_per_s: 0 }
    }

    /// Its path, if it has one.
    pub fn path(&self) -> Option<&Path> {
        match &self.medium {
            DiskMedium::Null => None,
            DiskMedium::Cached(path) | DiskMedium::Direct(path) => Some(path),
        }
    }
}

/// A loop device, detached on drop.
pub struct LoopDevice {
    device: PathBuf,
    _cleanup: CleanupGuard,
}

impl LoopDevice {
    /// Attaches one; None if this user or this host cannot.
    pub fn over(file: &Path) -> Option<LoopDevice> {
        let made = CleanupGuard::create(|| {
            let device = attached(file).ok_or(())?;
            let detached = device.clone();
            Ok::<_, ()>((device, move || detach(&detached)))
        });
        made.ok().map(|(device, cleanup)| LoopDevice { device, _cleanup: cleanup })
    }

    /// Its device.
    pub fn path(&self) -> &Path {
        &self.device
    }
}

fn attached(file: &Path) -> Option<PathBuf> {
    let made = losetup().args(["--find", "--show"]).arg(file).output();
    let made = made.ok().filter(|made| made.status.success())?;
    Some(String::from_utf8(made.stdout).ok()?.trim().into())
}

fn detach(device: &Path) {
    // It stays until the last user closes it.
    _ = losetup().arg("--detach").arg(device).status();
}

/// In its own process group, so that ^C does not reach it.
fn losetup() -> Command {
    let mut command = Command::new("losetup");
    command.process_group(0).stdin(Stdio::null()).stderr(Stdio::null());
    command
}

/// Restores the previous I/O scheduler on drop.
pub struct SchedulerGuard {
    _cleanup: CleanupGuard,
}

impl SchedulerGuard {
    /// Sets the scheduler of the disk below a file, or of a block device; None if that is not possible.
    pub fn set(path: &Path, name: &str) -> Option<SchedulerGuard> {
        let file = queue(path)?.join("scheduler");
        let before = chosen(&fs::read_to_string(&file).ok()?)?;
        let set = CleanupGuard::create(|| {
            fs::write(&file, name).map(|()| ((), move || _ = fs::write(file, before)))
        });
        set.ok().map(|((), cleanup)| SchedulerGuard { _cleanup: cleanup })
    }
}

/// The scheduler in brackets.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// The sysfs folder of a disk's queue.
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
    fn work_dir_holds_files_and_is_removed() {
        let dir = WorkDir::below(&std::env::temp_dir()).expect("a folder");
        let file = dir.file("disk", (1 << 20) + 7).expect("a file");
        assert_eq!(fs::metadata(&file).expect("the file").len(), (1 << 20) + 7);
        let gone = dir.to_path_buf();
        drop(dir);
        assert!(!gone.exists());
        assert_eq!(WorkDir::below(&gone).err().map(|e| e.kind), Some(ErrorKind::System));
    }

    #[test]
    fn make_cold_fails_only_for_files_in_memory() {
        let mounts = fs::read_to_string("/proc/mounts").expect("mounts");
        let is = |kind: &str, at: &str| mounts.lines().any(|line| line.contains(&format!(" {at} {kind} ")));
        let is_cold = |parent: &Path| {
            let dir = WorkDir::below(parent).expect("a folder");
            make_cold(&dir.file("disk", 4096).expect("a file"))
        };
        if is("tmpfs", "/dev/shm") {
            assert!(!is_cold(Path::new("/dev/shm")));
        }
        if is("ext4", "/") && !is("tmpfs", "/tmp") {
            assert!(is_cold(Path::new("/tmp")));
        }
        assert!(!make_cold(Path::new("/nonexistent")));
    }

    #[test]
    fn chosen_scheduler_is_in_brackets() {
        assert_eq!(chosen("none [mq-deadline] kyber bfq\n").as_deref(), Some("mq-deadline"));
        assert_eq!(chosen("none\n"), None);
    }
}

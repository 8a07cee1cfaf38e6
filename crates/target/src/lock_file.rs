//! Files by which one process at a time has something: a lock (flock) that the kernel ends with the process.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A process that was killed may need a moment to end.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// The locked file, which is made if it is not there; None: another has the lock all the time. It waits for a second.
///
/// # Errors
/// Those of the file system.
pub fn lock(path: &Path) -> io::Result<Option<File>> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    let end = Instant::now() + PATIENCE;
    loop {
        match try_lock(path)? {
            None if Instant::now() < end => sleep(PAUSE),
            other => return Ok(other),
        }
    }
}

/// A lock counts only while its file is at its path: its holder may remove it.
fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(e)) => return Err(e),
        Ok(()) => {}
    }
    let (ours, there) = (file.metadata()?, std::fs::metadata(path));
    let is_there = there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()));
    Ok(is_there.then_some(file))
}

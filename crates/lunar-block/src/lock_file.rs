//! Lock files: one process at a time holds the lock (flock(2)) on a file. The kernel releases the lock when the
//! process ends.
//!
//! [`Claims`] are locks by name: many of them need one lock file.
//!
//! A user may delete the file or its folder. The holder therefore checks once a second, and recreates and locks the
//! file if needed. Meanwhile a second lock without a file (`host_lock`) excludes other processes of the same host.

mod claims;
mod host_lock;
mod watcher;

use crate::FileId;
pub use claims::{Claim, Claims, Holder, HolderTable};
use host_lock::HostLock;
use rustix::io::Errno;
use std::fs::{File, TryLockError};
use std::io;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

/// Time that a lock is tried, because a killed process may need a moment to end.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Time that the release of a lock waits for the file system. If the file system does not respond, the lock is
/// released later, at the latest when the process ends.
const UNLOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// A lock file. Dropping it releases the lock.
#[derive(Debug)]
pub struct LockFile(Arc<LockInner>);

#[derive(Debug)]
struct LockInner {
    path: PathBuf,
    /// Not locked during file system calls, which may block forever.
    state: Mutex<State>,
    /// Held while the file is written, replaced or checked.
    writing: Mutex<()>,
}

#[derive(Debug)]
struct State {
    /// None: the lock was released, and the file must not be recreated.
    file: Option<Arc<File>>,
    /// None: the host lock is not available to this process.
    host_lock: Option<HostLock>,
    text: String,
    /// The time at which the log last reported that the file could not be locked again.
    logged: Option<Instant>,
}

impl LockFile {
    /// Locks the file, and creates it if it does not exist. It tries for one second. None: another process holds the
    /// lock.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn lock(path: &Path) -> io::Result<Option<LockFile>> {
        create_folder(path)?;
        let end = Instant::now() + LOCK_TIMEOUT;
        loop {
            match LockFile::once(path)? {
                None if Instant::now() < end => sleep(RETRY_INTERVAL),
                other => return Ok(other),
            }
        }
    }

    /// Takes the host lock first, so that no file is left behind if another process holds it.
    fn once(path: &Path) -> io::Result<Option<LockFile>> {
        let Ok(host_lock) = HostLock::take(path) else { return Ok(None) };
        let Some(file) = try_lock(path)? else { return Ok(None) };
        let state = State { file: Some(Arc::new(file)), host_lock, text: String::new(), logged: None };
        let held =
            LockInner { path: path.to_path_buf(), state: Mutex::new(state), writing: Mutex::default() };
        let held = Arc::new(held);
        let watched: Weak<LockInner> = Arc::downgrade(&held);
        watcher::watch(watched);
        Ok(Some(LockFile(held)))
    }

    /// Writes the owner and its purpose into the file, as information for users. The lock works without it.
    ///
    /// A locked file with the text replaces the file, so that a reader finds the old text or the new one.
    ///
    /// # Errors
    /// Those of the file system. The text is written again if the file is recreated.
    pub fn write_owner(&self, text: String) -> io::Result<()> {
        self.0.state().text = text;
        let writing = self.0.writing();
        self.0.recover(&writing);
        self.0.write(&writing)
    }

    /// Appends to the text. A reader may find a part of it.
    fn append_owner(&self, text: &str) -> io::Result<()> {
        let writing = self.0.writing();
        self.0.recover(&writing);
        let Some(file) = self.0.state().file.clone() else { return Ok(()) };
        if !FileId::of_open(&file)?.is_at(&self.0.path) {
            return Err(replaced());
        }
        let end = file.metadata()?.len();
        let written = file.write_all_at(text.as_bytes(), end).and_then(|()| file.sync_data());
        match written {
            Ok(()) => self.0.state().text.push_str(text),
            Err(_) => _ = file.set_len(end),
        }
        written
    }

    /// Releases the lock, and removes the file unless it now belongs to another process.
    pub fn remove(&self) {
        self.0.end(true);
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        self.0.end(false);
    }
}

impl LockInner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the current file by one with the current text.
    fn write(&self, _writing: &MutexGuard<'_, ()>) -> io::Result<()> {
        let (file, text) = {
            let state = self.state();
            (state.file.clone(), state.text.clone())
        };
        let Some(file) = file else { return Ok(()) };
        if !FileId::of_open(&file)?.is_at(&self.path) {
            return Err(replaced());
        }
        let next = replacement_path(&self.path);
        let written = written(&next, &text).and_then(|file| {
            std::fs::rename(&next, &self.path)?;
            Ok(file)
        });
        if written.is_err() {
            _ = std::fs::remove_file(&next);
        }
        self.adopt(written?);
        Ok(())
    }

    /// Continues with another locked file at the path. False: the lock was released meanwhile, and the file was
    /// removed.
    fn adopt(&self, file: File) -> bool {
        let file = Arc::new(file);
        let is_held = self.state().file.as_mut().map(|kept| *kept = file.clone()).is_some();
        if !is_held {
            release(&file, &self.path, true);
        }
        is_held
    }

    /// Releases the lock, even while the watcher is checking the file.
    fn end(&self, removes: bool) {
        let (file, host_lock) = {
            let mut state = self.state();
            (state.file.take(), state.host_lock.take())
        };
        drop(host_lock);
        let Some(file) = file else { return };
        let path = self.path.clone();
        within(UNLOCK_TIMEOUT, move || release(&file, &path, removes));
    }
}

/// Unlocks a file. Closing it is not enough, because other threads may hold the same open file.
fn release(file: &File, path: &Path, removes: bool) {
    if removes && FileId::of_open(file).is_ok_and(|id| id.is_at(path)) {
        // Under the lock, so that this never removes the file of another process.
        _ = std::fs::remove_file(path);
    }
    _ = file.unlock();
}

/// Waits up to `limit` for work that may block forever. If no thread can be started for it, the work is skipped.
fn within(limit: Duration, work: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel::<()>();
    let thread = Builder::new().name("unlock".into()).spawn(move || {
        work();
        drop(done);
    });
    if thread.is_ok() {
        _ = ended.recv_timeout(limit);
    }
}

fn create_folder(path: &Path) -> io::Result<()> {
    let create = |folder| std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    path.parent().map_or(Ok(()), create)
}

fn replaced() -> io::Error {
    io::Error::other("another file is at the path of the lock file")
}

fn replacement_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// A new locked file with the text. Only the holder of the lock creates this file.
fn written(path: &Path, text: &str) -> io::Result<File> {
    let mut file =
        File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.try_lock()?;
    file.write_all(text.as_bytes())?;
    // Other hosts of a network file system see it from now on.
    file.sync_data()?;
    Ok(file)
}

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Tries once to lock the file. None: another process holds the lock, or the file was removed from its path
/// meanwhile, as its holder may do.
///
/// # Errors
/// Those of the file system.
pub fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let file = open(path)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(e)) => return Err(e),
        Ok(()) => {}
    }
    Ok(FileId::of_open(&file)?.is_at(path).then_some(file))
}

/// Locks the file, and waits as long as another process holds the lock.
///
/// # Errors
/// Those of the file system.
pub fn wait(path: &Path) -> io::Result<File> {
    loop {
        let file = open(path)?;
        file.lock()?;
        if FileId::of_open(&file)?.is_at(path) {
            return Ok(file);
        }
    }
}

/// Whether the error means that the file system does not support locks. After any other error, another process may
/// hold the lock.
pub fn has_no_locks(e: &io::Error) -> bool {
    let errors = [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS];
    e.raw_os_error().is_some_and(|code| errors.contains(&Errno::from_raw_os_error(code)))
}

/// Whether another process holds the lock. This creates no file.
pub fn is_held(path: &Path) -> bool {
    held_file(path).is_some() || host_lock::is_taken(path)
}

/// The file, if another process holds its lock.
fn held_file(path: &Path) -> Option<File> {
    loop {
        let file = File::open(path).ok()?;
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => return Some(file),
            // The holder may have replaced the file since it was opened.
            Ok(()) if !FileId::of_open(&file).is_ok_and(|id| id.is_at(path)) => {}
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests;

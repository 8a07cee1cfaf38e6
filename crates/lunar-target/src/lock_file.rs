//! Lock files: one process at a time holds the lock (flock(2)) of a file, and the kernel releases it with the process.
//!
//! A user may delete the file or its folder. The holder therefore checks once a second, and then creates and locks the
//! file again. Until then a second lock without a file ([`host_lock`]) keeps other processes of the same host out.

mod host_lock;
mod watcher;

use host_lock::HostLock;
use lunar_block::FileId;
use rustix::io::Errno;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

/// A killed process may need a moment to end.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// How long releasing a lock waits for the file system. An unresponsive file system releases it later, or with the
/// process.
const UNLOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// A lock file. Dropping it releases the lock.
#[derive(Debug)]
pub struct LockFile(Arc<LockInner>);

#[derive(Debug)]
struct LockInner {
    path: PathBuf,
    /// Not locked during a file system call, which may block for ever.
    state: Mutex<State>,
    /// Serializes writes to the file.
    writing: Mutex<()>,
}

#[derive(Debug)]
struct State {
    /// None: the lock was released, and the file must not be created again.
    file: Option<Arc<File>>,
    /// None: this process has to do without a host lock.
    host_lock: Option<HostLock>,
    text: String,
    /// When the log last reported that the file could not be locked again.
    logged: Option<Instant>,
}

impl LockFile {
    /// Locks the file, and creates it if it is missing. It tries for a second. None: another process holds the lock.
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

    /// The host lock comes first: if another process has it, no file is left behind.
    fn once(path: &Path) -> io::Result<Option<LockFile>> {
        let Ok(host_lock) = HostLock::take(path) else { return Ok(None) };
        let Some(file) = try_lock(path)? else { return Ok(None) };
        let state = State { file: Some(Arc::new(file)), host_lock, text: String::new(), logged: None };
        let held =
            LockInner { path: path.to_path_buf(), state: Mutex::new(state), writing: Mutex::default() };
        let held = Arc::new(held);
        watcher::watch(&held);
        Ok(Some(LockFile(held)))
    }

    /// Writes the owner and its purpose into the file, for users. The lock works without that.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write_owner(&self, text: String) -> io::Result<()> {
        self.0.state().text = text;
        self.0.write()
    }

    /// Releases the lock, and removes the file unless it belongs to another process now.
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

    /// Writes the current text into the current file.
    fn write(&self) -> io::Result<()> {
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, text) = {
            let state = self.state();
            (state.file.clone(), state.text.clone())
        };
        let Some(file) = file else { return Ok(()) };
        file.set_len(0)?;
        file.write_all_at(text.as_bytes(), 0)
    }

    /// Releases the lock, even while the watcher checks its file.
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

/// Unlocks a file. Closing it would not be enough: others may have the same open file.
fn release(file: &File, path: &Path, removes: bool) {
    if removes && FileId::of_open(file).is_ok_and(|id| id.is_at(path)) {
        // Under the lock, so that this never removes the file of another process.
        _ = std::fs::remove_file(path);
    }
    _ = file.unlock();
}

/// Waits up to `limit` for work that may block for ever. Without a thread for it, the work is skipped.
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

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Locks the file at once. None: another process holds the lock. The lock counts only if the file is still at its
/// path, because its holder may remove it.
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

/// Locks the file, however long another process holds the lock.
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

/// The file system supports no locks. After any other error another process may hold the lock.
pub fn has_no_locks(e: &io::Error) -> bool {
    let errors = [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS];
    e.raw_os_error().is_some_and(|code| errors.contains(&Errno::from_raw_os_error(code)))
}

/// Another process holds the lock. This creates nothing.
pub fn is_held(path: &Path) -> bool {
    let lock = File::open(path).map(|file| file.try_lock_shared());
    matches!(lock, Ok(Err(TryLockError::WouldBlock))) || host_lock::is_taken(path)
}

#[cfg(test)]
mod tests;

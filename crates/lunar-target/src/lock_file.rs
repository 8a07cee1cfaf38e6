//! Files by which one process at a time has something: a lock (flock) that the kernel ends with the process.
//!
//! Somebody may delete the file, or the folder that it is in. So the holder looks for it each second, and creates and locks it
//! again. A mark that is no file ([`host_lock`]) keeps others of the same host out meanwhile.

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

/// A process that was killed may need a moment to end.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// The end of a lock waits so long for the file system. One that does not answer ends it later, or with the process.
const UNLOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// A locked file. It is unlocked when this is dropped.
#[derive(Debug)]
pub struct LockFile(Arc<LockInner>);

#[derive(Debug)]
struct LockInner {
    path: PathBuf,
    /// Never locked during a call of the file system, which may not come back.
    state: Mutex<State>,
    /// One writes into the file at a time.
    writing: Mutex<()>,
}

#[derive(Debug)]
struct State {
    /// None: the lock is given up, and nobody creates the file again.
    file: Option<Arc<File>>,
    /// None: this process must do without, as one without a network may have to.
    host_lock: Option<HostLock>,
    text: String,
    /// When the log said that the file cannot be had back.
    logged: Option<Instant>,
}

impl LockFile {
    /// The locked file, which is created if it is not there; None: another has the lock all the time. It waits for a second.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn lock(path: &Path) -> io::Result<Option<LockFile>> {
        create_folder(path)?;
        let end = Instant::now() + PATIENCE;
        loop {
            match LockFile::once(path)? {
                None if Instant::now() < end => sleep(PAUSE),
                other => return Ok(other),
            }
        }
    }

    /// The mark comes first: where another has it, no file is left behind.
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

    /// Writes into the file who has it, for what. The lock holds without that too.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write_owner(&self, text: String) -> io::Result<()> {
        self.0.state().text = text;
        self.0.write()
    }

    /// Gives the lock up and removes the file, unless it is that of another by now.
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

    /// Writes the text of now into the file of now.
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

    /// Gives the lock up, whoever looks at its file just now.
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

/// Unlocks a file. Others may have it open too: closing it would not be enough.
fn release(file: &File, path: &Path, removes: bool) {
    if removes && FileId::of_open(file).is_ok_and(|id| id.is_at(path)) {
        // While it is locked, so that nobody removes the file of another.
        _ = std::fs::remove_file(path);
    }
    _ = file.unlock();
}

/// Waits no longer than that for work that may not come back. It is left out if there is no thread for it.
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

/// The locked file; None: another has the lock. A lock counts only while its file is at its path: its holder may remove it.
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

/// The locked file, however long another has the lock.
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

/// The file system offers no locks. After any other fault another may have the lock.
pub fn has_no_locks(e: &io::Error) -> bool {
    let errors = [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS];
    e.raw_os_error().is_some_and(|code| errors.contains(&Errno::from_raw_os_error(code)))
}

/// Another has the lock. Nothing is created.
pub fn is_held(path: &Path) -> bool {
    let lock = File::open(path).map(|file| file.try_lock_shared());
    matches!(lock, Ok(Err(TryLockError::WouldBlock))) || host_lock::is_taken(path)
}

#[cfg(test)]
mod tests;

//! Files by which one process at a time has something: a lock (flock) that the kernel ends with the process.
//!
//! Somebody may delete the file, or the folder that it is in. So the holder looks for it each second, and creates and locks it
//! again. A mark that is no file ([`mark`]) keeps others of the same host out meanwhile.

mod keeper;
mod mark;

use mark::Mark;
use std::fs::{File, TryLockError};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A process that was killed may need a moment to end.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// A locked file. It is unlocked when this is dropped.
#[derive(Debug)]
pub struct LockFile(Arc<Held>);

#[derive(Debug)]
struct Held {
    path: PathBuf,
    /// None: this process must do without, as one without a network may have to.
    _mark: Option<Mark>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    text: String,
    /// It is given up, and nobody creates it again.
    is_over: bool,
    /// When the log said that it cannot be had back.
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
        let Ok(mark) = Mark::take(path) else { return Ok(None) };
        let Some(file) = try_lock(path)? else { return Ok(None) };
        let state = Mutex::new(State { file, text: String::new(), is_over: false, logged: None });
        let held = Arc::new(Held { path: path.to_path_buf(), _mark: mark, state });
        keeper::watch(&held);
        Ok(Some(LockFile(held)))
    }

    /// Writes into the file who has it, for what. The lock holds without that too.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn sign(&self, text: String) -> io::Result<()> {
        let mut state = self.0.state();
        state.text = text;
        state.write()
    }

    /// Removes the file, unless it is that of another by now.
    pub fn remove(&self) {
        let mut state = self.0.state();
        state.is_over = true;
        if is_at(&state.file, &self.0.path).unwrap_or(false) {
            // While it is locked, so that nobody removes the file of another.
            _ = std::fs::remove_file(&self.0.path);
        }
    }
}

impl Held {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn write(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(self.text.as_bytes())
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
    Ok(is_at(&file, path)?.then_some(file))
}

/// The locked file, however long another has the lock.
///
/// # Errors
/// Those of the file system.
pub fn wait(path: &Path) -> io::Result<File> {
    loop {
        let file = open(path)?;
        file.lock()?;
        if is_at(&file, path)? {
            return Ok(file);
        }
    }
}

/// Another has the lock. Nothing is created.
pub fn is_held(path: &Path) -> bool {
    let lock = File::open(path).map(|file| file.try_lock_shared());
    matches!(lock, Ok(Err(TryLockError::WouldBlock))) || mark::is_taken(path)
}

/// The file is at the path.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let (ours, there) = (file.metadata()?, std::fs::metadata(path));
    Ok(there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())))
}

#[cfg(test)]
mod tests;

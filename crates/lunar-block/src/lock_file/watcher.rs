//! The thread that watches the lock files of this process.

use super::{HostLock, LockInner, create_folder, try_lock};
use crate::FileId;
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

/// Interval of the checks.
const PERIOD: Duration = Duration::from_secs(1);
/// Interval at which the log repeats an error.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// An object that the thread checks.
pub(super) trait Watched: Send + Sync {
    fn check(&self);
}

/// All watched objects, and whether the thread was started.
static ALL: Mutex<(Vec<Weak<dyn Watched>>, bool)> = Mutex::new((Vec::new(), false));

/// Watches an object as long as it exists.
pub(super) fn watch(watched: Weak<dyn Watched>) {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.0.push(watched);
    if !all.1 {
        // Without the thread, the lock is lost if its file is deleted.
        all.1 = Builder::new().name("locks".into()).spawn(run).is_ok();
    }
}

fn run() {
    loop {
        sleep(PERIOD);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let watched: Vec<_> = all.0.iter().filter_map(Weak::upgrade).collect();
        all.0.retain(|watched| watched.strong_count() > 0);
        if watched.is_empty() {
            all.1 = false;
            return;
        }
        drop(all);
        watched.iter().for_each(|watched| watched.check());
    }
}

impl Watched for LockInner {
    fn check(&self) {
        self.state().host_lock.iter().for_each(HostLock::answer);
        // A writer checks the file itself.
        if let Ok(writing) = self.writing.try_lock() {
            self.recover(&writing);
        }
    }
}

impl LockInner {
    /// Recreates and locks the file if it was deleted or replaced.
    pub(super) fn recover(&self, writing: &MutexGuard<'_, ()>) {
        let Some(file) = self.state().file.clone() else { return };
        if is_lost(file.metadata(), std::fs::metadata(&self.path)) {
            self.relock(create_folder(&self.path).and_then(|()| try_lock(&self.path)), writing);
        } else {
            self.state().logged = None;
        }
    }

    /// Handles the attempt to lock a file again that was deleted or replaced.
    pub(super) fn relock(&self, again: io::Result<Option<File>>, writing: &MutexGuard<'_, ()>) {
        let path = self.path.display();
        let fault = match again {
            Ok(Some(file)) => {
                if self.adopt(file) {
                    _ = self.write(writing);
                    tracing::error!(
                        "{path}: the lock file was deleted or replaced; the server has locked it again; hint: {HINT}"
                    );
                }
                return;
            }
            Ok(None) => "another server has locked the new file, and hosts see both servers as one".into(),
            Err(e) => format!("the server cannot create it again, and another server may get the lock: {e}"),
        };
        let mut state = self.state();
        if state.file.is_some() && state.logged.is_none_or(|then| then.elapsed() > REPEAT_INTERVAL) {
            state.logged = Some(Instant::now());
            tracing::error!("{path}: the lock file was deleted or replaced; {fault}; hint: {HINT}");
        }
    }
}

/// Whether the file at the path is another one, or missing. A file system that does not respond has not lost the
/// file; an NFS server that reports a stale handle has.
fn is_lost(ours: io::Result<Metadata>, there: io::Result<Metadata>) -> bool {
    match (ours, there) {
        (Err(e), _) => e.raw_os_error() == Some(Errno::STALE.raw_os_error()),
        (Ok(ours), Ok(there)) => FileId::of(&ours) != FileId::of(&there),
        (Ok(_), Err(e)) => matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    }
}

const HINT: &str =
    "do not delete the state folder of a running server; its reservations are saved with their next change";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_lost_only_on_certain_errors() {
        let found = |path: &str| std::fs::metadata(path);
        let error = |errno: Errno| Err(errno.into());
        assert!(!is_lost(found("/"), found("/")) && is_lost(found("/"), found("/proc")));
        assert!(is_lost(found("/"), error(Errno::NOENT)) && is_lost(found("/"), error(Errno::NOTDIR)));
        assert!(!is_lost(found("/"), error(Errno::IO)) && !is_lost(error(Errno::IO), found("/")));
        assert!(is_lost(error(Errno::STALE), found("/")), "NFS: another file is at the path");
    }
}

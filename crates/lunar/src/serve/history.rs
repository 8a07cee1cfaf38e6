//! The applied trees of the configuration, which the server keeps in its state folder. A thread of its own renders and
//! writes them, so that a large configuration or a slow disk delays no change.

mod store;

use lunar_admin::{ApplyCause, ControlError, HistoryEntry, HistoryPoint};
use lunar_server::config::Sources;
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use store::HistoryStore;
pub use store::KeptTree;

/// The number of trees that are kept.
const KEPT: usize = 20;
/// Limit of the wait for trees that are being written. A disk that hangs must not hold up readers.
const PATIENCE: Duration = Duration::from_secs(10);

/// The history of one configuration. Dropping it ends the thread after the trees that wait.
pub struct ConfigHistory(Arc<Shared>);

struct Shared {
    /// None: the server was started without a configuration file, and keeps nothing.
    folder: Option<PathBuf>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    /// At most [`KEPT`]: the thread would remove older ones anyway.
    waiting: VecDeque<AppliedTree>,
    /// Trees so far, and those of them that are written or left out.
    submitted: u64,
    done: u64,
    /// The entries on the disk, the newest first.
    entries: Vec<HistoryEntry>,
    is_closed: bool,
}

/// A tree that was applied.
struct AppliedTree {
    sources: Sources,
    time: String,
    cause: ApplyCause,
    asker: Option<String>,
}

impl ConfigHistory {
    /// The history of the configuration with these files.
    ///
    /// # Errors
    /// When the system starts no thread.
    pub fn start(state_dir: &Path, sources: &Sources) -> io::Result<ConfigHistory> {
        let whole = &sources.whole;
        let folder = (!whole.as_os_str().is_empty()).then(|| folder(state_dir, whole));
        let shared = Arc::new(Shared { folder, queue: Mutex::default(), changed: Condvar::new() });
        if let Some(folder) = shared.folder.clone() {
            let of_thread = shared.clone();
            let keep = move || of_thread.keep(HistoryStore::open(folder));
            std::thread::Builder::new().name("history".into()).spawn(keep)?;
        }
        Ok(ConfigHistory(shared))
    }

    /// Keeps a tree that was applied now. It waits for nothing.
    pub fn record(&self, sources: &Sources, cause: ApplyCause, asker: Option<&str>) {
        if self.0.folder.is_none() {
            return;
        }
        let (sources, time, asker) = (sources.clone(), HistoryPoint::now(), asker.map(str::to_owned));
        let mut queue = self.0.queue();
        if queue.waiting.len() == KEPT {
            queue.waiting.pop_front();
        }
        queue.waiting.push_back(AppliedTree { sources, time, cause, asker });
        queue.submitted += 1;
        self.0.changed.notify_all();
    }

    /// Waits until the trees applied before are written.
    pub fn settle(&self) {
        self.settle_within(PATIENCE);
    }

    /// As [`ConfigHistory::settle`], with a limit.
    pub fn settle_within(&self, limit: Duration) {
        if self.0.folder.is_some() {
            let queue = self.0.queue();
            let wanted = queue.submitted;
            _ = self.0.changed.wait_timeout_while(queue, limit, |queue| queue.done < wanted);
        }
    }

    /// The entries, the newest first.
    pub fn entries(&self) -> Vec<HistoryEntry> {
        self.0.queue().entries.clone()
    }

    /// The tree of an entry.
    ///
    /// # Errors
    /// When there is no such entry, or its file cannot be read.
    pub fn tree(&self, point: HistoryPoint) -> Result<KeptTree, ControlError> {
        let entries = self.entries();
        match (point.find(&entries), &self.0.folder) {
            (Some(entry), Some(folder)) => store::read(folder, entry.number).map_err(store::unreadable),
            _ => Err(ControlError::no_entry(point)),
        }
    }
}

/// The folder of a history. Servers of several configurations may share a state folder.
fn folder(state_dir: &Path, whole: &Path) -> PathBuf {
    let name = whole.file_stem().unwrap_or_default().to_string_lossy();
    let hash = crate::hex::digits(&Sha256::digest(whole.as_os_str().as_encoded_bytes())[..4]);
    state_dir.join("history").join(format!("{name}-{hash}"))
}

impl Drop for ConfigHistory {
    fn drop(&mut self) {
        self.0.queue().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the trees until the history is dropped.
    fn keep(&self, mut store: HistoryStore) {
        self.queue().entries = store.entries();
        while let Some(tree) = self.next() {
            store.keep(tree);
            let mut queue = self.queue();
            queue.entries = store.entries();
            queue.done = queue.submitted - queue.waiting.len() as u64;
            self.changed.notify_all();
        }
    }

    /// The next tree. None at the end.
    fn next(&self) -> Option<AppliedTree> {
        let is_idle = |queue: &mut Queue| queue.waiting.is_empty() && !queue.is_closed;
        let queue = self.changed.wait_while(self.queue(), is_idle);
        queue.unwrap_or_else(PoisonError::into_inner).waiting.pop_front()
    }
}

#[cfg(test)]
mod tests;

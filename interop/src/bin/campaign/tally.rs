//! The counters of a round, and the folder of its servers.

use interop::Folder;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::ScopedJoinHandle;

/// Counters by name: `kills`, `writes checked`, `logins`.
pub type Counters = BTreeMap<&'static str, u64>;

/// The counters of one round; its threads share them.
#[derive(Debug)]
pub struct Tally {
    counters: Mutex<Counters>,
    folder: PathBuf,
    folders: AtomicU32,
    is_short: bool,
}

impl Tally {
    /// For a round whose files lie in this folder.
    pub fn new(folder: PathBuf, is_short: bool) -> Tally {
        Tally { counters: Mutex::default(), folder, folders: AtomicU32::new(0), is_short }
    }

    /// Adds to a counter.
    pub fn add(&self, counter: &'static str, n: u64) {
        *self
            .counters
            .lock()
            .expect("no thread panics while it holds the lock")
            .entry(counter)
            .or_default() += n;
    }

    /// A fresh folder, for a server (`Server::start_in`) or another process. It is kept when the round fails.
    pub fn folder(&self) -> Folder {
        let number = self.folders.fetch_add(1, Ordering::Relaxed);
        Folder::kept(self.folder.join(number.to_string()))
    }

    /// The round should end after about 2 s.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// All counters.
    pub fn counters(self) -> Counters {
        self.counters.into_inner().expect("no thread panics while it holds the lock")
    }
}

/// Returns the result of a thread, or continues its panic.
pub fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

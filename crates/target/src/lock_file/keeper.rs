//! The thread that looks after the lock files of this process.

use super::{Held, create_folder, is_at, try_lock};
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

/// The files are looked for this often.
const PERIOD: Duration = Duration::from_secs(1);
/// The error is repeated in the log this often.
const REMIND: Duration = Duration::from_secs(60);

/// All that is held, and whether the thread runs.
static ALL: Mutex<(Vec<Weak<Held>>, bool)> = Mutex::new((Vec::new(), false));

/// Looks after a lock for as long as it is held.
pub(super) fn watch(held: &Arc<Held>) {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.0.push(Arc::downgrade(held));
    if !all.1 {
        // Without a thread the lock holds as long as nobody deletes its file.
        all.1 = Builder::new().name("locks".into()).spawn(run).is_ok();
    }
}

fn run() {
    loop {
        sleep(PERIOD);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let held: Vec<_> = all.0.iter().filter_map(Weak::upgrade).collect();
        all.0.retain(|held| held.strong_count() > 0);
        if held.is_empty() {
            all.1 = false;
            return;
        }
        drop(all);
        held.iter().for_each(|held| held.keep());
    }
}

impl Held {
    /// Creates and locks the file again if it is gone or replaced.
    pub(super) fn keep(&self) {
        self._mark.iter().for_each(super::Mark::answer);
        let mut state = self.state();
        if state.is_over || !self.is_lost(&state.file) {
            state.logged = None;
            return;
        }
        let path = self.path.display();
        let again = create_folder(&self.path).and_then(|()| try_lock(&self.path));
        let fault = match again {
            Ok(Some(file)) => {
                state.file = file;
                _ = state.write();
                tracing::error!(
                    "{path}: somebody deleted or replaced this lock file; it is locked again; hint: {HINT}"
                );
                return;
            }
            Ok(None) => "another server has locked the new one, and hosts take both servers for one".into(),
            Err(e) => format!("it cannot be created again, and another server may be let in: {e}"),
        };
        if state.logged.is_none_or(|then| then.elapsed() > REMIND) {
            state.logged = Some(Instant::now());
            tracing::error!("{path}: somebody deleted or replaced this lock file; {fault}; hint: {HINT}");
        }
    }

    /// Another file, or none, is at the path. A file system that does not answer has not lost it.
    fn is_lost(&self, file: &std::fs::File) -> bool {
        match std::fs::metadata(&self.path) {
            Ok(_) => is_at(file, &self.path).is_ok_and(|is_at| !is_at),
            Err(e) => matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        }
    }
}

const HINT: &str =
    "do not delete the state folder of a server that runs: its reservations are saved with their next change";

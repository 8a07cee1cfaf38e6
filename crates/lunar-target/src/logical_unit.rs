//! A served logical unit: the device server's side, the blocks behind it, and the file that keeps its state.

use crate::PassthroughLu;
use crate::missing_medium::MediumWatch;
use crate::state_file;
use crate::task_set_lock::TaskSetLock;
use lunar_block::Backend;
use lunar_runtime::LogRateLimit;
use lunar_scsi::{CommitOutcome, InvalidDefinition, Lu, PendingCommit, PlanResult};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

/// A logical unit with its backend. It stays the same for as long as the LUN is served, whatever of its
/// definition changes ([`Quiesced::redefine`](crate::Resting::redefine)): so there is one gate and one device server before a medium.
pub struct LogicalUnit {
    /// The device server's side.
    pub lu: Arc<Lu>,
    /// Where reservations with APTPL and saved mode pages are kept; None: not kept.
    pub state_file: Option<PathBuf>,
    pub(crate) task_set: Arc<TaskSetLock>,
    /// The blocks. Replaced while no command runs.
    backend: RwLock<Arc<dyn Backend>>,
    /// Where commands are handed to that are not carried out here; it has no blocks then.
    passthrough: Option<Arc<dyn PassthroughLu>>,
    /// Held while the state file is written.
    saved: Mutex<SavedState>,
    /// Lines about accesses that failed.
    io_failures: LogRateLimit,
    /// The path of the medium.
    pub(crate) watch: MediumWatch,
    /// A command has found that the medium became shorter, and the next look at its size says so.
    has_shrunk: AtomicBool,
    /// Bytes of the medium as the log knows them.
    logged_size: AtomicU64,
    /// Lines about state that cannot be kept.
    pub(crate) save_failures: LogRateLimit,
}

/// What is known of the state file.
#[derive(Default)]
struct SavedState {
    /// The version of the state that is on stable storage.
    version: Option<u64>,
    /// The file is somebody else's from here on.
    retired: bool,
}

impl LogicalUnit {
    /// Puts the parts together. Without a state file the logical unit promises to keep nothing.
    pub fn new(lu: Arc<Lu>, backend: Arc<dyn Backend>, state_file: Option<PathBuf>) -> LogicalUnit {
        if state_file.is_none() {
            lu.set_volatile();
        }
        let task_set = Arc::new(TaskSetLock::new(lu.clone()));
        let logged_size = AtomicU64::new(backend.facts().capacity);
        let (backend, passthrough, saved) = (RwLock::new(backend), None, Mutex::default());
        let (io_failures, save_failures, watch, has_shrunk) = Default::default();
        LogicalUnit {
            lu,
            state_file,
            task_set,
            backend,
            passthrough,
            saved,
            io_failures,
            save_failures,
            watch,
            has_shrunk,
            logged_size,
        }
    }

    /// A logical unit elsewhere: its device server is one that passes ([`lunar_scsi::PassthroughMode`]).
    pub fn new_passthrough(
        lu: Arc<Lu>,
        passthrough: Arc<dyn PassthroughLu>,
        state_file: Option<PathBuf>,
    ) -> LogicalUnit {
        LogicalUnit {
            passthrough: Some(passthrough),
            ..LogicalUnit::new(lu, lunar_block::nothing(), state_file)
        }
    }

    /// Where commands are handed to that are not carried out here.
    pub fn passthrough(&self) -> Option<&Arc<dyn PassthroughLu>> {
        self.passthrough.as_ref()
    }

    /// The blocks, as they are for as long as the caller is inside the gate.
    pub fn backend(&self) -> Arc<dyn Backend> {
        self.backend.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells that an access of the medium failed; of many a few lines and a number.
    pub(crate) fn log_io_failure(&self, error: &io::Error, offset: u64) {
        let Some(left_out) = self.io_failures.may(Instant::now()) else { return };
        let medium = self.backend().describe();
        let medium = medium.iter().rev().find(|(name, _)| name == "path" || name == "backend");
        let medium = medium.map(|(_, what)| what.as_str());
        let serial = self.lu.settings().identity.serial.clone();
        tracing::warn!(%error, medium, serial, offset, left_out, "an access of the medium failed");
    }

    /// Keeps the state of the logical unit on stable storage: as it is now, or as somebody kept it meanwhile.
    ///
    /// # Errors
    /// Those of the file system; `Unsupported` without a state file.
    pub async fn save(self: &Arc<Self>) -> io::Result<()> {
        let unit = self.clone();
        lunar_runtime::blocking(move || unit.save_now()).await
    }

    /// Keeps what a command is to change on stable storage, and then changes it.
    ///
    /// # Errors
    /// Those of the file system; nothing has changed then.
    pub async fn persist(self: &Arc<Self>, draft: PendingCommit) -> io::Result<PlanResult> {
        let unit = self.clone();
        lunar_runtime::blocking(move || unit.persist_now(draft)).await
    }

    fn persist_now(&self, mut draft: PendingCommit) -> io::Result<PlanResult> {
        let Some(path) = &self.state_file else { return Ok(self.commit_volatile(draft)) };
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        if saved.retired {
            return Err(io::Error::other("the logical unit is gone"));
        }
        // Others who keep something wait for the lock; only the end of a SANITIZE changes something before it.
        loop {
            let bytes = draft.bytes().to_vec();
            state_file::replace(path, &bytes).inspect_err(|_| self.restore_file(path))?;
            match self.lu.commit(draft) {
                CommitOutcome::Again(next) => draft = next,
                CommitOutcome::Done(answer) => {
                    let (version, now) = self.lu.saved_state();
                    // A command that failed after all, or a change that its own command keeps in a moment.
                    let kept = if now == bytes { Ok(()) } else { state_file::replace(path, &now) };
                    if let Err(error) = &kept {
                        tracing::error!(%error, state_file = ?path, "it holds what was refused");
                    }
                    saved.version = kept.is_ok().then_some(version);
                    return Ok(answer);
                }
            }
        }
    }

    /// Without a file there is nothing that a draft could be ahead of.
    fn commit_volatile(&self, mut draft: PendingCommit) -> PlanResult {
        loop {
            match self.lu.commit(draft) {
                CommitOutcome::Done(answer) => return answer,
                CommitOutcome::Again(next) => draft = next,
            }
        }
    }

    /// A state file that was replaced, but not to the end, is to be again what holds.
    fn restore_file(&self, path: &Path) {
        let (_, holds) = self.lu.saved_state();
        if std::fs::read(path).is_ok_and(|found| found != holds)
            && let Err(error) = state_file::replace(path, &holds)
        {
            tracing::error!(%error, state_file = ?path, "it holds what was refused");
        }
    }

    fn save_now(&self) -> io::Result<()> {
        let Some(path) = &self.state_file else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        if saved.retired {
            return Err(io::Error::other("the logical unit is gone"));
        }
        let (version, bytes) = self.lu.saved_state();
        if saved.version.is_none_or(|s| version > s) {
            state_file::replace(path, &bytes)?;
            saved.version = Some(version);
        }
        Ok(())
    }

    /// Looks whether the medium has another size now; if so, initiators hear of it with their next command.
    pub fn refresh(&self) -> bool {
        // Of units that share a medium only the first hears from it that something is new. It may wait: nothing is held.
        self.backend().refresh();
        // Held, so that a medium that is replaced meanwhile does not get the size of the one before.
        let backend = self.backend.read().unwrap_or_else(PoisonError::into_inner);
        self.lu.resized(backend.facts().capacity) | self.has_shrunk.swap(false, Relaxed)
    }

    /// Logs the size that the medium has now, beside the one that was logged before.
    pub(crate) fn log_size(&self, target: &str, lun: u16) {
        let bytes = self.backend().facts().capacity;
        let before = self.logged_size.swap(bytes, Relaxed);
        let what = format!("LUN {lun} of {target} has another size now: {bytes} bytes; it had {before}");
        match bytes < before {
            true => tracing::warn!(
                "{what}; hint: stop the hosts, and restore the medium unless it was to be smaller"
            ),
            false => tracing::info!("{what}"),
        }
    }

    /// A command came to an end of the medium that hosts do not know of yet: they hear of it with their next command.
    /// Whether the access at this offset is beyond the end, or was.
    pub(crate) fn ends_before(&self, offset: u64) -> bool {
        let is_new = self.refresh();
        self.has_shrunk.fetch_or(is_new, Relaxed);
        is_new || offset >= self.backend().facts().capacity
    }

    /// Other blocks from here on, if `with`, which is done in the same step, does not fail. No command runs.
    pub(crate) fn replace_backend(
        &self,
        backend: Arc<dyn Backend>,
        with: impl FnOnce(&Lu) -> Result<(), InvalidDefinition>,
    ) -> Result<(), InvalidDefinition> {
        let mut now = self.backend.write().unwrap_or_else(PoisonError::into_inner);
        with(&self.lu)?;
        self.logged_size.store(backend.facts().capacity, Relaxed);
        *now = backend;
        Ok(())
    }

    /// The state file belongs to another unit from here on: nothing is written to it any more.
    pub(crate) fn leave_state_file(&self) {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner).retired = true;
    }
}

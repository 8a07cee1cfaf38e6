//! A logical unit: its device server, its backend, and its state file.

use crate::PassthroughLu;
use crate::io_failures::IoFailures;
use crate::lu_counters::{LuCounters, LuTotals};
use crate::missing_medium::MediumWatch;
use crate::sharing::StateSharing;
use crate::state_file;
use crate::task_set_lock::TaskSetLock;
use lunar_block::Backend;
use lunar_runtime::LogRateLimit;
use lunar_scsi::{CommitOutcome, InvalidDefinition, Lu, PendingCommit, PlanResult};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Instant;

/// A logical unit with its backend. It stays the same object as long as the LUN is served, even if its definition
/// changes ([`Quiesced::redefine`](crate::Quiesced::redefine)). A medium therefore has one task set and one device
/// server.
pub struct LogicalUnit {
    id: u64,
    /// The device server.
    pub lu: Arc<Lu>,
    /// The file for reservations with APTPL and saved mode pages. None: they are not saved.
    pub state_file: Option<PathBuf>,
    pub(crate) task_set: Arc<TaskSetLock>,
    /// The backend. It is replaced only while no command runs.
    backend: RwLock<Arc<dyn Backend>>,
    /// The remote logical unit, if this is a passthrough. It then has no backend.
    passthrough: Option<Arc<dyn PassthroughLu>>,
    /// Locked while the state file is written.
    saved: Mutex<SavedState>,
    /// Whether the unit was removed from the configuration. Its file and its medium may belong to another unit.
    is_retired: AtomicBool,
    /// Names and limits log lines about failed I/O.
    pub(crate) io_failures: IoFailures,
    /// Watches the path of the medium for deletion and replacement.
    pub(crate) watch: MediumWatch,
    /// Set when a command finds that the medium has shrunk. The next check of the size reports it.
    has_shrunk: AtomicBool,
    /// The size of the medium in bytes that was last logged.
    logged_size: AtomicU64,
    /// Limits log lines about state that cannot be saved.
    pub(crate) save_failures: LogRateLimit,
    /// Counts its commands.
    pub(crate) counters: Arc<LuCounters>,
    /// Bytes that EXTENDED COPY commands to this unit have copied.
    pub(crate) copied_bytes: AtomicU64,
    /// Set if other servers share the state.
    pub(crate) sharing: OnceLock<Arc<dyn StateSharing>>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The state of the state file.
#[derive(Default)]
struct SavedState {
    /// Version of the state on stable storage.
    version: Option<u64>,
}

impl LogicalUnit {
    /// A logical unit with this backend. Without a state file it reports that it saves nothing.
    pub fn new(lu: Arc<Lu>, backend: Arc<dyn Backend>, state_file: Option<PathBuf>) -> LogicalUnit {
        if state_file.is_none() {
            lu.set_volatile();
        }
        let task_set = Arc::new(TaskSetLock::new(lu.clone()));
        let logged_size = AtomicU64::new(backend.info().capacity);
        let (backend, passthrough, saved) = (RwLock::new(backend), None, Mutex::default());
        let (io_failures, save_failures, watch, has_shrunk, is_retired, counters, copied_bytes, sharing) =
            Default::default();
        LogicalUnit {
            id: NEXT_ID.fetch_add(1, Relaxed),
            lu,
            state_file,
            task_set,
            backend,
            passthrough,
            saved,
            is_retired,
            io_failures,
            save_failures,
            watch,
            has_shrunk,
            logged_size,
            counters,
            copied_bytes,
            sharing,
        }
    }

    /// A passthrough logical unit: the device server forwards commands ([`lunar_scsi::PassthroughMode`]).
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

    /// A number that no other logical unit of the process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The counts of its commands since the start of the server.
    pub fn totals(&self) -> LuTotals {
        self.counters.totals()
    }

    /// Bytes that EXTENDED COPY commands to this unit have copied, from any LUN to any LUN.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Relaxed)
    }

    /// Its counters, which may outlive it.
    pub fn counters(&self) -> Arc<LuCounters> {
        self.counters.clone()
    }

    /// The remote logical unit, if this is a passthrough.
    pub fn passthrough(&self) -> Option<&Arc<dyn PassthroughLu>> {
        self.passthrough.as_ref()
    }

    /// The backend. It does not change while the caller holds the task set lock.
    pub fn backend(&self) -> Arc<dyn Backend> {
        self.backend.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Logs a failed access to the medium. Repeated failures are summarized by a count.
    pub(crate) fn log_io_failure(&self, error: &io::Error, offset: u64) {
        let Some(left_out) = self.io_failures.may(error, Instant::now()) else { return };
        let medium = self.backend().describe();
        let medium =
            medium.iter().rev().find(|(name, _)| ["path", "image", "backend"].contains(&name.as_str()));
        let medium = medium.map(|(_, what)| what.as_str());
        let line = self.io_failures.line(error, medium);
        let serial = self.lu.settings().identity.serial.clone();
        tracing::warn!(name: "medium.error", medium, serial, offset, left_out, "{line}");
    }

    /// Saves the current state to stable storage, unless it was saved meanwhile.
    ///
    /// # Errors
    /// Those of the file system; `Unsupported` without a state file.
    pub async fn save(self: &Arc<Self>) -> io::Result<()> {
        let unit = self.clone();
        lunar_runtime::blocking(move || unit.save_now()).await
    }

    /// Saves a change to stable storage, and then lets it take effect.
    ///
    /// # Errors
    /// Those of the file system. Then nothing has changed.
    pub async fn persist(self: &Arc<Self>, draft: PendingCommit) -> io::Result<PlanResult> {
        let unit = self.clone();
        lunar_runtime::blocking(move || unit.persist_now(draft)).await
    }

    fn persist_now(&self, mut draft: PendingCommit) -> io::Result<PlanResult> {
        let Some(path) = &self.state_file else { return Ok(self.commit_volatile(draft)) };
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_retired.load(Relaxed) {
            return Err(io::Error::other("the logical unit was removed from the configuration"));
        }
        // Other writers of the state wait for this lock. Only the end of a SANITIZE changes state without it.
        loop {
            let bytes = draft.bytes().to_vec();
            state_file::replace(path, &bytes).inspect_err(|_| self.restore_file(path))?;
            match self.lu.commit(draft) {
                CommitOutcome::Again(next) => draft = next,
                CommitOutcome::Done(answer) => {
                    let (version, now) = self.lu.saved_state();
                    // They differ if the command failed in the end, or if another command is about to save its
                    // change.
                    let kept = if now == bytes { Ok(()) } else { state_file::replace(path, &now) };
                    if let Err(error) = &kept {
                        let what = "the state file contains a rejected change of the LUN";
                        tracing::error!(name: "medium.error", %error, state_file = ?path, "{what}");
                    }
                    saved.version = kept.is_ok().then_some(version);
                    return Ok(answer);
                }
            }
        }
    }

    /// Lets a change take effect without saving it, because there is no state file.
    fn commit_volatile(&self, mut draft: PendingCommit) -> PlanResult {
        loop {
            match self.lu.commit(draft) {
                CommitOutcome::Done(answer) => return answer,
                CommitOutcome::Again(next) => draft = next,
            }
        }
    }

    /// Restores a state file after a change failed that had already replaced it.
    fn restore_file(&self, path: &Path) {
        let (_, holds) = self.lu.saved_state();
        if std::fs::read(path).is_ok_and(|found| found != holds)
            && let Err(error) = state_file::replace(path, &holds)
        {
            let what = "the state file contains a rejected change of the LUN";
            tracing::error!(name: "medium.error", %error, state_file = ?path, "{what}");
        }
    }

    fn save_now(&self) -> io::Result<()> {
        let Some(path) = &self.state_file else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_retired.load(Relaxed) {
            return Err(io::Error::other("the logical unit was removed from the configuration"));
        }
        let (version, bytes) = self.lu.saved_state();
        if saved.version.is_none_or(|s| version > s) {
            state_file::replace(path, &bytes)?;
            saved.version = Some(version);
        }
        Ok(())
    }

    /// Checks the size of the medium. If it has changed, initiators get a unit attention. Returns whether it has.
    pub fn refresh(&self) -> bool {
        // If several logical units share a medium, only the first call sees the change. It may block, so hold no
        // lock.
        self.backend().refresh();
        // Locked, so that a medium that is replaced meanwhile does not get the size of the old one.
        let backend = self.backend.read().unwrap_or_else(PoisonError::into_inner);
        if self.is_retired.load(Relaxed) {
            return false;
        }
        self.lu.resized(backend.info().capacity) | self.has_shrunk.swap(false, Relaxed)
    }

    /// Logs the size of the medium, and its previous size.
    pub(crate) fn log_size(&self, target: &str, lun: u16) {
        let bytes = self.backend().info().capacity;
        let before = self.logged_size.swap(bytes, Relaxed);
        let what = format!("LUN {lun} of {target} changed its size to {bytes} bytes; it had {before}");
        match bytes < before {
            true => tracing::warn!(
                name: "lun.resized", target, lun, bytes,
                "{what}; hint: unless you shrank the medium on purpose, stop the hosts and restore it"
            ),
            false => tracing::info!(name: "lun.resized", target, lun, bytes, "{what}"),
        }
    }

    /// Handles a command that unexpectedly found the end of the medium: initiators get a unit attention if the size
    /// has changed. Returns whether the offset is, or was, beyond the end.
    pub(crate) fn ends_before(&self, offset: u64) -> bool {
        let is_new = self.refresh();
        self.has_shrunk.fetch_or(is_new, Relaxed);
        is_new || offset >= self.backend().info().capacity
    }

    /// Runs `with`, and replaces the backend if it succeeds. The caller ensures that no command runs.
    pub(crate) fn replace_backend(
        &self,
        backend: Arc<dyn Backend>,
        with: impl FnOnce(&Lu) -> Result<(), InvalidDefinition>,
    ) -> Result<(), InvalidDefinition> {
        let mut now = self.backend.write().unwrap_or_else(PoisonError::into_inner);
        with(&self.lu)?;
        self.logged_size.store(backend.info().capacity, Relaxed);
        *now = backend;
        Ok(())
    }

    /// Releases the state file for another logical unit: nothing is written to it anymore.
    pub(crate) fn leave_state_file(&self) {
        // A write that has begun ends first.
        let _saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_retired.store(true, Relaxed);
    }
}

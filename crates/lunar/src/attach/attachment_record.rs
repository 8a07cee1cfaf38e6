//! The record of a live attachment. It names the session of each path before that session sends a command. The next
//! process ends the writes of these sessions, and of no others.

use super::disk::session_of;
use lunar_block::LocalBoxFuture;
use lunar_initiator::{Error, ErrorCode, Options, Session, SessionHooks, SessionInfo, SessionLogin, Url};
use lunar_server::Diagnostic;
use lunar_server::attached::{Attached, Record};
use std::fmt;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The record, which paths and the main thread change. Lock order: this record, then the folder.
pub struct AttachmentRecord {
    attached: Attached,
    state: Mutex<RecordState>,
}

struct RecordState {
    record: Record,
    /// Recorded logins of all paths.
    logins: u64,
    /// Whether the process is ending: then paths must not change the record any more.
    is_over: bool,
}

impl AttachmentRecord {
    /// Shares a record that is already on disk.
    pub fn of(attached: &Attached, record: Record) -> Arc<AttachmentRecord> {
        let state = Mutex::new(RecordState { record, logins: 0, is_over: false });
        Arc::new(AttachmentRecord { attached: attached.clone(), state })
    }

    /// The current record. The caller must not hold the lock of the folder.
    pub fn record(&self) -> Record {
        self.lock().record.clone()
    }

    /// Recorded logins of all paths.
    pub fn logins(&self) -> u64 {
        self.lock().logins
    }

    /// Changes the record, and writes it. The caller must not hold the lock of the folder.
    ///
    /// # Errors
    /// When the record cannot be written: it stays unchanged.
    pub fn change(&self, change: impl FnOnce(&mut Record)) -> Result<(), Diagnostic> {
        let mut state = self.lock();
        self.write(&mut state, change)
    }

    /// Removes ended sessions from the record: the target executes no write of them any more. Does nothing if a path has
    /// logged in since the caller read `logins`.
    ///
    /// # Errors
    /// As [`AttachmentRecord::change`].
    pub fn clear_left_behind(&self, logins: u64) -> Result<(), Diagnostic> {
        let mut state = self.lock();
        if state.logins != logins {
            return Ok(());
        }
        self.write(&mut state, |record| record.left_behind.clear())
    }

    /// Ends all changes by paths, and returns the final record.
    pub fn end(&self) -> Record {
        let mut state = self.lock();
        state.is_over = true;
        state.record.clone()
    }

    fn write(&self, state: &mut RecordState, change: impl FnOnce(&mut Record)) -> Result<(), Diagnostic> {
        let mut record = state.record.clone();
        change(&mut record);
        if record != state.record {
            self.attached.lock()?.write(&record)?;
            state.record = record;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, RecordState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of the record that belongs to one path.
#[derive(Clone)]
pub struct PathRecord {
    /// The record.
    pub record: Arc<AttachmentRecord>,
    /// Position among the paths.
    pub index: usize,
    /// URL of the path.
    pub url: Url,
}

impl PathRecord {
    /// A hook that records the logins of a session with these options.
    pub fn recorder(&self, options: &Options) -> Arc<LoginRecorder> {
        Arc::new(LoginRecorder {
            path: self.clone(),
            options: options.clone(),
            is_used: AtomicBool::new(false),
        })
    }
}

/// Records the logins of a session, from [`LoginRecorder::begin`] on. A session to a wrong logical unit is thus never
/// recorded.
pub struct LoginRecorder {
    path: PathRecord,
    options: Options,
    is_used: AtomicBool,
}

impl LoginRecorder {
    /// Records this session, and each later login of it.
    ///
    /// # Errors
    /// When the record cannot be written: the session must not send a command.
    pub async fn begin(&self, session: &Session) -> Result<(), Error> {
        self.is_used.store(true, SeqCst);
        loop {
            let info = session.info();
            self.record_login(&info, false).await?;
            // Also records a login during the write above.
            let now = session.info();
            if (now.target_port(), now.user) == (info.target_port(), info.user) {
                return Ok(());
            }
        }
    }

    async fn record_login(&self, info: &SessionInfo, has_orphans: bool) -> Result<(), Error> {
        let session = session_of(&self.path.url, &self.options, info);
        let (record, index) = (self.path.record.clone(), self.path.index);
        // The lock of the folder may block.
        let write = lunar_runtime::blocking(move || {
            let mut state = record.lock();
            if state.is_over {
                return Err(io::Error::other("the disk is being detached"));
            }
            state.logins += 1;
            let written = record.write(&mut state, |record| record.enter(index, session, has_orphans));
            written.map_err(|problem| io::Error::other(problem.what))
        });
        let failed = |e: io::Error| {
            Error::new(ErrorCode::ConnectionLost, format!("cannot write the record of the attachment: {e}"))
        };
        write.await.map_err(failed)
    }
}

impl fmt::Debug for LoginRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recorder({})", self.path.index)
    }
}

impl SessionHooks for LoginRecorder {
    fn logged_in<'a>(&'a self, login: SessionLogin<'a>) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            match self.is_used.load(SeqCst) {
                true => self.record_login(login.info, login.has_orphans).await,
                false => Ok(()),
            }
        })
    }
}

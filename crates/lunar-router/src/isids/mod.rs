//! ISIDs of the sessions with upstreams, recorded in a file. After a kill, the next process uses them to replace the
//! sessions left behind, before it serves. A login with the same name and ISID at the same portal group ends such a
//! session and its writes (RFC 7143 section 6.3.5). If no login succeeds in time, the logical unit is reset. Each
//! state directory has its own random ISIDs. A process reuses an ISID only after its session has ended gracefully,
//! and while it is not leased.

mod nexus;
mod record;

pub use nexus::{RecordedNexus, Reinstatement};

use event_listener::Event;
use lunar_initiator::{Error, ErrorCode, Options, Session};
use nexus::Sessions;
use record::{IsidRecord, Paths};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The maximum number of recorded sessions of a path.
const MAX: usize = 1024;
/// The interval of attempts to write the record.
const AGAIN: Duration = Duration::from_secs(5);

/// The recorded name of an unknown target port.
const UNKNOWN: &str = "?";

/// An ISID (RFC 7143 section 11.12.5).
pub type Isid = [u8; 6];

/// The ISIDs of all routers of a server.
#[derive(Debug, Default)]
pub struct IsidStore {
    folder: Option<PathBuf>,
    all: Mutex<BTreeMap<String, Arc<RouterIsids>>>,
}

impl IsidStore {
    /// A store with records in this state directory. Nothing is read, written or locked before a router needs it.
    pub fn kept_in(state_dir: &Path) -> IsidStore {
        IsidStore { folder: Some(state_dir.to_owned()), ..IsidStore::default() }
    }

    /// The ISIDs of the router with this name. They exist as long as the process.
    pub fn of(&self, router: &str) -> Arc<RouterIsids> {
        let file = self.folder.as_ref().map(|folder| folder.join(format!("{router}.isids")));
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(router.to_owned()).or_insert_with(|| Arc::new(RouterIsids::kept_in(file))).clone()
    }

    /// Logs out of all sessions: see [`RouterIsids::part`].
    pub fn part(&self, on: &lunar_runtime::Cores) {
        let all: Vec<_> = self.all.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let part = || async move {
            let each = all.into_iter().map(|isids| compio::runtime::spawn(async move { isids.part().await }));
            for one in each.collect::<Vec<_>>() {
                _ = one.await;
            }
        };
        if let Err(e) = on.wait(0, part) {
            tracing::warn!("the router cannot log out of its upstream sessions: {e}");
        }
    }
}

/// The ISIDs of a router.
#[derive(Debug, Default)]
pub struct RouterIsids {
    /// The record file. None: ISIDs are not recorded.
    file: Option<PathBuf>,
    /// The opened record, from its first use on.
    record: OnceLock<IsidRecord>,
    paths: Mutex<Paths>,
    /// The number of changes, and the number of those that are written.
    changes: AtomicU64,
    saved: AtomicU64,
    /// Whether the record cannot be written at present and is being retried.
    is_failing: AtomicBool,
    sessions: Mutex<Sessions>,
    /// The logical units that are being reset.
    resetting: Mutex<BTreeSet<String>>,
    /// Notified when old sessions were replaced or could not be, when a reset has ended, and when a session of this
    /// process has ended.
    notifier: Event,
}

/// A path to a logical unit.
#[derive(Clone, Copy, Debug)]
pub struct PathKey<'a> {
    /// The logical unit: the common prefix of the names of all its paths.
    pub unit: &'a str,
    /// The name of this path.
    pub path: &'a str,
    /// The [`user`] of its sessions.
    pub user: Option<&'a str>,
}

/// The CHAP user of a session, for the record. Some targets make the user part of the session's identity: there, a
/// login of another user is another nexus.
pub fn user(options: &Options) -> Option<String> {
    let credentials = options.credentials.as_ref()?;
    let hash = Sha256::digest(&credentials.name);
    Some(hash[..8].iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The lease of an ISID for one session at a time, until this is dropped.
#[derive(Debug)]
pub struct IsidLease {
    isid: Isid,
    _taken: Arc<()>,
}

impl IsidLease {
    /// The ISID.
    pub fn isid(&self) -> Isid {
        self.isid
    }
}

/// The sessions of one path to a logical unit.
#[derive(Debug, Default)]
struct PathSessions {
    /// All sessions, oldest first.
    all: Vec<SessionEntry>,
    /// ISIDs, also of other paths, with which a login over this path is replacing sessions. An abandoned login may
    /// still be executed, and would end a session that uses its ISID by then.
    logins: Vec<Isid>,
    /// Whether old sessions are being replaced over this path.
    is_replacing: bool,
    /// The time since which old sessions block this path, or of the last failed reset over it.
    started_at: Option<Instant>,
}

/// A recorded session.
#[derive(Clone, Debug, Default)]
struct SessionEntry {
    isid: Isid,
    /// The initiator name. None in records of older versions.
    initiator: Option<String>,
    /// The [`user`].
    user: Option<String>,
    /// The target port. It is recorded before any command is sent. If that failed, an old session has none.
    at: Option<String>,
    state: State,
    /// The number of the session in this process.
    by: u64,
    /// Whether the ISID is derived from other data. The entry is removed when the session has ended.
    is_fixed: bool,
    /// The lease of the ISID.
    lease: Weak<()>,
}

impl SessionEntry {
    /// Whether both are recorded by the same line.
    fn is_same(&self, other: &SessionEntry) -> bool {
        let key = |entry: &SessionEntry| {
            (entry.isid, entry.initiator.clone(), entry.user.clone(), entry.at.clone())
        };
        key(self) == key(other)
    }

    /// Whether the target executes no command of the session, and no login with its ISID is in progress.
    fn is_free(&self) -> bool {
        self.state == State::Ended && self.lease.strong_count() == 0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// An earlier process had the session, and the target may still execute its commands.
    Left,
    /// The target executes no more commands of the session, or never received any.
    #[default]
    Ended,
    /// The session belongs to this process.
    Used,
}

/// A session left behind by an earlier process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldSession {
    /// The ISID.
    pub isid: Isid,
    /// The initiator name, if known.
    pub initiator: Option<String>,
    /// The path of the session.
    pub path: String,
    user: Option<String>,
    at: Option<String>,
}

impl OldSession {
    /// Whether a login over this path, at this target port, has ended the session. At another target port, the same
    /// ISID is another nexus.
    pub fn is_ended_at(&self, key: PathKey<'_>, port: Option<&str>) -> bool {
        self.is_of(key.user)
            && match self.port() {
                Some(at) => port == Some(at),
                None => self.path == key.path,
            }
    }

    /// Whether it was a session of this user. Records of older versions do not contain the user.
    pub fn is_of(&self, user: Option<&str>) -> bool {
        self.initiator.is_none() || self.user.as_deref() == user
    }

    /// The target port of the session, if known.
    pub fn port(&self) -> Option<&str> {
        self.at.as_deref().filter(|at| *at != UNKNOWN)
    }
}

/// The result of a check for old sessions.
enum LeaseCheck {
    /// These sessions must be replaced first.
    Left(Vec<OldSession>),
    /// Another caller is replacing them.
    Wait,
    /// No old session is left.
    Clear,
}

/// The exclusive right to reset a logical unit.
pub struct ResetGuard<'a> {
    isids: &'a Arc<RouterIsids>,
    key: PathKey<'a>,
}

impl ResetGuard<'_> {
    /// Records that the reset has ended the commands of old sessions with the logical unit.
    pub async fn record_reset(self) {
        self.isids.end(|path, _| path.starts_with(self.key.unit));
        self.isids.save().await;
    }

    /// Records that the reset failed. The next attempt is due after the same time.
    pub fn record_failure(self) {
        if let Some(recorded) = self.isids.lock().get_mut(self.key.path) {
            recorded.started_at = Some(Instant::now());
        }
    }
}

impl Drop for ResetGuard<'_> {
    fn drop(&mut self) {
        self.isids.resetting().remove(self.key.unit);
        self.isids.notifier.notify(usize::MAX);
    }
}

impl RouterIsids {
    fn kept_in(file: Option<PathBuf>) -> RouterIsids {
        RouterIsids { file, ..RouterIsids::default() }
    }

    /// Ends the commands of old sessions with the logical unit, before this path is used. `log_in` logs in as each of
    /// them, and returns the target port. Sessions of other paths are included, because those paths may be down: at a
    /// common target port, a login over this path ends them. Returns true if that is not enough and the logical unit
    /// must be reset over this path.
    ///
    /// # Errors
    /// Those of `log_in`: an old session may still exist, and no reset is due before this `limit`.
    /// [`ErrorCode::Unreachable`] when no thread can read the file.
    pub async fn settle(
        self: &Arc<Self>,
        key: PathKey<'_>,
        limit: Duration,
        log_in: impl AsyncFn(&OldSession) -> Result<Option<String>, Error>,
    ) -> Result<bool, Error> {
        self.open().await?;
        loop {
            let rings = self.notifier.listen();
            match self.find(key) {
                LeaseCheck::Left(old) => {
                    let Err(e) = self.replace(key, old, log_in).await else { return Ok(false) };
                    return if self.is_due(key, limit) { Ok(true) } else { Err(e) };
                }
                LeaseCheck::Wait => rings.await,
                LeaseCheck::Clear => return Ok(false),
            }
        }
    }

    /// Records that all old sessions with the logical unit have ended.
    ///
    /// # Errors
    /// [`ErrorCode::Unreachable`] when no thread can read the file.
    pub async fn forget(self: &Arc<Self>, key: PathKey<'_>) -> Result<(), Error> {
        self.open().await?;
        self.end(|path, _| path.starts_with(key.unit));
        Ok(())
    }

    /// Waits for the exclusive right to reset the logical unit. None if no old session is left.
    pub async fn acquire_reset<'a>(self: &'a Arc<Self>, key: PathKey<'a>) -> Option<ResetGuard<'a>> {
        loop {
            let rings = self.notifier.listen();
            if self.left(key.unit).is_empty() {
                return None;
            }
            if self.resetting().insert(key.unit.to_owned()) {
                return Some(ResetGuard { isids: self, key });
            }
            rings.await;
        }
    }

    /// The old sessions with a logical unit whose commands may still run.
    ///
    /// # Errors
    /// [`ErrorCode::Unreachable`] when no thread can read the file.
    pub async fn old(self: &Arc<Self>, unit: &str) -> Result<Vec<OldSession>, Error> {
        self.open().await?;
        Ok(self.left(unit))
    }

    /// Records that an old session has ended.
    pub fn record_replaced(&self, old: &OldSession) {
        self.end(|path, entry| *path == old.path && entry.isid == old.isid && entry.at == old.at);
    }

    /// Records that a session with a derived ISID uses a path to this target port.
    pub async fn uses(self: &Arc<Self>, key: PathKey<'_>, session: &Session) {
        let (info, by) = (session.info(), self.id_of(session));
        let at = known_or_not(info.target_port());
        let initiator = Some(session.options().initiator.clone());
        let user = key.user.map(str::to_owned);
        let used = SessionEntry {
            isid: info.isid,
            initiator,
            user,
            at,
            by,
            is_fixed: true,
            ..SessionEntry::default()
        };
        self.adds(key.path, SessionEntry { state: State::Used, ..used });
        self.save().await;
    }

    fn adds(&self, path: &str, used: SessionEntry) {
        let mut paths = self.lock();
        let recorded = paths.entry(path.to_owned()).or_default();
        let same = recorded.all.iter_mut().find(|entry| entry.is_same(&used));
        let is_new = same.as_ref().is_none_or(|entry| entry.state == State::Ended);
        match same {
            Some(entry) => *entry = used,
            None => {
                recorded.make_room();
                recorded.all.push(used);
            }
        }
        drop(paths);
        if is_new {
            self.note();
        }
    }

    /// Leases an ISID for a new session over this path, under this name.
    pub async fn isid(self: &Arc<Self>, key: PathKey<'_>, initiator: &str) -> IsidLease {
        let lease = self.take(key, initiator);
        self.save().await;
        lease
    }

    /// Records the target port of a session after its login.
    pub async fn record_login(self: &Arc<Self>, key: PathKey<'_>, isid: Isid, session: &Session) {
        let at = known_or_not(session.info().target_port());
        self.moves(key.path, isid, at, self.id_of(session));
        self.save().await;
    }

    fn moves(&self, path: &str, isid: Isid, at: Option<String>, by: u64) {
        let mut paths = self.lock();
        let entry = paths.get_mut(path).and_then(|of| of.all.iter_mut().find(|entry| entry.isid == isid));
        if let Some(entry) = entry {
            (entry.at, entry.state, entry.by) = (at, State::Used, by);
        }
        drop(paths);
        self.note();
    }

    /// Records that a session with this ISID could not log in: it has sent nothing, unless it was logged in before.
    pub async fn record_failed_login(self: &Arc<Self>, key: PathKey<'_>, isid: Isid) {
        if let Some(recorded) = self.lock().get_mut(key.path) {
            let is_it = |entry: &&mut SessionEntry| entry.isid == isid && entry.state == State::Used;
            let unused = recorded.all.iter_mut().filter(is_it).filter(|entry| entry.at.is_none());
            unused.for_each(|entry| {
                entry.state = State::Ended;
                self.note();
            });
        }
        self.save().await;
    }

    /// Reads the file at first use. All cores wait for it.
    async fn open(self: &Arc<Self>) -> Result<(), Error> {
        let (Some(file), None) = (self.file.clone(), self.record.get()) else { return Ok(()) };
        let isids = self.clone();
        let read = move || {
            isids.record.get_or_init(|| {
                let (record, paths) = IsidRecord::open(file);
                *isids.lock() = paths;
                record
            });
            Ok(())
        };
        lunar_runtime::blocking(read).await.map_err(|e| Error::new(ErrorCode::Unreachable, e.to_string()))
    }

    /// Replaces those old sessions that a login over this path can end.
    async fn replace(
        &self,
        key: PathKey<'_>,
        old: Vec<OldSession>,
        log_in: impl AsyncFn(&OldSession) -> Result<Option<String>, Error>,
    ) -> Result<(), Error> {
        let path = key.path;
        let _replacing = ReplacementGuard { isids: self, path };
        let (mut port, mut others) = (None, Vec::new());
        for old in old {
            // The port is known after the first login.
            let is_known = port.is_some() && !old.is_ended_at(key, port.as_deref());
            let is_elsewhere = is_known || !old.is_of(key.user);
            if is_elsewhere || !self.reserve(path, old.isid) {
                others.push(old.path);
                continue;
            }
            port = log_in(&old).await?;
            self.release(path, old.isid);
            if old.is_ended_at(key, port.as_deref()) {
                self.record_replaced(&old);
            } else {
                others.push(old.path);
            }
        }
        others.retain(|other| self.lock().get(other).is_some_and(PathSessions::is_left));
        match others.first().map(|other| other.rsplit(' ').next().unwrap_or_default()) {
            Some(other) => Err(Error::new(
                ErrorCode::ConnectionLost,
                format!(
                    "the storage at {other} may still execute writes of an earlier process of this router"
                ),
            )),
            None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Paths> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn resetting(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.resetting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the commands of these sessions have ended.
    fn end(&self, which: impl Fn(&String, &SessionEntry) -> bool) {
        for (path, recorded) in self.lock().iter_mut() {
            let ended =
                recorded.all.iter_mut().filter(|entry| entry.state == State::Left && which(path, entry));
            ended.for_each(|entry| (entry.state, entry.at) = (State::Ended, None));
        }
        self.note();
    }

    /// The old sessions with a logical unit whose commands may still run.
    fn left(&self, unit: &str) -> Vec<OldSession> {
        let paths = self.lock();
        let of_unit = paths.iter().filter(|(path, _)| path.starts_with(unit));
        let entries = of_unit.flat_map(|(path, of)| of.all.iter().map(move |entry| (path, entry)));
        let left = entries.filter(|(_, entry)| entry.state == State::Left);
        let old = |(path, entry): (&String, &SessionEntry)| OldSession {
            isid: entry.isid,
            initiator: entry.initiator.clone(),
            path: path.clone(),
            user: entry.user.clone(),
            at: entry.at.clone(),
        };
        left.map(old).collect()
    }

    /// Whether the time for logins before a reset has passed.
    fn is_due(&self, key: PathKey<'_>, limit: Duration) -> bool {
        let started_at = self.lock().get(key.path).and_then(|recorded| recorded.started_at);
        started_at.is_some_and(|started_at| started_at.elapsed() >= limit)
    }

    /// Reserves an ISID for a login over a path. Returns false if another path uses it, so that its old session was
    /// replaced.
    fn reserve(&self, path: &str, isid: Isid) -> bool {
        let mut paths = self.lock();
        let is_it = |entry: &&SessionEntry| entry.isid == isid;
        let mut all = paths.values().flat_map(|recorded| &recorded.all).filter(is_it);
        let is_unused = all.all(|entry| entry.state == State::Left || entry.is_free());
        if let (true, Some(recorded)) = (is_unused, paths.get_mut(path))
            && !recorded.logins.contains(&isid)
        {
            recorded.logins.push(isid);
        }
        is_unused
    }

    /// Releases the ISID of a completed login. It also ended any abandoned attempt, which had the same nexus.
    fn release(&self, path: &str, isid: Isid) {
        if let Some(recorded) = self.lock().get_mut(path) {
            recorded.logins.retain(|other| *other != isid);
        }
    }

    fn find(&self, PathKey { unit, path, .. }: PathKey<'_>) -> LeaseCheck {
        let old = self.left(unit);
        if old.is_empty() {
            return LeaseCheck::Clear;
        }
        let mut paths = self.lock();
        let recorded = paths.entry(path.to_owned()).or_default();
        if recorded.is_replacing {
            return LeaseCheck::Wait;
        }
        recorded.is_replacing = true;
        recorded.started_at.get_or_insert_with(Instant::now);
        LeaseCheck::Left(old)
    }

    /// Leases a free ISID.
    fn take(&self, key: PathKey<'_>, initiator: &str) -> IsidLease {
        let mut paths = self.lock();
        let reserved = paths.values().flat_map(|recorded| recorded.logins.clone());
        let all = paths.values().flat_map(|recorded| &recorded.all);
        let used = all.filter(|entry| !entry.is_free()).map(|entry| entry.isid);
        let taken: BTreeSet<Isid> = reserved.chain(used).collect();
        let recorded = paths.entry(key.path.to_owned()).or_default();
        let is_free = |entry: &SessionEntry| entry.is_free() && !taken.contains(&entry.isid);
        let isid = match recorded.all.iter().rposition(is_free) {
            Some(free) => recorded.all.remove(free).isid,
            None => lunar_initiator::new_isid(),
        };
        recorded.make_room();
        let (taken, initiator) = (Arc::new(()), Some(initiator.to_owned()));
        let (user, lease) = (key.user.map(str::to_owned), Arc::downgrade(&taken));
        let used =
            SessionEntry { isid, initiator, user, state: State::Used, lease, ..SessionEntry::default() };
        recorded.all.push(used);
        drop(paths);
        self.note();
        IsidLease { isid, _taken: taken }
    }

    /// Counts a change of the record.
    fn note(&self) {
        self.changes.fetch_add(1, SeqCst);
    }

    /// Writes changes of the record. After a failure it retries in the background until it succeeds: hosts must not
    /// wait for free disk space on the router.
    async fn save(self: &Arc<Self>) {
        let wanted = self.changes.load(SeqCst);
        if self.saved.load(SeqCst) >= wanted || self.writes().await || self.is_failing.swap(true, SeqCst) {
            return;
        }
        let isids = self.clone();
        lunar_runtime::spawn(async move {
            while !isids.writes().await {
                compio::time::sleep(AGAIN).await;
            }
            isids.is_failing.store(false, SeqCst);
        });
    }

    /// Tries to write the record. Returns false if that must be retried.
    async fn writes(self: &Arc<Self>) -> bool {
        let isids = self.clone();
        let write = move || Ok(isids.write());
        lunar_runtime::blocking(write).await.unwrap_or_else(|e| {
            tracing::warn!("cannot write the ISID record of the router: {e}");
            false
        })
    }

    fn write(&self) -> bool {
        let Some(record) = self.record.get() else { return true };
        let is_again = self.is_failing.load(SeqCst);
        let mut number = 0;
        // Many sessions may start at once: a caller whose changes another write included does not write.
        let text = || {
            number = self.changes.load(SeqCst);
            (self.saved.load(SeqCst) < number).then(|| record::written(&self.lock()))
        };
        let is_written = record.save(text, is_again);
        if is_written {
            self.saved.fetch_max(number, SeqCst);
        }
        is_written
    }
}

/// A target port in the form of the record.
fn known_or_not(at: Option<String>) -> Option<String> {
    at.or_else(|| Some(UNKNOWN.to_owned()))
}

impl PathSessions {
    fn is_left(&self) -> bool {
        self.all.iter().any(|entry| entry.state == State::Left)
    }

    /// Makes room for one more session.
    fn make_room(&mut self) {
        if self.all.len() >= MAX {
            // Ended sessions are removed first, then the oldest one of this process.
            let ended = self.all.iter().position(SessionEntry::is_free);
            let used = || self.all.iter().position(|entry| entry.state != State::Left);
            self.all.remove(ended.or_else(used).unwrap_or_default());
        }
    }
}

/// Marks a path whose old sessions are being replaced. The task may be cancelled.
struct ReplacementGuard<'a> {
    isids: &'a RouterIsids,
    path: &'a str,
}

impl Drop for ReplacementGuard<'_> {
    fn drop(&mut self) {
        if let Some(recorded) = self.isids.lock().get_mut(self.path) {
            recorded.is_replacing = false;
        }
        self.isids.notifier.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests;

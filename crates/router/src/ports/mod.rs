//! ISIDs of the sessions with upstreams. They are recorded in a file, so that a router that was killed replaces the sessions
//! that it has left behind before it serves: a login with the same name and ISID at the same portal group ends them, with their
//! writes (RFC 7143 section 6.3.5). Where none succeeds in time, the logical unit is reset. Each state folder has random ISIDs
//! of its own, and an ISID is never given twice while a process runs: a session may outlive the configuration that it was opened
//! for.

mod record;

use event_listener::Event as Bell;
use initiator::{Error, Kind};
use record::{Paths, Record};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// ISIDs of a path that are recorded at most.
const MOST: usize = 256;

/// In place of the ISIDs of sessions that are made of something else.
const ANY: Isid = [0; 6];
/// A port of a target that cannot be known.
const UNKNOWN: &str = "?";

/// An ISID (RFC 7143 section 11.12.5).
pub type Isid = [u8; 6];

/// The ISIDs of all routers of a server.
#[derive(Debug, Default)]
pub struct Routers {
    folder: Option<PathBuf>,
    all: Mutex<BTreeMap<String, Arc<Ports>>>,
}

impl Routers {
    /// Those that are recorded in this state folder. Nothing is read, written or locked before a router needs it.
    pub fn kept_in(state_dir: &Path) -> Routers {
        Routers { folder: Some(state_dir.to_owned()), ..Routers::default() }
    }

    /// The ISIDs of the router of this name, which stay while the process lives.
    pub fn of(&self, router: &str) -> Arc<Ports> {
        let file = self.folder.as_ref().map(|folder| folder.join(format!("{router}.isids")));
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(router.to_owned()).or_insert_with(|| Arc::new(Ports::kept_in(file))).clone()
    }
}

/// The ISIDs of a router.
#[derive(Debug, Default)]
pub struct Ports {
    /// None: they are not recorded.
    file: Option<PathBuf>,
    /// The file, from its first use on.
    record: OnceLock<Record>,
    paths: Mutex<Paths>,
    /// Logical units that are being reset.
    resetting: Mutex<BTreeSet<String>>,
    /// Rings when old sessions were replaced, or could not be, and when a reset has ended.
    bell: Bell,
}

/// A way to a logical unit.
#[derive(Clone, Copy, Debug)]
pub struct Way<'a> {
    /// The logical unit: how the names of all ways to it begin.
    pub unit: &'a str,
    /// The name of this one.
    pub path: &'a str,
}

/// The sessions of one path to a logical unit.
#[derive(Debug, Default)]
struct Recorded {
    /// All of them, the oldest first.
    all: Vec<Entry>,
    /// ISIDs, of this path and others, that a login over this one replaces: a login that was given up may still be carried
    /// out, and would end a session that has its ISID by then.
    logins: Vec<Isid>,
    /// Old sessions are being replaced over this path.
    is_replacing: bool,
    /// Since when old sessions keep this path from being used, or were last reset over it in vain.
    since: Option<Instant>,
}

/// A session, as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    isid: Isid,
    /// The name of the initiator; None in records of older versions.
    initiator: Option<String>,
    /// The port of the target; None until it has logged in. Nothing is sent before it is recorded.
    at: Option<String>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// An earlier process had it, and the target may still carry out commands of it.
    Left,
    /// The target carries out nothing of it any more, and nobody uses the ISID.
    Ended,
    /// This process has it.
    Used,
}

/// A session that an earlier process has left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Old {
    /// Our part of its identifier.
    pub isid: Isid,
    /// The name of the initiator that it had, where that is known.
    pub initiator: Option<String>,
    /// The path that it had, as its way names it.
    pub path: String,
    at: Option<String>,
}

impl Old {
    /// A login over this path, which has led to this port of the target, has ended it. An ISID makes another nexus at another
    /// port.
    pub fn is_ended_at(&self, path: &str, port: Option<&str>) -> bool {
        match &self.at {
            Some(at) if at != UNKNOWN => port == Some(at),
            _ => self.path == path,
        }
    }
}

/// What the opening of a session finds.
enum Found {
    /// These sessions are to be replaced first.
    Left(Vec<Old>),
    /// Somebody else does that now.
    Wait,
    /// There is nothing to replace.
    Clear,
}

/// The turn to reset a logical unit: one at a time has it.
pub struct Turn<'a> {
    ports: &'a Arc<Ports>,
    way: Way<'a>,
}

impl Turn<'_> {
    /// Its reset has ended what old sessions of the logical unit had left.
    pub async fn has_ended(self) {
        self.ports.end(|path, _| path.starts_with(self.way.unit));
        self.ports.save().await;
    }

    /// It could not be reset: the next try is due after the same time again.
    pub fn has_failed(self) {
        if let Some(recorded) = self.ports.lock().get_mut(self.way.path) {
            recorded.since = Some(Instant::now());
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.ports.resetting().remove(self.way.unit);
        self.ports.bell.notify(usize::MAX);
    }
}

impl Ports {
    fn kept_in(file: Option<PathBuf>) -> Ports {
        Ports { file, ..Ports::default() }
    }

    /// Ends what old sessions with the logical unit have left, before this path is used: `log_in` logs in as each of them, and
    /// returns the port of the target. Those of other paths are among them, for theirs may be away: where both lead to one
    /// port, a login over this path ends them. True if that is not enough: the logical unit is to be reset over this path.
    ///
    /// # Errors
    /// Those of `log_in`: an old session may still be there, and no reset is due before this `limit`. [`Kind::Unreachable`] when
    /// no thread can read the file.
    pub async fn settle(
        self: &Arc<Self>,
        way: Way<'_>,
        limit: Duration,
        log_in: impl AsyncFn(&Old) -> Result<Option<String>, Error>,
    ) -> Result<bool, Error> {
        self.open().await?;
        loop {
            let rings = self.bell.listen();
            match self.find(way) {
                Found::Left(old) => {
                    let Err(e) = self.replace(way.path, old, log_in).await else { return Ok(false) };
                    return if self.is_due(way, limit) { Ok(true) } else { Err(e) };
                }
                Found::Wait => rings.await,
                Found::Clear => return Ok(false),
            }
        }
    }

    /// Nothing is owed for old sessions with the logical unit.
    ///
    /// # Errors
    /// [`Kind::Unreachable`] when no thread can read the file.
    pub async fn forget(self: &Arc<Self>, way: Way<'_>) -> Result<(), Error> {
        self.open().await?;
        self.end(|path, _| path.starts_with(way.unit));
        Ok(())
    }

    /// The turn to reset the logical unit, once nobody else does; None if old sessions have left nothing any more.
    pub async fn turn<'a>(self: &'a Arc<Self>, way: Way<'a>) -> Option<Turn<'a>> {
        loop {
            let rings = self.bell.listen();
            if self.left(way.unit).is_empty() {
                return None;
            }
            if self.resetting().insert(way.unit.to_owned()) {
                return Some(Turn { ports: self, way });
            }
            rings.await;
        }
    }

    /// Old sessions with a logical unit that may have left something.
    ///
    /// # Errors
    /// [`Kind::Unreachable`] when no thread can read the file.
    pub async fn old(self: &Arc<Self>, unit: &str) -> Result<Vec<Old>, Error> {
        self.open().await?;
        Ok(self.left(unit))
    }

    /// Records that sessions under this name use a path to this port of the target, whatever their ISIDs.
    pub async fn uses(self: &Arc<Self>, way: Way<'_>, initiator: &str, at: Option<String>) {
        let at = at.or_else(|| Some(UNKNOWN.to_owned()));
        let used = Entry { isid: ANY, initiator: Some(initiator.to_owned()), at, state: State::Used };
        if self.adds(way.path, used) {
            self.save().await;
        }
    }

    fn adds(&self, path: &str, used: Entry) -> bool {
        let mut paths = self.lock();
        let recorded = paths.entry(path.to_owned()).or_default();
        let is_new = !recorded.all.contains(&used);
        if is_new {
            recorded.make_room();
            recorded.all.push(used);
        }
        is_new
    }

    /// An ISID for a new session over this path, under this name.
    pub async fn isid(self: &Arc<Self>, way: Way<'_>, initiator: &str) -> Isid {
        let isid = self.take(way.path, initiator);
        self.save().await;
        isid
    }

    /// The session of this path with this ISID has logged in at this port of the target.
    pub async fn is_at(self: &Arc<Self>, way: Way<'_>, isid: Isid, at: Option<String>) {
        let at = at.or_else(|| Some(UNKNOWN.to_owned()));
        if self.moves(way.path, isid, at) {
            self.save().await;
        }
    }

    fn moves(&self, path: &str, isid: Isid, at: Option<String>) -> bool {
        let mut paths = self.lock();
        let entry = paths.get_mut(path).and_then(|of| of.all.iter_mut().find(|entry| entry.isid == isid));
        entry.is_some_and(|entry| std::mem::replace(&mut entry.at, at.clone()) != at)
    }

    /// Reads the file at its first use. All cores wait for that.
    async fn open(self: &Arc<Self>) -> Result<(), Error> {
        let (Some(file), None) = (self.file.clone(), self.record.get()) else { return Ok(()) };
        let ports = self.clone();
        let read = move || {
            ports.record.get_or_init(|| {
                let (record, paths) = Record::open(file);
                *ports.lock() = paths;
                record
            });
            Ok(())
        };
        net::blocking(read).await.map_err(|e| Error::new(Kind::Unreachable, e.to_string()))
    }

    /// Replaces old sessions over a path, as far as a login over it does.
    async fn replace(
        &self,
        path: &str,
        old: Vec<Old>,
        log_in: impl AsyncFn(&Old) -> Result<Option<String>, Error>,
    ) -> Result<(), Error> {
        let _replacing = Replacing { ports: self, path };
        let (mut port, mut others) = (None, Vec::new());
        for old in old {
            // Known from the first login on.
            let is_elsewhere = port.is_some() && !old.is_ended_at(path, port.as_deref());
            if is_elsewhere || !self.reserve(path, old.isid) {
                others.extend(is_elsewhere.then_some(old.path));
                continue;
            }
            port = log_in(&old).await?;
            self.release(path, old.isid);
            if old.is_ended_at(path, port.as_deref()) {
                self.end(|of, entry| *of == old.path && entry.isid == old.isid);
            } else {
                others.push(old.path);
            }
        }
        others.retain(|other| self.lock().get(other).is_some_and(Recorded::is_left));
        match others.first().map(|other| other.rsplit(' ').next().unwrap_or_default()) {
            Some(other) => {
                Err(Error::new(Kind::Lost, format!("old sessions at {other} may still have writes")))
            }
            None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Paths> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn resetting(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.resetting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What these sessions have left has ended.
    fn end(&self, which: impl Fn(&String, &Entry) -> bool) {
        for (path, recorded) in self.lock().iter_mut() {
            let ended =
                recorded.all.iter_mut().filter(|entry| entry.state == State::Left && which(path, entry));
            ended.for_each(|entry| entry.state = State::Ended);
        }
    }

    /// Old sessions with a logical unit that may have left something.
    fn left(&self, unit: &str) -> Vec<Old> {
        let paths = self.lock();
        let of_unit = paths.iter().filter(|(path, _)| path.starts_with(unit));
        let entries = of_unit.flat_map(|(path, of)| of.all.iter().map(move |entry| (path, entry)));
        let left = entries.filter(|(_, entry)| entry.state == State::Left);
        let old = |(path, entry): (&String, &Entry)| Old {
            isid: entry.isid,
            initiator: entry.initiator.clone(),
            path: path.clone(),
            at: entry.at.clone(),
        };
        left.map(old).collect()
    }

    /// The time is over that logins have before a reset.
    fn is_due(&self, way: Way<'_>, limit: Duration) -> bool {
        let since = self.lock().get(way.path).and_then(|recorded| recorded.since);
        since.is_some_and(|since| since.elapsed() >= limit)
    }

    /// Keeps an ISID for a login over a path; false: another path uses it, and its old session was replaced.
    fn reserve(&self, path: &str, isid: Isid) -> bool {
        let mut paths = self.lock();
        let is_it = |entry: &Entry| entry.isid == isid && entry.state != State::Used;
        let is_unused = paths.values().any(|recorded| recorded.all.iter().any(is_it));
        if let (true, Some(recorded)) = (is_unused, paths.get_mut(path))
            && !recorded.logins.contains(&isid)
        {
            recorded.logins.push(isid);
        }
        is_unused
    }

    /// The login with it has ended. A try before it that was given up ended with it: it was the same nexus.
    fn release(&self, path: &str, isid: Isid) {
        if let Some(recorded) = self.lock().get_mut(path) {
            recorded.logins.retain(|other| *other != isid);
        }
    }

    fn find(&self, Way { unit, path }: Way<'_>) -> Found {
        let old = self.left(unit);
        if old.is_empty() {
            return Found::Clear;
        }
        let mut paths = self.lock();
        let recorded = paths.entry(path.to_owned()).or_default();
        if recorded.is_replacing {
            return Found::Wait;
        }
        recorded.is_replacing = true;
        recorded.since.get_or_insert_with(Instant::now);
        Found::Left(old)
    }

    /// One that is not used.
    fn take(&self, path: &str, initiator: &str) -> Isid {
        let mut paths = self.lock();
        let reserved: Vec<Isid> = paths.values().flat_map(|recorded| recorded.logins.clone()).collect();
        let recorded = paths.entry(path.to_owned()).or_default();
        let is_free = |entry: &&mut Entry| entry.state == State::Ended && !reserved.contains(&entry.isid);
        let initiator = Some(initiator.to_owned());
        if let Some(free) = recorded.all.iter_mut().rev().find(is_free) {
            *free = Entry { isid: free.isid, initiator, at: None, state: State::Used };
            return free.isid;
        }
        recorded.make_room();
        let isid = initiator::new_isid();
        recorded.all.push(Entry { isid, initiator, at: None, state: State::Used });
        isid
    }

    async fn save(self: &Arc<Self>) {
        let ports = self.clone();
        let save = move || {
            if let Some(record) = ports.record.get() {
                record.save(|| record::written(&ports.lock()));
            }
            Ok(())
        };
        if let Err(e) = net::blocking(save).await {
            tracing::warn!("the ISIDs of a router are not recorded: {e}");
        }
    }
}

impl Recorded {
    fn is_left(&self) -> bool {
        self.all.iter().any(|entry| entry.state == State::Left)
    }

    /// Room for one more.
    fn make_room(&mut self) {
        if self.all.len() >= MOST {
            // One that has long been replaced by a reload goes first.
            let at = self.all.iter().position(|entry| entry.state != State::Left).unwrap_or_default();
            self.all.remove(at);
        }
    }
}

/// Old sessions are being replaced over a path. Who does it may give up.
struct Replacing<'a> {
    ports: &'a Ports,
    path: &'a str,
}

impl Drop for Replacing<'_> {
    fn drop(&mut self) {
        if let Some(recorded) = self.ports.lock().get_mut(self.path) {
            recorded.is_replacing = false;
        }
        self.ports.bell.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests;

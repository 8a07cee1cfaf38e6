//! ISIDs of the sessions with upstreams. They are recorded in a file, so that a router that was killed replaces the sessions
//! that it has left behind before it serves: a login with the same ISID ends them, with their writes (RFC 7143 section
//! 6.3.5). Each state folder has random ISIDs of its own, and an ISID is never given twice while a process runs: a session
//! may outlive the configuration that it was opened for.

mod record;

use event_listener::Event as Bell;
use initiator::{Error, Kind};
use record::{Paths, Record};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// ISIDs of a path that are recorded at most.
const MOST: usize = 256;

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
    /// Rings when the old sessions of a path were replaced, or could not be.
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

/// The ISIDs of one path to a logical unit.
#[derive(Debug, Default)]
struct Recorded {
    /// All of them, the oldest first.
    all: Vec<Isid>,
    /// Those that this process has not used.
    unused: Vec<Isid>,
    /// ISIDs, of this path and others, that a login over this one replaces: a login that was given up may still be carried
    /// out, and would end a session that has its ISID by then.
    logins: Vec<Isid>,
    old: Old,
}

/// The sessions that an earlier process may have left behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Old {
    /// There are none any more.
    #[default]
    Replaced,
    /// Somebody replaces them.
    BeingReplaced,
    /// They may be there.
    Left,
}

/// What the opening of a session finds.
enum Found {
    /// The sessions with these ISIDs are to be replaced first.
    Left(Vec<Isid>),
    /// Somebody else does that now.
    Wait,
    /// There is nothing to replace.
    Clear,
}

impl Ports {
    fn kept_in(file: Option<PathBuf>) -> Ports {
        Ports { file, ..Ports::default() }
    }

    /// An ISID for a new session over this path. Old sessions with the logical unit are replaced first: `replace` logs in
    /// with each of their ISIDs. Those of other paths are among them, for theirs may be away: where both lead to one portal
    /// group, a login over this path ends them.
    ///
    /// # Errors
    /// Those of `replace`: an old session may still be there. [`Kind::Unreachable`] when no thread can read the file.
    pub async fn isid(
        self: &Arc<Self>,
        way: Way<'_>,
        replace: impl AsyncFn(Isid) -> Result<(), Error>,
    ) -> Result<Isid, Error> {
        self.open().await?;
        loop {
            let rings = self.bell.listen();
            match self.find(way) {
                Found::Left(old) => break self.replace(way.path, old, replace).await?,
                Found::Wait => rings.await,
                Found::Clear => break,
            }
        }
        let (isid, is_new) = self.take(way.path);
        if is_new {
            self.save().await;
        }
        Ok(isid)
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

    /// Replaces old sessions over a path.
    async fn replace(
        &self,
        path: &str,
        old: Vec<Isid>,
        replace: impl AsyncFn(Isid) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut replacing = Replacing { ports: self, path, end: Old::Left };
        for isid in old {
            if self.reserve(path, isid) {
                replace(isid).await?;
                self.release(path, isid);
            }
        }
        replacing.end = Old::Replaced;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Paths> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an ISID for a login over a path; false: another path has replaced its own old sessions, and uses it.
    fn reserve(&self, path: &str, isid: Isid) -> bool {
        let mut paths = self.lock();
        let is_unused = paths.values().any(|recorded| recorded.unused.contains(&isid));
        if let (true, Some(recorded)) = (is_unused, paths.get_mut(path)) {
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
        let mut paths = self.lock();
        let is_old = |(other, of): &(&String, &Recorded)| other.starts_with(unit) && of.old != Old::Replaced;
        let old: Vec<Isid> = paths.iter().filter(is_old).flat_map(|(_, of)| of.unused.clone()).collect();
        let recorded = paths.entry(path.to_owned()).or_insert_with(|| Recorded {
            old: if old.is_empty() { Old::Replaced } else { Old::Left },
            ..Recorded::default()
        });
        match recorded.old {
            Old::Replaced => Found::Clear,
            Old::BeingReplaced => Found::Wait,
            // Other paths have replaced theirs meanwhile.
            Old::Left if old.is_empty() => {
                recorded.old = Old::Replaced;
                Found::Clear
            }
            Old::Left => {
                recorded.old = Old::BeingReplaced;
                Found::Left(old)
            }
        }
    }

    /// One that is not used, and whether it is a new one.
    fn take(&self, path: &str) -> (Isid, bool) {
        let mut paths = self.lock();
        let reserved: Vec<Isid> = paths.values().flat_map(|recorded| recorded.logins.clone()).collect();
        let recorded = paths.entry(path.to_owned()).or_default();
        if let Some(at) = recorded.unused.iter().rposition(|isid| !reserved.contains(isid)) {
            return (recorded.unused.remove(at), false);
        }
        if recorded.all.len() >= MOST {
            // Of a session that has long been replaced by a reload.
            recorded.all.remove(0);
        }
        let isid = initiator::new_isid();
        recorded.all.push(isid);
        (isid, true)
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

/// The old sessions of a path are being replaced. Who does it may give up.
struct Replacing<'a> {
    ports: &'a Ports,
    path: &'a str,
    end: Old,
}

impl Drop for Replacing<'_> {
    fn drop(&mut self) {
        if let Some(recorded) = self.ports.lock().get_mut(self.path) {
            recorded.old = self.end;
        }
        self.ports.bell.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests;

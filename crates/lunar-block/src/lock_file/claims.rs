//! Names of which each belongs to one process: each process writes the names that it claims into a lock file of its
//! own. A claim counts while the lock on its file is held, so it never outlives its process.
//!
//! A process writes its claims first and then reads those of the others. Of two processes that claim one name at the
//! same time, at least one sees the other.

use super::{LockFile, create_folder, held_file, host_lock, watcher};
use crate::locked;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Maximum number of processes that share a folder.
const MAX_PROCESSES: usize = 64;
/// Time that a claim is tried. A killed process may need a moment to end. A deleted file is back after one second.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(2);
const MIN_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(200);
/// Upper limit of the text of a process in bytes.
const MAX_TEXT_BYTES: u64 = 1 << 30;

/// The claims of this process in one folder. The lock file is removed with the last reference.
#[derive(Clone, Debug)]
pub struct Claims(Arc<ClaimsInner>);

#[derive(Debug)]
struct ClaimsInner {
    folder: PathBuf,
    /// The number of the lock file.
    slot: usize,
    file: LockFile,
    names: Mutex<Names>,
    /// Held during a write, so that the last write contains the last change.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Names {
    claimed: BTreeMap<String, Claimed>,
    /// The lines of new names, which are not in the file yet.
    added: String,
    /// Whether the file has other outdated lines.
    is_changed: bool,
}

#[derive(Debug)]
struct Claimed {
    owner: String,
    /// The number of [`Claim`]s. A name stays claimed until the last one is dropped.
    count: usize,
}

/// A name that this process holds, until it is dropped.
#[derive(Debug)]
pub struct Claim {
    claims: Arc<ClaimsInner>,
    name: String,
}

/// A process that holds a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// None: the process cannot be identified now, because its file was deleted.
    pub pid: Option<u32>,
    /// The text of its claim.
    pub owner: String,
}

/// The names that other processes hold.
#[derive(Debug, Default)]
pub struct HolderTable {
    names: HashMap<String, Holder>,
    /// Whether a process exists whose names are unknown.
    is_incomplete: bool,
}

impl Claims {
    /// Joins the processes that claim names in `folder`, which is created if it does not exist.
    ///
    /// # Errors
    /// Those of the file system, and `ResourceBusy` if 64 processes use the folder.
    pub fn join(folder: &Path) -> io::Result<Claims> {
        let in_use = || io::Error::new(ErrorKind::ResourceBusy, "too many servers use the folder");
        create_folder(&path(folder, 0))?;
        let mut free = (0..MAX_PROCESSES)
            .filter_map(|slot| LockFile::once(&path(folder, slot)).transpose().map(|file| (slot, file)));
        let (slot, file) = free.next().ok_or_else(in_use)?;
        let inner = ClaimsInner {
            folder: folder.to_path_buf(),
            slot,
            file: file?,
            names: Mutex::new(Names { is_changed: true, ..Names::default() }),
            writing: Mutex::default(),
        };
        inner.publish()?;
        let inner = Arc::new(inner);
        let watched: Weak<ClaimsInner> = Arc::downgrade(&inner);
        watcher::watch(watched);
        Ok(Claims(inner))
    }

    /// Claims names, each with the text of its owner: both without control characters. It tries for two seconds,
    /// because another process may be about to release them. Returns the claim of each name, or its holder.
    ///
    /// # Errors
    /// Those of the file system. Then no name is claimed.
    pub fn take(&self, wanted: &[(String, String)]) -> io::Result<Vec<Result<Claim, Holder>>> {
        let end = Instant::now() + CLAIM_TIMEOUT;
        let mut claims: Vec<Option<Claim>> = wanted.iter().map(|_| None).collect();
        // Processes that claim one name at the same time wait for different times.
        let mut pause = MIN_PAUSE * (self.0.slot as u32 + 1);
        loop {
            for (claim, (name, owner)) in claims.iter_mut().zip(wanted) {
                claim.get_or_insert_with(|| self.claim(name, owner));
            }
            self.0.append()?;
            let held = HolderTable::read(&self.0.folder, Some(self.0.slot));
            let holders: Vec<_> = wanted.iter().map(|(name, _)| held.holder(name)).collect();
            let all = claims.iter_mut().zip(&holders);
            all.filter(|(_, holder)| holder.is_some()).for_each(|(claim, _)| *claim = None);
            let is_free = holders.iter().all(Option::is_none);
            if !is_free {
                self.publish()?;
            }
            if is_free || Instant::now() > end {
                let results = claims.into_iter().zip(holders);
                return Ok(results.map(|(claim, holder)| claim.ok_or(holder.unwrap_or_default())).collect());
            }
            sleep(pause);
            pause = MAX_PAUSE.min(pause * 2);
        }
    }

    fn claim(&self, name: &str, owner: &str) -> Claim {
        let mut names = self.0.names();
        match names.claimed.get_mut(name) {
            Some(claimed) => claimed.count += 1,
            None => {
                names.added.push_str(&line(name, owner));
                names.claimed.insert(name.to_owned(), Claimed { owner: owner.to_owned(), count: 1 });
            }
        }
        Claim { claims: self.0.clone(), name: name.to_owned() }
    }

    /// Whether this process holds any name.
    pub fn has_names(&self) -> bool {
        !self.0.names().claimed.is_empty()
    }

    /// Writes released names and changed owners into the file. Without this call, it happens within one second.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn publish(&self) -> io::Result<()> {
        self.0.publish()
    }
}

impl ClaimsInner {
    fn names(&self) -> MutexGuard<'_, Names> {
        locked(&self.names)
    }

    /// Appends new names to the file: a process may hold thousands.
    fn append(&self) -> io::Result<()> {
        let _writing = locked(&self.writing);
        let added = std::mem::take(&mut self.names().added);
        let written = if added.is_empty() { Ok(()) } else { self.file.append_owner(&added) };
        if written.is_err() {
            self.names().is_changed = true;
        }
        written
    }

    /// Writes the file again if it has outdated lines.
    fn publish(&self) -> io::Result<()> {
        let _writing = locked(&self.writing);
        let text = {
            let mut names = self.names();
            if !std::mem::take(&mut names.is_changed) {
                return Ok(());
            }
            names.added.clear();
            let lines = names.claimed.iter().map(|(name, claimed)| line(name, &claimed.owner));
            format!("{}\n{}", std::process::id(), lines.collect::<String>())
        };
        let written = self.file.write_owner(text);
        if written.is_err() {
            self.names().is_changed = true;
        }
        written
    }
}

fn line(name: &str, owner: &str) -> String {
    format!("{name}\t{owner}\n")
}

impl watcher::Watched for ClaimsInner {
    /// Writes what was released since.
    fn check(&self) {
        _ = self.publish();
    }
}

impl Drop for ClaimsInner {
    fn drop(&mut self) {
        self.file.remove();
    }
}

impl Claim {
    /// Changes the text of the owner. [`Claims::publish`] writes it.
    pub fn set_owner(&self, owner: String) {
        let mut names = self.claims.names();
        if let Some(claimed) = names.claimed.get_mut(&self.name)
            && claimed.owner != owner
        {
            claimed.owner = owner;
            names.is_changed = true;
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut names = self.claims.names();
        let Some(claimed) = names.claimed.get_mut(&self.name) else { return };
        claimed.count -= 1;
        if claimed.count == 0 {
            names.claimed.remove(&self.name);
            names.is_changed = true;
        }
    }
}

impl HolderTable {
    /// The names that processes hold in a folder. If a process cannot be identified, it tries again for two seconds.
    pub fn of(folder: &Path) -> HolderTable {
        let end = Instant::now() + CLAIM_TIMEOUT;
        loop {
            let table = HolderTable::read(folder, None);
            if !table.is_incomplete || Instant::now() > end {
                return table;
            }
            sleep(MAX_PAUSE);
        }
    }

    fn read(folder: &Path, except: Option<usize>) -> HolderTable {
        let mut table = HolderTable::default();
        for slot in (0..MAX_PROCESSES).filter(|slot| Some(*slot) != except) {
            table.add(&path(folder, slot));
        }
        table
    }

    /// Adds the names of the process that holds this lock file, if one does.
    fn add(&mut self, path: &Path) {
        let Some(file) = held_file(path) else {
            self.is_incomplete |= host_lock::is_taken(path);
            return;
        };
        let mut text = String::new();
        let is_read = file.take(MAX_TEXT_BYTES).read_to_string(&mut text).is_ok();
        match text.split_once('\n').and_then(|(pid, names)| Some((pid.parse().ok()?, names))) {
            // A line without its end is being written.
            Some((pid, names)) if is_read => {
                let lines = names.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
                self.names.extend(lines.map(|line| held(pid, line)));
            }
            _ => self.is_incomplete = true,
        }
    }

    /// The process that holds a name.
    pub fn holder(&self, name: &str) -> Option<Holder> {
        self.names.get(name).cloned().or_else(|| self.is_incomplete.then(Holder::default))
    }
}

/// A name and its holder, from a line of a text.
fn held(pid: u32, line: &str) -> (String, Holder) {
    let (name, owner) = line.split_once('\t').unwrap_or((line, ""));
    (name.to_owned(), Holder { pid: Some(pid), owner: owner.to_owned() })
}

fn path(folder: &Path, slot: usize) -> PathBuf {
    folder.join(format!("{slot}.lock"))
}

#[cfg(test)]
mod tests;

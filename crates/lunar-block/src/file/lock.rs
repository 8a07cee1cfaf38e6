//! Locks that exclude other programs from a file or device while this process may write it.
//!
//! flock excludes other servers. Byte locks (fcntl, of an open file description) exclude QEMU and similar programs: a
//! byte of [`USED`] is an operation of the holder, a byte of [`UNSHARED`] one that it denies to others. All are
//! shared locks, so each program takes its own first and then checks for those of others.
//!
//! Every medium holds the byte locks on its own open file description, and the kernel keeps them until the last write
//! through it ends. The process holds flock once for each file and shares it among its media. A reload can therefore
//! reopen a file without releasing a lock.

mod bytes;

use super::users::{self, LockKind, MediumUser};
use crate::FileId;
use bytes::{ForeignLock, conflict, set};
use nix::libc;
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The bytes of QEMU's protocol (block/file-posix.c): one for each permission.
const USED: i64 = 100;
const UNSHARED: i64 = 200;
const READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;
/// The number of permissions in the protocol.
const PERMISSIONS: i64 = 64;
/// Start and length of the bytes outside the protocol; 0: to the end.
const OTHER_BYTES: [(i64, i64); 3] =
    [(0, USED), (USED + PERMISSIONS, UNSHARED - USED - PERMISSIONS), (UNSHARED + PERMISSIONS, 0)];
/// A lock that covers other bytes too does not follow the protocol: its type shows the use.
const PROTOCOL: RangeInclusive<i64> = USED..=UNSHARED + PERMISSIONS - 1;

/// The time limit for a lock: the kernel may keep the file of a killed server open until its requests end.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
pub(super) const PAUSE: Duration = Duration::from_millis(5);

/// The access that a medium is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileAccess {
    Read,
    Write,
}

impl FileAccess {
    pub(super) fn of(read_only: bool) -> FileAccess {
        if read_only { FileAccess::Read } else { FileAccess::Write }
    }

    /// The bytes to lock.
    fn held(self) -> &'static [i64] {
        match self {
            FileAccess::Read => &[USED + READ, UNSHARED + WRITE, UNSHARED + RESIZE],
            FileAccess::Write => {
                &[USED + READ, USED + WRITE, USED + RESIZE, UNSHARED + WRITE, UNSHARED + RESIZE]
            }
        }
    }

    /// The bytes that no other program may hold.
    fn excluded(self) -> &'static [i64] {
        match self {
            FileAccess::Read => &[UNSHARED + READ, USED + WRITE, USED + RESIZE],
            FileAccess::Write => {
                &[UNSHARED + READ, USED + WRITE, USED + RESIZE, UNSHARED + WRITE, UNSHARED + RESIZE]
            }
        }
    }

    fn flock(self) -> FlockOperation {
        match self {
            FileAccess::Read => FlockOperation::NonBlockingLockShared,
            FileAccess::Write => FlockOperation::NonBlockingLockExclusive,
        }
    }
}

/// The kinds of locks to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LockKinds {
    flock: bool,
    bytes: bool,
}

/// The kinds by file system type (statfs). NFS maps flock to byte locks, and the two would conflict. SMB servers
/// reject writes to locked bytes. udev skips a device with a flock.
fn kinds(fs_type: u64, device: bool) -> LockKinds {
    const NFS: u64 = 0x6969;
    const SMB: [u64; 3] = [0x517b, 0xff53_4d42, 0xfe53_4d42];
    match fs_type & 0xffff_ffff {
        _ if device => LockKinds { flock: false, bytes: true },
        NFS => LockKinds { flock: false, bytes: true },
        other if SMB.contains(&other) => LockKinds { flock: true, bytes: false },
        _ => LockKinds { flock: true, bytes: true },
    }
}

/// The kinds for an open file. On a kernel without byte locks, only flock or O_EXCL is used.
fn kinds_of(file: &File, device: bool) -> io::Result<LockKinds> {
    let kinds = kinds(rustix::fs::fstatfs(file)?.f_type as u64, device);
    let lacks_bytes =
        || conflict(file, libc::F_RDLCK, 0, 1).is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL));
    let can_do_without = kinds.flock || device;
    Ok(LockKinds { bytes: kinds.bytes && !(can_do_without && lacks_bytes()), ..kinds })
}

/// The reason why a lock fails.
#[derive(Debug)]
pub(super) enum LockError {
    /// Another user holds it.
    InUse(LockOwner),
    /// Locking itself fails.
    Failed(io::Error),
}

/// The holder of a conflicting lock.
#[derive(Debug)]
pub(super) enum LockOwner {
    /// Another server, by flock.
    Server,
    /// Another program, by byte locks.
    Program,
    /// A known user.
    Known(MediumUser),
}

impl From<io::Error> for LockError {
    fn from(e: io::Error) -> LockError {
        LockError::Failed(e)
    }
}

/// The locks of one medium, released on drop.
pub(super) struct MediumLock {
    key: FileId,
    id: u64,
}

/// All locks of this process on one file.
struct LockEntry {
    /// The file description that holds flock.
    file: File,
    flock: Option<FileAccess>,
    holders: Vec<LockHolder>,
    kinds: LockKinds,
}

struct LockHolder {
    id: u64,
    file: File,
    purpose: FileAccess,
    /// Whether this process may open the file again with other options.
    offered: bool,
}

#[derive(Default)]
struct LockTable {
    entries: BTreeMap<FileId, LockEntry>,
    last_id: u64,
}

static TABLE: Mutex<LockTable> = Mutex::new(LockTable { entries: BTreeMap::new(), last_id: 0 });

fn table() -> MutexGuard<'static, LockTable> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the locks of an open file or device, and waits a bounded time for them.
pub(super) fn claim(file: &File, purpose: FileAccess) -> Result<MediumLock, LockError> {
    let key = FileId::of(&file.metadata()?);
    free_of_system(&key, purpose)?;
    let end = Instant::now() + PATIENCE;
    loop {
        match try_claim(file, key, purpose) {
            Err(LockError::InUse(_)) if Instant::now() < end => sleep(PAUSE),
            other => return other.map_err(|refusal| named(refusal, &key)),
        }
    }
}

/// Checks whether [`claim`] would fail now, without holding a lock.
pub(super) fn probe(file: &File, purpose: FileAccess) -> Result<(), LockError> {
    let key = FileId::of(&file.metadata()?);
    free_of_system(&key, purpose)?;
    try_claim(file, key, purpose).map(drop).map_err(|refusal| named(refusal, &key))
}

fn free_of_system(key: &FileId, purpose: FileAccess) -> Result<(), LockError> {
    let user = users::of_system(key, purpose == FileAccess::Write);
    user.map_or(Ok(()), |user| Err(LockError::InUse(LockOwner::Known(user))))
}

fn named(refusal: LockError, key: &FileId) -> LockError {
    let user = match refusal {
        LockError::InUse(LockOwner::Server) => users::lockers(key, LockKind::Server),
        LockError::InUse(LockOwner::Program) => users::lockers(key, LockKind::Program),
        other => return other,
    };
    LockError::InUse(LockOwner::Known(user))
}

fn try_claim(file: &File, key: FileId, purpose: FileAccess) -> Result<MediumLock, LockError> {
    let mut table = table();
    let id = table.last_id + 1;
    let holder = LockHolder { id, file: file.try_clone()?, purpose, offered: false };
    match table.entries.get_mut(&key) {
        Some(entry) => entry.join(holder)?,
        None => _ = table.entries.insert(key, LockEntry::begin(holder, matches!(key, FileId::Device(_)))?),
    }
    table.last_id = id;
    Ok(MediumLock { key, id })
}

impl MediumLock {
    /// Allows or forbids this process to open the file again. Other processes stay excluded.
    pub(super) fn offer(&self, offered: bool) {
        let mut table = table();
        let holders = table.entries.get_mut(&self.key).map(|entry| &mut entry.holders);
        let own = holders.into_iter().flatten().find(|holder| holder.id == self.id);
        own.into_iter().for_each(|holder| holder.offered = offered);
    }
}

impl Drop for MediumLock {
    fn drop(&mut self) {
        let mut table = table();
        let Some(entry) = table.entries.get_mut(&self.key) else { return };
        let is_down = entry.leave(self.id);
        if entry.holders.is_empty() {
            // A write in the kernel keeps its description open, and with it the locks.
            table.entries.remove(&self.key);
        } else if !is_down {
            let key = self.key;
            // Without a thread, other readers stay excluded until the next release.
            _ = std::thread::Builder::new().name("lock".into()).spawn(move || downgrade(key));
        }
    }
}

/// Retries a failed [`LockEntry::downgrade`] for a bounded time.
fn downgrade(key: FileId) {
    let end = Instant::now() + PATIENCE;
    let is_down = || table().entries.get_mut(&key).is_none_or(LockEntry::downgrade);
    while !is_down() && Instant::now() < end {
        sleep(PAUSE);
    }
}

impl LockEntry {
    /// The first lock of a file in this process.
    fn begin(holder: LockHolder, device: bool) -> Result<LockEntry, LockError> {
        let kinds = kinds_of(&holder.file, device)?;
        let mut entry = LockEntry { file: holder.file.try_clone()?, flock: None, holders: Vec::new(), kinds };
        let (file, purpose) = (holder.file.try_clone()?, holder.purpose);
        let taken = entry.take_flock(purpose).and_then(|()| entry.take_bytes(&file, purpose, true));
        if let Err(refusal) = taken {
            // The description stays open for a retry.
            _ = entry.flock.map(|_| flock(&entry.file, FlockOperation::Unlock));
            return Err(refusal);
        }
        entry.holders.push(holder);
        Ok(entry)
    }

    /// Adds a medium of this process.
    fn join(&mut self, holder: LockHolder) -> Result<(), LockError> {
        let writes = |purpose| purpose == FileAccess::Write;
        let clash = |other: &LockHolder| !other.offered && (writes(other.purpose) || writes(holder.purpose));
        if self.holders.iter().any(clash) {
            return Err(LockError::InUse(LockOwner::Known(users::unknown())));
        }
        let is_kept = self.holders.iter().any(|other| writes(other.purpose));
        match (is_kept, holder.purpose) {
            (true, _) => self.take_bytes(&holder.file, holder.purpose, false)?,
            (false, FileAccess::Read) => self.take_bytes(&holder.file, FileAccess::Read, true)?,
            (false, FileAccess::Write) => self.upgrade(&holder.file)?,
        }
        self.holders.push(holder);
        Ok(())
    }

    /// Upgrades from reading to writing. Locks the new bytes before it releases the old ones for the check.
    fn upgrade(&mut self, file: &File) -> Result<(), LockError> {
        self.take_bytes(file, FileAccess::Write, false)?;
        self.holders.iter().for_each(|other| self.release_bytes(&other.file, other.purpose));
        let free =
            self.check_conflict(file, FileAccess::Write).and_then(|()| self.take_flock(FileAccess::Write));
        for other in &self.holders {
            _ = self.take_bytes(&other.file, other.purpose, false);
        }
        if free.is_err() {
            self.release_bytes(file, FileAccess::Write);
        }
        free
    }

    /// False: flock is still exclusive.
    fn leave(&mut self, id: u64) -> bool {
        let Some(at) = self.holders.iter().position(|holder| holder.id == id) else { return true };
        let gone = self.holders.remove(at);
        if self.holders.is_empty() {
            return true;
        }
        // The description of the leaving medium may hold flock and stay open.
        self.release_bytes(&gone.file, gone.purpose);
        self.downgrade()
    }

    /// Downgrades from writing to reading when no medium writes. A waiter may get the lock now: it checks the bytes
    /// next and releases it.
    fn downgrade(&mut self) -> bool {
        let writes = self.holders.iter().any(|holder| holder.purpose == FileAccess::Write);
        writes || self.flock != Some(FileAccess::Write) || self.take_flock(FileAccess::Read).is_ok()
    }

    /// A failed conversion loses the old lock (flock(2)), so it is taken again.
    fn take_flock(&mut self, purpose: FileAccess) -> Result<(), LockError> {
        if !self.kinds.flock {
            return Ok(());
        }
        match flock(&self.file, purpose.flock()) {
            Ok(()) => {
                self.flock = Some(purpose);
                Ok(())
            }
            Err(e) => {
                _ = self.flock.map(|before| flock(&self.file, before.flock()));
                Err(refused(e.into(), LockOwner::Server))
            }
        }
    }

    fn take_bytes(&self, file: &File, purpose: FileAccess, checks: bool) -> Result<(), LockError> {
        if !self.kinds.bytes {
            return Ok(());
        }
        let taken = purpose.held().iter().try_for_each(|byte| set(file, libc::F_RDLCK, *byte));
        let free = taken
            .map_err(|e| refused(e, LockOwner::Program))
            .and_then(|()| if checks { self.check_conflict(file, purpose) } else { Ok(()) });
        if free.is_err() {
            self.release_bytes(file, purpose);
        }
        free
    }

    fn release_bytes(&self, file: &File, purpose: FileAccess) {
        if self.kinds.bytes {
            purpose.held().iter().for_each(|byte| _ = set(file, libc::F_UNLCK, *byte));
        }
    }

    /// Checks for locks of other programs.
    fn check_conflict(&self, file: &File, purpose: FileAccess) -> Result<(), LockError> {
        if !self.kinds.bytes {
            return Ok(());
        }
        // An exclusive lock on any byte.
        let mut found = conflict(file, libc::F_RDLCK, 0, 0)?;
        if purpose == FileAccess::Write {
            let mut rest = OTHER_BYTES.iter().map(|(start, len)| conflict(file, libc::F_WRLCK, *start, *len));
            found = found.or(rest.find_map(Result::transpose).transpose()?);
        }
        match found.map_or_else(|| excluding(file, purpose), |found| Ok(Some(found)))? {
            Some(ForeignLock { pid: Some(pid), .. }) => {
                Err(LockError::InUse(LockOwner::Known(users::process(pid))))
            }
            Some(_) => Err(LockError::InUse(LockOwner::Program)),
            None => Ok(()),
        }
    }
}

/// A protocol lock on an excluded byte. A shared lock of a wider range covers this byte only by chance, and may hide
/// a protocol lock.
fn excluding(file: &File, purpose: FileAccess) -> io::Result<Option<ForeignLock>> {
    let is_protocol = |found: &ForeignLock| found.is_within(&PROTOCOL);
    for byte in purpose.excluded() {
        let is_here = |found: &ForeignLock| (found.first..=found.last).contains(byte);
        let found = match conflict(file, libc::F_WRLCK, *byte, 1)? {
            // If the system does not list them, the file counts as in use.
            Some(found) if !is_protocol(&found) => bytes::all(file).map_or(Some(found), |all| {
                all.into_iter().find(|found| is_protocol(found) && is_here(found))
            }),
            other => other,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Maps the errors that mean that another process holds the lock.
fn refused(e: io::Error, by: LockOwner) -> LockError {
    match e.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => LockError::InUse(by),
        _ => LockError::Failed(e),
    }
}

#[cfg(test)]
mod tests;

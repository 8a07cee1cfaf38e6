//! What stands behind a path: opened, locked, measured.

use super::identity::MediumIdentity;
use super::journal::{ReplayOutcome, StuckRecord, WriteJournal};
use super::lock::{self, FileAccess, LockError, LockOwner, MediumLock, PATIENCE, PAUSE};
use super::users;
use crate::{BackendKind, BackendSpec, FileId, InUse, OpenError};
use rustix::fs::{Advice, AtFlags, FallocateFlags, OFlags, SeekFrom, StatxFlags};
use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Instant;

/// What O_DIRECT asks for where the kernel does not say.
const DIRECT_ALIGN: u64 = 4096;
/// The most that one prefetch brings: it is a hint, and it runs on the caller's core.
const PREFETCH: u64 = 2 << 20;

/// The descriptors, which close together: the locks are on one of them, and must outlast what the other still
/// writes. The kernel does not keep that order when it ends the process, but in the page cache a write of before comes
/// before those of whoever gets the lock.
pub(super) struct OpenFiles {
    pub(super) plain: File,
    /// The same opened with O_DSYNC: a write through it is stable when it ends, without a sync of everything
    /// else. None past the page cache, where a write that a disk holds up is kept by the kernel after the process was
    /// killed, and must keep the lock with it.
    pub(super) through: Option<File>,
    /// Ends after both.
    pub(super) claim: Option<Arc<MediumLock>>,
}

/// An open file or device, exclusive as far as the system lets us say so.
pub(super) struct OpenMedium {
    pub(super) path: PathBuf,
    pub(super) device: bool,
    pub(super) read_only: bool,
    pub(super) files: Arc<OpenFiles>,
    /// Bytes, when opened.
    pub(super) size: u64,
    /// What offset and length must be multiples of, past the page cache.
    direct: Option<NonZeroU64>,
    /// What offset and length of a fallocate must be multiples of.
    granule: u64,
}

impl OpenMedium {
    pub(super) fn open(spec: &BackendSpec) -> Result<OpenMedium, OpenError> {
        let fault = ErrorContext { spec };
        fault.check_type(spec.kind == BackendKind::Device)?;
        let (file, is_new) = patiently(|| open(spec)).map_err(|e| fault.open(&e))?;
        OpenMedium::claim(file, is_new, spec)
    }

    /// Locks a file and makes a medium of it. Who does not get the lock leaves the file alone, though it made it:
    /// another server uses it.
    fn claim(file: File, is_new: bool, spec: &BackendSpec) -> Result<OpenMedium, OpenError> {
        let fault = ErrorContext { spec };
        let claim = lock::claim(&file, FileAccess::of(spec.read_only)).map_err(|e| fault.lock(e))?;
        if spec.kind != BackendKind::Device {
            fault.check_place(&file)?;
        }
        // The lock lasts until the file is removed: who waits for it finds that out then.
        let claim = Arc::new(claim);
        OpenMedium::of(file, claim.clone(), spec).inspect_err(|_| {
            if is_new {
                // What cannot be used is not left behind.
                _ = std::fs::remove_file(&spec.path);
            }
        })
    }

    fn of(file: File, claim: Arc<MediumLock>, spec: &BackendSpec) -> Result<OpenMedium, OpenError> {
        let fault = ErrorContext { spec };
        let device = spec.kind == BackendKind::Device;
        if !device && spec.create && !spec.read_only {
            give_size(&file, spec).map_err(|e| fault.create(&e))?;
        }
        let direct = match spec.direct {
            true => Some(direct_align(&file, device).map_err(|e| fault.open(&e))?),
            false => None,
        };
        let granule = match device {
            true => rustix::fs::ioctl_blksszget(&file).map_err(|e| fault.open(&e.into()))?.into(),
            false => direct.map_or(1, NonZeroU64::get),
        };
        let through = if spec.read_only || spec.direct { None } else { reopen(&file) };
        let mut medium = OpenMedium {
            path: spec.path.clone(),
            device,
            read_only: spec.read_only,
            files: Arc::new(OpenFiles { through, plain: file, claim: Some(claim) }),
            size: 0,
            direct,
            granule,
        };
        medium.size = medium.size_now().map_err(|e| fault.open(&e))?;
        let whole =
            if device { medium.size } else { medium.files.plain.metadata().map_or(0, |found| found.len()) };
        fault.check_size(whole, medium.direct)?;
        Ok(medium)
    }

    pub(super) fn is_device(&self) -> bool {
        self.device
    }

    /// Where its atomic writes are recorded. One that was cut off is done again.
    pub(super) fn journal(&self, spec: &BackendSpec) -> Result<Option<Arc<WriteJournal>>, OpenError> {
        let Some(folder) = &spec.journal else { return Ok(None) };
        let fault = ErrorContext { spec };
        let identity =
            MediumIdentity::of(&self.files.plain, &self.path, self.size).map_err(|e| fault.open(&e))?;
        let journal = WriteJournal::new(folder, identity);
        if self.read_only {
            return fault.check_pending(&journal).map(|()| None);
        }
        let replayed = self.cached(|file| Ok(journal.replay(file))).map_err(|e| fault.open(&e))?;
        let replayed = replayed.map_err(|stuck| fault.stuck(&stuck))?;
        replayed.iter().for_each(|one| self.report(one, journal.medium()));
        Ok(Some(Arc::new(journal)))
    }

    fn report(&self, replayed: &ReplayOutcome, medium: &str) {
        let name = self.path.display();
        match replayed {
            ReplayOutcome::Done { offset, len } => {
                tracing::info!(offset, len, "{name}: an atomic write that was cut off is done");
            }
            ReplayOutcome::Undone { offset, len, error } => tracing::warn!(
                offset,
                len,
                %error,
                "{name}: an atomic write that was cut off cannot be done again; the old blocks stay, and its host was not told \
                 that it was done"
            ),
            ReplayOutcome::Aside { offset, len, path } => tracing::error!(
                offset,
                len,
                "{name}: an atomic write that was cut off is not done: another program has changed its blocks; its record is \
                 kept in {}; hint: check the data of these blocks, then remove it",
                path.display()
            ),
            ReplayOutcome::Other { id, path } => tracing::error!(
                "{name}: an atomic write to another medium at this path was cut off; that was {id}, this is {medium}; its \
                 record waits for that medium in {}; hint: bring that medium back, or remove the record",
                path.display()
            ),
            ReplayOutcome::Old { path } => tracing::error!(
                "{name}: the record {} of an atomic write has a format before this version, and is ignored; hint: check the \
                 data of the medium, then remove it",
                path.display()
            ),
        }
    }

    /// The file through the page cache, while nobody else uses it.
    fn cached<T>(&self, work: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        let file = &self.files.plain;
        if !self.direct() {
            return work(file);
        }
        let flags = rustix::fs::fcntl_getfl(file)?;
        rustix::fs::fcntl_setfl(file, flags - OFlags::DIRECT)?;
        let result = work(file);
        rustix::fs::fcntl_setfl(file, flags)?;
        result
    }

    /// Lets this process open it in another way meanwhile.
    pub(super) fn offer(&self, offered: bool) {
        self.files.claim.iter().for_each(|claim| claim.offer(offered));
    }

    /// Past the page cache.
    pub(super) fn direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Bytes there are now. Past the page cache a last broken block cannot be reached, and [`OpenMedium::open`]
    /// refuses it.
    pub(super) fn size_now(&self) -> io::Result<u64> {
        let size = match self.device {
            true => rustix::fs::seek(&self.files.plain, SeekFrom::End(0))?,
            false => self.files.plain.metadata()?.len(),
        };
        Ok(self.whole(size))
    }

    /// The part of a size that can be reached.
    pub(super) fn whole(&self, size: u64) -> u64 {
        self.direct.map_or(size, |align| size - size % align)
    }

    /// Bytes of a logical block of a device; a file has none.
    pub(super) fn block_size(&self) -> Option<u32> {
        self.device.then(|| u32::try_from(self.granule).ok()).flatten()
    }

    pub(super) fn is_aligned(&self, offset: u64, len: usize) -> bool {
        self.direct.is_none_or(|align| offset % align == 0 && len as u64 % align == 0)
    }

    /// The whole blocks around a request.
    pub(super) fn widen(&self, offset: u64, len: u64) -> Range<u64> {
        let align = self.direct.map_or(1, NonZeroU64::get);
        offset - offset % align..(offset + len).next_multiple_of(align)
    }

    /// The whole granules within a request; empty where there is none.
    pub(super) fn narrow(&self, offset: u64, len: u64) -> Range<u64> {
        let end = offset + len;
        offset.next_multiple_of(self.granule)..end - end % self.granule
    }

    /// Whether space can be given back. Asked beyond the end, where there is nothing to lose.
    pub(super) fn can_punch(&self) -> bool {
        if self.read_only {
            return false;
        }
        if self.device {
            return write_zeroes_max(&self.files.plain).is_ok_and(|max| max > 0);
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(
            &self.files.plain,
            flags,
            self.size.next_multiple_of(DIRECT_ALIGN),
            DIRECT_ALIGN,
        )
        .is_ok()
    }

    pub(super) fn will_need(&self, offset: u64, len: u64) {
        // A hint: nobody waits for it, and nothing depends on it.
        let len = NonZeroU64::new(len.min(PREFETCH));
        let _ = rustix::fs::fadvise(&self.files.plain, offset, len, Advice::WillNeed);
    }

    pub(super) fn describe(&self) -> Vec<(String, String)> {
        let kind = if self.device { "device" } else { "file" };
        vec![
            ("backend".into(), kind.into()),
            ("path".into(), self.path.display().to_string()),
            ("read_only".into(), self.read_only.to_string()),
            (
                "direct".into(),
                self.direct.map_or("false".into(), |align| format!("in blocks of {align} bytes")),
            ),
        ]
    }
}

/// Opens it, and tells whether it was made for that.
fn open(spec: &BackendSpec) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(!spec.read_only).mode(0o600).custom_flags(claims(spec).bits() as i32);
    if spec.creates() {
        match options.clone().create_new(true).open(&spec.path) {
            // It is there; or a link leads to where nothing is yet.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => _ = options.create(true),
            made => return made.map(|file| (file, true)),
        }
    }
    options.open(&spec.path).map(|file| (file, false))
}

/// The flags of a descriptor besides reading and writing.
pub(super) fn claims(spec: &BackendSpec) -> OFlags {
    let mut flags = OFlags::empty();
    flags.set(OFlags::DIRECT, spec.direct);
    // On a device it keeps out mounts and everybody else who asks for it alone.
    flags.set(OFlags::EXCL, spec.kind == BackendKind::Device && !spec.read_only);
    flags
}

/// Opens once more while the device is busy: the kernel keeps it, too, until what a killed server had begun is done. Only a
/// device that is opened alone is ever busy.
fn patiently<T>(open: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        match open() {
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy && Instant::now() < end => {
                sleep(PAUSE);
            }
            other => return other,
        }
    }
}

/// Makes an empty file as large as it shall be, and its name stable.
fn give_size(file: &File, spec: &BackendSpec) -> io::Result<()> {
    let Some(size) = spec.size else { return Ok(()) };
    if file.metadata()?.len() > 0 {
        return Ok(());
    }
    file.set_len(size)?;
    file.sync_all()?;
    // Where a link leads to, if the path is one.
    let place = spec.path.canonicalize()?;
    File::open(place.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// Opens the very same file once more. Without a mounted /proc there is no such thing, and a sync after the
/// write serves instead.
fn reopen(file: &File) -> Option<File> {
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).write(true).custom_flags(OFlags::DSYNC.bits() as i32).open(name).ok()
}

pub(super) fn direct_align(file: &File, device: bool) -> io::Result<NonZeroU64> {
    let told = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let align = match told {
        Ok(x) if x.stx_dio_offset_align > 0 => x.stx_dio_offset_align.into(),
        _ if device => rustix::fs::ioctl_blksszget(file)?.into(),
        _ => DIRECT_ALIGN,
    };
    NonZeroU64::new(align).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Bytes that the device can turn to zeros at once without writing them; 0: none. A partition tells its
/// disk's.
fn write_zeroes_max(file: &File) -> io::Result<u64> {
    let id = file.metadata()?.rdev();
    let folder = format!("/sys/dev/block/{}:{}", rustix::fs::major(id), rustix::fs::minor(id));
    let read = |queue: &str| std::fs::read_to_string(format!("{folder}/{queue}/write_zeroes_max_bytes"));
    let text = read("queue").or_else(|_| read("../queue"))?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Turns what went wrong into what people can do about it.
pub(super) struct ErrorContext<'a> {
    pub(super) spec: &'a BackendSpec,
}

impl ErrorContext<'_> {
    fn error(&self, what: impl ToString, hint: &str) -> OpenError {
        OpenError::new(self.spec.path.display().to_string(), what, hint)
    }

    /// Asked before opening: to open a pipe or a tape has effects.
    pub(super) fn check_type(&self, device: bool) -> Result<(), OpenError> {
        let Ok(found) = std::fs::metadata(&self.spec.path) else { return Ok(()) };
        match found.file_type() {
            t if t.is_block_device() && !device => {
                Err(self.type_error("is a block device, not a file", "use backend = \"device\""))
            }
            t if t.is_block_device() == device && t.is_file() != device => Ok(()),
            t if t.is_file() => {
                Err(self.type_error("is a file, not a block device", "use backend = \"file\""))
            }
            t if t.is_dir() => {
                let refused = self.error("is a directory", "name a file in it");
                Err(refused.of(std::io::ErrorKind::IsADirectory))
            }
            _ => Err(self.type_error("is neither a file nor a block device", "name a disk image or a disk")),
        }
    }

    fn type_error(&self, what: &str, hint: &str) -> OpenError {
        self.error(what, hint).of(io::ErrorKind::InvalidInput)
    }

    pub(super) fn open(&self, e: &io::Error) -> OpenError {
        if e.kind() == io::ErrorKind::ResourceBusy {
            return self.busy(e).error;
        }
        let hint = match e.kind() {
            io::ErrorKind::NotFound if self.spec.kind == BackendKind::Device => {
                "check the path; lsblk lists the disks"
            }
            io::ErrorKind::NotFound if self.spec.creates() => "make the folder for it first (mkdir -p)",
            io::ErrorKind::NotFound => "check the path, or give a size to create it",
            io::ErrorKind::PermissionDenied if self.spec.read_only => "run as a user who may read it",
            io::ErrorKind::PermissionDenied => "run as a user with write access, or serve it read-only",
            io::ErrorKind::ReadOnlyFilesystem => "serve it read-only",
            io::ErrorKind::InvalidInput if self.spec.direct => {
                "its file system may not know O_DIRECT: leave direct out"
            }
            _ => "check that it is a disk or a disk image in good order",
        };
        self.error(e, hint).of(e.kind())
    }

    /// Who has a device that is busy: the kernel gives it to one user at a time.
    pub(super) fn busy(&self, e: &io::Error) -> InUse {
        let hint = "unmount it and stop what uses it (lsblk, fuser -v), or serve it read-only";
        let error = |what: String, pids| InUse { error: self.error(what, hint).of(e.kind()), pids };
        let number = std::fs::metadata(&self.spec.path).map_or(0, |found| found.rdev());
        if let Some(user) = users::of_busy(number) {
            return error(format!("is in use: {user}"), None);
        }
        let user = users::lockers(&FileId::Device(number), users::SERVER);
        match user.pids.as_ref().is_some_and(|pids| !pids.is_empty()) {
            true => self.locked(LockOwner::Known(user)),
            false => error(e.to_string(), Some(Vec::new())),
        }
    }

    pub(super) fn lock(&self, refusal: LockError) -> OpenError {
        match refusal {
            LockError::InUse(by) => self.locked(by).error,
            LockError::Failed(e) => self.error(
                format!("cannot be locked: {e}"),
                "put it on a file system with locks, so that two servers cannot write it at once",
            ),
        }
    }

    pub(super) fn locked(&self, by: LockOwner) -> InUse {
        let LockOwner::Known(user) = by else { return self.locked(LockOwner::Known(users::unknown())) };
        let (how, hint) = match self.spec.read_only {
            true => ("is being written by", "stop that server (fuser -v tells which)"),
            false => (
                "is in use by",
                "stop that server (fuser -v tells which), or serve the file read-only in both",
            ),
        };
        let hint = user.remedy.as_deref().unwrap_or(hint);
        let error = self.error(format!("{how} {}", user.who), hint).of(io::ErrorKind::ResourceBusy);
        InUse { error, pids: user.pids }
    }

    /// While the lock was waited for, who had it may have removed the file, or put another in its place.
    fn check_place(&self, file: &File) -> Result<(), OpenError> {
        let is_there = || {
            let (ours, there) = (file.metadata()?, std::fs::metadata(&self.spec.path)?);
            Ok(FileId::of(&ours) == FileId::of(&there))
        };
        match is_there() {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.error("is another file now", "try again")),
            Err(e) => Err(self.open(&e)),
        }
    }

    /// A medium that is not written cannot end a write that was cut off.
    pub(super) fn check_pending(&self, journal: &WriteJournal) -> Result<(), OpenError> {
        match journal.is_pending() {
            Ok(false) => Ok(()),
            Ok(true) => Err(self.error(
                "has an atomic write that was cut off",
                "serve it writable once: that ends the write",
            )),
            Err(stuck) => Err(self.stuck(&stuck)),
        }
    }

    fn stuck(&self, StuckRecord { path, error, is_unread }: &StuckRecord) -> OpenError {
        let path = path.display();
        if *is_unread {
            let what = format!("may have an atomic write that was cut off: {path} cannot be used: {error}");
            return self.error(what, &format!("repair {path}, or remove it to keep the blocks as they are"));
        }
        let what = format!("has an atomic write that was cut off and cannot be done again: {error}");
        self.error(what, &format!("make space for it, or remove {path} to keep the blocks as they are"))
    }

    pub(super) fn create(&self, e: &io::Error) -> OpenError {
        let refused =
            self.error(format!("cannot be created: {e}"), "choose a smaller size or another file system");
        refused.of(e.kind())
    }

    /// `size` in bytes, and what O_DIRECT wants it to be a multiple of.
    pub(super) fn check_size(&self, size: u64, direct: Option<NonZeroU64>) -> Result<(), OpenError> {
        if size == 0 {
            return Err(self.error("is empty", "give a size to create it"));
        }
        match direct {
            Some(align) if size % align != 0 => Err(self.error(
                format!("has {size} bytes, which O_DIRECT in blocks of {align} bytes cannot reach"),
                "leave direct out, or make the size a multiple (truncate -s)",
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is to be made, and is not there.
    fn spec(name: &str) -> BackendSpec {
        let path = std::env::temp_dir().join(format!("lunar-{name}-{}", std::process::id()));
        _ = std::fs::remove_file(&path);
        BackendSpec { kind: BackendKind::File, size: Some(4096), create: true, ..BackendSpec::path(path) }
    }

    #[test]
    fn who_made_a_file_that_another_server_has_leaves_it_there() {
        let spec = spec("made-twice");
        let (file, is_new) = open(&spec).expect("made");
        assert!(is_new);
        let _first = OpenMedium::open(&spec).expect("its lock was free");
        let e = OpenMedium::claim(file, is_new, &spec).err().expect("it is in use");
        assert_eq!(e.kind, io::ErrorKind::ResourceBusy);
        std::fs::remove_file(&spec.path).expect("it is there");
    }

    #[test]
    fn a_busy_device_is_waited_for() {
        let left = std::cell::Cell::new(3);
        let opened = patiently(|| match left.replace(left.get() - 1) {
            0 => Ok(()),
            _ => Err(io::ErrorKind::ResourceBusy.into()),
        });
        assert!(opened.is_ok());
        let refused = patiently(|| Err::<(), _>(io::ErrorKind::NotFound.into()));
        assert_eq!(refused.expect_err("not busy").kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_that_was_removed_or_replaced_before_its_lock_was_free_is_refused() {
        let spec = spec("removed");
        _ = OpenMedium::open(&spec).expect("made");
        let [one, other] = [0; 2].map(|_| open(&spec).expect("there").0);
        std::fs::remove_file(&spec.path).expect("removed");
        let e = OpenMedium::claim(one, false, &spec).err().expect("it is gone");
        assert_eq!(e.kind, io::ErrorKind::NotFound);
        _ = OpenMedium::open(&spec).expect("another");
        let e = OpenMedium::claim(other, false, &spec).err().expect("it is not this one");
        assert_eq!(e.what, "is another file now");
        std::fs::remove_file(&spec.path).expect("it is there");
    }
}

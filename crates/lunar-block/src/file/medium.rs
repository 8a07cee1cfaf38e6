//! Opening, locking and measuring a file or device.

use super::identity::MediumIdentity;
use super::journal::{ReplayOutcome, StuckRecord, WriteJournal};
use super::lock::{self, FileAccess, LockError, LockOwner, MediumLock, PATIENCE, PAUSE};
use super::users::{self, LockKind};
use crate::{BackendKind, BackendSpec, FileId, InUse, OpenError, describe_row};
use rustix::fs::{Advice, AtFlags, FallocateFlags, OFlags, SeekFrom, StatxFlags};
use rustix::io::ReadWriteFlags;
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

/// File systems in memory: tmpfs and ramfs (linux/magic.h).
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];
/// The alignment of O_DIRECT if the kernel does not report it.
const DIRECT_ALIGN: u64 = 4096;
/// The limit of one prefetch in bytes, because it runs on the caller's core.
const PREFETCH: u64 = 2 << 20;

/// The descriptors, which close together: the locks are on one of them and must outlast writes through the other. The
/// kernel does not keep that order when it ends the process. In the page cache, however, earlier writes precede those
/// of the next lock holder.
pub(super) struct OpenFiles {
    pub(super) plain: File,
    /// The same file opened with O_DSYNC: a write through it is durable when it ends, without a sync of everything
    /// else. None with O_DIRECT: there, a slow write outlives a killed process in the kernel and must keep its lock.
    pub(super) through: Option<File>,
    /// Dropped after both.
    pub(super) claim: Option<Arc<MediumLock>>,
    /// Whether the file system keeps its files in memory, so that reads and writes do not wait for a device.
    pub(super) is_in_memory: bool,
    /// Dropped last: until then, the last close of a device may still write.
    pub(super) mark: Arc<()>,
}

/// An open file or device, locked as far as the system supports it.
pub(super) struct OpenMedium {
    pub(super) path: PathBuf,
    pub(super) device: bool,
    pub(super) read_only: bool,
    pub(super) files: Arc<OpenFiles>,
    /// Size in bytes at open.
    pub(super) size: u64,
    /// The alignment of offset and length with O_DIRECT.
    direct: Option<NonZeroU64>,
    /// The alignment of offset and length of fallocate.
    granule: u64,
}

impl OpenMedium {
    pub(super) fn open(spec: &BackendSpec) -> Result<OpenMedium, OpenError> {
        let fault = ErrorContext { spec };
        fault.check_type(spec.kind == BackendKind::Device)?;
        let (file, is_new) = patiently(|| open(spec)).map_err(|e| fault.open(&e))?;
        OpenMedium::claim(file, is_new, spec)
    }

    /// Locks a file as a medium. Without the lock, the file stays even if this call created it, because another
    /// server uses it.
    fn claim(file: File, is_new: bool, spec: &BackendSpec) -> Result<OpenMedium, OpenError> {
        let fault = ErrorContext { spec };
        let claim = lock::claim(&file, FileAccess::of(spec.read_only)).map_err(|e| fault.lock(e))?;
        if spec.kind != BackendKind::Device {
            fault.check_place(&file)?;
        }
        // The lock lasts until the file is removed, so that waiters notice the removal.
        let claim = Arc::new(claim);
        OpenMedium::of(file, claim.clone(), spec).inspect_err(|_| {
            if is_new {
                // An unusable file is not left behind.
                _ = std::fs::remove_file(&spec.path);
            }
        })
    }

    fn of(file: File, claim: Arc<MediumLock>, spec: &BackendSpec) -> Result<OpenMedium, OpenError> {
        let fault = ErrorContext { spec };
        let device = spec.kind == BackendKind::Device;
        if device {
            fault.check_writable(&file)?;
        }
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
        let is_in_memory = !device && is_in_memory(&file);
        let mut medium = OpenMedium {
            path: spec.path.clone(),
            device,
            read_only: spec.read_only,
            files: Arc::new(OpenFiles {
                through,
                plain: file,
                claim: Some(claim),
                is_in_memory,
                mark: Arc::default(),
            }),
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

    /// The flags with which a read or write does not wait. A file in memory needs none: its file system does not know
    /// RWF_NOWAIT. Only pages in swap would wait, as all memory of the server does.
    pub(super) fn without_waiting(&self) -> ReadWriteFlags {
        if self.files.is_in_memory { ReadWriteFlags::empty() } else { ReadWriteFlags::NOWAIT }
    }

    pub(super) fn is_device(&self) -> bool {
        self.device
    }

    /// Opens the journal of atomic writes and replays an interrupted one.
    pub(super) fn journal(&self, spec: &BackendSpec) -> Result<Option<Arc<WriteJournal>>, OpenError> {
        let Some(folder) = &spec.journal else { return Ok(None) };
        let fault = ErrorContext { spec };
        let identity =
            MediumIdentity::of(&self.files.plain, &self.path, self.size, spec.medium_id.as_deref())
                .map_err(|e| fault.open(&e))?;
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
                tracing::info!(offset, len, "{name}: an incomplete atomic write was completed");
            }
            ReplayOutcome::Undone { offset, len, error } => tracing::warn!(
                offset,
                len,
                %error,
                "{name}: an interrupted atomic write cannot be replayed; the old blocks stay, and the host received no \
                 GOOD status for the write"
            ),
            ReplayOutcome::Aside { offset, len, path } => tracing::error!(
                offset,
                len,
                "{name}: an incomplete atomic write was not completed: another program has changed the blocks; the journal \
                 record is kept in {}; hint: check the data of these blocks, then remove the record",
                path.display()
            ),
            ReplayOutcome::Other { id, path } => tracing::error!(
                "{name}: an atomic write to another medium at this path is incomplete; the other medium was {id}, \
                 this one is {medium}; the journal record is kept in {}; hint: bring the other medium back, or remove the \
                 record",
                path.display()
            ),
            ReplayOutcome::Old { path } => tracing::error!(
                "{name}: the journal record {} of an atomic write is ignored: it has the format of an older version; \
                 hint: check the data of the medium, then remove the record",
                path.display()
            ),
        }
    }

    /// Runs `work` on the file through the page cache, before the medium is in use.
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

    /// Allows this process to open it again with other options.
    pub(super) fn offer(&self, offered: bool) {
        self.files.claim.iter().for_each(|claim| claim.offer(offered));
    }

    /// Whether it uses O_DIRECT.
    pub(super) fn direct(&self) -> bool {
        self.direct.is_some()
    }

    /// The current size in bytes. O_DIRECT cannot reach a partial last block; [`OpenMedium::open`] rejects such
    /// files.
    pub(super) fn size_now(&self) -> io::Result<u64> {
        let size = match self.device {
            true => rustix::fs::seek(&self.files.plain, SeekFrom::End(0))?,
            false => self.files.plain.metadata()?.len(),
        };
        Ok(self.whole(size))
    }

    /// The reachable part of a size.
    pub(super) fn whole(&self, size: u64) -> u64 {
        self.direct.map_or(size, |align| size - size % align)
    }

    /// The logical block size of a device in bytes; None for a file.
    pub(super) fn block_size(&self) -> Option<u32> {
        self.device.then(|| u32::try_from(self.granule).ok()).flatten()
    }

    pub(super) fn is_aligned(&self, offset: u64, len: usize) -> bool {
        self.direct.is_none_or(|align| offset % align == 0 && len as u64 % align == 0)
    }

    /// The range of whole blocks that covers a request.
    pub(super) fn widen(&self, offset: u64, len: u64) -> Range<u64> {
        let align = self.direct.map_or(1, NonZeroU64::get);
        offset - offset % align..(offset + len).next_multiple_of(align)
    }

    /// The whole granules within a request; empty where there is none.
    pub(super) fn narrow(&self, offset: u64, len: u64) -> Range<u64> {
        let end = offset + len;
        offset.next_multiple_of(self.granule)..end - end % self.granule
    }

    /// Whether space can be freed. Tested beyond the end, where nothing is lost.
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
        // A hint, so its result is ignored.
        let len = NonZeroU64::new(len.min(PREFETCH));
        let _ = rustix::fs::fadvise(&self.files.plain, offset, len, Advice::WillNeed);
    }

    pub(super) fn describe(&self) -> Vec<(String, String)> {
        let kind = if self.device { "device" } else { "file" };
        vec![
            describe_row("backend", kind),
            describe_row("path", self.path.display()),
            describe_row("read_only", self.read_only),
            describe_row(
                "direct",
                self.direct.map_or("false".into(), |align| format!("in blocks of {align} bytes")),
            ),
        ]
    }
}

/// Opens the path. True if this call created the file.
fn open(spec: &BackendSpec) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(!spec.read_only).mode(0o600).custom_flags(claims(spec).bits() as i32);
    if spec.creates() {
        match options.clone().create_new(true).open(&spec.path) {
            // It exists, or is a dangling link.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => _ = options.create(true),
            made => return made.map(|file| (file, true)),
        }
    }
    options.open(&spec.path).map(|file| (file, false))
}

/// The flags of a descriptor besides the access mode.
pub(super) fn claims(spec: &BackendSpec) -> OFlags {
    let mut flags = OFlags::empty();
    flags.set(OFlags::DIRECT, spec.direct);
    // On a device, O_EXCL excludes mounts and other exclusive users.
    flags.set(OFlags::EXCL, spec.kind == BackendKind::Device && !spec.read_only);
    flags
}

/// Retries while the device is busy: the kernel keeps it busy until the requests of a killed server end. Only an
/// exclusively opened device is ever busy.
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

fn is_in_memory(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|found| IN_MEMORY.contains(&(found.f_type as u32)))
}

/// Sets the size of an empty file and makes its name durable.
fn give_size(file: &File, spec: &BackendSpec) -> io::Result<()> {
    let Some(size) = spec.size else { return Ok(()) };
    if file.metadata()?.len() > 0 {
        return Ok(());
    }
    file.set_len(size)?;
    file.sync_all()?;
    // The target of a symbolic link, if the path is one.
    let place = spec.path.canonicalize()?;
    File::open(place.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// Opens the same file again through /proc. Without /proc, a sync after the write serves instead.
fn reopen(file: &File) -> Option<File> {
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).write(true).custom_flags(OFlags::DSYNC.bits() as i32).open(name).ok()
}

pub(super) fn direct_align(file: &File, device: bool) -> io::Result<NonZeroU64> {
    let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let align = match stat {
        Ok(x) if x.stx_dio_offset_align > 0 => x.stx_dio_offset_align.into(),
        _ if device => rustix::fs::ioctl_blksszget(file)?.into(),
        _ => DIRECT_ALIGN,
    };
    NonZeroU64::new(align).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The limit of WRITE ZEROES of the device in bytes; 0 if unsupported. A partition has its disk's.
fn write_zeroes_max(file: &File) -> io::Result<u64> {
    let id = file.metadata()?.rdev();
    let folder = format!("/sys/dev/block/{}:{}", rustix::fs::major(id), rustix::fs::minor(id));
    let read = |queue: &str| std::fs::read_to_string(format!("{folder}/{queue}/write_zeroes_max_bytes"));
    let text = read("queue").or_else(|_| read("../queue"))?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Adds object and hint to errors.
pub(super) struct ErrorContext<'a> {
    pub(super) spec: &'a BackendSpec,
}

impl ErrorContext<'_> {
    fn error(&self, what: impl ToString, hint: &str) -> OpenError {
        OpenError::new(self.spec.path.display().to_string(), what, hint)
    }

    /// Checked before opening, because opening a pipe or a tape has side effects.
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

    /// Rejects a write-protected device that is to be written. The kernel opens it, and then fails each write.
    pub(super) fn check_writable(&self, file: &File) -> Result<(), OpenError> {
        let number = rustix::fs::fstat(file).map_err(|e| self.open(&e.into()))?.st_rdev;
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let protected = std::fs::read(format!("/sys/dev/block/{major}:{minor}/ro"));
        match protected.is_ok_and(|flag| flag.starts_with(b"1")) && !self.spec.read_only {
            true => Err(self.open(&io::ErrorKind::ReadOnlyFilesystem.into())),
            false => Ok(()),
        }
    }

    pub(super) fn open(&self, e: &io::Error) -> OpenError {
        if e.kind() == io::ErrorKind::ResourceBusy {
            return self.busy(e).error;
        }
        let hint = match e.kind() {
            io::ErrorKind::NotFound if self.spec.kind == BackendKind::Device => {
                "check the path; lsblk lists the disks"
            }
            io::ErrorKind::NotFound if self.spec.creates() => "create the folder first (mkdir -p)",
            io::ErrorKind::NotFound if self.spec.read_only => {
                "check the path: a read-only file is not created"
            }
            io::ErrorKind::NotFound => "check the path, or set a size to create the file",
            io::ErrorKind::PermissionDenied if self.spec.read_only => "run as a user with read access",
            io::ErrorKind::PermissionDenied => {
                "run as a user with write access, or serve the medium read-only"
            }
            io::ErrorKind::ReadOnlyFilesystem => "serve the medium read-only",
            io::ErrorKind::InvalidInput if self.spec.direct => {
                "omit direct: the file system may not support O_DIRECT"
            }
            _ => "check that the path names a working disk or disk image",
        };
        self.error(e, hint).of(e.kind())
    }

    /// The error of a busy device with its users: the kernel has one exclusive user at a time.
    pub(super) fn busy(&self, e: &io::Error) -> InUse {
        let hint = "unmount the device and stop its users (lsblk, fuser -v), or serve the device read-only";
        let error = |what: String, pids| InUse { error: self.error(what, hint).of(e.kind()), pids };
        let number = std::fs::metadata(&self.spec.path).map_or(0, |found| found.rdev());
        if let Some(user) = users::of_busy(number) {
            return error(format!("is in use: {user}"), None);
        }
        let user = users::lockers(&FileId::Device(number), LockKind::Server);
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
                "use a file system with file locks, so that two servers cannot write the medium at once",
            ),
        }
    }

    pub(super) fn locked(&self, by: LockOwner) -> InUse {
        let LockOwner::Known(user) = by else { return self.locked(LockOwner::Known(users::unknown())) };
        let stop = users::stop(user.processes.as_deref(), "that server");
        let (how, hint) = match self.spec.read_only {
            true => ("is being written by", stop),
            false => ("is in use by", format!("{stop}, or serve the file read-only in both")),
        };
        let hint = user.remedy.unwrap_or(hint);
        let error = self.error(format!("{how} {}", user.who), &hint).of(io::ErrorKind::ResourceBusy);
        InUse { error: OpenError { users: user.processes, ..error }, pids: user.pids }
    }

    /// While this call waited for the lock, its holder may have removed or replaced the file.
    fn check_place(&self, file: &File) -> Result<(), OpenError> {
        let is_there = || {
            let (ours, there) = (file.metadata()?, std::fs::metadata(&self.spec.path)?);
            Ok(FileId::of(&ours) == FileId::of(&there))
        };
        match is_there() {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.error("was replaced by a different file during the open", "try again")),
            Err(e) => Err(self.open(&e)),
        }
    }

    /// A read-only medium cannot finish an interrupted write.
    pub(super) fn check_pending(&self, journal: &WriteJournal) -> Result<(), OpenError> {
        match journal.is_pending() {
            Ok(false) => Ok(()),
            Ok(true) => Err(self.error(
                "contains an incomplete atomic write",
                "serve the medium writable once, to complete the write",
            )),
            Err(stuck) => Err(self.stuck(&stuck)),
        }
    }

    fn stuck(&self, StuckRecord { path, error, is_unread }: &StuckRecord) -> OpenError {
        let path = path.display();
        if *is_unread {
            let what = format!(
                "may contain an incomplete atomic write: the journal record {path} cannot be used: {error}"
            );
            return self.error(what, &format!("repair {path}, or remove it to keep the blocks as they are"));
        }
        let what = format!("contains an incomplete atomic write that cannot be replayed: {error}");
        self.error(
            what,
            &format!("free space for the write, or remove {path} to keep the blocks as they are"),
        )
    }

    pub(super) fn create(&self, e: &io::Error) -> OpenError {
        let refused =
            self.error(format!("cannot be created: {e}"), "choose a smaller size or another file system");
        refused.of(e.kind())
    }

    /// Checks `size` in bytes against the alignment of O_DIRECT.
    pub(super) fn check_size(&self, size: u64, direct: Option<NonZeroU64>) -> Result<(), OpenError> {
        if size == 0 {
            return Err(self.error(
                "is empty",
                "remove the file and set a size, or extend the file with truncate -s SIZE",
            ));
        }
        match direct {
            Some(align) if size % align != 0 => Err(self.error(
                format!("has {size} bytes, not a multiple of the O_DIRECT block size of {align} bytes"),
                "omit direct, or change the size to a multiple (truncate -s)",
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The specification of a file that does not exist yet.
    fn spec(name: &str) -> BackendSpec {
        let path = std::env::temp_dir().join(format!("lunar-{name}-{}", std::process::id()));
        _ = std::fs::remove_file(&path);
        BackendSpec { kind: BackendKind::File, size: Some(4096), create: true, ..BackendSpec::path(path) }
    }

    #[test]
    fn created_file_locked_by_another_server_is_not_removed() {
        let spec = spec("made-twice");
        let (file, is_new) = open(&spec).expect("made");
        assert!(is_new);
        let _first = OpenMedium::open(&spec).expect("the lock was free");
        let e = OpenMedium::claim(file, is_new, &spec).err().expect("the file is in use");
        assert_eq!(e.kind, io::ErrorKind::ResourceBusy);
        std::fs::remove_file(&spec.path).expect("the file exists");
    }

    #[test]
    fn busy_device_is_waited_for() {
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
    fn file_replaced_while_waiting_for_its_lock_is_refused() {
        let spec = spec("removed");
        _ = OpenMedium::open(&spec).expect("made");
        let [one, other] = [0; 2].map(|_| open(&spec).expect("there").0);
        std::fs::remove_file(&spec.path).expect("removed");
        let e = OpenMedium::claim(one, false, &spec).err().expect("the file was removed");
        assert_eq!(e.kind, io::ErrorKind::NotFound);
        _ = OpenMedium::open(&spec).expect("another");
        let e = OpenMedium::claim(other, false, &spec).err().expect("it is not this one");
        assert_eq!(e.what, "was replaced by a different file during the open");
        std::fs::remove_file(&spec.path).expect("it is there");
    }
}

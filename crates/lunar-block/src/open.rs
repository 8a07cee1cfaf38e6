//! Opens a backend from a specification.

use crate::file::FileBackend;
use crate::kind::BackendKind;
use crate::memory::MemoryBackend;
use crate::null::NullBackend;
use crate::rbd::{self, RbdBackend, RbdLocation};
use crate::{Backend, within};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The specification of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSpec {
    /// Where the bytes live.
    pub kind: BackendKind,
    /// The path. Required for file and device; ignored by null and memory.
    pub path: PathBuf,
    /// The image of RBD; other kinds ignore it.
    pub rbd: Option<RbdLocation>,
    /// Capacity in bytes. Required for null and memory. A file uses it only when `create` makes the file; a device
    /// ignores it.
    pub size: Option<u64>,
    /// Opens a file or device read-only. Null and memory ignore it: their server rejects writes.
    pub read_only: bool,
    /// Bypasses the page cache (O_DIRECT). File and device.
    pub direct: bool,
    /// Lets readers take the pages of the page cache themselves ([`Backend::cached_pages`](crate::Backend::cached_pages)).
    /// File and device, without `direct`.
    pub zero_copy: bool,
    /// Creates a sparse file of `size` bytes if the file is missing or empty.
    pub create: bool,
    /// Accepts any content as the bytes of the disk. Otherwise a file in an image format is rejected. File and
    /// device.
    pub raw: bool,
    /// The existing directory of the journal of atomic writes, which other media may share. Without it, atomic writes
    /// are unsupported.
    pub journal: Option<PathBuf>,
    /// The identity of the medium in the journal, if several hosts know it by different devices. None: that of the
    /// device or file.
    pub medium_id: Option<String>,
}

impl BackendSpec {
    /// An image of RBD.
    pub fn rbd(location: RbdLocation) -> BackendSpec {
        BackendSpec {
            kind: BackendKind::Rbd,
            size: None,
            rbd: Some(location),
            ..BackendSpec::sized(BackendKind::Null, 0)
        }
    }

    /// A null or memory backend of `size` bytes.
    pub fn sized(kind: BackendKind, size: u64) -> BackendSpec {
        let (path, size) = (PathBuf::new(), Some(size));
        BackendSpec {
            kind,
            path,
            rbd: None,
            size,
            read_only: false,
            direct: false,
            zero_copy: false,
            create: false,
            journal: None,
            medium_id: None,
            raw: true,
        }
    }

    /// Whether a missing or empty file is created.
    pub(crate) fn creates(&self) -> bool {
        self.kind == BackendKind::File && self.create && self.size.is_some() && !self.read_only
    }

    /// The existing file or device at a path, with the page cache.
    pub fn path(path: impl Into<PathBuf>) -> BackendSpec {
        let path = path.into();
        let (kind, size) = (BackendKind::of(&path), None);
        BackendSpec {
            kind,
            path,
            rbd: None,
            size,
            read_only: false,
            direct: false,
            zero_copy: false,
            create: false,
            journal: None,
            medium_id: None,
            raw: false,
        }
    }
}

/// The reason why a backend could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{subject}: {what}\nhint: {hint}")]
pub struct OpenError {
    /// The fault.
    pub what: String,
    /// The object: a path, or the kind of backend.
    pub subject: String,
    /// The fix.
    pub hint: String,
    /// The kind of the operating system's error; `ResourceBusy` when another user has the medium, `InvalidData` for a
    /// file in an image format.
    pub kind: io::ErrorKind,
    /// The processes that have the medium, if they are known: `lunar (process 7)`.
    pub users: Option<String>,
}

impl OpenError {
    /// An error of the kind `Other`.
    pub fn new(subject: impl Into<String>, what: impl ToString, hint: impl Into<String>) -> Self {
        let kind = io::ErrorKind::Other;
        OpenError { what: what.to_string(), subject: subject.into(), hint: hint.into(), kind, users: None }
    }

    /// The same error with another kind.
    pub fn of(self, kind: io::ErrorKind) -> Self {
        OpenError { kind, ..self }
    }
}

/// The report of [`examine`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExamineReport {
    /// Size in bytes; None for a file that [`open`] would create.
    pub size: Option<u64>,
    /// The user because of which [`open`] would fail.
    pub in_use: Option<InUse>,
    /// The logical block size of a device in bytes.
    pub block_size: Option<u32>,
}

/// Another user of a medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    /// The error that [`open`] would return.
    pub error: OpenError,
    /// The processes that use it, as far as this user can see them; None if no process does, such as a mount.
    pub pids: Option<Vec<i32>>,
}

/// Examines the medium of `spec` without changing anything.
///
/// # Errors
/// As [`open`], except that another user is not an error.
pub fn examine(spec: &BackendSpec) -> Result<ExamineReport, OpenError> {
    match spec.kind {
        BackendKind::Null | BackendKind::Memory => {
            Ok(ExamineReport { size: Some(size_of(spec)?), in_use: None, block_size: None })
        }
        BackendKind::File | BackendKind::Device => crate::file::examine(spec),
        BackendKind::Rbd => rbd::examine(spec),
    }
}

/// Opens the backend of `spec`.
///
/// # Errors
/// [`OpenError`] when the size is missing or invalid, the path does not match its kind, another process
/// writes the medium, the file has an image format, or the operating system fails.
pub fn open(spec: &BackendSpec) -> Result<Arc<dyn Backend>, OpenError> {
    Ok(match spec.kind {
        BackendKind::Null => Arc::new(NullBackend::new(size_of(spec)?)),
        BackendKind::Memory => Arc::new(MemoryBackend::new(size_of(spec)?)),
        BackendKind::File | BackendKind::Device => Arc::new(FileBackend::open(spec)?),
        BackendKind::Rbd => Arc::new(RbdBackend::open(spec)?),
    })
}

/// The size of null and memory. The limit is that of a file, because some offsets are signed.
fn size_of(spec: &BackendSpec) -> Result<u64, OpenError> {
    let kind = spec.kind.name();
    match spec.size {
        Some(size) if size > 0 && within(i64::MAX as u64, 0, size).is_ok() => Ok(size),
        Some(size) => {
            Err(OpenError::new(kind, format!("invalid size of {size} bytes"), "choose 1 to 2^63-1 bytes"))
        }
        None => Err(OpenError::new(kind, "size missing", format!("add the size, such as {kind}:1G"))),
    }
}

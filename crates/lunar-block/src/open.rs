//! From a description to a backend.

use crate::file::FileBackend;
use crate::memory::MemoryBackend;
use crate::null::NullBackend;
use crate::{Backend, within};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the bytes live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// Nowhere: reads are zeros.
    Null,
    /// In this process, gone with it.
    Memory,
    /// In a regular file.
    File,
    /// On a block device.
    Device,
}

impl BackendKind {
    /// What a path names: [`BackendKind::Device`] for a block device, else [`BackendKind::File`], whether it exists or not.
    pub fn of(path: &Path) -> BackendKind {
        use std::os::unix::fs::FileTypeExt;
        match std::fs::metadata(path) {
            Ok(found) if found.file_type().is_block_device() => BackendKind::Device,
            _ => BackendKind::File,
        }
    }
}

/// What to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSpec {
    /// Where the bytes live.
    pub kind: BackendKind,
    /// File and device need it; null and memory do not look at it.
    pub path: PathBuf,
    /// Capacity in bytes. Null and memory need it; a file takes it only when `create` makes it, and
    /// otherwise has the size it has; a device does not look at it.
    pub size: Option<u64>,
    /// Open file or device for reading only. Null and memory do not look at it: who serves them refuses
    /// writes.
    pub read_only: bool,
    /// Pass the page cache by (O_DIRECT). File and device.
    pub direct: bool,
    /// Make a sparse file of `size` bytes where there is none, or an empty one.
    pub create: bool,
    /// The bytes are those of the disk, whatever they look like. Otherwise the file of an image format is refused. File
    /// and device.
    pub raw: bool,
    /// The folder in which atomic writes of a file or device are recorded; it is there, and other media use it too.
    /// Without it, nothing is written atomically.
    pub journal: Option<PathBuf>,
}

impl BackendSpec {
    /// Null or memory of `size` bytes.
    pub fn sized(kind: BackendKind, size: u64) -> BackendSpec {
        let (path, size) = (PathBuf::new(), Some(size));
        BackendSpec {
            kind,
            path,
            size,
            read_only: false,
            direct: false,
            create: false,
            journal: None,
            raw: true,
        }
    }

    /// A file that is missing, or empty, is made.
    pub(crate) fn creates(&self) -> bool {
        self.kind == BackendKind::File && self.create && self.size.is_some() && !self.read_only
    }

    /// What a path names, as it is: written through the page cache, never created.
    pub fn path(path: impl Into<PathBuf>) -> BackendSpec {
        let path = path.into();
        let (kind, size) = (BackendKind::of(&path), None);
        BackendSpec {
            kind,
            path,
            size,
            read_only: false,
            direct: false,
            create: false,
            journal: None,
            raw: false,
        }
    }
}

/// Why a backend could not be opened, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{subject}: {what}\nhint: {hint}")]
pub struct OpenError {
    /// What happened.
    pub what: String,
    /// To what: a path, or the kind of backend.
    pub subject: String,
    /// What to do about it.
    pub hint: String,
    /// What the operating system said; `ResourceBusy` when somebody else has it, `InvalidData` when it is the file of an
    /// image format.
    pub kind: io::ErrorKind,
}

impl OpenError {
    /// An error of the kind `Other`.
    pub fn new(subject: impl Into<String>, what: impl ToString, hint: impl Into<String>) -> Self {
        let kind = io::ErrorKind::Other;
        OpenError { what: what.to_string(), subject: subject.into(), hint: hint.into(), kind }
    }

    /// The same error with another kind.
    pub fn of(self, kind: io::ErrorKind) -> Self {
        OpenError { kind, ..self }
    }
}

/// What opening would find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExamineReport {
    /// Bytes; None for a file that opening would make.
    pub size: Option<u64>,
    /// Somebody else has it, and opening would be refused for that.
    pub in_use: Option<InUse>,
    /// Bytes of a logical block of a device.
    pub block_size: Option<u32>,
}

/// The user of a medium that would be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    /// As opening would say it.
    pub error: OpenError,
    /// The processes that have it, as far as this user can see them; None: it is in use by no process.
    pub pids: Option<Vec<i32>>,
}

/// Looks at what `spec` describes, and changes nothing.
///
/// # Errors
/// As [`open`], but that somebody else has it is no error.
pub fn examine(spec: &BackendSpec) -> Result<ExamineReport, OpenError> {
    let sized = |kind| Ok(ExamineReport { size: Some(size_of(kind, spec)?), in_use: None, block_size: None });
    match spec.kind {
        BackendKind::Null => sized("null"),
        BackendKind::Memory => sized("memory"),
        BackendKind::File | BackendKind::Device => crate::file::examine(spec),
    }
}

/// Opens what `spec` describes.
///
/// # Errors
/// [`OpenError`] when a size is missing or impossible, the path is not what its kind says, somebody else
/// writes it, it is the file of an image format, or the operating system refuses.
pub fn open(spec: &BackendSpec) -> Result<Arc<dyn Backend>, OpenError> {
    Ok(match spec.kind {
        BackendKind::Null => Arc::new(NullBackend::new(size_of("null", spec)?)),
        BackendKind::Memory => Arc::new(MemoryBackend::new(size_of("memory", spec)?)),
        BackendKind::File | BackendKind::Device => Arc::new(FileBackend::open(spec)?),
    })
}

/// The size that null and memory need. The limit is what a file could have: offsets are signed in places.
fn size_of(kind: &str, spec: &BackendSpec) -> Result<u64, OpenError> {
    match spec.size {
        Some(size) if size > 0 && within(i64::MAX as u64, 0, size).is_ok() => Ok(size),
        Some(size) => {
            Err(OpenError::new(kind, format!("a size of {size} bytes cannot be"), "choose 1 to 2^63-1 bytes"))
        }
        None => Err(OpenError::new(kind, "has no size", format!("say how large it is, such as {kind}:1G"))),
    }
}

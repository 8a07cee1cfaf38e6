//! Examines the medium at a path without changing it.

use super::identity::MediumIdentity;
use super::journal::WriteJournal;
use super::lock::{self, FileAccess, LockError};
use super::medium::{ErrorContext, claims, direct_align};
use crate::{BackendKind, BackendSpec, ExamineReport, OpenError, format};
use rustix::fs::{Access, OFlags, SeekFrom};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Reports what [`open`](crate::open) would find.
pub(crate) fn examine(spec: &BackendSpec) -> Result<ExamineReport, OpenError> {
    let fault = ErrorContext { spec };
    let device = spec.kind == BackendKind::Device;
    fault.check_type(device)?;
    let mut needed = Access::READ_OK;
    needed.set(Access::WRITE_OK, !spec.read_only);
    match rustix::fs::access(&spec.path, needed) {
        Err(e) if io::Error::from(e).kind() == ErrorKind::NotFound && spec.creates() => {
            let may = rustix::fs::access(folder(&spec.path), Access::WRITE_OK | Access::EXEC_OK);
            may.map_err(|e| fault.open(&e.into()))?;
            try_size(spec, folder(&spec.path))?;
            return Ok(ExamineReport { size: None, in_use: None, block_size: None });
        }
        other => other.map_err(|e| fault.open(&e.into()))?,
    }
    let mut found = ExamineReport { size: None, in_use: None, block_size: None };
    let file = match open(spec) {
        Ok(file) => file,
        Err(e) if device && e.kind() == ErrorKind::ResourceBusy => {
            found.in_use = Some(fault.busy(&e));
            File::open(&spec.path).map_err(|e| fault.open(&e))?
        }
        Err(e) => return Err(fault.open(&e)),
    };
    if device {
        fault.check_writable(&file)?;
    }
    match lock::probe(&file, FileAccess::of(spec.read_only)) {
        Err(LockError::InUse(by)) => _ = found.in_use.get_or_insert_with(|| fault.locked(by)),
        other => other.map_err(|e| fault.lock(e))?,
    }
    let size = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|e| fault.open(&e.into()))?;
    if size == 0 && spec.creates() {
        let path = spec.path.canonicalize().map_err(|e| fault.open(&e))?;
        try_size(spec, folder(&path))?;
        return Ok(found);
    }
    let align =
        if spec.direct { Some(direct_align(&file, device).map_err(|e| fault.open(&e))?) } else { None };
    fault.check_size(size, align)?;
    if let Some(folder) = spec.journal.as_deref().filter(|_| spec.read_only) {
        let medium = MediumIdentity::of(&file, &spec.path, size, spec.medium_id.as_deref())
            .map_err(|e| fault.open(&e))?;
        fault.check_pending(&WriteJournal::new(folder, medium))?;
    }
    if !spec.raw {
        format::check(spec, &file, size)?;
    }
    found.size = Some(size);
    if device {
        found.block_size = Some(rustix::fs::ioctl_blksszget(&file).map_err(|e| fault.open(&e.into()))?);
    }
    Ok(found)
}

/// The directory of a path.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Checks that the file system of this directory allows a file of the wanted size. The check uses a file without a name
/// (O_TMPFILE). File systems without such files pass it, and fail at the open.
fn try_size(spec: &BackendSpec, folder: &Path) -> Result<(), OpenError> {
    let (fault, Some(size)) = (ErrorContext { spec }, spec.size) else { return Ok(()) };
    let flags = claims(spec) | OFlags::TMPFILE;
    let nameless = OpenOptions::new().read(true).write(true).custom_flags(flags.bits() as i32).open(folder);
    let file = match nameless {
        Ok(file) => file,
        Err(e) if matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
            return Err(fault.open(&e));
        }
        Err(_) => return Ok(()),
    };
    file.set_len(size).map_err(|e| fault.create(&e))?;
    let align =
        if spec.direct { Some(direct_align(&file, false).map_err(|e| fault.open(&e))?) } else { None };
    fault.check_size(size, align)
}

/// Opens the medium read-only, otherwise as a server does.
fn open(spec: &BackendSpec) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(claims(spec).bits() as i32).open(&spec.path)
}

//! A look at what stands behind a path, which changes nothing.

use super::identity::Identity;
use super::journal::Journal;
use super::lock::{self, Refusal, Use};
use super::medium::{Fault, claims, direct_align};
use crate::{Found, Kind, OpenError, Spec, format};
use rustix::fs::{Access, SeekFrom};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What opening would find.
pub(crate) fn examine(spec: &Spec) -> Result<Found, OpenError> {
    let fault = Fault { spec };
    let device = spec.kind == Kind::Device;
    fault.check_type(device)?;
    let mut needed = Access::READ_OK;
    needed.set(Access::WRITE_OK, !spec.read_only);
    match rustix::fs::access(&spec.path, needed) {
        Err(e) if io::Error::from(e).kind() == io::ErrorKind::NotFound && spec.creates() => {
            let folder = spec.path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let may =
                rustix::fs::access(folder.unwrap_or(Path::new(".")), Access::WRITE_OK | Access::EXEC_OK);
            may.map_err(|e| fault.open(&e.into()))?;
            return Ok(Found { size: None, in_use: None, block_size: None });
        }
        other => other.map_err(|e| fault.open(&e.into()))?,
    }
    let mut found = Found { size: None, in_use: None, block_size: None };
    let file = match open(spec) {
        Ok(file) => file,
        Err(e) if device && e.kind() == io::ErrorKind::ResourceBusy => {
            found.in_use = Some(fault.busy(&e));
            File::open(&spec.path).map_err(|e| fault.open(&e))?
        }
        Err(e) => return Err(fault.open(&e)),
    };
    match lock::probe(&file, Use::of(spec.read_only)) {
        Err(Refusal::InUse(by)) => _ = found.in_use.get_or_insert_with(|| fault.locked(by)),
        other => other.map_err(|e| fault.lock(e))?,
    }
    let size = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|e| fault.open(&e.into()))?;
    if size == 0 && spec.creates() {
        return Ok(found);
    }
    let align =
        if spec.direct { Some(direct_align(&file, device).map_err(|e| fault.open(&e))?) } else { None };
    fault.check_size(size, align)?;
    if let Some(folder) = spec.journal.as_deref().filter(|_| spec.read_only) {
        let medium = Identity::of(&file, &spec.path, size).map_err(|e| fault.open(&e))?;
        fault.check_pending(&Journal::new(folder, medium))?;
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

/// As it would be opened, but for reading alone.
fn open(spec: &Spec) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(claims(spec).bits() as i32).open(&spec.path)
}

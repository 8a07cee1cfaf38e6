//! Hints for media that cannot be opened.

use crate::config::{LunConfig, Source};
use crate::{Diagnostic, ErrorCode, plain};
use lunar_block::OpenError;
use std::io::ErrorKind;

/// Reports why a medium cannot be opened, with a hint that its section can implement.
pub(crate) fn cannot_open(lun: &LunConfig, e: OpenError) -> Diagnostic {
    let hint = hint_of_upstream(lun, &e).unwrap_or(e.hint);
    Diagnostic::new(format!("{}: {}", e.subject, plain(&e.what)), hint).with_code(ErrorCode::from(e.kind))
}

/// The hint for a disk behind a router, which has neither `size` nor `backend` nor `read_only`. None: the default
/// hint.
fn hint_of_upstream(lun: &LunConfig, e: &OpenError) -> Option<String> {
    let (path, is_file) = match &lun.source {
        _ if !lun.is_upstream => return None,
        Source::File { path, .. } => (path, true),
        Source::Device { path } => (path, false),
        _ => return None,
    };
    let make = || format!("truncate -s 1G {}", path.display());
    let is_device = lunar_block::BackendKind::of(path) == lunar_block::BackendKind::Device;
    let found = std::fs::metadata(path).ok();
    Some(match e.kind {
        ErrorKind::NotFound if is_file => format!("check the path, or create the file: {}", make()),
        ErrorKind::PermissionDenied => "run as a user with write access".into(),
        ErrorKind::ReadOnlyFilesystem => "put the file on a writable file system".into(),
        ErrorKind::ResourceBusy => match &e.users {
            Some(users) => format!("stop {users}"),
            None => "stop the program that uses the disk: lsblk and fuser -v show the program".into(),
        },
        ErrorKind::InvalidData => {
            format!("convert the image: qemu-img convert -O raw {} disk.img", path.display())
        }
        ErrorKind::InvalidInput if is_file && is_device => "write `device` instead of `file`".into(),
        ErrorKind::InvalidInput if !is_file && found.as_ref().is_some_and(|found| found.is_file()) => {
            "write `file` instead of `device`".into()
        }
        ErrorKind::Other
            if is_file && found.as_ref().is_some_and(|found| found.is_file() && found.len() == 0) =>
        {
            format!("set the size of the file: {}", make())
        }
        _ => return None,
    })
}

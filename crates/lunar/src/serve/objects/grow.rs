//! Growth of a file by a change of `size`.

use lunar_admin::{ControlError, ControlErrorKind, ObjectAction, ObjectChange, ObjectId};
use lunar_proto::size;
use lunar_server::config::{Config, Source};
use lunar_server::{Diagnostic, ErrorCode};
use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;

/// A file, and the size to which it grows.
pub struct Growth {
    path: PathBuf,
    size: u64,
    /// The target or subsystem and the number of a unit that shows it, if there is one.
    pub place: Option<(String, u16)>,
}

impl Growth {
    /// The growth that a change asks for: a patch of `size` of an object whose file exists. The file holds data of
    /// hosts, so it never shrinks.
    pub fn of(config: &Config, change: &ObjectChange) -> Result<Option<Growth>, ControlError> {
        let ObjectAction::Merge(keys) = &change.action else { return Ok(None) };
        if let (Some(Source::Rbd { image, size: Some(size) }), true) =
            (source(config, &change.id), keys.contains_key("size"))
        {
            let hint =
                format!("rbd resize --size {size}B {}; hosts see the new size by themselves", image.path());
            return Err(ControlError::conflict(format!("{image} exists, and keeps its size"), hint));
        }
        let Some(Source::File { path, size: Some(size) }) = source(config, &change.id) else {
            return Ok(None);
        };
        let Some(found) = path.metadata().ok().filter(|_| keys.contains_key("size")) else { return Ok(None) };
        if *size < found.len() {
            let sizes = format!("it has {}, more than {}", size::show(found.len()), size::show(*size));
            let what = format!("{} cannot shrink to the given size: {sizes}", path.display());
            return Err(ControlError::conflict(
                what,
                "shrink its file system, stop its hosts, and run truncate",
            ));
        }
        Ok(Some(Growth { path: path.clone(), size: *size, place: place(config, &change.id) }))
    }

    /// Grows the file. Hosts see the new size when the server has looked at the medium.
    pub fn grow(&self) -> Result<(), ControlError> {
        let grown = OpenOptions::new().write(true).open(&self.path).and_then(|file| file.set_len(self.size));
        grown.map_err(|e| self.cannot(&e))
    }

    fn cannot(&self, e: &io::Error) -> ControlError {
        let (path, size) = (self.path.display(), size::show(self.size));
        let what = format!("cannot grow {path} to {size}: {}", lunar_runtime::error::text(e));
        let hint = "choose a size that the file system can hold, and make the file writable for the server";
        ControlError::one(
            ControlErrorKind::Conflict,
            Diagnostic::new(what, hint).with_code(ErrorCode::from(e.kind())),
        )
    }
}

/// The target or subsystem and the number of a unit that shows a medium. All units with one disk are one.
fn place(config: &Config, id: &ObjectId) -> Option<(String, u16)> {
    match id {
        ObjectId::Lun(name, number) | ObjectId::Namespace(name, number) => Some((name.clone(), *number)),
        ObjectId::Disk(disk) => config.targets.iter().find_map(|target| {
            let (number, _) = target.luns.iter().find(|(_, lun)| lun.disk.as_ref() == Some(disk))?;
            Some((target.name.clone(), *number))
        }),
        _ => None,
    }
}

/// The medium of a LUN, a namespace or a disk.
fn source<'c>(config: &'c Config, id: &ObjectId) -> Option<&'c Source> {
    match id {
        ObjectId::Lun(name, number) | ObjectId::Namespace(name, number) => {
            config.target(name)?.luns.get(number).map(|lun| &lun.source)
        }
        ObjectId::Disk(name) => config.disks.get(name).map(|disk| &disk.source),
        _ => None,
    }
}

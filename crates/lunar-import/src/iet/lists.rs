//! The files with access rules.

use super::IetImport;
use crate::ImportError;
use crate::files::{Found, Reader};
use std::io::ErrorKind;
use std::path::Path;

/// The path and the text of a list.
type IetList = Option<(String, String)>;

/// The three lists. None: there is no such file.
#[derive(Debug, Default)]
pub(super) struct IetLists {
    pub(super) allow: IetList,
    pub(super) deny: IetList,
    pub(super) targets: IetList,
    /// A list that the name suggests, and that the server does not read.
    pub(super) unread: IetList,
}

impl IetLists {
    pub(super) fn read(reader: Reader<'_>) -> Result<IetLists, ImportError> {
        Ok(IetLists {
            allow: list(reader, "initiators.allow")?,
            deny: list(reader, "initiators.deny")?,
            targets: list(reader, "targets.allow")?,
            unread: list(reader, "targets.deny").unwrap_or_default(),
        })
    }
}

fn list(reader: Reader<'_>, name: &str) -> Result<IetList, ImportError> {
    for folder in ["", "/etc/iet/", "/etc/"] {
        let path = format!("{folder}{name}");
        match reader(Path::new(&path)) {
            Ok(Found::File(text)) => return Ok(Some((path, text))),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Ok(Found::Folder(_)) => return Err(unreadable(&path, "it is a folder")),
            Err(e) => return Err(unreadable(&path, &e.to_string())),
        }
    }
    Ok(None)
}

fn unreadable(path: &str, why: &str) -> ImportError {
    ImportError::new(format!("cannot read {path}: {why}"), "check its permissions, because it limits access")
}

impl IetImport {
    /// Reports the lists that limit access.
    pub(super) fn lists(&mut self, lists: &IetLists) {
        for (path, _) in [&lists.allow, &lists.deny, &lists.targets].into_iter().flatten() {
            self.0.notes.carried(path, "a list of access rules");
        }
        if let Some((path, _)) = &lists.unread {
            self.0.notes.changed(path, "this file, which IET does not read: it has no effect there or here");
        }
        if lists.allow.is_none() && lists.deny.is_none() {
            let what = "initiators.allow and initiators.deny were not found: every host may log in, as in IET without them";
            self.0.notes.lost("initiators.allow", what);
        }
    }
}

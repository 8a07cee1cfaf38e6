//! The files: records in `nodes`, and what else the folder `/etc/iscsi` has.

use super::record::IscsiFile;
use crate::ImportError;
use crate::files::{Found, Reader};
use std::path::Path;

/// Folders in which records are: target, portal and interface, in `nodes`.
const MAX_DEPTH: usize = 4;

/// The files of the database.
#[derive(Debug, Default)]
pub(super) struct IscsiFolder {
    pub(super) records: Vec<IscsiFile>,
    pub(super) interfaces: Vec<IscsiFile>,
    /// Records of discovery.
    pub(super) discovery: Vec<IscsiFile>,
    /// `initiatorname.iscsi`.
    pub(super) name: Option<IscsiFile>,
    /// `iscsid.conf`.
    pub(super) defaults: Option<IscsiFile>,
}

impl IscsiFolder {
    /// Reads `/etc/iscsi`, a folder below it, or a record. The reader gets paths relative to it.
    pub(super) fn read(reader: Reader<'_>) -> Result<IscsiFolder, ImportError> {
        let mut folder = IscsiFolder::default();
        let names = match found(reader, "")? {
            Found::File(text) => {
                folder.records.push(IscsiFile::parse("", &text));
                return Ok(folder);
            }
            Found::Folder(names) => names,
        };
        // The other files are beside `nodes`.
        let is_whole = names.iter().any(|name| name == "nodes");
        let beside = |name: &str| if is_whole { name.to_owned() } else { format!("../{name}") };
        walk(reader, if is_whole { "nodes" } else { "" }, 0, &mut folder.records)?;
        folder.records.retain(|file| file.value("node.name").is_some());
        for (name, files) in [("ifaces", &mut folder.interfaces), ("send_targets", &mut folder.discovery)] {
            let path = beside(name);
            // Records do not need these folders, and their targets may be links to nowhere.
            _ = walk(reader, &path, 2, files);
        }
        let file = |name: &str| match reader(Path::new(&beside(name))) {
            Ok(Found::File(text)) => Some(IscsiFile::parse(&beside(name), &text)),
            _ => None,
        };
        folder.name = file("initiatorname.iscsi");
        folder.defaults = file("iscsid.conf");
        Ok(folder)
    }
}

fn found(reader: Reader<'_>, path: &str) -> Result<Found, ImportError> {
    reader(Path::new(path)).map_err(|e| {
        let shown = if path.is_empty() { "the file" } else { path };
        ImportError::new(
            format!("cannot read {shown}: {e}"),
            "check the path; records have secrets, so only root can read them",
        )
    })
}

/// Reads the files below a folder, in the order of their names.
fn walk(
    reader: Reader<'_>,
    folder: &str,
    depth: usize,
    files: &mut Vec<IscsiFile>,
) -> Result<(), ImportError> {
    let Found::Folder(mut names) = found(reader, folder)? else { return Ok(()) };
    names.sort_unstable();
    for name in names.iter().filter(|name| !name.starts_with('.') && !name.ends_with('~')) {
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        match found(reader, &path)? {
            Found::File(text) => files.push(IscsiFile::parse(&path, &text)),
            Found::Folder(_) if depth < MAX_DEPTH => walk(reader, &path, depth + 1, files)?,
            Found::Folder(_) => {}
        }
    }
    Ok(())
}

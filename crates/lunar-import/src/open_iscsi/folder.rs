//! The files: records in `nodes`, and what else the folder `/etc/iscsi` has.

use super::record::IscsiFile;
use crate::ImportError;
use crate::files::{Found, Reader};
use std::path::Path;

/// Folders in which records are: target, portal and interface, in `nodes`.
const MAX_DEPTH: usize = 4;
/// The most entries of folders, and the most bytes of their files. Links lead to each of them many times.
const MAX_ENTRIES: usize = 100_000;
const MAX_BYTES: usize = 64 << 20;

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
        let mut walk = RecordWalk { reader, entries: 0, bytes: 0 };
        walk.folder(if is_whole { "nodes" } else { "" }, 0, &mut folder.records)?;
        folder.records.retain(|file| file.value("node.name").is_some());
        for (name, files) in [("ifaces", &mut folder.interfaces), ("send_targets", &mut folder.discovery)] {
            let path = beside(name);
            // Records do not need these folders, and their targets may be links to nowhere.
            _ = walk.folder(&path, 2, files);
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

/// The entries and bytes that were read until now.
struct RecordWalk<'a> {
    reader: Reader<'a>,
    entries: usize,
    bytes: usize,
}

impl RecordWalk<'_> {
    /// Reads the files below a folder, in the order of their names.
    fn folder(&mut self, folder: &str, depth: usize, files: &mut Vec<IscsiFile>) -> Result<(), ImportError> {
        let Found::Folder(mut names) = found(self.reader, folder)? else { return Ok(()) };
        names.sort_unstable();
        for name in names.iter().filter(|name| !name.starts_with('.') && !name.ends_with('~')) {
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            self.count(1, 0)?;
            match found(self.reader, &path)? {
                Found::File(text) => {
                    self.count(0, text.len())?;
                    files.push(IscsiFile::parse(&path, &text));
                }
                Found::Folder(_) if depth < MAX_DEPTH => self.folder(&path, depth + 1, files)?,
                Found::Folder(_) => {}
            }
        }
        Ok(())
    }

    fn count(&mut self, entries: usize, bytes: usize) -> Result<(), ImportError> {
        (self.entries, self.bytes) = (self.entries + entries, self.bytes.saturating_add(bytes));
        if self.entries <= MAX_ENTRIES && self.bytes <= MAX_BYTES {
            return Ok(());
        }
        let what = format!("the folder has more than {MAX_ENTRIES} entries, or {} MiB", MAX_BYTES >> 20);
        Err(ImportError::new(what, "give /etc/iscsi, or the folder of one target in its nodes"))
    }
}

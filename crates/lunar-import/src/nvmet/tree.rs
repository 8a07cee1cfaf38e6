//! The tree in configfs, in the form of nvmetcli's file. Each object is a folder, and each attribute a file in it.
//!
//! Only known names are read. The name of a link is free in configfs: a link stands for the object to which it leads.

use crate::ImportError;
use serde_json::{Map, Value};
use std::io;
use std::path::Path;

pub(super) const HINT: &str = "give /sys/kernel/config/nvmet, and read it as root";
/// The most names in all folders of a tree.
pub const MAX_TREE_ENTRIES: usize = 100_000;
/// The longest attribute in bytes: configfs has one page for each.
pub const MAX_ATTRIBUTE: usize = 4096;

/// A file, a folder or a link of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeEntry {
    /// The text of a file.
    File(String),
    /// The names in a folder.
    Folder(Vec<String>),
    /// The target of a link.
    Link(String),
}

/// Reads an entry at a path that is relative to the tree; the empty path is the tree itself. It follows no links.
pub type TreeReader<'a> = &'a dyn Fn(&Path) -> io::Result<TreeEntry>;

/// Groups of attributes: the file `addr_traddr` is `traddr` of `addr`.
const GROUPS: &[&str] = &["addr", "ana", "attr", "device", "dhchap", "param"];
/// Attributes outside of groups.
const ATTRIBUTES: &[&str] = &["discovery_nqn", "enable"];

/// The folders of an object, besides its attributes.
type TreeFolders = &'static [(&'static str, TreeFolder)];

/// A folder in the folder of an object.
enum TreeFolder {
    /// Objects with their folders, and the key that has the name of an object.
    Objects(&'static str, TreeFolders),
    /// Links to objects in the folder of this name.
    Links(&'static str),
    /// One object.
    Object,
}

const ROOT: TreeFolders = &[
    ("hosts", TreeFolder::Objects("nqn", &[])),
    ("ports", TreeFolder::Objects("portid", PORT)),
    ("subsystems", TreeFolder::Objects("nqn", SUBSYSTEM)),
];
const PORT: TreeFolders = &[
    ("ana_groups", TreeFolder::Objects("grpid", &[])),
    ("referrals", TreeFolder::Objects("name", &[])),
    ("subsystems", TreeFolder::Links("subsystems")),
];
const SUBSYSTEM: TreeFolders = &[
    ("allowed_hosts", TreeFolder::Links("hosts")),
    ("namespaces", TreeFolder::Objects("nsid", &[])),
    ("passthru", TreeFolder::Object),
];

/// Reads the tree.
pub(super) fn read(reader: TreeReader<'_>) -> Result<Map<String, Value>, ImportError> {
    TreeWalk { reader, entries: 0 }.object(Path::new(""), ROOT)
}

/// A tree, and the number of names that were found in it.
struct TreeWalk<'a> {
    reader: TreeReader<'a>,
    entries: usize,
}

impl TreeWalk<'_> {
    fn object(&mut self, path: &Path, folders: TreeFolders) -> Result<Map<String, Value>, ImportError> {
        let mut all = Map::new();
        for name in self.names(path)? {
            let below = path.join(&name);
            if let Some((_, folder)) = folders.iter().find(|(known, _)| *known == name) {
                all.insert(name, Value::Array(self.folder(&below, folder)?));
            } else if is_attribute(&name) {
                attribute(&mut all, &name, &self.text(&below)?);
            }
        }
        Ok(all)
    }

    fn folder(&mut self, path: &Path, folder: &TreeFolder) -> Result<Vec<Value>, ImportError> {
        match folder {
            TreeFolder::Object => Ok(vec![Value::Object(self.object(path, &[])?)]),
            TreeFolder::Links(to) => self.links(path, to),
            TreeFolder::Objects(key, folders) => {
                // The order of a folder means nothing.
                let mut names = self.names(path)?;
                names.sort_by_key(|name| (name.len(), name.clone()));
                let one = |name: String| {
                    let mut all = self.object(&path.join(&name), folders)?;
                    all.insert((*key).to_owned(), Value::String(name));
                    Ok(Value::Object(all))
                };
                names.into_iter().map(one).collect()
            }
        }
    }

    /// The names of the objects to which the links of a folder lead.
    fn links(&mut self, path: &Path, to: &str) -> Result<Vec<Value>, ImportError> {
        let mut names = Vec::new();
        for name in self.names(path)? {
            let path = path.join(name);
            let what = match found(self.reader, &path)? {
                TreeEntry::Link(target) => match linked(&target, to) {
                    Some(name) => {
                        names.push(name.to_owned());
                        continue;
                    }
                    None => format!("the link {} leads to {target:?}, and not into {to}", path.display()),
                },
                _ => format!("{} is no link", path.display()),
            };
            return Err(ImportError::new(what, "give /sys/kernel/config/nvmet, or a copy with its links"));
        }
        names.sort();
        Ok(names.into_iter().map(Value::String).collect())
    }

    /// The names in a folder.
    fn names(&mut self, path: &Path) -> Result<Vec<String>, ImportError> {
        let names = match found(self.reader, path)? {
            TreeEntry::Folder(names) => names,
            _ => return Err(ImportError::new(format!("{} is no folder", path.display()), HINT)),
        };
        self.entries = self.entries.saturating_add(names.len());
        if self.entries > MAX_TREE_ENTRIES {
            let what = format!("the folder has more than {MAX_TREE_ENTRIES} entries");
            return Err(ImportError::new(what, HINT));
        }
        Ok(names)
    }

    /// The text of an attribute.
    fn text(&self, path: &Path) -> Result<String, ImportError> {
        let what = match found(self.reader, path)? {
            TreeEntry::File(text) if text.len() <= MAX_ATTRIBUTE => return Ok(text),
            TreeEntry::File(_) => format!("{} has more than {MAX_ATTRIBUTE} bytes", path.display()),
            _ => format!("{} is no file", path.display()),
        };
        Err(ImportError::new(what, HINT))
    }
}

fn is_attribute(name: &str) -> bool {
    let is_of_group = name.split_once('_').is_some_and(|(group, _)| GROUPS.contains(&group));
    is_of_group || ATTRIBUTES.contains(&name)
}

fn attribute(all: &mut Map<String, Value>, name: &str, text: &str) {
    let value = Value::String(text.trim().to_owned());
    let group = name.split_once('_').filter(|(group, _)| GROUPS.contains(group));
    let Some((group, key)) = group else {
        all.insert(name.to_owned(), value);
        return;
    };
    let group = all.entry(group).or_insert_with(|| Value::Object(Map::new()));
    if let Some(group) = group.as_object_mut() {
        group.insert(key.to_owned(), value);
    }
}

/// The last part of the target of a link, if the part before it is the folder `to`.
fn linked<'a>(target: &'a str, to: &str) -> Option<&'a str> {
    let (above, name) = target.rsplit_once('/')?;
    let is_in_folder = above.rsplit('/').next() == Some(to);
    (is_in_folder && !matches!(name, "" | "." | "..")).then_some(name)
}

fn found(reader: TreeReader<'_>, path: &Path) -> Result<TreeEntry, ImportError> {
    // An attribute that is not read could be a secret, without which a host would need none.
    reader(path).map_err(|e| ImportError::new(format!("cannot read {}: {e}", path.display()), HINT))
}

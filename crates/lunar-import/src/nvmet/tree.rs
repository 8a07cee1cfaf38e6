//! The tree in configfs, in the form of nvmetcli's file. Each object is a folder, and each attribute a file in it.

use crate::{Found, ImportError, Reader};
use serde_json::{Map, Value};
use std::path::Path;

pub(super) const HINT: &str = "give /sys/kernel/config/nvmet, and read it as root";
/// Groups of attributes: the file `addr_traddr` is `traddr` of `addr`.
const GROUPS: &[&str] = &["addr", "attr", "device", "dhchap", "param"];
/// Folders whose folders are objects, with the key that has the name of an object.
const LISTS: &[(&str, &str)] = &[
    ("hosts", "nqn"),
    ("ports", "portid"),
    ("subsystems", "nqn"),
    ("namespaces", "nsid"),
    ("referrals", "name"),
    ("ana_groups", "grpid"),
];
/// Path components of the deepest folder with objects, such as `subsystems/NQN/namespaces`.
const MAX_DEPTH: usize = 3;
/// An attribute that can only be written.
const WRITE_ONLY: &str = "revalidate_size";

/// Reads the tree.
pub(super) fn read(reader: Reader<'_>) -> Result<Map<String, Value>, ImportError> {
    object(reader, Path::new(""))
}

fn object(reader: Reader<'_>, path: &Path) -> Result<Map<String, Value>, ImportError> {
    let mut all = Map::new();
    for name in names(reader, path)?.iter().filter(|name| *name != WRITE_ONLY) {
        let path = path.join(name);
        match found(reader, &path)? {
            Found::File(text) => attribute(&mut all, name, text),
            Found::Folder(names) => _ = all.insert(name.clone(), folder(reader, &path, name, &names)?),
        }
    }
    Ok(all)
}

fn attribute(all: &mut Map<String, Value>, name: &str, text: String) {
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

/// A folder: a list of objects, a list of links, or an object.
fn folder(reader: Reader<'_>, path: &Path, name: &str, names: &[String]) -> Result<Value, ImportError> {
    let is_below_port = path.parent().and_then(Path::parent).is_some_and(|above| above.ends_with("ports"));
    let list = match LISTS.iter().find(|(list, _)| *list == name) {
        _ if path.components().count() > MAX_DEPTH => links(names),
        Some(("subsystems", _)) if is_below_port => links(names),
        Some((_, key)) => objects(reader, path, key, names)?,
        None if name == "passthru" => vec![Value::Object(object(reader, path)?)],
        None => links(names),
    };
    Ok(Value::Array(list))
}

fn links(names: &[String]) -> Vec<Value> {
    names.iter().map(|name| Value::String(name.clone())).collect()
}

fn objects(reader: Reader<'_>, path: &Path, key: &str, names: &[String]) -> Result<Vec<Value>, ImportError> {
    // The order of a folder means nothing.
    let mut names = names.to_vec();
    names.sort_by_key(|name| (name.len(), name.clone()));
    let one = |name: String| {
        let mut all = object(reader, &path.join(&name))?;
        all.insert(key.to_owned(), Value::String(name));
        Ok(Value::Object(all))
    };
    names.into_iter().map(one).collect()
}

fn names(reader: Reader<'_>, path: &Path) -> Result<Vec<String>, ImportError> {
    match found(reader, path)? {
        Found::Folder(names) => Ok(names),
        Found::File(_) => Err(ImportError::new(format!("{} is a file, and no folder", path.display()), HINT)),
    }
}

fn found(reader: Reader<'_>, path: &Path) -> Result<Found, ImportError> {
    // An attribute that is not read could be a secret, without which a host would need none.
    reader(path).map_err(|e| ImportError::new(format!("cannot read {}: {e}", path.display()), HINT))
}

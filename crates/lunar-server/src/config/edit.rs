//! Changes of single objects. The API writes only files of the folder `api` beside the configuration, one object a file.
//! An object of another file belongs to an administrator, and stays as it is.

mod entry_name;
mod lasting;

pub(super) use entry_name::{last_number, numbered};

use super::document::absolute;
use super::{Config, Sources, api_folder};
use entry_name::EntryPlace;
use lunar_admin::{
    ConfigObject, ControlError, ControlErrorKind, Keys, ObjectAction, ObjectChange, ObjectId, ObjectOrigin,
};
use lunar_config::{ConfigFile, Diagnostic, ErrorCode};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditedFiles {
    /// All files in order.
    pub files: Vec<ConfigFile>,
    /// The files that change, with absolute paths.
    pub writes: Vec<FileWrite>,
}

/// A file that changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileWrite {
    /// Its absolute path.
    pub path: PathBuf,
    /// Its new text; None: the file is removed.
    pub text: Option<String>,
    /// The text that was loaded; None: a new file.
    pub loaded: Option<String>,
}

/// The files of the configuration after a change. Nothing is written.
///
/// # Errors
/// When the object does not exist or exists already, belongs to a file of an administrator, or its keys are no keys.
pub fn edit(config: &Config, change: &ObjectChange) -> Result<EditedFiles, ControlError> {
    let edit = Edit { sources: &config.sources, change };
    if config.sources.whole.as_os_str().is_empty() {
        return Err(ControlError::conflict(
            "the server was started without a configuration file",
            "start it with --config FILE",
        ));
    }
    let writes = match &change.action {
        ObjectAction::Delete => edit.removed()?,
        ObjectAction::Create(keys) => {
            vec![(edit.new_path(&change.id)?, Some(object_text(&change.id, keys.clone(), None)?))]
        }
        ObjectAction::Move(to) => edit.moved(config, to)?,
        ObjectAction::Insert(keys) => {
            vec![(edit.inserted_path()?, Some(object_text(&change.id, keys.clone(), None)?))]
        }
        ObjectAction::Replace(keys) => vec![edit.replaced(edit.existing()?, keys.clone())?],
        ObjectAction::Merge(patch) => {
            let object = edit.existing()?;
            let mut keys = object.keys.clone();
            merge_patch(&mut keys, patch);
            vec![edit.replaced(object, keys)?]
        }
    };
    Ok(with_writes(&config.sources, writes, change.transient))
}

/// Files that exist only in the memory of a server, by their absolute paths: their text, or None for a file that counts
/// as removed.
pub type TransientFiles = BTreeMap<PathBuf, Option<String>>;

/// The files of the configuration at `whole`, with transient ones instead of those of the disk.
pub(super) fn overlay(files: Vec<ConfigFile>, whole: &Path, transient: &TransientFiles) -> Vec<ConfigFile> {
    if transient.is_empty() {
        return files;
    }
    let sources = Sources { whole: whole.to_path_buf(), files: Arc::new(files), ..Sources::default() };
    let writes = transient.iter().map(|(path, text)| (listed(&sources, path), text.clone()));
    with_writes(&sources, writes.collect(), true).files
}

/// A file by its path as in the list of files, and its new text.
pub(super) type Written = (PathBuf, Option<String>);

struct Edit<'c> {
    sources: &'c Sources,
    change: &'c ObjectChange,
}

impl<'c> Edit<'c> {
    /// The object, which the API may change.
    fn existing(&self) -> Result<&'c ConfigObject, ControlError> {
        let id = &self.change.id;
        let object = self.sources.document.get(id).ok_or_else(|| absent(id))?;
        self.owned(id, object).map(|()| object)
    }

    /// Checks that the API may change the file of an object.
    fn owned(&self, id: &ObjectId, object: &ConfigObject) -> Result<(), ControlError> {
        let mut others =
            self.sources.document.iter().filter(|(_, other)| other.source.file == object.source.file);
        let what = match object.source.origin {
            ObjectOrigin::File => format!("{id} is in {}, which the API does not change", place(object)),
            _ => match others.find(|(other, _)| *other != id) {
                Some((other, _)) => format!("{id} is in {}, and so is {other}", place(object)),
                None => return Ok(()),
            },
        };
        Err(ControlError::conflict(
            what,
            "edit the file and run lunar reload, or move the object with lunar adopt",
        ))
    }

    fn replaced(&self, object: &ConfigObject, keys: Keys) -> Result<Written, ControlError> {
        Ok((listed(self.sources, &object.source.file), Some(object_text(&self.change.id, keys, None)?)))
    }

    /// Removes the object, and those of a target or subsystem with it: first the disks, so that a crash between two files
    /// leaves a configuration that is valid and exposes no disk without its access list or secrets.
    fn removed(&self) -> Result<Vec<Written>, ControlError> {
        self.existing()?;
        let (id, document) = (&self.change.id, &self.sources.document);
        let is_meant = |other: &ObjectId| other == id || other.parent().as_ref() == Some(id);
        let mut writes = Vec::new();
        for (id, object) in document.iter().filter(|(other, _)| is_meant(other)) {
            self.owned(id, object)?;
            let order = match id {
                ObjectId::Lun(..) | ObjectId::Namespace(..) => 0,
                ObjectId::Access(..) | ObjectId::Host(..) => 1,
                _ => 2,
            };
            writes.push((order, listed(self.sources, &object.source.file)));
        }
        writes.sort();
        Ok(writes.into_iter().map(|(_, path)| (path, None)).collect())
    }

    /// Moves a LUN, with the keys that keep its identity.
    fn moved(&self, config: &Config, to: &ObjectId) -> Result<Vec<Written>, ControlError> {
        let object = self.existing()?;
        if self.change.transient && object.source.origin != ObjectOrigin::Transient {
            let what = format!("{} cannot move until the next start only", self.change.id);
            return Err(ControlError::conflict(what, "move it without --transient (transient=true)"));
        }
        let path = self.new_path(to)?;
        let mut keys = object.keys.clone();
        keys.extend(lasting::keys(config, &self.change.id)?);
        let old = listed(self.sources, &object.source.file);
        Ok(vec![(path, Some(object_text(to, keys, None)?)), (old, None)])
    }

    /// Checks that an object can be created.
    fn check_new(&self, id: &ObjectId) -> Result<(), ControlError> {
        let document = &self.sources.document;
        if let Some(object) = document.get(id) {
            let what = format!("{id} exists already, in {}", place(object));
            let problem = Diagnostic::new(what, "change or remove it, or use another name");
            let problem = problem.with_code(ErrorCode::AlreadyExists);
            return Err(ControlError::one(ControlErrorKind::Conflict, problem));
        }
        match id.parent().filter(|parent| !document.contains_key(parent)) {
            Some(parent) => Err(absent(&parent)),
            None => self.check_index(),
        }
    }

    /// Checks that a new access entry follows the last one: a later place would be another one than asked for.
    fn check_index(&self) -> Result<(), ControlError> {
        let ObjectId::Access(target, at) = &self.change.id else { return Ok(()) };
        let is_of_target = |id: &&ObjectId| matches!(id, ObjectId::Access(of, _) if of == target);
        let entries = self.sources.document.keys().filter(is_of_target).count();
        if *at <= entries {
            return Ok(());
        }
        let what = format!("{} cannot be added: the next index is {entries}", self.change.id);
        Err(ControlError::invalid(what, format!("use {entries} to append it, or a lower index")))
    }

    /// The path of a new file. Access entries follow each other in the order of their creation, which their names keep.
    fn new_path(&self, id: &ObjectId) -> Result<PathBuf, ControlError> {
        self.check_new(id)?;
        let folder = api_folder(main_file(self.sources));
        let name = file_name(id);
        Ok(folder.join(match id {
            ObjectId::Access(..) => numbered(&name, last_number(&self.sources.files, &name).unwrap_or(0) + 1),
            _ => format!("{name}.toml"),
        }))
    }

    /// The path of a new access entry before the one that has its index now.
    fn inserted_path(&self) -> Result<PathBuf, ControlError> {
        let (id, document) = (&self.change.id, &self.sources.document);
        let (ObjectId::Access(target, at), Some(next)) = (id, document.get(id)) else {
            return self.new_path(id);
        };
        self.owned(id, next)?;
        let before = at.checked_sub(1).and_then(|at| document.get(&ObjectId::Access(target.clone(), at)));
        // An entry of another folder comes before those of the API, whatever the name of its file is.
        let before = before.filter(|before| before.source.file.parent() == next.source.file.parent());
        let place = EntryPlace { before: before.map(|before| &*before.source.file), next: &next.source.file };
        Ok(api_folder(main_file(self.sources)).join(place.name(&self.sources.files)))
    }
}

/// The text of the file of an object: its keys, or a text of them `with_comments`.
pub(super) fn object_text(
    id: &ObjectId,
    mut keys: Keys,
    with_comments: Option<&str>,
) -> Result<String, ControlError> {
    remove_nulls(&mut keys);
    for (key, value) in id.keys() {
        match keys.insert(key.clone(), value.clone()) {
            Some(other) if other != value => {
                let what = format!("`{key}` of {id} cannot be {other}");
                return Err(ControlError::invalid(what, "remove the key, which the path of the object has"));
            }
            _ => {}
        }
    }
    if let ObjectId::ChapUser(name) = id {
        keys.entry("name").or_insert_with(|| name.as_str().into());
    }
    let file = Map::from_iter([(id.array().to_owned(), Value::from(vec![Value::Object(keys)]))]);
    let text =
        with_comments.map_or_else(|| toml::to_string(&file), |text| Ok(text.to_owned())).map_err(|e| {
            let what =
                format!("{id} has a value that no key can have: {}", lunar_config::plain(&e.to_string()));
            ControlError::invalid(what, "remove null from lists, and integers above 2^63")
        })?;
    Ok(format!("# {id}, written by the API of Lunar. Edit it freely, and run `lunar reload`.\n{text}"))
}

/// The first file, with the path as in the list of files.
pub(super) fn main_file(sources: &Sources) -> &Path {
    sources.files.first().map_or(&*sources.whole, |file| &*file.path)
}

/// The path of the list of files for an absolute path of the folder of the API.
pub(super) fn listed(sources: &Sources, path: &Path) -> PathBuf {
    path.strip_prefix(api_folder(&sources.whole))
        .map_or_else(|_| path.to_path_buf(), |name| api_folder(main_file(sources)).join(name))
}

/// The files with these changes.
pub(super) fn with_writes(sources: &Sources, writes: Vec<Written>, is_transient: bool) -> EditedFiles {
    let (main, whole) = (main_file(sources), &sources.whole);
    let api = api_folder(main);
    let (of_api, mut files): (Vec<_>, Vec<_>) =
        sources.files.iter().cloned().partition(|file| file.path.parent() == Some(&api));
    let mut of_api: BTreeMap<PathBuf, ConfigFile> =
        of_api.into_iter().map(|file| (file.path.clone(), file)).collect();
    let mut list = Vec::new();
    for (path, text) in writes {
        let loaded = of_api.get(&path).map(|file| file.text.clone());
        list.push(FileWrite { path: absolute(&path, main, whole), text: text.clone(), loaded });
        match text {
            None => _ = of_api.remove(&path),
            Some(text) => _ = of_api.insert(path.clone(), ConfigFile { path, text, is_transient }),
        }
    }
    files.extend(of_api.into_values());
    EditedFiles { files, writes: list }
}

/// Removes the keys whose value is null, which means that they are absent: TOML has no null. The entries of a map, such
/// as `luns`, are no keys.
fn remove_nulls(keys: &mut Keys) {
    keys.retain(|_, value| !value.is_null());
    let lists = keys.values_mut().filter_map(Value::as_array_mut);
    lists.flatten().filter_map(Value::as_object_mut).for_each(remove_nulls);
}

/// Applies a merge patch (RFC 7396).
fn merge_patch(keys: &mut Keys, patch: &Keys) {
    for (key, value) in patch {
        match (value, keys.get_mut(key)) {
            (Value::Null, _) => _ = keys.remove(key),
            (Value::Object(patch), Some(Value::Object(known))) => merge_patch(known, patch),
            _ => _ = keys.insert(key.clone(), value.clone()),
        }
    }
}

/// A file name for an object, without a suffix: readable, and different from that of any other object.
pub fn file_name(id: &ObjectId) -> String {
    let text = match id {
        ObjectId::PortalGroup(tag) => tag.to_string(),
        ObjectId::ChapUser(name)
        | ObjectId::Disk(name)
        | ObjectId::Target(name)
        | ObjectId::Access(name, _)
        | ObjectId::Subsystem(name) => name.clone(),
        ObjectId::Lun(name, number) | ObjectId::Namespace(name, number) => format!("{name}-{number}"),
        // No NQN has a line feed.
        ObjectId::Host(subsystem, host) => format!("{subsystem}\n{host}"),
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    // The file system allows 255 bytes, and an iSCSI name has up to 223.
    let shown: String = text.chars().take(180).map(plain).collect();
    let hash = Sha256::digest(text.as_bytes());
    format!("{}-{shown}-{}", id.array(), super::hex(&hash[..4]))
}

fn place(object: &ConfigObject) -> String {
    format!("{} line {}", object.source.file.display(), object.source.line)
}

fn absent(id: &ObjectId) -> ControlError {
    let problem =
        Diagnostic::new(format!("{id} does not exist"), "list the objects, and use the name of one");
    ControlError::one(ControlErrorKind::NotFound, problem.with_code(ErrorCode::NotFound))
}

#[cfg(test)]
mod tests;

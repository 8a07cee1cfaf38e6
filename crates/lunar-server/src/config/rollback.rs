//! The return to an earlier tree, which [`shown`](super::shown) has written. Files of the API change; those of an
//! administrator stay. A tree that differs in the latter is rejected.

use super::document::json;
use super::edit::{Written, last_number, listed, main_file, numbered, object_text, with_writes};
use super::shown::{merged, without_secrets};
use super::{Config, FileWrite, GivenSecrets, Sources, api_folder, file_name};
use lunar_admin::{ConfigObject, ControlError, ControlErrorKind, Document, Keys, ObjectId, ObjectOrigin};
use lunar_config::{ConfigFile, Diagnostic, Diagnostics, Position};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The sections whose elements are objects of the API.
const OBJECT_SECTIONS: [&str; 5] = ["portal_group", "chap_user", "disk", "target", "subsystem"];

/// The changes that return to a tree. Nothing is written.
#[derive(Clone, Debug)]
pub struct TreeRollback {
    /// All files of the configuration, in order.
    pub files: Vec<ConfigFile>,
    /// The files of the API that change, with absolute paths.
    pub writes: Vec<FileWrite>,
    /// The transient files that change.
    pub transient: Vec<FileWrite>,
    /// The objects that the tree does not have.
    pub removed: Vec<ObjectId>,
    wanted: Arc<Document>,
}

/// Reads a tree of the configuration at `whole`, without its secrets. `path` is the file for diagnostics.
///
/// # Errors
/// When the tree is no configuration, for example because an older version wrote it.
pub fn tree(text: &str, path: &Path, whole: &Path) -> Result<Config, Vec<Diagnostic>> {
    let file = ConfigFile { path: path.to_path_buf(), text: text.to_owned(), is_transient: false };
    super::parse_files_with(vec![file], whole, Some(&GivenSecrets::new()))
}

/// The changes of files that return from a configuration to the tree with this text.
///
/// # Errors
/// When files of an administrator would have to change: each fault has the file and the line. When the tree is invalid.
pub fn roll_back(config: &Config, text: &str, path: &Path) -> Result<TreeRollback, ControlError> {
    let sources = &config.sources;
    let invalid = |problems| ControlError { kind: ControlErrorKind::Invalid, problems };
    let wanted = tree(text, path, &sources.whole).map_err(invalid)?.sources;
    let then = TreeText { lines: text.lines().collect(), api: api_folder(&sources.whole) };
    let mut changes = Changes::of(sources);
    changes.problems = sections(sources, &wanted, &then);
    for id in sources.document.keys().chain(wanted.document.keys()).collect::<BTreeSet<_>>() {
        changes.add(id, wanted.document.get(id), &then)?;
    }
    if !changes.problems.is_empty() {
        return Err(ControlError { kind: ControlErrorKind::Conflict, problems: changes.problems });
    }
    let saved = with_writes(sources, changes.writes, false);
    let sources = Sources { files: Arc::new(saved.files), ..sources.clone() };
    let kept = with_writes(&sources, changes.transient, true);
    let (writes, transient) = (saved.writes, kept.writes);
    Ok(TreeRollback {
        files: kept.files,
        writes,
        transient,
        removed: changes.removed,
        wanted: wanted.document,
    })
}

impl TreeRollback {
    /// Checks that the configuration of the changed files is the tree.
    ///
    /// # Errors
    /// When files that were edited by hand prevent it.
    pub fn check(&self, new: &Config) -> Result<(), ControlError> {
        let is_wanted = |(id, object): (&ObjectId, &ConfigObject)| {
            self.wanted.get(id).is_some_and(|wanted| wanted.keys == visible(object))
        };
        let document = &new.sources.document;
        match document.iter().find(|object| !is_wanted(*object)) {
            None if document.len() == self.wanted.len() => Ok(()),
            other => {
                let what = other.map_or("the tree".to_owned(), |(id, _)| id.to_string());
                let what =
                    format!("{what} cannot become as before, because of the names of files of the API");
                Err(ControlError::conflict(what, "change the objects one by one"))
            }
        }
    }
}

/// The keys of an object, without secrets.
fn visible(object: &ConfigObject) -> Keys {
    match without_secrets(object.keys.clone().into()) {
        serde_json::Value::Object(keys) => keys,
        _ => Keys::new(),
    }
}

/// The changes so far.
struct Changes<'c> {
    sources: &'c Sources,
    /// The number of objects of each file.
    objects: BTreeMap<&'c Path, usize>,
    /// The last number of the files of access entries with new ones, by the beginning of their names.
    entries: BTreeMap<String, u64>,
    writes: Vec<Written>,
    transient: Vec<Written>,
    removed: Vec<ObjectId>,
    problems: Vec<Diagnostic>,
}

impl<'c> Changes<'c> {
    fn of(sources: &'c Sources) -> Changes<'c> {
        let mut objects: BTreeMap<&Path, usize> = BTreeMap::new();
        for object in sources.document.values() {
            *objects.entry(&object.source.file).or_default() += 1;
        }
        let (writes, transient, removed, problems) = Default::default();
        Changes { sources, objects, entries: BTreeMap::new(), writes, transient, removed, problems }
    }

    /// Adds the change of an object to what the tree has.
    fn add(
        &mut self,
        id: &ObjectId,
        wanted: Option<&ConfigObject>,
        then: &TreeText<'_>,
    ) -> Result<(), ControlError> {
        let sources = self.sources;
        let origin = wanted.map(|wanted| then.origin(wanted));
        match (sources.document.get(id), wanted) {
            (Some(now), Some(wanted)) => {
                let becomes_permanent =
                    now.source.origin == ObjectOrigin::Transient && origin == Some(ObjectOrigin::Api);
                if visible(now) != wanted.keys || becomes_permanent {
                    self.owned(id, now);
                    let text = Some(object_text(id, wanted.keys.clone(), None)?);
                    self.write(listed(sources, &now.source.file), text, origin);
                }
            }
            (Some(now), None) => {
                self.owned(id, now);
                self.removed.push(id.clone());
                self.write(listed(sources, &now.source.file), None, None);
            }
            (None, Some(wanted)) if origin == Some(ObjectOrigin::File) => {
                let what = format!("{id} was here, in a file that the API does not change");
                self.problems.push(then.fault(wanted.source.line, what));
            }
            (None, Some(wanted)) => {
                let path = self.new_path(id);
                let text = Some(object_text(id, wanted.keys.clone(), None)?);
                self.write(path, text, origin);
            }
            (None, None) => {}
        }
        Ok(())
    }

    fn write(&mut self, path: PathBuf, text: Option<String>, origin: Option<ObjectOrigin>) {
        match origin {
            Some(ObjectOrigin::Transient) => self.transient.push((path, text)),
            _ => self.writes.push((path, text)),
        }
    }

    /// Reports an object whose file the API does not change.
    fn owned(&mut self, id: &ObjectId, object: &ConfigObject) {
        let source = &object.source;
        let what = match source.origin {
            ObjectOrigin::File => {
                format!("{id} differs from the tree, and the API does not change this file")
            }
            _ if self.objects.get(&*source.file).is_some_and(|objects| *objects > 1) => {
                format!("{id} differs from the tree, and the file has other objects too")
            }
            _ => return,
        };
        self.problems.push(fault(&source.file, source.line, what));
    }

    /// The path of a new file. Access entries follow those that exist.
    fn new_path(&mut self, id: &ObjectId) -> PathBuf {
        let name = file_name(id);
        let folder = api_folder(main_file(self.sources));
        if !matches!(id, ObjectId::Access(..)) {
            return folder.join(format!("{name}.toml"));
        }
        let files = &self.sources.files;
        let last = self.entries.entry(name.clone()).or_insert_with(|| last_number(files, &name).unwrap_or(0));
        *last += 1;
        folder.join(numbered(&name, *last))
    }
}

fn fault(file: &Path, line: usize, what: String) -> Diagnostic {
    let hint = "edit the file and run lunar reload, or move the object with lunar adopt";
    let position = Some(Position { line, column: 1 });
    Diagnostic { file: Some(file.to_path_buf()), position, ..Diagnostic::new(what, hint) }
}

/// The text of the tree, whose comments have the places of that time.
struct TreeText<'t> {
    lines: Vec<&'t str>,
    api: PathBuf,
}

impl TreeText<'_> {
    /// The file and line of the section or object that `line` belongs to, and whether it was transient.
    fn place(&self, line: usize) -> Option<(PathBuf, usize, bool)> {
        let before = self.lines.get(..line)?;
        let header =
            before.windows(2).rposition(|pair| pair[0].starts_with("# ") && pair[1].starts_with('['))?;
        let first = before[header].strip_prefix("# ")?.split(", ").next()?;
        let (file, line) = first.rsplit_once(':')?;
        let transient = file.strip_suffix(" (transient)");
        Some((transient.unwrap_or(file).into(), line.parse().ok()?, transient.is_some()))
    }

    /// The writer of the file that had the object.
    fn origin(&self, object: &ConfigObject) -> ObjectOrigin {
        match self.place(object.source.line) {
            Some((_, _, true)) => ObjectOrigin::Transient,
            Some((file, ..)) if file.parent() == Some(&self.api) => ObjectOrigin::Api,
            _ => ObjectOrigin::File,
        }
    }

    /// A fault at the place of that time.
    fn fault(&self, line: usize, what: String) -> Diagnostic {
        let hint = "add it to the file again, and run lunar reload";
        let place = self.place(line).map(|(file, line, _)| fault(&file, line, what.clone()));
        place.map_or_else(
            || Diagnostic::new(what, hint),
            |fault| Diagnostic { hint: Some(hint.into()), ..fault },
        )
    }
}

/// The settings outside of objects that differ. All of them belong to administrators.
fn sections(sources: &Sources, wanted: &Sources, then: &TreeText<'_>) -> Vec<Diagnostic> {
    let (mut now, mut tree) = (Diagnostics::of(&sources.files), Diagnostics::of(&wanted.files));
    let (Some(now_root), Some(tree_root)) = (merged(&mut now), merged(&mut tree)) else { return Vec::new() };
    let mut found = Vec::new();
    for key in names(&now_root, &tree_root).filter(|key| !OBJECT_SECTIONS.contains(key)) {
        difference(key, now_root.get(key), tree_root.get(key), &mut found);
    }
    let diagnostic = |(name, at)| match at {
        SettingPlace::Now(at) => {
            let (file, position) = now.place(at);
            let what = format!("`{name}` differs from the tree, and the API does not change this file");
            fault(&super::document::absolute(file, main_file(sources), &sources.whole), position.line, what)
        }
        SettingPlace::Tree(at) => {
            let what = format!("`{name}` was here, in a file that the API does not change");
            then.fault(tree.place(at).1.line, what)
        }
    };
    found.into_iter().map(diagnostic).collect()
}

/// The first byte of a setting, in the present files or in the tree.
enum SettingPlace {
    Now(usize),
    Tree(usize),
}

/// The keys of both tables.
fn names<'t>(a: &'t DeTable<'_>, b: &'t DeTable<'_>) -> impl Iterator<Item = &'t str> {
    let keys = a.keys().chain(b.keys()).map(|key| &**key.get_ref());
    keys.collect::<BTreeSet<_>>().into_iter()
}

/// Adds the settings that differ, by their dotted names.
fn difference(
    name: &str,
    now: Option<&Spanned<DeValue<'_>>>,
    tree: Option<&Spanned<DeValue<'_>>>,
    found: &mut Vec<(String, SettingPlace)>,
) {
    match (now.map(Spanned::get_ref), tree.map(Spanned::get_ref)) {
        (Some(DeValue::Table(a)), Some(DeValue::Table(b))) => {
            for key in names(a, b) {
                difference(&format!("{name}.{key}"), a.get(key), b.get(key), found);
            }
        }
        (Some(a), Some(b)) if without_secrets(json(a)) == without_secrets(json(b)) => {}
        _ => found.extend(
            now.map(|now| SettingPlace::Now(now.span().start))
                .or_else(|| tree.map(|tree| SettingPlace::Tree(tree.span().start)))
                .map(|place| (name.to_owned(), place)),
        ),
    }
}

#[cfg(test)]
mod tests;

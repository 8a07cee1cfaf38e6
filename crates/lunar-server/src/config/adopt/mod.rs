//! Moves objects from files of an administrator to files of the API, one object a file. Nothing is written here.
//!
//! A target moves with its LUNs and access entries, and a subsystem with its namespaces and hosts.
//! The first matching access entry decides, and the files of the API
//! follow all others. So the entries of a target that several files have move from the last file to the first: after
//! each step, the configuration is equal to the one before.

mod cut;

use super::document::absolute;
use super::edit::{file_name, main_file, object_text, with_writes};
use super::{Config, FileWrite, GivenSecrets, api_folder, parse_files_with};
use cut::{Part, cut};
use lunar_admin::{ConfigObject, ObjectId, ObjectOrigin};
use lunar_config::{ConfigFile, Diagnostic, ErrorCode, nearest};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files that change together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptStep {
    /// The absolute path of the file that loses objects.
    pub file: PathBuf,
    /// Its text before and after.
    pub before: String,
    /// Its text afterwards.
    pub after: String,
    /// The new files of the API, with absolute paths.
    pub new_files: Vec<FileWrite>,
    /// The objects, each with its line in the file before.
    pub objects: Vec<(ObjectId, usize)>,
}

/// The objects to adopt of those that were named: an object that the API owns already needs no change.
///
/// # Errors
/// When an object does not exist.
pub fn adoptable(config: &Config, named: &[ObjectId]) -> Result<BTreeSet<ObjectId>, Vec<Diagnostic>> {
    let document = &config.sources.document;
    let absent: Vec<Diagnostic> =
        named.iter().filter(|id| !document.contains_key(id)).map(|id| absent(config, id)).collect();
    if !absent.is_empty() {
        return Err(absent);
    }
    let is_meant =
        |id: &ObjectId| named.contains(id) || id.parent().is_some_and(|parent| named.contains(&parent));
    let meant = document.iter().filter(|(id, one)| is_meant(id) && is_of_administrator(one));
    Ok(meant.map(|(id, _)| id.clone()).collect())
}

/// All objects of administrators.
pub fn all_adoptable(config: &Config) -> BTreeSet<ObjectId> {
    let document = config.sources.document.iter();
    document.filter(|(_, one)| is_of_administrator(one)).map(|(id, _)| id.clone()).collect()
}

fn is_of_administrator(object: &ConfigObject) -> bool {
    object.source.origin == ObjectOrigin::File
}

fn absent(config: &Config, id: &ObjectId) -> Diagnostic {
    let names: Vec<String> = config.sources.document.keys().map(ObjectId::to_string).collect();
    let hint = match nearest(&id.to_string(), names.iter().map(String::as_str)) {
        Some(meant) => format!("did you mean {meant}?"),
        None => "lunar config show lists the objects".to_owned(),
    };
    Diagnostic::new(format!("{id} does not exist"), hint).with_code(ErrorCode::NotFound)
}

/// The steps that move objects to files of the API. After each of them the configuration is equal to `config`.
///
/// # Errors
/// When the configuration would not be equal.
pub fn adopt(config: &Config, objects: &BTreeSet<ObjectId>) -> Result<Vec<AdoptStep>, Vec<Diagnostic>> {
    let mut config = config.clone();
    let mut names = AccessNames::new(&config, objects);
    let mut steps = Vec::new();
    for (file, parts) in order(&config, objects) {
        let step = step(&config, &file, &parts, &mut names)?;
        if step.objects.is_empty() {
            continue;
        }
        config = after(&config, &step)?;
        steps.push(step);
    }
    Ok(steps)
}

/// The files to change in their order, each with the parts to cut out of it.
fn order(config: &Config, objects: &BTreeSet<ObjectId>) -> Vec<(PathBuf, Vec<Part>)> {
    let place = |id: &ObjectId| config.sources.document.get(id).map(|one| one.source.file.clone());
    let is_access = |id: &&ObjectId| matches!(id, ObjectId::Access(..));
    let targets = objects.iter().filter(is_access).filter_map(ObjectId::parent);
    let is_parent = |id: &&ObjectId| matches!(id, ObjectId::Target(_) | ObjectId::Subsystem(_));
    let targets: BTreeSet<ObjectId> = targets.chain(objects.iter().filter(is_parent).cloned()).collect();
    let of_target = |id: &ObjectId| id.parent().is_some_and(|parent| targets.contains(&parent));
    let mut at_once: BTreeMap<PathBuf, Vec<Part>> = BTreeMap::new();
    for id in objects.iter().filter(|id| !targets.contains(id) && !of_target(id)) {
        at_once.entry(place(id).unwrap_or_default()).or_default().push(Part::Whole(id.clone()));
    }
    let mut steps = Vec::new();
    for target in &targets {
        let own = place(target).filter(|_| objects.contains(target));
        let children = objects.iter().filter(|id| id.parent().as_ref() == Some(target));
        let others: BTreeSet<PathBuf> =
            children.filter_map(place).filter(|file| Some(file) != own.as_ref()).collect();
        if let Some(own) = own.clone().filter(|_| others.is_empty()) {
            at_once.entry(own).or_default().push(Part::Whole(target.clone()));
            continue;
        }
        let rank = |file: &PathBuf| config.sources.files.iter().position(|one| places(config, one) == *file);
        let mut files: Vec<PathBuf> = others.into_iter().chain(own.clone()).collect();
        files.sort_by_key(|file| std::cmp::Reverse(rank(file)));
        steps.extend(files.into_iter().map(|file| (file, vec![Part::Extensions(target.clone())])));
        steps.extend(own.map(|own| (own, vec![Part::Whole(target.clone())])));
    }
    steps.into_iter().chain(at_once).collect()
}

/// The absolute path of a file.
fn places(config: &Config, file: &ConfigFile) -> PathBuf {
    absolute(&file.path, main_file(&config.sources), &config.sources.whole)
}

/// The names of the files of access entries: the entries follow each other, and precede those of the API.
struct AccessNames(BTreeMap<String, (u64, usize)>);

/// The last generation of names. Each adoption takes the one before: its entries precede those of earlier ones.
const LAST_GENERATION: u64 = 999_999;

impl AccessNames {
    fn new(config: &Config, objects: &BTreeSet<ObjectId>) -> AccessNames {
        let mut names = BTreeMap::new();
        for id in objects {
            let ObjectId::Access(target, _) = id else { continue };
            let first = format!("{}-000000-", file_name(id));
            let generation = |file: &ConfigFile| {
                let name = file.path.file_stem()?.to_str()?.strip_prefix(&first)?;
                name.split('-').next()?.parse::<u64>().ok()
            };
            let before = config.sources.files.iter().filter_map(generation).min();
            let number = objects
                .iter()
                .filter(|other| matches!(other, ObjectId::Access(of, _) if of == target))
                .count();
            let generation = before.unwrap_or(LAST_GENERATION + 1).saturating_sub(1);
            names.entry(target.clone()).or_insert((generation, number));
        }
        AccessNames(names)
    }

    /// The names of the last `number` entries of a target that have none yet.
    fn take(&mut self, target: &str, number: usize) -> Vec<String> {
        let Some((generation, left)) = self.0.get_mut(target) else { return Vec::new() };
        let end = *left;
        *left -= number.min(end);
        let name = file_name(&ObjectId::Access(target.to_owned(), 0));
        (*left..end).map(|at| format!("{name}-000000-{generation:06}-{:06}", at + 1)).collect()
    }
}

/// The change of a file.
fn step(
    config: &Config,
    file: &Path,
    parts: &[Part],
    names: &mut AccessNames,
) -> Result<AdoptStep, Vec<Diagnostic>> {
    let Some(source) = config.sources.files.iter().find(|one| places(config, one) == file) else {
        return Err(vec![unequal(file)]);
    };
    let document = &config.sources.document;
    let cut =
        cut(&source.text, parts).map_err(|e| vec![Diagnostic::new(e, "report this as an error of Lunar")])?;
    // The indexes of entries in this file, in their order.
    let mut entries: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for part in parts {
        let target = part.id();
        let of = document
            .iter()
            .filter(|(id, one)| id.parent().as_ref() == Some(target) && one.source.file == file);
        let ObjectId::Target(name) = target else { continue };
        let mut of: Vec<usize> = of
            .filter_map(|(id, _)| if let ObjectId::Access(_, at) = id { Some(*at) } else { None })
            .collect();
        let moved = cut.objects.iter().filter(|one| one.access_of(name)).count();
        // Those of `[[target]]` precede the others, and move last.
        of.drain(..of.len().saturating_sub(moved));
        entries.insert(name, of);
    }
    let mut named: BTreeMap<&str, Vec<String>> =
        entries.iter().map(|(target, of)| (*target, names.take(target, of.len()))).collect();
    let api = api_folder(&config.sources.whole);
    let (mut new_files, mut objects) = (Vec::new(), Vec::new());
    for object in &cut.objects {
        let (id, name) = match &object.id {
            ObjectId::Access(target, _) => {
                let next = |list: Option<&mut Vec<String>>| {
                    list.filter(|list| !list.is_empty()).map(|list| list.remove(0))
                };
                let at = entries
                    .get_mut(target.as_str())
                    .filter(|list| !list.is_empty())
                    .map(|list| list.remove(0));
                let (Some(name), Some(at)) = (next(named.get_mut(target.as_str())), at) else {
                    return Err(vec![unequal(file)]);
                };
                (ObjectId::Access(target.clone(), at), name)
            }
            id => (id.clone(), file_name(id)),
        };
        let Some(known) = document.get(&id) else { return Err(vec![unequal(file)]) };
        let text = object_text(&id, known.keys.clone(), object.text.as_deref());
        let text = text.map_err(|e| e.problems)?;
        new_files.push(FileWrite { path: api.join(format!("{name}.toml")), text: Some(text), loaded: None });
        objects.push((id, known.source.line));
    }
    Ok(AdoptStep {
        file: file.to_path_buf(),
        before: source.text.clone(),
        after: cut.rest,
        new_files,
        objects,
    })
}

/// The configuration after a step, which must be equal to the one before.
fn after(before: &Config, step: &AdoptStep) -> Result<Config, Vec<Diagnostic>> {
    let exists = step.new_files.iter().find(|new| new.path.exists());
    if let Some(new) = exists {
        let what = format!("the file {} exists already", new.path.display());
        return Err(vec![Diagnostic::new(what, "move it away").with_code(ErrorCode::AlreadyExists)]);
    }
    let mut sources = before.sources.clone();
    let mut files = (*sources.files).clone();
    let changed = files.iter_mut().filter(|file| places(before, file) == step.file);
    changed.for_each(|file| file.text.clone_from(&step.after));
    sources.files = Arc::new(files);
    let main = main_file(&before.sources).to_path_buf();
    let listed = |new: &FileWrite| {
        (api_folder(&main).join(new.path.file_name().unwrap_or_default()), new.text.clone())
    };
    let files = with_writes(&sources, step.new_files.iter().map(listed).collect(), false).files;
    let after = parse_files_with(files, &before.sources.whole, Some(&GivenSecrets::new()))?;
    let objects = |config: &Config| -> Vec<_> {
        config.sources.document.iter().map(|(id, one)| (id.clone(), one.keys.clone())).collect()
    };
    let is_equal = crate::diff(before, &after).is_empty() && objects(before) == objects(&after);
    if is_equal { Ok(after) } else { Err(vec![unequal(&step.file)]) }
}

fn unequal(file: &Path) -> Diagnostic {
    let what = format!("the configuration would change if objects of {} moved", file.display());
    Diagnostic::new(what, "move the objects to lunar.d/api yourself, one a file")
}

#[cfg(test)]
mod tests;

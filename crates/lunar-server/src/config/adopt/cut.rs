//! Cuts objects out of the text of a file. Comments before an object move with it, and all other text stays.

use lunar_admin::ObjectId;
use std::fmt::Write;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, Value, value};

/// The objects to cut out of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// An object; with a target its LUNs and access entries, with a subsystem its namespaces and hosts.
    Whole(ObjectId),
    /// The elements that the file adds to a target with the key `target`, or to a subsystem with the key `subsystem`.
    Extensions(ObjectId),
}

impl Part {
    pub(super) fn id(&self) -> &ObjectId {
        let (Part::Whole(id) | Part::Extensions(id)) = self;
        id
    }
}

/// An object that was cut out. The index of an access entry is not known here.
pub(super) struct CutObject {
    pub(super) id: ObjectId,
    /// Its text if it has comments; None: its keys are all there is.
    pub(super) text: Option<String>,
}

impl CutObject {
    pub(super) fn access_of(&self, target: &str) -> bool {
        matches!(&self.id, ObjectId::Access(of, _) if of == target)
    }
}

/// The objects, and the rest of the file.
pub(super) struct Cut {
    pub(super) objects: Vec<CutObject>,
    pub(super) rest: String,
}

/// Cuts parts out of a text.
pub(super) fn cut(text: &str, parts: &[Part]) -> Result<Cut, String> {
    let mut document: DocumentMut = text.parse().map_err(|e: toml_edit::TomlError| e.to_string())?;
    let mut objects = Vec::new();
    for part in parts {
        let mut found = match part {
            Part::Whole(id) => whole(&mut document, id),
            Part::Extensions(id) => extensions(&mut document, id),
        };
        for (id, table) in &mut found {
            objects.push(CutObject { id: id.clone(), text: commented(id, table.take().unwrap_or_default()) });
        }
    }
    let mut rest = document.to_string();
    if !text.starts_with('\n') {
        rest.drain(..rest.len() - rest.trim_start_matches('\n').len());
    }
    Ok(Cut { objects, rest })
}

/// An object and its table.
type ObjectTable = (ObjectId, Option<Table>);

/// A table that may be an inline one.
type AnyTable = dyn toml_edit::TableLike;

fn whole(document: &mut DocumentMut, id: &ObjectId) -> Vec<ObjectTable> {
    let tables = match id {
        ObjectId::Target(_) | ObjectId::Subsystem(_) => return parent(document, id),
        ObjectId::PortalGroup(tag) => take_of(document, |root| {
            take(root, id.array(), &|one| integer(one, "tag") == Some((*tag).into()))
        }),
        ObjectId::Disk(name) => {
            take_of(document, |root| take(root, id.array(), &|one| text(one, "name") == Some(name)))
        }
        ObjectId::ChapUser(user) => {
            let is = |one: &AnyTable| text(one, "id").or(text(one, "name")) == Some(user);
            take_of(document, |root| take(root, id.array(), &is))
        }
        ObjectId::Lun(_, lun) => child(document, id, &|one| integer(one, "lun") == Some((*lun).into())),
        ObjectId::Namespace(_, nsid) => {
            child(document, id, &|one| integer(one, "nsid") == Some((*nsid).into()))
        }
        ObjectId::Host(_, host) => child(document, id, &|one| text(one, "nqn") == Some(host)),
        ObjectId::Access(..) => Vec::new(),
    };
    tables.into_iter().map(|table| (id.clone(), Some(table))).collect()
}

/// The key that identifies a target or subsystem, its value, and the arrays of its elements.
fn family(parent: &ObjectId) -> Option<(&'static str, &str, [&'static str; 2])> {
    match parent {
        ObjectId::Target(name) => Some(("name", name.as_str(), ["lun", "access"])),
        ObjectId::Subsystem(nqn) => Some(("nqn", nqn.as_str(), ["namespace", "host"])),
        _ => None,
    }
}

/// The tables of an element that `is` selects: first those that the file adds to its parent.
fn child(document: &mut DocumentMut, id: &ObjectId, is: &dyn Fn(&AnyTable) -> bool) -> Vec<Table> {
    let parent = id.parent();
    let Some((parent, (key, name, _))) = parent.as_ref().and_then(|parent| Some((parent, family(parent)?)))
    else {
        return Vec::new();
    };
    let is_added = |one: &AnyTable| text(one, parent.array()) == Some(name) && is(one);
    let mut tables = take_of(document, |root| take(root, id.array(), &is_added));
    let place = (parent.array(), key, name);
    tables.extend(take_of(document, |root| in_parent(root, place, |parent| take(parent, id.array(), is))));
    tables
}

/// A target or subsystem with its elements: first those in its own table.
fn parent(document: &mut DocumentMut, id: &ObjectId) -> Vec<ObjectTable> {
    let Some((key, name, arrays)) = family(id) else { return Vec::new() };
    let mut found = Vec::new();
    for mut table in take_of(document, |root| take(root, id.array(), &|one| text(one, key) == Some(name))) {
        let elements = arrays.map(|array| (array, take(&mut table, array, &|_| true)));
        found.push((id.clone(), Some(table)));
        found.extend(elements.into_iter().flat_map(|elements| children(id, elements)));
    }
    found.extend(extensions(document, id));
    found
}

/// The elements that the file adds to a target or subsystem.
fn extensions(document: &mut DocumentMut, id: &ObjectId) -> Vec<ObjectTable> {
    let Some((_, name, arrays)) = family(id) else { return Vec::new() };
    let is = |one: &AnyTable| text(one, id.array()) == Some(name);
    let elements = arrays.map(|array| (array, take_of(document, |root| take(root, array, &is))));
    elements.into_iter().flat_map(|elements| children(id, elements)).collect()
}

fn children(parent: &ObjectId, (array, tables): (&str, Vec<Table>)) -> Vec<ObjectTable> {
    let name = family(parent).map(|(_, name, _)| name.to_owned()).unwrap_or_default();
    let number = |table: &Table, key| {
        integer(table, key).and_then(|number| number.try_into().ok()).unwrap_or_default()
    };
    let id = |table: &Table| match array {
        "lun" => ObjectId::Lun(name.clone(), number(table, "lun")),
        "namespace" => ObjectId::Namespace(name.clone(), number(table, "nsid")),
        "host" => ObjectId::Host(name.clone(), text(table, "nqn").unwrap_or_default().to_owned()),
        _ => ObjectId::Access(name.clone(), 0),
    };
    tables.into_iter().map(|table| (id(&table), Some(table))).collect()
}

fn text<'t>(table: &'t AnyTable, key: &str) -> Option<&'t str> {
    table.get(key)?.as_str()
}

fn integer(table: &AnyTable, key: &str) -> Option<i64> {
    table.get(key)?.as_integer()
}

/// Takes tables out of the document. Comments that do not belong to them stay before the next table.
fn take_of(document: &mut DocumentMut, take: impl FnOnce(&mut Table) -> Vec<Table>) -> Vec<Table> {
    let mut tables = take(document.as_table_mut());
    for table in &mut tables {
        let prefix = table.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default().to_owned();
        let (stays, moves) = prefix.split_at(own_comment(&prefix));
        if let Some(position) = table.position().filter(|_| !stays.trim().is_empty()) {
            put_back(document, stays, position);
        }
        table.decor_mut().set_prefix(moves);
    }
    tables
}

/// Where the lines begin that directly precede an object.
fn own_comment(prefix: &str) -> usize {
    prefix.rfind("\n\n").map_or_else(|| usize::from(prefix.starts_with('\n')), |at| at + 2)
}

/// Puts text before the first table after a position, or at the end of the document.
fn put_back(document: &mut DocumentMut, text: &str, position: isize) {
    let mut next = None;
    each_table(document.as_table_mut(), &mut |table| {
        let after = table.position().filter(|at| *at > position && !table.is_implicit());
        next = after.into_iter().chain(next).min();
    });
    let text = text.trim_end_matches('\n');
    let Some(next) = next else {
        let end = document.trailing().as_str().unwrap_or_default().to_owned();
        return document.set_trailing(format!("{text}\n{end}"));
    };
    each_table(document.as_table_mut(), &mut |table| {
        if table.position() == Some(next) && !table.is_implicit() {
            let own = table.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default();
            let prefix = format!("{text}\n\n{}", own.trim_start_matches('\n'));
            table.decor_mut().set_prefix(prefix);
        }
    });
}

/// Calls `each` for all tables below a table.
fn each_table(table: &mut Table, each: &mut impl FnMut(&mut Table)) {
    for (_, item) in table.iter_mut() {
        match item {
            Item::Table(below) => {
                each(below);
                each_table(below, each);
            }
            Item::ArrayOfTables(list) => list.iter_mut().for_each(|below| {
                each(below);
                each_table(below, each);
            }),
            _ => {}
        }
    }
}

/// The elements that `take` finds in a parent, by its array, the key that identifies it, and its name.
fn in_parent(
    root: &mut Table,
    (array, key, name): (&str, &str, &str),
    take: impl Fn(&mut Table) -> Vec<Table>,
) -> Vec<Table> {
    match root.get_mut(array) {
        Some(Item::ArrayOfTables(list)) => {
            let mut parents = list.iter_mut().filter(|parent| text(*parent, key) == Some(name));
            parents.next().map(take).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// Removes the tables of a list that `is` selects, and the list if none is left.
fn take(table: &mut Table, key: &str, is: &dyn Fn(&AnyTable) -> bool) -> Vec<Table> {
    let mut taken = Vec::new();
    let is_empty = match table.get_mut(key) {
        Some(Item::ArrayOfTables(list)) => {
            let mut at = 0;
            while let Some(one) = list.get(at) {
                match is(one) {
                    true => taken.push(list.remove(at)),
                    false => at += 1,
                }
            }
            list.is_empty()
        }
        Some(Item::Value(Value::Array(list))) => {
            let mut at = 0;
            while let Some(one) = list.get(at) {
                match one.as_inline_table() {
                    Some(one) if is(one) => taken.extend(inline(list.remove(at))),
                    _ => at += 1,
                }
            }
            list.is_empty()
        }
        _ => false,
    };
    if is_empty && !taken.is_empty() {
        table.remove(key);
    }
    taken
}

/// An element of a list in brackets as a table, with its comments.
fn inline(value: Value) -> Option<Table> {
    let prefix = value.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default().to_owned();
    let Value::InlineTable(table) = value else { return None };
    let mut table = table.into_table();
    table.fmt();
    let comments = prefix.lines().map(str::trim).filter(|line| line.starts_with('#'));
    table.decor_mut().set_prefix(comments.map(|line| format!("{line}\n")).collect::<String>());
    Some(table)
}

/// The text of an object that has comments.
fn commented(id: &ObjectId, mut table: Table) -> Option<String> {
    if let Some(parent) = id.parent()
        && let Some((_, name, _)) = family(&parent)
        && !table.contains_key(parent.array())
    {
        let key = parent.array();
        table.insert(key, value(name));
        table.sort_values_by(|a, _, b, _| (a.get() != key).cmp(&(b.get() != key)));
    }
    let prefix = table.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default().to_owned();
    let lead = prefix.trim_matches('\n').to_owned();
    table.decor_mut().set_prefix(if lead.is_empty() { lead } else { lead + "\n" });
    let plain = plain(&table);
    let mut list = ArrayOfTables::new();
    list.push(table);
    let mut document = DocumentMut::new();
    document.insert(id.array(), Item::ArrayOfTables(list));
    let mut text = String::new();
    _ = write!(text, "{document}");
    // A comment is what the text has and its values do not.
    (text.matches('#').count() > plain.matches('#').count()).then_some(text)
}

/// The values of a table without comments.
fn plain(table: &Table) -> String {
    let mut table = table.clone().into_inline_table();
    table.fmt();
    table.to_string()
}

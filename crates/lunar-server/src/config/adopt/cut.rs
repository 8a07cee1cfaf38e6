//! Cuts objects out of the text of a file. Comments before an object move with it, and all other text stays.

use lunar_admin::ObjectId;
use std::fmt::Write;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, Value, value};

/// The objects to cut out of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// An object; with a target its LUNs and access entries.
    Whole(ObjectId),
    /// The LUNs and access entries that the file adds to a target with the key `target`.
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
            Part::Extensions(ObjectId::Target(name)) => extensions(&mut document, name),
            Part::Extensions(_) => Vec::new(),
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

fn whole(document: &mut DocumentMut, id: &ObjectId) -> Vec<ObjectTable> {
    let found = |tables: Vec<Table>| tables.into_iter().map(|table| (id.clone(), Some(table))).collect();
    match id {
        ObjectId::Target(name) => target(document, name),
        ObjectId::PortalGroup(tag) => found(take_of(document, |root| {
            take(root, id.array(), &|one| integer(one, "tag") == Some((*tag).into()))
        })),
        ObjectId::Disk(name) => {
            found(take_of(document, |root| take(root, id.array(), &|one| text(one, "name") == Some(name))))
        }
        ObjectId::ChapUser(user) => {
            let is = |one: &dyn toml_edit::TableLike| text(one, "id").or(text(one, "name")) == Some(user);
            found(take_of(document, |root| take(root, id.array(), &is)))
        }
        ObjectId::Lun(name, lun) => {
            let is = |one: &dyn toml_edit::TableLike| integer(one, "lun") == Some((*lun).into());
            let is_added = |one: &dyn toml_edit::TableLike| text(one, "target") == Some(name) && is(one);
            let mut tables = take_of(document, |root| take(root, "lun", &is_added));
            tables.extend(take_of(document, |root| in_target(root, name, |target| take(target, "lun", &is))));
            found(tables)
        }
        ObjectId::Access(..) => Vec::new(),
    }
}

/// A target, its LUNs and its access entries: first those of `[[target]]`.
fn target(document: &mut DocumentMut, name: &str) -> Vec<ObjectTable> {
    let mut found = Vec::new();
    let is = |one: &dyn toml_edit::TableLike| text(one, "name") == Some(name);
    for mut table in take_of(document, |root| take(root, "target", &is)) {
        let luns = take(&mut table, "lun", &|_| true);
        let access = take(&mut table, "access", &|_| true);
        found.push((ObjectId::Target(name.to_owned()), Some(table)));
        found.extend(children(name, luns, access));
    }
    found.extend(extensions(document, name));
    found
}

/// The entries that the file adds to a target.
fn extensions(document: &mut DocumentMut, name: &str) -> Vec<ObjectTable> {
    let is = |one: &dyn toml_edit::TableLike| text(one, "target") == Some(name);
    let luns = take_of(document, |root| take(root, "lun", &is));
    let access = take_of(document, |root| take(root, "access", &is));
    children(name, luns, access)
}

fn children(target: &str, luns: Vec<Table>, access: Vec<Table>) -> Vec<ObjectTable> {
    let lun = |table: Table| {
        let number = integer(&table, "lun").and_then(|number| number.try_into().ok()).unwrap_or_default();
        (ObjectId::Lun(target.to_owned(), number), Some(table))
    };
    let entry = |table: Table| (ObjectId::Access(target.to_owned(), 0), Some(table));
    luns.into_iter().map(lun).chain(access.into_iter().map(entry)).collect()
}

fn text<'t>(table: &'t dyn toml_edit::TableLike, key: &str) -> Option<&'t str> {
    table.get(key)?.as_str()
}

fn integer(table: &dyn toml_edit::TableLike, key: &str) -> Option<i64> {
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

/// The LUNs that `take` finds in a target.
fn in_target(root: &mut Table, name: &str, take: impl Fn(&mut Table) -> Vec<Table>) -> Vec<Table> {
    match root.get_mut("target") {
        Some(Item::ArrayOfTables(list)) => {
            let mut targets = list.iter_mut().filter(|target| text(*target, "name") == Some(name));
            targets.next().map(take).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// Removes the tables of a list that `is` selects, and the list if none is left.
fn take(table: &mut Table, key: &str, is: &dyn Fn(&dyn toml_edit::TableLike) -> bool) -> Vec<Table> {
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
        && let ObjectId::Target(name) = parent
        && !table.contains_key("target")
    {
        table.insert("target", value(name));
        table.sort_values_by(|a, _, b, _| (a.get() != "target").cmp(&(b.get() != "target")));
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

//! `[[lun]]` and `[[access]]` with the key `target`: a file adds a LUN or an access entry to a target of another file.

use lunar_config::{Diagnostics, merge, nearest};
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// The kinds of elements that a file can add to a target: the key, and the name in diagnostics.
const KINDS: [(&str, &str); 2] = [("lun", "[[lun]]"), ("access", "[[access]]")];

/// An element to add to a target.
struct Extension<'a> {
    kind: (&'static str, &'static str),
    element: Spanned<DeValue<'a>>,
}

/// Merges the tables of all files. The elements for targets follow those of the targets, in the order of files.
pub(super) fn whole<'a>(p: &mut Diagnostics<'_>, tables: Vec<DeTable<'a>>) -> DeTable<'a> {
    let mut whole = DeTable::new();
    let mut extensions = Vec::new();
    for mut table in tables {
        for kind in KINDS {
            extensions.extend(taken(&mut table, kind));
        }
        merge(p, &mut whole, table);
    }
    for extension in extensions {
        add(p, &mut whole, extension);
    }
    whole
}

/// Removes the elements of a kind from the table of a file. `[access.NAME]` is a table, and stays.
fn taken<'a>(table: &mut DeTable<'a>, kind: (&'static str, &'static str)) -> Vec<Extension<'a>> {
    let is_array = table.get(kind.0).is_some_and(|value| value.get_ref().is_array());
    let Some(DeValue::Array(array)) =
        is_array.then(|| table.remove(kind.0)).flatten().map(Spanned::into_inner)
    else {
        return Vec::new();
    };
    array.into_iter().map(|element| Extension { kind, element }).collect()
}

fn add<'a>(p: &mut Diagnostics<'_>, whole: &mut DeTable<'a>, mut extension: Extension<'a>) {
    let Some((name, at)) = target_of(p, &mut extension) else { return };
    let target = match found(whole, &name) {
        Some(target) => target,
        None => return unknown(p, whole, &name, &at),
    };
    let (key, at) = (extension.kind.0, extension.element.span());
    match target.get_mut(key).map(Spanned::get_mut) {
        Some(DeValue::Array(array)) => array.push(extension.element),
        // The reader of the target reports the wrong type.
        Some(_) => {}
        None => {
            let array = DeArray::from_iter([extension.element]);
            let key = Spanned::new(at.clone(), key.into());
            target.insert(key, Spanned::new(at, DeValue::Array(array)));
        }
    }
}

/// Removes the key `target` of an element, and returns its value.
fn target_of(p: &mut Diagnostics<'_>, extension: &mut Extension<'_>) -> Option<(String, Range<usize>)> {
    let (kind, at) = (extension.kind.1, extension.element.span());
    let DeValue::Table(table) = extension.element.get_mut() else {
        let hint = format!("write {kind} on a separate line");
        p.add(&at, format!("`{}` must be a list of tables", extension.kind.0), hint);
        return None;
    };
    let Some(value) = table.remove("target") else {
        p.add(&at, format!("{kind} has no `target`"), "add target = \"iqn.2026-11.org.example:disks\"");
        return None;
    };
    let name = lunar_config::text(p, "target", &value)?;
    Some((name.to_owned(), value.span()))
}

/// The target with this name.
fn found<'t, 'a>(whole: &'t mut DeTable<'a>, name: &str) -> Option<&'t mut DeTable<'a>> {
    let targets = match whole.get_mut("target")?.get_mut() {
        DeValue::Array(targets) => targets,
        _ => return None,
    };
    targets.iter_mut().find_map(|target| match target.get_mut() {
        DeValue::Table(table) if is_named(table, name) => Some(table),
        _ => None,
    })
}

fn is_named(target: &DeTable<'_>, name: &str) -> bool {
    name_of(target).is_some_and(|own| own == name)
}

fn name_of<'t>(target: &'t DeTable<'_>) -> Option<&'t str> {
    target.get("name")?.get_ref().as_str()
}

fn unknown(p: &mut Diagnostics<'_>, whole: &DeTable<'_>, name: &str, at: &Range<usize>) {
    let targets = whole.get("target").and_then(|targets| targets.get_ref().as_array());
    let names = targets.into_iter().flat_map(|targets| targets.iter());
    let names = names.filter_map(|target| name_of(target.get_ref().as_table()?));
    let hint = match nearest(name, names) {
        Some(meant) => format!("did you mean \"{}\"?", meant.escape_debug()),
        None => "add [[target]] with this name".to_string(),
    };
    p.add(at, format!("unknown target \"{}\"", name.escape_debug()), hint);
}

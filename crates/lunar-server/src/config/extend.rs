//! `[[lun]]` and `[[access]]` with the key `target`: a file adds a LUN or an access entry to a target of another file.

use lunar_config::{Diagnostics, merge, nearest};
use std::collections::BTreeMap;
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
    let places = places(&whole);
    for extension in extensions {
        add(p, &mut whole, &places, extension);
    }
    whole
}

/// The place of each target in the list, by its name.
fn places(whole: &DeTable<'_>) -> BTreeMap<String, usize> {
    let mut places = BTreeMap::new();
    for (place, target) in targets(whole).enumerate() {
        if let Some(name) = target.get_ref().as_table().and_then(name_of) {
            places.entry(name.to_owned()).or_insert(place);
        }
    }
    places
}

fn targets<'t, 'a>(whole: &'t DeTable<'a>) -> impl Iterator<Item = &'t Spanned<DeValue<'a>>> {
    let targets = whole.get("target").and_then(|targets| targets.get_ref().as_array());
    targets.into_iter().flat_map(|targets| targets.iter())
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

fn add<'a>(
    p: &mut Diagnostics<'_>,
    whole: &mut DeTable<'a>,
    places: &BTreeMap<String, usize>,
    mut extension: Extension<'a>,
) {
    let Some((name, at)) = target_of(p, &mut extension) else { return };
    let Some(target) = places.get(&name).and_then(|place| target_at(whole, *place)) else {
        return unknown(p, places, &name, &at);
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

/// The target at this place of the list.
fn target_at<'t, 'a>(whole: &'t mut DeTable<'a>, place: usize) -> Option<&'t mut DeTable<'a>> {
    let DeValue::Array(targets) = whole.get_mut("target")?.get_mut() else { return None };
    match targets.get_mut(place)?.get_mut() {
        DeValue::Table(table) => Some(table),
        _ => None,
    }
}

fn name_of<'t>(target: &'t DeTable<'_>) -> Option<&'t str> {
    target.get("name")?.get_ref().as_str()
}

fn unknown(p: &mut Diagnostics<'_>, places: &BTreeMap<String, usize>, name: &str, at: &Range<usize>) {
    let hint = match nearest(name, places.keys().map(String::as_str)) {
        Some(meant) => format!("did you mean \"{}\"?", meant.escape_debug()),
        None => "add [[target]] with this name".to_string(),
    };
    p.add(at, format!("unknown target \"{}\"", name.escape_debug()), hint);
}

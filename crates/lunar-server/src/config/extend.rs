//! `[[lun]]` and `[[access]]` with the key `target`, and `[[namespace]]` and `[[host]]` with the key `subsystem`: a file adds
//! an element to a target or subsystem of another file.

use lunar_config::{Diagnostics, merge, nearest};
use std::collections::BTreeMap;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// The objects to which a file can add elements: the array, which is also the key that names them, the key that identifies
/// them, and an example of its value.
const PARENTS: [[&str; 3]; 2] = [
    ["target", "name", "iqn.2026-11.org.example:disks"],
    ["subsystem", "nqn", "nqn.2026-11.org.example:disks"],
];

/// The kinds of elements: the array, and the place of the parent in `PARENTS`.
const KINDS: [(&str, usize); 4] = [("lun", 0), ("access", 0), ("namespace", 1), ("host", 1)];

/// An element to add to a parent.
struct Extension<'a> {
    key: &'static str,
    parent: usize,
    element: Spanned<DeValue<'a>>,
}

/// The place of each parent in its list, by its name.
type ParentPlaces = [BTreeMap<String, usize>; 2];

/// Merges the tables of all files. The elements for parents follow those of the parents, in the order of files.
pub(super) fn whole<'a>(p: &mut Diagnostics<'_>, tables: Vec<DeTable<'a>>) -> DeTable<'a> {
    let mut whole = DeTable::new();
    let mut extensions = Vec::new();
    for mut table in tables {
        for (key, parent) in KINDS {
            let elements = taken(&mut table, key).into_iter();
            extensions.extend(elements.map(|element| Extension { key, parent, element }));
        }
        merge(p, &mut whole, table);
    }
    let places = PARENTS.map(|[array, key, _]| places(&whole, array, key));
    for extension in extensions {
        add(p, &mut whole, &places, extension);
    }
    whole
}

fn places(whole: &DeTable<'_>, array: &str, key: &str) -> BTreeMap<String, usize> {
    let mut places = BTreeMap::new();
    let parents = whole.get(array).and_then(|parents| parents.get_ref().as_array());
    for (place, parent) in parents.into_iter().flatten().enumerate() {
        let name = parent.get_ref().as_table().and_then(|parent| parent.get(key)?.get_ref().as_str());
        if let Some(name) = name {
            places.entry(name.to_owned()).or_insert(place);
        }
    }
    places
}

/// Removes the elements of a kind from the table of a file. `[access.NAME]` is a table, and stays.
fn taken<'a>(table: &mut DeTable<'a>, key: &str) -> Vec<Spanned<DeValue<'a>>> {
    let is_array = table.get(key).is_some_and(|value| value.get_ref().is_array());
    match is_array.then(|| table.remove(key)).flatten().map(Spanned::into_inner) {
        Some(DeValue::Array(array)) => array.into_iter().collect(),
        _ => Vec::new(),
    }
}

fn add<'a>(
    p: &mut Diagnostics<'_>,
    whole: &mut DeTable<'a>,
    places: &ParentPlaces,
    mut extension: Extension<'a>,
) {
    let Some((name, at)) = parent_of(p, &mut extension) else { return };
    let (array, places) = (PARENTS[extension.parent][0], &places[extension.parent]);
    let Some(parent) = places.get(&name).and_then(|place| parent_at(whole, array, *place)) else {
        return unknown(p, array, places, (&name, &at));
    };
    let (key, at) = (extension.key, extension.element.span());
    match parent.get_mut(key).map(Spanned::get_mut) {
        Some(DeValue::Array(array)) => array.push(extension.element),
        // The reader of the parent reports the wrong type.
        Some(_) => {}
        None => {
            let array = DeArray::from_iter([extension.element]);
            let key = Spanned::new(at.clone(), key.into());
            parent.insert(key, Spanned::new(at, DeValue::Array(array)));
        }
    }
}

/// Removes the key of an element that names its parent, and returns its value.
fn parent_of(p: &mut Diagnostics<'_>, extension: &mut Extension<'_>) -> Option<(String, Range<usize>)> {
    let ([array, _, example], kind) = (PARENTS[extension.parent], extension.key);
    let at = extension.element.span();
    let DeValue::Table(table) = extension.element.get_mut() else {
        let hint = format!("write [[{kind}]] on a separate line");
        p.add(&at, format!("`{kind}` must be a list of tables"), hint);
        return None;
    };
    let Some(value) = table.remove(array) else {
        p.add(&at, format!("[[{kind}]] has no `{array}`"), format!("add {array} = \"{example}\""));
        return None;
    };
    let name = lunar_config::text(p, array, &value)?;
    Some((name.to_owned(), value.span()))
}

/// The parent at this place of its list.
fn parent_at<'t, 'a>(whole: &'t mut DeTable<'a>, array: &str, place: usize) -> Option<&'t mut DeTable<'a>> {
    let DeValue::Array(parents) = whole.get_mut(array)?.get_mut() else { return None };
    match parents.get_mut(place)?.get_mut() {
        DeValue::Table(table) => Some(table),
        _ => None,
    }
}

fn unknown(
    p: &mut Diagnostics<'_>,
    array: &str,
    places: &BTreeMap<String, usize>,
    (name, at): (&str, &Range<usize>),
) {
    let hint = match nearest(name, places.keys().map(String::as_str)) {
        Some(meant) => format!("did you mean \"{}\"?", meant.escape_debug()),
        None => format!("add [[{array}]] with this name"),
    };
    p.add(at, format!("unknown {array} \"{}\"", name.escape_debug()), hint);
}

//! Reads a parsed TOML table key by key. A key is known if a call looks it up; `done` reports the other keys. Unlike
//! a derived deserializer, it continues after an error, so that one run reports all errors.

use crate::diagnostic::{Diagnostics, ErrorCode, InvalidValue, nearest};
use crate::value;
use lunar_proto::duration::{self, NotationError};
use lunar_proto::size;
use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value with its position in the file.
pub type Value<'a> = &'a Spanned<DeValue<'a>>;

/// A table of the file, or the defaults where it is missing.
pub struct Section<'a> {
    /// Name as in the file: `[server]`.
    name: &'static str,
    /// Byte range in the file.
    pub at: Range<usize>,
    table: Option<&'a DeTable<'a>>,
    known: Vec<&'static str>,
    /// Former keys, each with the key that replaced it.
    renamed: &'static [(&'static str, &'static str)],
    /// Keys that further calls do not find.
    hidden: Vec<&'static str>,
}

impl<'a> Section<'a> {
    /// Reads a table.
    pub fn of(name: &'static str, table: &'a DeTable<'a>, at: Range<usize>) -> Section<'a> {
        Section { name, at, table: Some(table), known: Vec::new(), renamed: &[], hidden: Vec::new() }
    }

    /// The value of a key.
    pub fn find(&mut self, key: &'static str) -> Option<Value<'a>> {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        self.table.filter(|_| !self.hidden.contains(&key))?.get(key)
    }

    /// Hides a key that was read, so that a call for another key of the same name does not find it.
    pub fn hide(&mut self, key: &'static str) {
        self.hidden.push(key);
    }

    /// Reports that a key is missing.
    pub fn missing(&self, p: &mut Diagnostics<'_>, key: &str, example: &str) {
        p.add(&self.at, format!("{} has no `{key}`", self.name), format!("add {key} = {example}"));
    }

    /// Names former keys of this table, so that `done` can hint at the keys that replaced them.
    pub fn renamed(&mut self, renamed: &'static [(&'static str, &'static str)]) {
        self.renamed = renamed;
    }

    /// Reports every key that no call looked up.
    pub fn done(self, p: &mut Diagnostics<'_>) {
        let Some(table) = self.table else { return };
        for (key, _) in table {
            let word: &str = key.get_ref();
            if self.known.contains(&word) {
                continue;
            }
            let hint = self.hint(word);
            p.add(&key.span(), format!("unknown key `{}` in {}", word.escape_debug(), self.name), hint);
        }
    }

    /// The key to write instead of an unknown one.
    fn hint(&self, word: &str) -> String {
        if let Some((_, new)) = self.renamed.iter().find(|(old, _)| *old == word) {
            return format!("`{word}` was renamed: write `{new}`");
        }
        match nearest(word, self.known.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("known keys: {}", self.known.join(", ")),
        }
    }

    /// A string and its byte range.
    pub fn text(&mut self, p: &mut Diagnostics<'_>, key: &'static str) -> Option<(&'a str, Range<usize>)> {
        let value = self.find(key)?;
        Some((text(p, key, value)?, value.span()))
    }

    /// A string, converted by `parse`.
    pub fn parsed<T>(
        &mut self,
        p: &mut Diagnostics<'_>,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, InvalidValue>,
    ) -> Option<T> {
        let (text, at) = self.text(p, key)?;
        p.check(&at, parse(text))
    }

    /// A boolean, or its default.
    pub fn flag(&mut self, p: &mut Diagnostics<'_>, key: &'static str, default: bool) -> bool {
        let Some(value) = self.find(key) else { return default };
        match value.get_ref() {
            DeValue::Boolean(flag) => *flag,
            _ => {
                kind(p, key, value, "true or false", format!("write {key} = true or {key} = false"));
                default
            }
        }
    }

    /// An integer within a range.
    pub fn number<T: TryFrom<u64>>(
        &mut self,
        p: &mut Diagnostics<'_>,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Option<T> {
        let value = self.find(key)?;
        number(p, key, value, range)
    }

    /// A size in bytes: an integer, or a string with a unit.
    pub fn size(
        &mut self,
        p: &mut Diagnostics<'_>,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        let value = self.find(key)?;
        let size = match value.get_ref() {
            DeValue::String(text) => p.check(&value.span(), size::parse(text).map_err(InvalidValue::from))?,
            DeValue::Integer(_) => number(p, key, value, 0..=size::MAX_BYTES)?,
            _ => {
                kind(p, key, value, "a size", format!("write {key} = \"64MiB\""));
                return None;
            }
        };
        if !range.contains(&size) {
            let hint = format!("use {} to {}", size::show(*range.start()), size::show(*range.end()));
            p.add(&value.span(), format!("`{key}` is out of range: {}", size::show(size)), hint);
            return None;
        }
        Some(size)
    }

    /// A duration: whole seconds, or a string with a unit.
    pub fn time(
        &mut self,
        p: &mut Diagnostics<'_>,
        key: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let value = self.find(key)?;
        match value.get_ref() {
            DeValue::String(text) => {
                let named = |unfit: NotationError| InvalidValue {
                    what: format!("`{key}`: {}", unfit.what),
                    hint: unfit.hint,
                    code: ErrorCode::Other,
                };
                p.check(&value.span(), duration::within(text, range).map_err(named))
            }
            DeValue::Integer(_) => number(p, key, value, range.start().as_secs()..=range.end().as_secs())
                .map(Duration::from_secs),
            _ => {
                kind(p, key, value, "a time", format!("write {key} = \"30s\""));
                None
            }
        }
    }

    /// The elements of an array.
    pub fn list(
        &mut self,
        p: &mut Diagnostics<'_>,
        key: &'static str,
    ) -> Option<(Vec<Value<'a>>, Range<usize>)> {
        let value = self.find(key)?;
        let Some(array) = value.get_ref().as_array() else {
            kind(p, key, value, "a list", format!("write {key} = [...]"));
            return None;
        };
        Some((array.iter().collect(), value.span()))
    }

    /// Strings of an array, each converted by `parse`; invalid ones are reported and skipped.
    pub fn parsed_list<T>(
        &mut self,
        p: &mut Diagnostics<'_>,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, InvalidValue>,
    ) -> Option<Vec<T>> {
        let (list, _) = self.list(p, key)?;
        let one = |p: &mut Diagnostics<'_>, value: Value<'a>| {
            let text = text(p, key, value)?;
            p.check(&value.span(), parse(text))
        };
        Some(list.into_iter().filter_map(|value| one(p, value)).collect())
    }

    /// A nested table, or an empty one with its defaults.
    pub fn section(&mut self, p: &mut Diagnostics<'_>, key: &'static str, name: &'static str) -> Section<'a> {
        let nothing = Section {
            name,
            at: self.at.clone(),
            table: None,
            known: Vec::new(),
            renamed: &[],
            hidden: Vec::new(),
        };
        let Some(value) = self.find(key) else { return nothing };
        match value.get_ref().as_table() {
            Some(table) => Section::of(name, table, value.span()),
            None => {
                kind(p, key, value, "a table", format!("write {name} on a separate line"));
                nothing
            }
        }
    }

    /// Named tables inside a table, with the byte range of each name.
    pub fn named(
        &mut self,
        p: &mut Diagnostics<'_>,
        key: &'static str,
        name: &'static str,
    ) -> Vec<(&'a str, Range<usize>, Section<'a>)> {
        let Some(value) = self.find(key) else { return Vec::new() };
        let Some(tables) = value.get_ref().as_table() else {
            kind(p, key, value, "a table of tables", format!("write {name}"));
            return Vec::new();
        };
        let mut list = Vec::new();
        for (word, value) in tables {
            p.check(&word.span(), value::word(word.get_ref()));
            match value.get_ref().as_table() {
                Some(table) => {
                    list.push((&**word.get_ref(), word.span(), Section::of(name, table, value.span())))
                }
                None => kind(p, word.get_ref(), value, "a table", format!("write {name}")),
            }
        }
        list
    }

    /// The tables of an array of tables.
    pub fn sections(
        &mut self,
        p: &mut Diagnostics<'_>,
        key: &'static str,
        name: &'static str,
    ) -> Vec<Section<'a>> {
        let Some(value) = self.find(key) else { return Vec::new() };
        let Some(array) = value.get_ref().as_array() else {
            kind(p, key, value, "a list of tables", format!("write {name}"));
            return Vec::new();
        };
        let tables = array.iter().filter_map(|value| table(p, key, name, value));
        tables.collect()
    }
}

/// The table of an element of a list of tables.
pub fn table<'a>(
    p: &mut Diagnostics<'_>,
    key: &str,
    name: &'static str,
    value: Value<'a>,
) -> Option<Section<'a>> {
    let Some(table) = value.get_ref().as_table() else {
        kind(p, key, value, "a list of tables", format!("write {name}"));
        return None;
    };
    Some(Section::of(name, table, value.span()))
}

/// The string of a value.
pub fn text<'a>(p: &mut Diagnostics<'_>, key: &str, value: Value<'a>) -> Option<&'a str> {
    let text = value.get_ref().as_str();
    if text.is_none() {
        kind(p, key, value, "a string", "put the value in quotes");
    }
    text
}

/// The integer of a value, within a range.
pub fn number<T: TryFrom<u64>>(
    p: &mut Diagnostics<'_>,
    key: &str,
    value: Value<'_>,
    range: RangeInclusive<u64>,
) -> Option<T> {
    let hint = format!("use {} to {}", range.start(), range.end());
    let Some(integer) = value.get_ref().as_integer() else {
        kind(p, key, value, "an integer", hint);
        return None;
    };
    let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok().filter(|n| range.contains(n));
    let number = number.and_then(|n| T::try_from(n).ok());
    if number.is_none() {
        p.add(&value.span(), format!("`{key}` is out of range: {integer}"), hint);
    }
    number
}

/// Reports a value of the wrong type.
pub fn kind(p: &mut Diagnostics<'_>, key: &str, value: Value<'_>, wanted: &str, hint: impl Into<String>) {
    let is = match value.get_ref() {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    p.add(&value.span(), format!("`{key}` must be {wanted}, not {is}"), hint);
}

/// Keys that must be unique in a file, with their positions.
pub struct UniqueKeys<K> {
    what: &'static str,
    seen: BTreeMap<K, Range<usize>>,
}

impl<K: Ord + std::fmt::Display> UniqueKeys<K> {
    /// An empty set; `what` names such a key in diagnostics.
    pub fn new(what: &'static str) -> UniqueKeys<K> {
        UniqueKeys { what, seen: BTreeMap::new() }
    }

    /// True for a new key; a duplicate is reported with the position of the first.
    pub fn first(&mut self, p: &mut Diagnostics<'_>, key: K, at: &Range<usize>) -> bool {
        if let Some(first) = self.seen.get(&key) {
            let what = format!("{} {key} is given twice", self.what);
            let hint = format!(
                "the first is at {}; change or remove one of them",
                p.reference(first.start, at.start)
            );
            p.add(at, what, hint);
            return false;
        }
        self.seen.insert(key, at.clone());
        true
    }

    /// All keys.
    pub fn all(&self) -> impl Iterator<Item = &K> {
        self.seen.keys()
    }
}

//! Reads a configuration file: a regular file with UTF-8 text of limited size.

use crate::diagnostic::{Diagnostic, Diagnostics, ErrorCode, Position};
use lunar_runtime::host::open_regular;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// Maximum size of a configuration file.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Reads the text of a configuration file.
///
/// # Errors
/// When it cannot be read, is too large, or is not UTF-8.
pub fn read(path: &Path) -> Result<String, Diagnostic> {
    let problem = |what: String, hint: &str| Diagnostic {
        file: Some(path.to_path_buf()),
        ..Diagnostic::new(what, hint)
    };
    let failed = |e: std::io::Error| {
        problem(
            format!("cannot read the configuration: {}", crate::io_text(&e)),
            "check the path and its permissions",
        )
        .with_code(ErrorCode::from(e.kind()))
    };
    let mut bytes = Vec::new();
    let file = open_regular(path).map_err(failed)?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(problem(
            "the configuration file is larger than 16 MiB".into(),
            "to serve a disk image, remove --config",
        ));
    }
    String::from_utf8(bytes).map_err(|e| {
        let valid = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = 1 + valid.iter().filter(|b| **b == b'\n').count();
        let start = valid.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let column = 1 + String::from_utf8_lossy(&valid[start..]).chars().count();
        let mut problem =
            problem("the configuration file is not UTF-8 text".into(), "save the file as UTF-8");
        problem.position = Some(Position { line, column });
        problem
    })
}

/// Parses the files of a configuration into one table each, whose byte ranges are those of `p`. None if a file is
/// invalid, which is reported.
pub fn parse<'a>(p: &mut Diagnostics<'a>) -> Option<Vec<DeTable<'a>>> {
    let mut tables = Vec::new();
    let mut is_valid = true;
    for (text, start) in p.texts() {
        let (root, errors) = DeTable::parse_recoverable(text);
        is_valid &= errors.is_empty();
        syntax(p, root.get_ref(), &errors, start);
        tables.push(moved_table(root.into_inner(), start));
    }
    is_valid.then_some(tables)
}

/// Reports the keys that are given twice, and the first of the other errors of the TOML parser: it finds one in each
/// line of a file that is no TOML. `start`: the first byte of the file.
fn syntax(p: &mut Diagnostics<'_>, root: &DeTable<'_>, errors: &[toml::de::Error], start: usize) {
    let begin = |error: &&toml::de::Error| error.span().map_or(0, |at| at.start);
    let first = errors.iter().filter(|error| error.message() != TWICE).min_by_key(begin);
    for error in errors.iter().filter(|error| error.message() == TWICE).chain(first) {
        one_error(p, root, error, start);
    }
}

/// The message of the parser about a repeated key. It has no error code: its message is the only sign. A test pins it.
const TWICE: &str = "duplicate key";

fn one_error(p: &mut Diagnostics<'_>, root: &DeTable<'_>, error: &toml::de::Error, start: usize) {
    let inside = error.span().unwrap_or(0..0);
    let at = moved(&inside, start);
    if error.message() != TWICE {
        return p.add(
            &at,
            format!("invalid TOML: {}", error.message()),
            "https://toml.io describes the syntax",
        );
    }
    let first = key_before(root, p.text(&at), inside.start);
    given_twice(p, &at, first.map(|first| first + start));
}

/// Reports a key at `at` that was given before at the byte `first`.
pub(crate) fn given_twice(p: &mut Diagnostics<'_>, at: &Range<usize>, first: Option<usize>) {
    let mut hint = "remove one of them".to_string();
    if let Some(first) = first {
        hint = format!("the first is at {}; remove one of them", p.reference(first, at.start));
    }
    p.add(at, format!("key `{}` is given twice", p.text(at)), hint);
}

fn moved(at: &Range<usize>, by: usize) -> Range<usize> {
    at.start + by..at.end + by
}

/// The table with its byte ranges moved.
fn moved_table<'a>(table: DeTable<'a>, by: usize) -> DeTable<'a> {
    if by == 0 {
        return table;
    }
    let key = |key: Spanned<DeString<'a>>| Spanned::new(moved(&key.span(), by), key.into_inner());
    table.into_iter().map(|(name, value)| (key(name), moved_value(value, by))).collect()
}

fn moved_value(value: Spanned<DeValue<'_>>, by: usize) -> Spanned<DeValue<'_>> {
    let at = moved(&value.span(), by);
    let value = match value.into_inner() {
        DeValue::Table(table) => DeValue::Table(moved_table(table, by)),
        DeValue::Array(array) => {
            DeValue::Array(array.into_iter().map(|value| moved_value(value, by)).collect())
        }
        other => other,
    };
    Spanned::new(at, value)
}

/// Offset of the last key with this name before `limit`. The parser keeps the first of two keys and reports the second.
fn key_before(table: &DeTable<'_>, name: &str, limit: usize) -> Option<usize> {
    let inner = |value: &DeValue<'_>| match value {
        DeValue::Table(table) => key_before(table, name, limit),
        DeValue::Array(array) => {
            array.iter().filter_map(|v| key_before(v.get_ref().as_table()?, name, limit)).max()
        }
        _ => None,
    };
    let here = table.iter().filter(|(key, _)| key.get_ref() == name && key.span().start < limit);
    here.map(|(key, _)| key.span().start).chain(table.iter().filter_map(|(_, v)| inner(v.get_ref()))).max()
}

//! `include` of `targets.conf`: a file, a folder, or a pattern of the last part of a path.

use super::file::{TgtParser, syntax};
use crate::ImportError;
use crate::files::{Found, matches};
use std::path::Path;

/// The path and the text of each included file, in the order of their names. A folder that cannot be read is noted,
/// because its targets would be missing.
pub(super) fn included(
    parser: &mut TgtParser<'_>,
    pattern: &str,
    place: &str,
) -> Result<Vec<(String, String)>, ImportError> {
    let (folder, name) = pattern.rsplit_once('/').unwrap_or(("", pattern));
    if !name.contains(['*', '?', '[']) {
        return match (parser.reader)(Path::new(pattern)) {
            Ok(Found::File(text)) => Ok(vec![(pattern.into(), text)]),
            Ok(Found::Folder(names)) => files(parser, pattern, names, place),
            Err(e) => Err(unreadable(pattern, place, &e)),
        };
    }
    let folder = if pattern.starts_with('/') && folder.is_empty() { "/" } else { folder };
    match (parser.reader)(Path::new(if folder.is_empty() { "." } else { folder })) {
        Ok(Found::Folder(names)) => {
            let names = names.into_iter().filter(|found| matches(name, found)).collect();
            files(parser, folder, names, place)
        }
        _ => {
            let what = format!("include {pattern}: the folder cannot be read, so its targets are missing");
            parser.missing.push((place.into(), what));
            Ok(Vec::new())
        }
    }
}

fn files(
    parser: &TgtParser<'_>,
    folder: &str,
    mut names: Vec<String>,
    place: &str,
) -> Result<Vec<(String, String)>, ImportError> {
    names.sort();
    let mut all = Vec::new();
    for name in names {
        let path = match folder {
            "" => name,
            folder => format!("{}/{name}", folder.trim_end_matches('/')),
        };
        match (parser.reader)(Path::new(&path)) {
            Ok(Found::File(text)) => all.push((path, text)),
            Ok(Found::Folder(_)) => {}
            Err(e) => return Err(unreadable(&path, place, &e)),
        }
    }
    Ok(all)
}

fn unreadable(path: &str, place: &str, e: &std::io::Error) -> ImportError {
    ImportError {
        hint: "give the folder that has its path with --root".into(),
        ..syntax(place, format!("cannot read {path}: {e}"))
    }
}

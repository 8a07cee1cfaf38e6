//! Reads a document from an untrusted file.

use crate::document::{OLDER_SCHEMAS, SCHEMA};
use crate::{Document, Error, ErrorKind};
use serde::Deserialize;
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The maximum file size in bytes; a document of a thousand runs has a hundredth of it.
const LIMIT: u64 = 1 << 30;

/// Spellings of units in documents of older versions, and those of today.
const OLDER_UNITS: [(&str, &str); 3] =
    [("MB/s (10^6)", "MB/s"), ("MB/s (2^20)", "MiB/s"), ("MiB/s (2^20)", "MiB/s")];

/// Reads a document.
///
/// # Errors
/// If the file cannot be read, or is not a document of a known schema.
pub fn read(path: &Path) -> Result<Document, Error> {
    let name = path.display().to_string();
    let cannot = |e: std::io::Error| {
        let kind = ErrorKind::Medium(e.kind().into());
        Error::new(kind, format!("cannot read {name}: {e}"), "use a file that lunar bench --json created")
    };
    let mut text = String::new();
    let file = File::open(path).map_err(cannot)?;
    file.take(LIMIT + 1).read_to_string(&mut text).map_err(|e| match e.kind() {
        std::io::ErrorKind::InvalidData => not_one(&name, "the file is not text"),
        _ => cannot(e),
    })?;
    if text.len() as u64 > LIMIT {
        return Err(not_one(&name, "the file is larger than 1 GiB"));
    }
    parse(&text, &name)
}

fn not_one(name: &str, why: &str) -> Error {
    let what = format!("{name} is not a measurement of lunar bench: {why}");
    Error::new(ErrorKind::Invalid, what, "create the file with lunar bench --json")
}

/// Parses a document; `name` appears in errors.
pub fn parse(text: &str, name: &str) -> Result<Document, Error> {
    let value: Value =
        serde_json::from_str(text).map_err(|e| not_one(name, &format!("invalid JSON: {e}")))?;
    let schema = value.get("schema").and_then(Value::as_str);
    let family = SCHEMA.split('/').next().unwrap_or(SCHEMA);
    match schema {
        Some(known) if known == SCHEMA || OLDER_SCHEMAS.contains(&known) => {}
        Some(other) if other.split('/').next() == Some(family) => {
            let [other, known] = [other.escape_debug().to_string(), OLDER_SCHEMAS.join(", ")];
            let what =
                format!("{name} has the unsupported schema {other}; supported are {SCHEMA} and {known}");
            return Err(Error::new(
                ErrorKind::Invalid,
                what,
                "use the version of lunar that created the file, or measure again",
            ));
        }
        Some(other) => return Err(not_one(name, &format!("the schema is {}", other.escape_debug()))),
        None => return Err(not_one(name, "the schema is missing")),
    }
    let mut document = Document::deserialize(value).map_err(|e| not_one(name, &e.to_string()))?;
    for table in &mut document.tables {
        if let Some((_, unit)) = OLDER_UNITS.iter().find(|unit| unit.0 == table.unit) {
            table.unit = (*unit).into();
        }
    }
    Ok(document)
}

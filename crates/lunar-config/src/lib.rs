//! Syntax of the configuration: tables and values of the file, and diagnostics with their position.
//!
//! This crate does not know which keys exist: `lunar-server` has the schema.
#![forbid(unsafe_code)]

mod diagnostic;
mod file;
mod merge;
mod section;
mod value;

pub use diagnostic::{
    ConfigFile, Diagnostic, Diagnostics, ErrorCode, InvalidValue, Position, invalid, nearest, unknown,
};
pub use file::{parse, read};
pub use merge::merge;
pub use section::{Section, UniqueKeys, Value, kind, number, table, text};
pub use value::{advertised_address, iscsi_name, padded_text, pattern, plain_text, scsi_text, word};

/// Error text of the operating system, without errno.
pub fn io_text(e: &std::io::Error) -> String {
    plain(&e.to_string())
}

/// Error text for the end of a sentence: without errno, in lower case.
pub fn plain(text: &str) -> String {
    let text = lunar_runtime::error::without_errno(text);
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

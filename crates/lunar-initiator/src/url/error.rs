//! Errors of URLs.

use crate::{Error, Kind};

/// A URL that is invalid.
pub fn wrong(what: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::new(Kind::Invalid, what).with_hint(hint)
}

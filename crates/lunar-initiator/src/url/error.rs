//! Errors in URLs.

use crate::{Error, ErrorCode};
use lunar_runtime::error::Hint;

/// An invalid URL or setting.
pub fn wrong(what: impl Into<String>, hint: impl Into<Hint>) -> Error {
    Error::new(ErrorCode::InvalidArgument, what).with_hint(hint)
}

//! Errors that occur before a measurement.

use lunar_proto::duration::NotationError;
use lunar_runtime::CoreSelectionError;
use lunar_runtime::error::{ErrorCode, Hint};

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// An argument or a job is invalid.
    Invalid,
    /// The target holds data that the job would overwrite.
    HoldsData,
    /// A target cannot be opened, with the initiator's error code if it has one.
    Target(Option<ErrorCode>),
    /// A file, a device or an NBD export cannot be opened.
    Medium(ErrorCode),
    /// The operating system returned an error.
    System,
}

/// A failure, as shown to users.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}\nhint: {hint}")]
pub struct Error {
    /// The kind.
    pub kind: ErrorKind,
    /// The object, the fault and the value.
    pub what: String,
    /// The fix.
    pub hint: Hint,
}

impl Error {
    /// Creates an error.
    pub fn new(kind: ErrorKind, what: impl Into<String>, hint: impl Into<Hint>) -> Error {
        Error { kind, what: what.into(), hint: hint.into() }
    }
}

impl From<NotationError> for Error {
    fn from(e: NotationError) -> Error {
        Error::new(ErrorKind::Invalid, e.what, e.hint)
    }
}

impl From<CoreSelectionError> for Error {
    fn from(e: CoreSelectionError) -> Error {
        Error::new(ErrorKind::Invalid, e.what, e.hint)
    }
}

//! What went wrong before there was anything to measure.

use lunar_proto::duration::Unfit;
use lunar_runtime::CoreSelectionError;

/// What kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What was asked for cannot be done as it was asked.
    Invalid,
    /// There is data that would be overwritten.
    HoldsData,
    /// A target cannot be opened, with the initiator's reason if it was that.
    Target(Option<lunar_initiator::Kind>),
    /// A file, a device or an NBD export cannot be opened, for this cause.
    Medium(std::io::ErrorKind),
    /// The operating system refused something.
    System,
}

/// A failure, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}\nhint: {hint}")]
pub struct Error {
    /// What kind.
    pub kind: Kind,
    /// What happened, and to what.
    pub what: String,
    /// What to do.
    pub hint: String,
}

impl Error {
    /// A failure of a kind.
    pub fn new(kind: Kind, what: impl Into<String>, hint: impl Into<String>) -> Error {
        Error { kind, what: what.into(), hint: hint.into() }
    }
}

impl From<Unfit> for Error {
    fn from(e: Unfit) -> Error {
        Error::new(Kind::Invalid, e.what, e.hint)
    }
}

impl From<CoreSelectionError> for Error {
    fn from(e: CoreSelectionError) -> Error {
        Error::new(Kind::Invalid, e.what, e.hint)
    }
}

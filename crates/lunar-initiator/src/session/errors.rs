//! Errors that several parts of a session return.

use crate::{Error, ErrorCode};

/// The session is closed.
pub fn closed() -> Error {
    Error::new(ErrorCode::SessionClosed, "the session is closed")
}

/// The target broke a rule of the protocol.
pub fn broke(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::ProtocolError, what)
}

/// What commands get whose logical unit is not what it was.
pub fn changed() -> Error {
    Error::new(
        ErrorCode::IdentityMismatch,
        "the logical unit is not the one that it was: its identity (VPD page 83h) changed",
    )
}

//! Errors used in several parts of a session.

use crate::{Error, ErrorCode};

/// The session is closed.
pub fn closed() -> Error {
    Error::new(ErrorCode::SessionClosed, "the session is closed")
}

/// The target has violated the protocol.
pub fn broke(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::ProtocolError, what)
}

/// The error of commands to a LUN that leads to another logical unit.
pub fn changed() -> Error {
    Error::new(
        ErrorCode::IdentityMismatch,
        "the LUN now leads to a logical unit with another identity (VPD page 83h)",
    )
}

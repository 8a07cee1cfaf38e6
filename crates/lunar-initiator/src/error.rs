//! Errors: a code for programs, and a message for people.

pub use lunar_runtime::error::{ErrorCode, Hint, Remedy};
use lunar_wire::scsi::Sense;
use std::{fmt, io};

/// A failure. It is one pointer wide, so that a `Result` stays small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Details>);

/// The parts of an [`Error`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Details {
    /// The code.
    pub code: ErrorCode,
    /// The message.
    pub what: String,
    /// The SCSI status, if the logical unit responded.
    pub status: Option<u8>,
    /// The sense data of the logical unit.
    pub sense: Option<Sense>,
    /// A hint to the user.
    pub hint: Option<Hint>,
}

impl Error {
    /// Whether the portal is unreachable or does not answer. Another portal of the target may still work.
    pub fn is_away(&self) -> bool {
        matches!(
            self.code,
            ErrorCode::Unreachable | ErrorCode::UnknownHost | ErrorCode::TimedOut | ErrorCode::ConnectionLost
        )
    }

    /// The [`Error`] inside the error of a backend, if it has one.
    pub fn of(e: &io::Error) -> Option<&Error> {
        lunar_runtime::error::find(e)
    }

    /// An error with this code and message.
    pub fn new(code: ErrorCode, what: impl Into<String>) -> Error {
        Error(Box::new(Details { code, what: what.into(), status: None, sense: None, hint: None }))
    }

    /// The same, with a hint to the user.
    pub fn with_hint(mut self, hint: impl Into<Hint>) -> Error {
        self.0.hint = Some(hint.into());
        self
    }

    /// The same, with the SCSI status of the command.
    pub fn with_status(mut self, status: u8) -> Error {
        self.0.status = Some(status);
        self
    }

    /// The same, with the logical unit's sense data.
    pub fn with_sense(mut self, sense: Option<Sense>) -> Error {
        self.0.sense = sense;
        self
    }

    /// The same, with the action as a prefix: "login to 10.0.0.1:3260: connection refused".
    pub fn during(mut self, doing: impl fmt::Display) -> Error {
        self.0.what = format!("{doing}: {}", self.what);
        self
    }

    /// The fields, by value.
    pub fn into_details(self) -> Details {
        *self.0
    }
}

impl std::ops::Deref for Error {
    type Target = Details;
    fn deref(&self) -> &Details {
        &self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(e: Error) -> Self {
        use io::ErrorKind as Io;
        let kind = match e.code {
            ErrorCode::InvalidArgument => Io::InvalidInput,
            ErrorCode::UnknownHost | ErrorCode::NotFound => Io::NotFound,
            ErrorCode::Unreachable => Io::ConnectionRefused,
            ErrorCode::Refused | ErrorCode::AuthenticationFailed | ErrorCode::ReservationConflict => {
                Io::PermissionDenied
            }
            ErrorCode::TimedOut => Io::TimedOut,
            ErrorCode::ConnectionLost | ErrorCode::SessionClosed => Io::ConnectionReset,
            ErrorCode::Aborted => Io::ConnectionAborted,
            ErrorCode::ProtocolError | ErrorCode::NegotiationFailed | ErrorCode::IdentityMismatch => {
                Io::InvalidData
            }
            ErrorCode::ScsiError => e.sense.map_or(Io::Other, io_kind),
            _ => Io::Other,
        };
        io::Error::new(kind, e)
    }
}

/// The I/O error that a local disk would return for this sense data.
fn io_kind(sense: Sense) -> io::ErrorKind {
    use io::ErrorKind as Io;
    match (sense.key, sense.asc, sense.ascq) {
        (7, 0x27, 0x07) => Io::StorageFull,
        (7, ..) => Io::ReadOnlyFilesystem,
        (5, 0x20, _) => Io::Unsupported,
        (5, 0x21, _) => Io::InvalidInput,
        (5, 0x25, _) => Io::NotFound,
        // NOT READY and HARDWARE ERROR concern the device, not a block of the medium.
        (2 | 4, ..) => Io::NotConnected,
        _ => Io::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io::ErrorKind as Io;

    #[test]
    fn medium_error_differs_from_hardware_error() {
        let kind = |key, asc, ascq| {
            let sense = Some(Sense { key, asc, ascq, ..Sense::READ_ERROR });
            io::Error::from(Error::new(ErrorCode::ScsiError, "refused").with_sense(sense)).kind()
        };
        assert_eq!(kind(3, 0x11, 0), Io::Other, "MEDIUM ERROR");
        assert_eq!(kind(4, 0x44, 0), Io::NotConnected, "HARDWARE ERROR");
        assert_eq!(kind(2, 0x3a, 0), Io::NotConnected, "NOT READY");
    }
}

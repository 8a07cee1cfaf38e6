//! Errors: a code for programs, and a message for people.

pub use lunar_runtime::error::{ErrorCode, Hint, Remedy};
use lunar_wire::nvme::NvmeStatus;
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
    /// The status of an NVMe controller that responded. Status and sense data are those of the same meaning.
    pub nvme_status: Option<NvmeStatus>,
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
        let what = what.into();
        Error(Box::new(Details { code, what, status: None, sense: None, nvme_status: None, hint: None }))
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

    /// The same, with the status of an NVMe command.
    pub(crate) fn with_nvme_status(mut self, status: NvmeStatus) -> Error {
        self.0.nvme_status = Some(status);
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
        use io::ErrorKind;
        let kind = match e.code {
            ErrorCode::InvalidArgument => ErrorKind::InvalidInput,
            ErrorCode::UnknownHost | ErrorCode::NotFound => ErrorKind::NotFound,
            ErrorCode::Unreachable => ErrorKind::ConnectionRefused,
            ErrorCode::Refused | ErrorCode::AuthenticationFailed | ErrorCode::ReservationConflict => {
                ErrorKind::PermissionDenied
            }
            ErrorCode::TimedOut => ErrorKind::TimedOut,
            ErrorCode::ConnectionLost | ErrorCode::SessionClosed => ErrorKind::ConnectionReset,
            ErrorCode::Aborted => ErrorKind::ConnectionAborted,
            ErrorCode::ProtocolError | ErrorCode::NegotiationFailed | ErrorCode::IdentityMismatch => {
                ErrorKind::InvalidData
            }
            ErrorCode::ScsiError => e.sense.map_or(ErrorKind::Other, io_kind),
            _ => ErrorKind::Other,
        };
        io::Error::new(kind, e)
    }
}

/// The I/O error that a local disk would return for this sense data.
fn io_kind(sense: Sense) -> io::ErrorKind {
    use io::ErrorKind;
    match (sense.key, sense.asc, sense.ascq) {
        (7, 0x27, 0x07) => ErrorKind::StorageFull,
        (7, ..) => ErrorKind::ReadOnlyFilesystem,
        (5, 0x20, _) => ErrorKind::Unsupported,
        (5, 0x21, _) => ErrorKind::InvalidInput,
        (5, 0x25, _) => ErrorKind::NotFound,
        // NOT READY and HARDWARE ERROR concern the device, not a block of the medium.
        (2 | 4, ..) => ErrorKind::NotConnected,
        _ => ErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io::ErrorKind;

    #[test]
    fn medium_error_differs_from_hardware_error() {
        let kind = |key, asc, ascq| {
            let sense = Some(Sense { key, asc, ascq, ..Sense::READ_ERROR });
            io::Error::from(Error::new(ErrorCode::ScsiError, "refused").with_sense(sense)).kind()
        };
        assert_eq!(kind(3, 0x11, 0), ErrorKind::Other, "MEDIUM ERROR");
        assert_eq!(kind(4, 0x44, 0), ErrorKind::NotConnected, "HARDWARE ERROR");
        assert_eq!(kind(2, 0x3a, 0), ErrorKind::NotConnected, "NOT READY");
    }
}

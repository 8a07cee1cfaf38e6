//! What can go wrong, for programs (a kind) and for people (what happened, to what).

use lunar_wire::scsi::Sense;
use std::{fmt, io};

/// Kinds of failure that a program can distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request is malformed, or impossible.
    Invalid,
    /// The host's name has no address.
    UnknownHost,
    /// No connection could be made.
    Unreachable,
    /// The target refused the login, or a request that is no command.
    Refused,
    /// Authentication failed, on either side.
    Authentication,
    /// There is no such target, LUN or portal.
    NotFound,
    /// The deadline of the operation passed.
    TimedOut,
    /// The connection was lost, or the target failed, and it is not known whether the command was carried out.
    Lost,
    /// The command was aborted on demand: [`crate::Session::abort`]. Or its session has ended while the target may still carry
    /// it out: it must not be done on another path.
    Aborted,
    /// The target broke a rule of the protocol.
    Protocol,
    /// A logical unit answered with an error: see status and sense.
    Scsi,
    /// Another initiator holds a reservation.
    Reserved,
    /// Two paths lead to different logical units, or one changed its identity.
    Identity,
    /// The session was closed.
    Closed,
}

/// A failure: its kind and its message. It is one word wide, so that success costs nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Details>);

/// The parts of an [`Error`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    /// The kind.
    pub kind: Kind,
    /// The message.
    pub what: String,
    /// The status with which the logical unit ended it, where it answered.
    pub status: Option<u8>,
    /// The logical unit's sense data.
    pub sense: Option<Sense>,
    /// A hint to the user.
    pub hint: Option<String>,
}

impl Error {
    /// Whether the portal cannot be reached, or does not answer: another portal of the same target may.
    pub fn is_away(&self) -> bool {
        matches!(self.kind, Kind::Unreachable | Kind::UnknownHost | Kind::TimedOut | Kind::Lost)
    }

    /// The one in the error of a backend, if it is one of ours.
    pub fn of(e: &io::Error) -> Option<&Error> {
        e.get_ref()?.downcast_ref()
    }

    /// A failure of this kind.
    pub fn new(kind: Kind, what: impl Into<String>) -> Error {
        Error(Box::new(Details { kind, what: what.into(), status: None, sense: None, hint: None }))
    }

    /// The same, with a hint to the user.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.0.hint = Some(hint.into());
        self
    }

    /// The same, and the status with which the logical unit ended it.
    pub fn with_status(mut self, status: u8) -> Error {
        self.0.status = Some(status);
        self
    }

    /// The same, with the logical unit's sense data.
    pub fn with_sense(mut self, sense: Option<Sense>) -> Error {
        self.0.sense = sense;
        self
    }

    /// The same with the action as a prefix: "login to 10.0.0.1:3260: connection refused".
    pub fn during(mut self, doing: impl fmt::Display) -> Error {
        self.0.what = format!("{doing}: {}", self.what);
        self
    }

    /// Its parts.
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
        let kind = match e.kind {
            Kind::Invalid => Io::InvalidInput,
            Kind::UnknownHost | Kind::NotFound => Io::NotFound,
            Kind::Unreachable => Io::ConnectionRefused,
            Kind::Refused | Kind::Authentication | Kind::Reserved => Io::PermissionDenied,
            Kind::TimedOut => Io::TimedOut,
            Kind::Lost | Kind::Closed => Io::ConnectionReset,
            Kind::Aborted => Io::ConnectionAborted,
            Kind::Protocol | Kind::Identity => Io::InvalidData,
            Kind::Scsi => e.sense.map_or(Io::Other, io_kind),
        };
        io::Error::new(kind, e)
    }
}

/// The error of the operating system that a local disk would give for the same.
fn io_kind(sense: Sense) -> io::ErrorKind {
    use io::ErrorKind as Io;
    match (sense.key, sense.asc, sense.ascq) {
        (7, 0x27, 0x07) => Io::StorageFull,
        (7, ..) => Io::ReadOnlyFilesystem,
        (5, 0x20, _) => Io::Unsupported,
        (5, 0x21, _) => Io::InvalidInput,
        (5, 0x25, _) => Io::NotFound,
        // Not ready, and HARDWARE ERROR: no place of the medium is to blame.
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
            io::Error::from(Error::new(Kind::Scsi, "refused").with_sense(sense)).kind()
        };
        assert_eq!(kind(3, 0x11, 0), Io::Other, "MEDIUM ERROR");
        assert_eq!(kind(4, 0x44, 0), Io::NotConnected, "HARDWARE ERROR");
        assert_eq!(kind(2, 0x3a, 0), Io::NotConnected, "NOT READY");
    }
}

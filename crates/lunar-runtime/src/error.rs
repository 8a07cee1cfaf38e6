//! Error codes, hints, and I/O errors that keep both: programs decide by these, never by the words of a message.

use std::borrow::Cow;
use std::{fmt, io};

/// Defines the codes with their stable names, which JSON and the admin socket carry.
macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $name:literal,)*) => {
        /// The kind of an error, for programs.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[$doc])* $code,)*
        }

        impl ErrorCode {
            /// All codes.
            pub const ALL: &[ErrorCode] = &[$(ErrorCode::$code),*];

            /// The stable name: lower case, words joined by hyphens.
            pub fn name(self) -> &'static str {
                match self {
                    $(ErrorCode::$code => $name,)*
                }
            }
        }
    };
}

codes! {
    /// Any other error.
    #[default]
    Other = "other",
    /// An argument is malformed, or asks for the impossible.
    InvalidArgument = "invalid-argument",
    /// The host's name has no address.
    UnknownHost = "unknown-host",
    /// No connection could be made.
    Unreachable = "unreachable",
    /// The target refused the login, or a request that is no command.
    Refused = "refused",
    /// The target declined what the login offered.
    NegotiationFailed = "negotiation-failed",
    /// One of the two sides could not prove its identity.
    AuthenticationFailed = "authentication-failed",
    /// There is no such file, target, LUN or portal.
    NotFound = "not-found",
    /// The object exists already.
    AlreadyExists = "already-exists",
    /// Another process or host uses the object.
    InUse = "in-use",
    /// The operation is not permitted.
    PermissionDenied = "permission-denied",
    /// The deadline of the operation passed.
    TimedOut = "timed-out",
    /// The connection was lost, or the target failed, and it is not known whether the command was carried out.
    ConnectionLost = "connection-lost",
    /// The command was aborted on demand, or its session has ended while the target may still carry it out. It must not
    /// be sent on another path.
    Aborted = "aborted",
    /// The peer broke a rule of the protocol.
    ProtocolError = "protocol-error",
    /// A logical unit answered with an error: status and sense data have the details.
    ScsiError = "scsi-error",
    /// Another initiator holds a reservation.
    ReservationConflict = "reservation-conflict",
    /// Two paths lead to different logical units, or one changed its identity.
    IdentityMismatch = "identity-mismatch",
    /// The session was closed.
    SessionClosed = "session-closed",
}

impl ErrorCode {
    /// The code of a stable name. A name of another version is [`ErrorCode::Other`].
    pub fn from_name(name: &str) -> ErrorCode {
        Self::ALL.iter().copied().find(|code| code.name() == name).unwrap_or_default()
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<io::ErrorKind> for ErrorCode {
    fn from(kind: io::ErrorKind) -> ErrorCode {
        use io::ErrorKind;
        match kind {
            ErrorKind::ResourceBusy | ErrorKind::AddrInUse => ErrorCode::InUse,
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => ErrorCode::PermissionDenied,
            ErrorKind::NotFound => ErrorCode::NotFound,
            ErrorKind::AddrNotAvailable
            | ErrorKind::FileTooLarge
            | ErrorKind::InvalidInput
            | ErrorKind::IsADirectory
            | ErrorKind::NotADirectory => ErrorCode::InvalidArgument,
            ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable => ErrorCode::Unreachable,
            ErrorKind::TimedOut => ErrorCode::TimedOut,
            _ => ErrorCode::Other,
        }
    }
}

/// The fix for an error, for people. Code attaches it where it creates the error, and never parses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    text: Cow<'static, str>,
    remedy: Option<Remedy>,
}

/// A fix for which a program may have a command or an option. The text of its [`Hint`] names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Examine the network, or raise the timeout of the login.
    LoginTimeout,
    /// Examine the network, or raise the timeout of the recovery.
    RecoveryTimeout,
    /// Give paths to the same logical unit.
    PathsDiffer,
    /// Use a device of this host that does RDMA.
    NoRdmaDevice,
    /// Check that the portal is one of iSCSI. The debug log has the PDUs.
    NotIscsi,
    /// Check that the portal is one of SRP. The debug log has the messages.
    NotSrp,
    /// Make a secret for DH-HMAC-CHAP, or copy that of the target.
    NoDhChapSecret,
}

impl Hint {
    /// A hint of fixed text.
    pub const fn new(text: &'static str) -> Hint {
        Hint { text: Cow::Borrowed(text), remedy: None }
    }

    /// A hint that a program may show in words of its own.
    pub const fn with_remedy(text: &'static str, remedy: Remedy) -> Hint {
        Hint { text: Cow::Borrowed(text), remedy: Some(remedy) }
    }

    /// The fix, if a program may have a command or an option for it.
    pub fn remedy(&self) -> Option<Remedy> {
        self.remedy
    }
}

impl From<&'static str> for Hint {
    fn from(text: &'static str) -> Hint {
        Hint::new(text)
    }
}

impl From<String> for Hint {
    fn from(text: String) -> Hint {
        Hint { text: Cow::Owned(text), remedy: None }
    }
}

impl std::ops::Deref for Hint {
    type Target = str;
    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

/// The inner error of an [`io::Error`] that has a context or a hint.
#[derive(Debug)]
struct Annotated {
    context: Option<String>,
    hint: Option<Hint>,
    error: io::Error,
}

impl fmt::Display for Annotated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.context {
            Some(context) => write!(f, "{context}: {}", self.error),
            None => self.error.fmt(f),
        }
    }
}

impl std::error::Error for Annotated {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

fn annotated(e: &io::Error) -> Option<&Annotated> {
    e.get_ref()?.downcast_ref()
}

/// The error of this type inside of an I/O error, also below its context.
pub fn find<E: std::error::Error + 'static>(e: &io::Error) -> Option<&E> {
    match annotated(e) {
        Some(e) => find(&e.error),
        None => e.get_ref()?.downcast_ref(),
    }
}

/// The same error, whose message begins with what was being done. Kind, errno and hint stay.
pub fn with_context(error: io::Error, context: impl Into<String>) -> io::Error {
    io::Error::new(error.kind(), Annotated { context: Some(context.into()), hint: None, error })
}

/// The same error with its fix. The message stays.
pub fn with_hint(error: io::Error, hint: impl Into<Hint>) -> io::Error {
    io::Error::new(error.kind(), Annotated { context: None, hint: Some(hint.into()), error })
}

/// The hint of this error, if it has one.
pub fn hint(e: &io::Error) -> Option<&Hint> {
    annotated(e).and_then(|e| e.hint.as_ref().or_else(|| hint(&e.error)))
}

/// The errno of this error, also below its context.
pub fn raw_os_error(e: &io::Error) -> Option<i32> {
    e.raw_os_error().or_else(|| raw_os_error(&annotated(e)?.error))
}

/// The message of an error, as [`without_errno`] shows it.
pub fn text(e: &io::Error) -> String {
    without_errno(&e.to_string())
}

/// A message with its errors of the operating system in lower case and without the errno that `std` puts behind them.
/// `std` offers no other way to the bare text.
pub fn without_errno(message: &str) -> String {
    let (mut shown, mut rest) = (String::with_capacity(message.len()), message);
    while let Some((before, after)) = rest.split_once(" (os error ") {
        // The text of the system contains no colon.
        let at = before.rfind(": ").map_or(0, |at| at + 2);
        shown += &before[..at];
        let mut error = before[at..].chars();
        shown.extend(error.next().into_iter().flat_map(char::to_lowercase));
        shown += error.as_str();
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn code_names_are_unique_kebab_case_and_round_trip() {
        for code in ErrorCode::ALL {
            assert!(code.name().bytes().all(|b| b == b'-' || b.is_ascii_lowercase()), "{code}");
            assert_eq!(ErrorCode::from_name(code.name()), *code);
        }
        assert_eq!(ErrorCode::from_name("of-a-later-version"), ErrorCode::Other);
    }

    #[test]
    fn io_error_with_context_keeps_kind_errno_and_hint() {
        let e = with_hint(Errno::MFILE.into(), "raise the limit");
        let e = with_context(with_context(e, "cannot open the ring"), "cannot start");
        assert_eq!(raw_os_error(&e), Some(Errno::MFILE.raw_os_error()));
        assert_eq!(e.kind(), io::Error::from(Errno::MFILE).kind());
        assert_eq!(hint(&e).map(|hint| &**hint), Some("raise the limit"));
        assert!(find::<fmt::Error>(&e).is_none());
        let typed = with_context(io::Error::other(fmt::Error), "reading");
        assert_eq!(find(&typed), Some(&fmt::Error));
        assert_eq!(text(&e), "cannot start: cannot open the ring: too many open files");
        let twice = "a: No such file or directory (os error 2); B: Is a directory (os error 21) at 0";
        assert_eq!(without_errno(twice), "a: no such file or directory; B: is a directory at 0");
    }

    #[test]
    fn io_error_of_words_alone_has_no_errno_and_no_hint() {
        let e = io::Error::other("Too many open files (os error 24)\nhint: none of ours");
        assert_eq!((raw_os_error(&e), hint(&e)), (None, None));
    }
}

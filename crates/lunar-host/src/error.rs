//! Errors of exports: an error with a hint if an export cannot start, and an errno for each failed request.

use rustix::io::Errno;
use std::io;

/// The reason why an export could not start, change or end.
#[derive(Debug, thiserror::Error)]
#[error("{subject}: {what}\nhint: {hint}")]
pub struct Error {
    /// The affected object: a device, file or program.
    pub subject: String,
    /// The fault.
    pub what: String,
    /// How to fix it.
    pub hint: String,
    /// The error of the operating system, if that is the cause.
    pub source: Option<io::Error>,
}

impl Error {
    pub(crate) fn new(subject: impl Into<String>, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Error { subject: subject.into(), what: what.into(), hint: hint.into(), source: None }
    }

    /// Creates the error of a failed operating system call.
    pub(crate) fn refused(
        subject: impl Into<String>,
        what: &str,
        source: io::Error,
        hint: impl Into<String>,
    ) -> Self {
        let what = format!("cannot {what}: {source}");
        Error { subject: subject.into(), what, hint: hint.into(), source: Some(source) }
    }
}

/// The positive errno that reports a backend's error to the kernel.
pub(crate) fn errno(e: &io::Error) -> i32 {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, StorageFull, TimedOut, Unsupported};
    e.raw_os_error().filter(|n| *n > 0).unwrap_or_else(|| {
        let errno = match e.kind() {
            StorageFull => Errno::NOSPC,
            ReadOnlyFilesystem => Errno::ROFS,
            PermissionDenied => Errno::ACCESS,
            Unsupported => Errno::OPNOTSUPP,
            TimedOut => Errno::TIMEDOUT,
            _ => Errno::IO,
        };
        errno.raw_os_error()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_is_kept_and_a_kind_becomes_one() {
        assert_eq!(errno(&io::Error::from_raw_os_error(28)), 28);
        assert_eq!(errno(&io::ErrorKind::StorageFull.into()), 28);
        assert_eq!(errno(&io::ErrorKind::ReadOnlyFilesystem.into()), 30);
        assert_eq!(errno(&io::Error::other("anything")), 5);
    }
}

//! Errors of exports: for people when one cannot start, as an errno for each request that fails.

use rustix::io::Errno;
use std::io;

/// Why an export could not start, change or end, for people.
#[derive(Debug, thiserror::Error)]
#[error("{subject}: {what}\nhint: {hint}")]
pub struct Error {
    /// The device, file or program that it is about.
    pub subject: String,
    /// What happened.
    pub what: String,
    /// What to do about it.
    pub hint: String,
    /// What the operating system said, where it was asked.
    pub source: Option<io::Error>,
}

impl Error {
    pub(crate) fn new(subject: impl Into<String>, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Error { subject: subject.into(), what: what.into(), hint: hint.into(), source: None }
    }

    /// The operating system refused to `what`.
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

/// The errno (positive) that tells the kernel of a backend's error.
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
    fn an_errno_is_kept_and_a_kind_becomes_one() {
        assert_eq!(errno(&io::Error::from_raw_os_error(28)), 28);
        assert_eq!(errno(&io::ErrorKind::StorageFull.into()), 28);
        assert_eq!(errno(&io::ErrorKind::ReadOnlyFilesystem.into()), 30);
        assert_eq!(errno(&io::Error::other("anything")), 5);
    }
}

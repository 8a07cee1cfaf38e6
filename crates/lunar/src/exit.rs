//! Exit statuses of all commands that use targets, in one table. Errors of iSCSI have the statuses of Open-iSCSI.

use lunar_initiator::{Error, ErrorCode};
use lunar_server::Diagnostic;
use lunar_server::hints::words;
use std::process::ExitCode;

/// Exit status of a failed command. 0 is success, 2 is an invalid command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Any other error.
    General = 1,
    /// No connection could be made.
    Unreachable = 4,
    /// The target rejected the login.
    Refused = 5,
    /// Invalid URL or argument.
    Invalid = 7,
    /// Timed out.
    TimedOut = 8,
    /// Not permitted, or reserved by another initiator.
    NoAccess = 13,
    /// Already exists.
    Exists = 15,
    /// Not found.
    NotFound = 21,
    /// The host name has no address.
    UnknownHost = 23,
    /// Authentication of one side failed.
    Authentication = 24,
    /// In use.
    InUse = 28,
    /// The logical unit rejected a command: CHECK CONDITION, or another unsuccessful status.
    Scsi = 30,
    /// Copied, except for unreadable ranges.
    LeftOut = 40,
    /// Verification of a copy found a difference.
    Differs = 41,
    /// Imported, except for settings that are lost.
    NotCarried = 42,
}

/// All exit statuses with their meaning.
pub const TABLE: [(Exit, &str); 15] = [
    (Exit::General, "another error"),
    (Exit::Unreachable, "target or server unreachable or unavailable, or connection lost"),
    (Exit::Refused, "the target rejected the login"),
    (Exit::Invalid, "invalid URL or argument"),
    (Exit::TimedOut, "timed out"),
    (Exit::NoAccess, "access denied, or reservation conflict"),
    (Exit::Exists, "already exists"),
    (Exit::NotFound, "no such file, target or LUN, or the portal reports none"),
    (Exit::UnknownHost, "the host name has no address"),
    (Exit::Authentication, "authentication failed"),
    (Exit::InUse, "in use"),
    (Exit::Scsi, "the logical unit rejected a command (CHECK CONDITION)"),
    (Exit::LeftOut, "copied except for unreadable ranges"),
    (Exit::Differs, "lunar copy --verify found a difference"),
    (Exit::NotCarried, "imported except for settings that are lost"),
];

/// The table for `lunar --help`.
pub fn help() -> String {
    let row = |(exit, what): &(Exit, &str)| format!("\n  {:>3}   {what}", *exit as u8);
    let rows: String = TABLE.iter().map(row).collect();
    format!("Exit status:\n    0   success{rows}\n    2   invalid command line")
}

/// The failure of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its exit status.
    pub exit: Exit,
    /// The faults.
    pub problems: Vec<Diagnostic>,
}

impl Exit {
    /// The status with this number.
    pub fn of(status: u8) -> Exit {
        TABLE.iter().map(|row| row.0).find(|exit| *exit as u8 == status).unwrap_or(Exit::General)
    }
}

impl Failure {
    /// A failure with one problem and this exit status. Its code is the first with this status.
    pub fn new(exit: Exit, what: impl Into<String>, hint: impl Into<String>) -> Failure {
        let code = CODES.iter().find(|row| row.1 == exit).map_or(ErrorCode::Other, |row| row.0);
        Failure { exit, problems: vec![Diagnostic::new(what, hint).with_code(code)] }
    }

    /// The common code of its faults.
    pub fn code(&self) -> ErrorCode {
        common_code(&self.problems)
    }
}

/// A failure of the command line.
pub fn invalid(problem: Diagnostic) -> Failure {
    Failure { exit: Exit::Invalid, problems: vec![problem] }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

impl From<Failure> for ExitCode {
    fn from(failure: Failure) -> ExitCode {
        failure.exit.into()
    }
}

impl From<Vec<Diagnostic>> for Failure {
    fn from(problems: Vec<Diagnostic>) -> Failure {
        Failure { exit: of(common_code(&problems)).0, problems }
    }
}

/// The common code of all problems; [`ErrorCode::Other`] if they differ.
pub fn common_code(problems: &[Diagnostic]) -> ErrorCode {
    let first = problems.first().map(|problem| problem.code).unwrap_or_default();
    if problems.iter().all(|problem| problem.code == first) { first } else { ErrorCode::Other }
}

impl From<Diagnostic> for Failure {
    fn from(problem: Diagnostic) -> Failure {
        Failure::from(vec![problem])
    }
}

/// The hint for something missing that has no hint of its own.
pub const NOT_FOUND_HINT: &str = "lunar ls lists targets and LUNs";

/// The exit status of each code, and the hint for errors without their own hint.
const CODES: [(ErrorCode, Exit, &str); 19] = [
    (ErrorCode::Other, Exit::General, "LUNAR_LOG=debug logs more"),
    (ErrorCode::InvalidArgument, Exit::Invalid, "docs/use.md explains URLs"),
    (
        ErrorCode::UnknownHost,
        Exit::UnknownHost,
        "check the spelling of the host name, and the DNS configuration of this host",
    ),
    (
        ErrorCode::Unreachable,
        Exit::Unreachable,
        "check that the target runs at this address, and that the port is open",
    ),
    (
        ErrorCode::Refused,
        Exit::Refused,
        "see the log of the target, which may require another initiator name",
    ),
    (
        ErrorCode::NegotiationFailed,
        Exit::Refused,
        "offer values that the target accepts; docs/use.md lists the URL keys",
    ),
    (
        ErrorCode::AuthenticationFailed,
        Exit::Authentication,
        "check user and password on both sides; docs/use.md explains CHAP",
    ),
    (ErrorCode::NotFound, Exit::NotFound, NOT_FOUND_HINT),
    (ErrorCode::AlreadyExists, Exit::Exists, "choose another name"),
    (ErrorCode::InUse, Exit::InUse, "stop the other user, or use another target, file or address"),
    (ErrorCode::PermissionDenied, Exit::NoAccess, "run as a user with access to the file or device"),
    (
        ErrorCode::TimedOut,
        Exit::TimedOut,
        "check the network with lunar doctor; docs/use.md lists the time-outs of URLs",
    ),
    (ErrorCode::ConnectionLost, Exit::Unreachable, "check the network and the target's log"),
    (ErrorCode::Aborted, Exit::General, "run the command again"),
    (ErrorCode::ProtocolError, Exit::General, "this is a fault of the target; LUNAR_LOG=debug logs more"),
    (
        ErrorCode::ScsiError,
        Exit::Scsi,
        "the logical unit rejected the command; lunar scsi shows the full sense data of a LUN",
    ),
    (
        ErrorCode::ReservationConflict,
        Exit::NoAccess,
        "lunar pr URL read-full-status shows the holder; if it is this host, add its isid= or, over NVMe, host_id= to the URL",
    ),
    (ErrorCode::IdentityMismatch, Exit::General, "another logical unit replaced this LUN: check the target"),
    (ErrorCode::SessionClosed, Exit::General, "open the LUN again"),
];

/// The exit status and the hint of a code. A test checks that every code has a row.
fn of(code: ErrorCode) -> (Exit, &'static str) {
    let row = CODES.iter().find(|row| row.0 == code).unwrap_or(&CODES[0]);
    (row.1, row.2)
}

impl From<lunar_bench::Error> for Failure {
    fn from(e: lunar_bench::Error) -> Failure {
        let exit = match e.kind {
            lunar_bench::ErrorKind::Invalid => Exit::Invalid,
            lunar_bench::ErrorKind::HoldsData => Exit::Exists,
            lunar_bench::ErrorKind::Target(Some(code)) => of(code).0,
            lunar_bench::ErrorKind::Medium(code) => of(code).0,
            lunar_bench::ErrorKind::Target(None) | lunar_bench::ErrorKind::System => Exit::General,
        };
        Failure::new(exit, e.what, words(&e.hint))
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        // LOGICAL UNIT NOT SUPPORTED (SPC-6): the LUN does not exist.
        let is_missing = e.sense.is_some_and(|sense| sense.asc == 0x25);
        let code = if is_missing { ErrorCode::NotFound } else { e.code };
        let (exit, hint) = of(code);
        let lunar_initiator::Details { what, hint: better, .. } = e.into_details();
        let problem = Diagnostic::new(what, better.as_ref().map_or(hint, words)).with_code(code);
        Failure { exit, problems: vec![problem] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_status_and_hint_follow_the_code_not_the_words() {
        for (code, status) in [
            (ErrorCode::InvalidArgument, 7),
            (ErrorCode::UnknownHost, 23),
            (ErrorCode::Unreachable, 4),
            (ErrorCode::Refused, 5),
            (ErrorCode::NegotiationFailed, 5),
            (ErrorCode::AuthenticationFailed, 24),
            (ErrorCode::NotFound, 21),
            (ErrorCode::AlreadyExists, 15),
            (ErrorCode::InUse, 28),
            (ErrorCode::PermissionDenied, 13),
            (ErrorCode::TimedOut, 8),
            (ErrorCode::ConnectionLost, 4),
            (ErrorCode::Aborted, 1),
            (ErrorCode::ProtocolError, 1),
            (ErrorCode::ScsiError, 30),
            (ErrorCode::ReservationConflict, 13),
            (ErrorCode::IdentityMismatch, 1),
            (ErrorCode::SessionClosed, 1),
            (ErrorCode::Other, 1),
        ] {
            let words = [
                "x",
                "the login did not complete within 15 s",
                "the target sent HeaderDigest=None: the value was not offered",
                "timed out",
            ];
            for what in words {
                let failure = Failure::from(Error::new(code, what));
                assert_eq!(failure.exit as u8, status, "{code}: {what}");
                assert_eq!(failure.problems[0].hint.as_deref(), Some(of(code).1), "{code}: {what}");
                let problem = Diagnostic::new(what, "").with_code(code);
                assert_eq!(Failure::from(problem).exit as u8, status, "{code}: {what}");
            }
            assert!(TABLE.iter().any(|row| row.0 == of(code).0), "{code}");
        }
    }

    #[test]
    fn each_code_has_one_row() {
        assert_eq!(CODES.len(), ErrorCode::ALL.len());
        assert!(ErrorCode::ALL.iter().all(|code| CODES.iter().any(|row| row.0 == *code)));
    }

    #[test]
    fn hint_of_the_error_wins_over_the_table() {
        let hinted = Failure::from(Error::new(ErrorCode::ConnectionLost, "x").with_hint("look there"));
        assert_eq!(hinted.problems[0].to_string(), "x\n  hint: look there");
    }

    #[test]
    fn exit_status_table_is_sorted_and_in_help() {
        assert!(TABLE.is_sorted_by_key(|row| row.0 as u8));
        assert!(help().contains("\n   24   authentication failed"));
    }
}

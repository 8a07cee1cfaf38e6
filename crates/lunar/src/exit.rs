//! Exit statuses, one table for all commands that use targets: those that users of Open-iSCSI know.

use crate::advice;
use lunar_initiator::{Error, Kind};
use lunar_server::{Cause, Problem};
use std::process::ExitCode;

/// Why a command ends without success. 0 is success, 2 is a command line that is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// What has no status of its own.
    General = 1,
    /// No connection.
    Unreachable = 4,
    /// The target refused the login.
    Refused = 5,
    /// What was asked for is malformed.
    Invalid = 7,
    /// The time was over.
    TimedOut = 8,
    /// Not allowed, or reserved by another.
    NoAccess = 13,
    /// It is there already.
    Exists = 15,
    /// There is none.
    NotFound = 21,
    /// The name of the host has no address.
    UnknownHost = 23,
    /// One of the two sides could not prove who it is.
    Authentication = 24,
    /// Somebody uses it.
    InUse = 28,
    /// The logical unit refused a command: CHECK CONDITION, or another status that is no success.
    Scsi = 30,
    /// Copied, except for ranges that could not be read.
    LeftOut = 40,
    /// Both ends of a copy were compared, and differ.
    Differs = 41,
}

/// All of them, as they are told to people.
pub const TABLE: [(Exit, &str); 14] = [
    (Exit::General, "anything else went wrong"),
    (
        Exit::Unreachable,
        "the target or server cannot be reached or is not available, or the connection was lost",
    ),
    (Exit::Refused, "the target refused the login"),
    (Exit::Invalid, "a URL or an argument is wrong"),
    (Exit::TimedOut, "time-out"),
    (Exit::NoAccess, "no access, or somebody else holds a reservation"),
    (Exit::Exists, "it is already there"),
    (Exit::NotFound, "nothing found: no such file, target or LUN, or a portal that shows none"),
    (Exit::UnknownHost, "the host's name has no address"),
    (Exit::Authentication, "authentication failed"),
    (Exit::InUse, "it is in use"),
    (Exit::Scsi, "the logical unit refused a command (CHECK CONDITION)"),
    (Exit::LeftOut, "copied, except for ranges that could not be read"),
    (Exit::Differs, "lunar copy --verify found a difference"),
];

/// The table for `lunar --help`.
pub fn help() -> String {
    let row = |(exit, what): &(Exit, &str)| format!("\n  {:>3}   {what}", *exit as u8);
    let rows: String = TABLE.iter().map(row).collect();
    format!("Exit status:\n    0   success{rows}\n    2   the command line is not understood")
}

/// The end of a command that did not do what it was to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its exit status.
    pub exit: Exit,
    /// What went wrong.
    pub problems: Vec<Problem>,
}

impl Exit {
    /// The one of a number.
    pub fn of(status: u8) -> Exit {
        TABLE.iter().map(|row| row.0).find(|exit| *exit as u8 == status).unwrap_or(Exit::General)
    }
}

impl Failure {
    /// One problem, and this exit status.
    pub fn new(exit: Exit, what: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure { exit, problems: vec![Problem::new(what, hint)] }
    }
}

/// A problem of the command line.
pub fn invalid(problem: Problem) -> Failure {
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

impl From<Vec<Problem>> for Failure {
    fn from(problems: Vec<Problem>) -> Failure {
        // Several problems of one kind have its status.
        let first = problems.first().map(|problem| problem.cause).unwrap_or_default();
        let cause = if problems.iter().all(|p| p.cause == first) { first } else { Cause::Other };
        Failure { exit: of_cause(cause), problems }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        Failure::from(vec![problem])
    }
}

/// The exit status of a cause.
fn of_cause(cause: Cause) -> Exit {
    match cause {
        Cause::Other => Exit::General,
        Cause::Argument => Exit::Invalid,
        Cause::InUse => Exit::InUse,
        Cause::NoAccess => Exit::NoAccess,
        Cause::NotFound => Exit::NotFound,
        Cause::Exists => Exit::Exists,
        Cause::Unreachable => Exit::Unreachable,
        Cause::TimedOut => Exit::TimedOut,
    }
}

/// The exit status of a kind of failure, and what to do when the error itself does not say.
fn of(kind: Kind) -> (Exit, &'static str) {
    match kind {
        Kind::Invalid => (Exit::Invalid, "docs/use.md explains URLs"),
        Kind::UnknownHost => (Exit::UnknownHost, "check its spelling, and the name service of this host"),
        Kind::Unreachable => (Exit::Unreachable, "does the target run there, and is the port open?"),
        Kind::Refused => (Exit::Refused, "the target's log says why; it may want another initiator name"),
        Kind::Authentication => {
            (Exit::Authentication, "check user and password on both sides; see docs/use.md, CHAP")
        }
        Kind::NotFound => (Exit::NotFound, "lunar ls lists targets and LUNs"),
        Kind::TimedOut => {
            (Exit::TimedOut, "look at the network with lunar doctor; docs/use.md lists the time-outs of URLs")
        }
        Kind::Lost => (Exit::Unreachable, "look at the network and at the target's log"),
        Kind::Aborted => (Exit::General, "run it again"),
        Kind::Protocol => (Exit::General, "the target is at fault; LUNAR_LOG=debug logs more"),
        Kind::Scsi => (Exit::Scsi, "the logical unit refused it; lunar scsi shows all that it says"),
        Kind::Reserved => (
            Exit::NoAccess,
            "lunar pr URL read-full-status shows the holder; if that is this host under another ISID, name it: isid=",
        ),
        Kind::Identity => (Exit::General, "the LUN is not the one that it was: look at the target"),
        Kind::Closed => (Exit::General, "open it again"),
    }
}

impl From<lunar_bench::Error> for Failure {
    fn from(e: lunar_bench::Error) -> Failure {
        let exit = match e.kind {
            lunar_bench::Kind::Invalid => Exit::Invalid,
            lunar_bench::Kind::HoldsData => Exit::Exists,
            lunar_bench::Kind::Target(Some(kind)) => of(kind).0,
            lunar_bench::Kind::Medium(kind) => of_cause(Cause::of(kind)),
            lunar_bench::Kind::Target(None) | lunar_bench::Kind::System => Exit::General,
        };
        Failure::new(exit, e.what, e.hint)
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        // LOGICAL UNIT NOT SUPPORTED (SPC-6): there is no such LUN.
        let kind = if e.sense.is_some_and(|sense| sense.asc == 0x25) { Kind::NotFound } else { e.kind };
        let (exit, hint) = advice::of_words(kind, &e.what).unwrap_or_else(|| of(kind));
        let lunar_initiator::Details { what, hint: better, .. } = e.into_details();
        Failure::new(exit, what, better.unwrap_or_else(|| hint.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_failure_has_its_status() {
        for (kind, status) in [
            (Kind::Invalid, 7),
            (Kind::UnknownHost, 23),
            (Kind::Unreachable, 4),
            (Kind::Refused, 5),
            (Kind::Authentication, 24),
            (Kind::NotFound, 21),
            (Kind::TimedOut, 8),
            (Kind::Lost, 4),
            (Kind::Aborted, 1),
            (Kind::Protocol, 1),
            (Kind::Reserved, 13),
            (Kind::Scsi, 30),
        ] {
            let failure = Failure::from(Error::new(kind, "x"));
            assert_eq!(failure.exit as u8, status, "{kind:?}");
            assert!(TABLE.iter().any(|row| row.0 == failure.exit), "{kind:?}");
        }
        let hinted = Failure::from(Error::new(Kind::Lost, "x").with_hint("look there"));
        assert_eq!(hinted.problems[0].to_string(), "x\n  hint: look there");
    }

    #[test]
    fn the_table_is_in_order_and_told() {
        assert!(TABLE.is_sorted_by_key(|row| row.0 as u8));
        assert!(help().contains("\n   24   authentication failed"));
    }
}

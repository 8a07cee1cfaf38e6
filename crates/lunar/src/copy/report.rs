//! The result of a copy: summary, messages and exit status.

use super::progress::{rate, size};
use crate::exit::{self, Exit};
use crate::output;
use lunar_copy::{CopyErrorCause, CopyFailure, CopyMeter};
use lunar_initiator::Error;
use lunar_server::Diagnostic;
use serde::Serialize;
use std::io;
use std::ops::Range;
use std::time::Duration;
use utoipa::ToSchema;

/// Limit of ranges in a message; JSON lists all.
const LISTED: usize = 50;

/// The result of a copy.
pub struct CopyReport {
    /// Summary for `--json`.
    pub summary: Summary,
    /// Summary line of a complete copy, for stderr.
    pub line: String,
    /// Diagnostic for stderr.
    pub problem: Option<Diagnostic>,
    /// Determines the exit status.
    pub end: CopyStatus,
}

/// Outcome of a copy; each has its own exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStatus {
    /// All data is copied.
    Complete,
    /// An operation failed, or verification found a difference.
    Failed(Exit),
    /// All data is copied except for unreadable ranges.
    Incomplete,
    /// A signal or the timeout stopped it.
    Stopped,
}

/// Summary of a copy.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = CopySummary)]
pub struct Summary {
    /// The source.
    pub source: String,
    /// The destination.
    pub destination: String,
    /// All data is copied and flushed.
    pub complete: bool,
    /// All bytes before this offset are copied and flushed.
    pub bytes: u64,
    /// Offset at which this run resumed; 0 if it started.
    pub resumed_at: u64,
    /// Bytes read from the source.
    pub bytes_read: u64,
    /// Bytes written to the destination.
    pub bytes_written: u64,
    /// Bytes that the destination zeroed without a transfer of data.
    pub zeroes_cleared: u64,
    /// Bytes that were zero already.
    pub zeroes_skipped: u64,
    /// Bytes copied by the target itself.
    pub bytes_offloaded: u64,
    /// Duration, with verification.
    pub seconds: f64,
    /// Result of verification; None: not verified.
    pub verified: Option<bool>,
    /// Unreadable ranges of the source.
    pub unreadable: Vec<UnreadableRange>,
}

/// An unreadable range.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct UnreadableRange {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Summary {
    /// Copies the counts of a meter.
    pub fn count(&mut self, meter: &CopyMeter) {
        self.bytes_read = meter.read.get();
        self.bytes_written = meter.written.get();
        self.zeroes_cleared = meter.zeroed.get();
        self.zeroes_skipped = meter.skipped.get();
        self.bytes_offloaded = meter.offloaded.get();
    }

    /// Sets the unreadable ranges.
    pub fn left_out(&mut self, bad: &[Range<u64>]) {
        self.unreadable = bad
            .iter()
            .map(|range| UnreadableRange { offset: range.start, len: range.end - range.start })
            .collect();
    }

    /// As JSON.
    pub fn json(&self) -> Result<String, Diagnostic> {
        let text = serde_json::to_string_pretty(self);
        text.map(|text| text + "\n")
            .map_err(|e| Diagnostic::new(format!("cannot write JSON: {e}"), "run without --json"))
    }

    /// The summary line of a complete copy.
    pub fn line(&self, copying: Duration) -> String {
        let new = self.bytes - self.resumed_at;
        let zeros = self.zeroes_cleared + self.zeroes_skipped;
        // Zeros that are not written move no data, so they would make the rate meaningless.
        let data = new.saturating_sub(zeros);
        let per_s = data as f64 / copying.as_secs_f64().max(1e-9);
        let mut text = format!("copied {} in {:.1} s", size(new), copying.as_secs_f64());
        match (data, zeros) {
            (_, 0) => text += &format!(", {}", rate(per_s)),
            (0, _) => {}
            _ => text += &format!(", {} of data", rate(per_s)),
        }
        let parts = [
            (self.resumed_at, "were copied before"),
            (zeros, "of zeros were not written"),
            (self.bytes_offloaded, "were copied by the target (offload)"),
        ];
        for (bytes, what) in parts.into_iter().filter(|(bytes, _)| *bytes > 0) {
            text += &format!("; {} {what}", size(bytes));
        }
        if self.verified == Some(true) {
            text += "; verified";
        }
        text + "\n"
    }
}

/// The problem that lists unreadable ranges.
pub fn left_out(source: &str, bad: &[UnreadableRange]) -> Diagnostic {
    let mut what = format!("{} of {source} unreadable: replaced by zeros", output::count(bad.len(), "range"));
    for UnreadableRange { offset, len } in bad.iter().take(LISTED) {
        what += &format!("\n  offset {offset}, {len} bytes");
    }
    if bad.len() > LISTED {
        what += &format!("\n  and {} more", bad.len() - LISTED);
    }
    Diagnostic::new(what, "--json lists all ranges")
}

impl CopyStatus {
    /// The status for a failure.
    pub fn of(failure: &CopyFailure) -> CopyStatus {
        CopyStatus::Failed(exit_of(failure))
    }
}

/// The exit status for a failure.
pub fn exit_of(failure: &CopyFailure) -> Exit {
    match failure.cause {
        CopyErrorCause::Differs => Exit::Differs,
        _ => of_target(failure).map_or(Exit::General, |failure| failure.exit),
    }
}

/// Exit status and hint that every command gives for an error of a target or its connection; None for other errors.
fn of_target(failure: &CopyFailure) -> Option<exit::Failure> {
    match &failure.cause {
        CopyErrorCause::Read(e)
        | CopyErrorCause::Write(e)
        | CopyErrorCause::ReadBack(e)
        | CopyErrorCause::Flush(e) => Error::of(e).cloned().map(exit::Failure::from),
        _ => None,
    }
}

/// The problem for a failure. `resume_hint`: how to continue the copy, if possible.
pub fn failed(names: (&str, &str), failure: &CopyFailure, resume_hint: Option<&str>) -> Diagnostic {
    let what = format!("{} to {}: {failure}", names.0, names.1);
    let target_hint = of_target(failure).and_then(|failure| failure.problems.into_iter().next()?.hint);
    let hint = match (&failure.cause, &target_hint) {
        _ if failure.is_damage() => "--skip-errors copies the rest and writes zeros for unreadable ranges",
        (CopyErrorCause::Write(e), _) if e.kind() == io::ErrorKind::StorageFull => {
            "free space at the destination"
        }
        (CopyErrorCause::Write(e), _) if e.kind() == io::ErrorKind::FileTooLarge => {
            "raise the limit on file sizes (ulimit -f), or choose a file system for files of that size"
        }
        (_, Some(hint)) => hint,
        (CopyErrorCause::Read(_), _) => "check the source: the system log may show the cause",
        (CopyErrorCause::Write(_) | CopyErrorCause::Flush(_) | CopyErrorCause::ReadBack(_), _) => {
            "check the destination: the system log may show the cause"
        }
        (CopyErrorCause::Checkpoint(_), _) => "choose a journal on a file system with free space: --journal",
        (CopyErrorCause::NoRoom, _) => "choose a larger destination",
        (CopyErrorCause::TooManyBad, _) => {
            "the source has too many errors: use a data recovery tool, such as ddrescue"
        }
        (CopyErrorCause::Differs, _) => "check that nothing writes to source or destination, and copy again",
    };
    match resume_hint {
        Some(resume_hint) => Diagnostic::new(what, format!("{hint}; {resume_hint}")),
        None => Diagnostic::new(what, hint),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_initiator::ErrorCode;

    #[test]
    fn summary_line_lists_nonzero_counts() {
        let mut summary = Summary { bytes: 3 << 30, complete: true, ..Summary::default() };
        let second = Duration::from_secs(1);
        assert_eq!(summary.line(second), "copied 3.00 GiB in 1.0 s, 3221.2 MB/s (3072.0 MiB/s)\n");
        summary.resumed_at = 1 << 30;
        (summary.zeroes_cleared, summary.zeroes_skipped) = (1 << 20, 1 << 20);
        summary.verified = Some(true);
        assert_eq!(
            summary.line(second),
            "copied 2.00 GiB in 1.0 s, 2145.4 MB/s (2046.0 MiB/s) of data; 1.00 GiB were copied before; \
             2.00 MiB of zeros were not written; verified\n"
        );
        let zeros = Summary { bytes: 1 << 20, zeroes_skipped: 1 << 20, ..Summary::default() };
        assert_eq!(zeros.line(second), "copied 1.00 MiB in 1.0 s; 1.00 MiB of zeros were not written\n");
    }

    #[test]
    fn target_error_sets_exit_status_and_hint() {
        for (kind, exit, hint) in [
            (ErrorCode::ReservationConflict, Exit::NoAccess, "lunar pr URL"),
            (ErrorCode::ConnectionLost, Exit::Unreachable, "check the network"),
            (ErrorCode::TimedOut, Exit::TimedOut, "lunar doctor"),
            (ErrorCode::ScsiError, Exit::Scsi, "lunar scsi"),
        ] {
            let refused = || io::Error::from(Error::new(kind, "it failed"));
            for cause in [
                CopyErrorCause::Write(refused()),
                CopyErrorCause::Flush(refused()),
                CopyErrorCause::ReadBack(refused()),
            ] {
                let failure = CopyFailure { offset: 0, cause };
                assert_eq!(CopyStatus::of(&failure), CopyStatus::Failed(exit));
                let target_hint = failed(("a", "b"), &failure, None).hint.unwrap_or_default();
                assert!(target_hint.contains(hint), "{target_hint:?}");
            }
        }
        let other =
            CopyFailure { offset: 0, cause: CopyErrorCause::Write(io::ErrorKind::PermissionDenied.into()) };
        assert_eq!(CopyStatus::of(&other), CopyStatus::Failed(Exit::General));
    }

    #[test]
    fn only_damaged_places_can_be_left_out() {
        let hint =
            |cause| failed(("a", "b"), &CopyFailure { offset: 0, cause }, None).hint.unwrap_or_default();
        let unready =
            || io::Error::new(io::ErrorKind::NotConnected, Error::new(ErrorCode::ScsiError, "NOT READY"));
        for (e, is_damage) in [
            (Error::new(ErrorCode::ScsiError, "MEDIUM ERROR").into(), true),
            (io::Error::other("EIO"), true),
            (unready(), false),
            (Error::new(ErrorCode::ConnectionLost, "reset").into(), false),
            (Error::new(ErrorCode::ReservationConflict, "conflict").into(), false),
            (io::ErrorKind::NotFound.into(), false),
        ] {
            let target_hint = hint(CopyErrorCause::Read(e));
            assert_eq!(target_hint.contains("--skip-errors"), is_damage, "{target_hint}");
        }
        let full = io::Error::new(io::ErrorKind::StorageFull, Error::new(ErrorCode::ScsiError, "no space"));
        assert_eq!(hint(CopyErrorCause::Write(full)), "free space at the destination");
        let better = Error::new(ErrorCode::TimedOut, "late").with_hint("command_timeout=TIME");
        assert_eq!(hint(CopyErrorCause::Write(better.into())), "command_timeout=TIME");
    }

    #[test]
    fn long_list_is_cut_for_people() {
        let bad: Vec<UnreadableRange> =
            (0..60).map(|n| UnreadableRange { offset: n * 8192, len: 4096 }).collect();
        let problem = left_out("a.img", &bad);
        assert!(problem.what.starts_with("60 ranges of a.img unreadable"));
        assert_eq!(problem.what.lines().count(), 52);
        assert!(problem.what.ends_with("\n  and 10 more"));
    }
}

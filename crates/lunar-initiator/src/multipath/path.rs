//! A path: a logical unit through one session.

use super::alua;
use super::ana;
use super::path_selector::PathState;
use crate::lun::{BusyRetry, List, perform_within};
use crate::{CommandResult, Direction, Error, ErrorCode, Event, Lun};
use lunar_block::range_lock::RangeLocks;
use lunar_block::{Backend, LocalBoxFuture};
use lunar_runtime::Buf;
use lunar_wire::scsi::Sense;
use lunar_wire::scsi::cdb::{self, Cdb};
use std::io;
use std::sync::Arc;

/// One of several paths to a logical unit or an NVMe namespace. Its errors are [`Error`]s, which distinguish faults of
/// the path from those of the medium.
pub trait LunPath: Backend {
    /// The name of the path in messages.
    fn name(&self) -> String;

    /// The identity of the logical unit, the same on all paths. Empty if it reports none.
    fn identity(&self) -> Vec<u8>;

    /// Sets the range locks that the writes of all paths share. Called before the first use of the path.
    fn share(&self, ranges: &Arc<RangeLocks>);

    /// The SCSI logical unit, while its session is open. None for a path of another kind: its unanswered writes have no
    /// proof of their end.
    fn lun(&self) -> Option<&Lun>;

    /// Sends COMPARE AND WRITE once, as [`Lun::compare_and_write`] does. Returns the buffer.
    fn compare_and_write(&self, offset: u64, data: Buf) -> LocalBoxFuture<'_, (Result<bool, Error>, Buf)>;

    /// Checks the path.
    fn check(&self) -> LocalBoxFuture<'_, PathState>;

    /// Called before an operation is retried on another path: ensures that this path cannot execute it later.
    fn reset_abandoned(&self) -> LocalBoxFuture<'_, ()>;

    /// Takes the deferred error reported since the last call: acknowledged data are lost.
    fn take_deferred_error(&self) -> Option<Error>;

    /// Events that cause a check.
    fn events(&self) -> flume::Receiver<Event>;
}

impl LunPath for Lun {
    fn name(&self) -> String {
        self.session().place(self.address())
    }

    fn identity(&self) -> Vec<u8> {
        self.properties().identity
    }

    fn share(&self, ranges: &Arc<RangeLocks>) {
        Lun::share(self, ranges);
    }

    fn lun(&self) -> Option<&Lun> {
        Some(self)
    }

    fn compare_and_write(&self, offset: u64, data: Buf) -> LocalBoxFuture<'_, (Result<bool, Error>, Buf)> {
        Box::pin(self.compare_or_return(offset, data))
    }

    fn check(&self) -> LocalBoxFuture<'_, PathState> {
        Box::pin(async move {
            let mut ready = self.perform_once(cdb::test_unit_ready(), Direction::None).await.0;
            if ready.as_ref().is_err_and(|e| e.code == ErrorCode::IdentityMismatch) {
                self.session().verify_again(self.address()).await;
                ready = self.perform_once(cdb::test_unit_ready(), Direction::None).await.0;
            }
            match ready.err().and_then(|e| state_after(&e)) {
                Some(state) => state,
                None => self.access_state().await,
            }
        })
    }

    fn reset_abandoned(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(self.session().reset_abandoned())
    }

    fn take_deferred_error(&self) -> Option<Error> {
        self.session().take_deferred_error(self.address())
    }

    fn events(&self) -> flume::Receiver<Event> {
        self.session().events()
    }
}

impl Lun {
    /// Sends a command without retries, which would hide the current state of the path.
    async fn perform_once(&self, cdb: Cdb, data: Direction) -> CommandResult {
        perform_within(BusyRetry::NONE, self.session(), self.address(), cdb, data).await
    }

    /// The ALUA state of the target port of this path. It is active/optimized without ALUA, or while the logical unit
    /// is too busy to report it.
    async fn access_state(&self) -> PathState {
        let properties = self.properties();
        let Some(group) = properties.target_port_group.filter(|_| properties.alua > 0) else {
            return PathState::Optimized;
        };
        let groups = List { cdb: cdb::report_target_port_groups, head: 4 };
        let state = match groups.read(BusyRetry::NONE, self.session(), self.address()).await {
            Ok(answer) => alua::state_of(&answer, group),
            Err(e) => state_after(&e),
        };
        state.unwrap_or(PathState::Optimized)
    }
}

/// The same for the I/O error of a backend.
pub fn fault(e: &io::Error) -> Option<PathState> {
    state_after(Error::of(e)?)
}

/// The state of the path after this error, if the path is at fault. Another path may then succeed.
pub fn state_after(e: &Error) -> Option<PathState> {
    match e.code {
        _ if let Some(status) = e.nvme_status => ana::state_after(status),
        ErrorCode::IdentityMismatch => Some(PathState::Changed),
        // The logical unit responded, even if it stayed busy for too long.
        _ if e.status.is_some() => sense_state(e),
        ErrorCode::ConnectionLost
        | ErrorCode::TimedOut
        | ErrorCode::SessionClosed
        | ErrorCode::Unreachable
        | ErrorCode::UnknownHost => sense_state(e).or(Some(PathState::Down)),
        ErrorCode::ProtocolError
        | ErrorCode::NegotiationFailed
        | ErrorCode::Refused
        | ErrorCode::AuthenticationFailed
        | ErrorCode::NotFound => Some(PathState::Down),
        ErrorCode::ScsiError => sense_state(e),
        // ErrorCode::InvalidArgument, ErrorCode::ReservationConflict, ErrorCode::Aborted: the path is not at fault.
        _ => None,
    }
}

/// Whether a command with this error was certainly not executed: the logical unit responded with an error, or the
/// command was not sent.
pub fn is_undone(e: &Error) -> bool {
    if let Some(status) = e.nvme_status {
        return ana::is_undone(status);
    }
    e.status.is_some() || matches!(e.code, ErrorCode::Unreachable | ErrorCode::IdentityMismatch)
}

/// The state of the path that the sense data report.
fn sense_state(e: &Error) -> Option<PathState> {
    let sense = e.sense?;
    let is = |other: Sense| (sense.key, sense.asc, sense.ascq) == (other.key, other.asc, other.ascq);
    if is(Sense::NOT_READY_TRANSITION) {
        Some(PathState::Transitioning)
    } else if is(Sense::NOT_READY_STANDBY) || is(Sense::NOT_READY_UNAVAILABLE) {
        Some(PathState::Standby)
    } else if is(Sense::LUN_NOT_SUPPORTED) {
        Some(PathState::Down)
    } else {
        None
    }
}

//! A path: a logical unit as it is reached through one session.

use super::alua;
use super::path_selector::State;
use crate::lun::{BusyRetry, List, perform_within};
use crate::{CommandResult, Direction, Error, ErrorCode, Event, Lun};
use lunar_block::range_lock::RangeLocks;
use lunar_block::{Backend, LocalBoxFuture};
use lunar_runtime::Buf;
use lunar_wire::scsi::Sense;
use lunar_wire::scsi::cdb::{self, Cdb};
use std::io;
use std::sync::Arc;

/// One of several paths to a logical unit. Its errors are [`Error`]s, which separate
/// faults of the path from those of the medium.
pub trait LunPath: Backend {
    /// Where it leads, for people.
    fn name(&self) -> String;

    /// The identity, the same on all paths; empty if the logical unit reports none.
    fn identity(&self) -> Vec<u8>;

    /// Its writes hold their bytes here from now on, as those of the other paths do. It is called before the path is
    /// used.
    fn share(&self, ranges: &Arc<RangeLocks>);

    /// The logical unit of its session, while it is open.
    fn lun(&self) -> Option<&Lun>;

    /// COMPARE AND WRITE of blocks, once, as [`Lun::compare_and_write`] has it; with the buffer.
    fn compare_and_write(&self, offset: u64, data: Buf) -> LocalBoxFuture<'_, (Result<bool, Error>, Buf)>;

    /// Asks whether it works.
    fn check(&self) -> LocalBoxFuture<'_, State>;

    /// Before an operation that was late is done on another path: makes sure that it is not carried out on this
    /// one later.
    fn reset_abandoned(&self) -> LocalBoxFuture<'_, ()>;

    /// The deferred error since the last call: acknowledged data are lost.
    fn take_deferred_error(&self) -> Option<Error>;

    /// Events that are a reason to ask.
    fn news(&self) -> flume::Receiver<Event>;
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

    fn check(&self) -> LocalBoxFuture<'_, State> {
        Box::pin(async move {
            let mut ready = self.ask(cdb::test_unit_ready(), Direction::None).await.0;
            if ready.as_ref().is_err_and(|e| e.code == ErrorCode::IdentityMismatch) {
                self.session().verify_again(self.address()).await;
                ready = self.ask(cdb::test_unit_ready(), Direction::None).await.0;
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

    fn news(&self) -> flume::Receiver<Event> {
        self.session().events()
    }
}

impl Lun {
    /// The first answer counts: a retry would hide the present state of the path.
    async fn ask(&self, cdb: Cdb, data: Direction) -> CommandResult {
        perform_within(BusyRetry::NONE, self.session(), self.address(), cdb, data).await
    }

    /// What ALUA says of the port behind which this logical unit is seen. Without ALUA, or while it is too busy to
    /// tell, it is none of the worse ones.
    async fn access_state(&self) -> State {
        let properties = self.properties();
        let Some(group) = properties.port_group.filter(|_| properties.alua > 0) else {
            return State::Optimized;
        };
        let groups = List { cdb: cdb::report_target_port_groups, head: 4 };
        let told = match groups.read(BusyRetry::NONE, self.session(), self.address()).await {
            Ok(answer) => alua::state_of(&answer, group),
            Err(e) => state_after(&e),
        };
        told.unwrap_or(State::Optimized)
    }
}

/// The same of the error of a backend.
pub fn fault(e: &io::Error) -> Option<State> {
    state_after(Error::of(e)?)
}

/// How a path is after this error, if it is one of the path: another may do better.
pub fn state_after(e: &Error) -> Option<State> {
    match e.code {
        ErrorCode::IdentityMismatch => Some(State::Changed),
        // The logical unit answered, also when it stayed busy for too long.
        _ if e.status.is_some() => sense_state(e),
        ErrorCode::ConnectionLost
        | ErrorCode::TimedOut
        | ErrorCode::SessionClosed
        | ErrorCode::Unreachable
        | ErrorCode::UnknownHost => sense_state(e).or(Some(State::Down)),
        ErrorCode::ProtocolError
        | ErrorCode::NegotiationFailed
        | ErrorCode::Refused
        | ErrorCode::AuthenticationFailed
        | ErrorCode::NotFound => Some(State::Down),
        ErrorCode::ScsiError => sense_state(e),
        // ErrorCode::InvalidArgument, ErrorCode::ReservationConflict, ErrorCode::Aborted: no fault of the path.
        _ => None,
    }
}

/// After this error a command was not carried out, for certain: the logical unit has said so, or it was not sent.
pub fn is_undone(e: &Error) -> bool {
    e.status.is_some() || matches!(e.code, ErrorCode::Unreachable | ErrorCode::IdentityMismatch)
}

/// Sense data about the path.
fn sense_state(e: &Error) -> Option<State> {
    let sense = e.sense?;
    let is = |other: Sense| (sense.key, sense.asc, sense.ascq) == (other.key, other.asc, other.ascq);
    if is(Sense::NOT_READY_TRANSITION) {
        Some(State::Transitioning)
    } else if is(Sense::NOT_READY_STANDBY) || is(Sense::NOT_READY_UNAVAILABLE) {
        Some(State::Standby)
    } else if is(Sense::LUN_NOT_SUPPORTED) {
        Some(State::Down)
    } else {
        None
    }
}

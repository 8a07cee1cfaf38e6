//! Identity checks of logical units, after a recovery and after a unit attention that may announce another logical
//! unit.

use super::errors::changed;
use super::event::Event;
use super::local_session::LocalSession;
use super::pending::Pending;
use super::pinned_luns::Hold;
use super::request::Held;
use super::session_state::Online;
use super::task::Waiter;
use crate::designators;
use crate::{Command, CommandResult, Direction, Error, ErrorCode, time_limit};
use lunar_runtime::Buf;
use lunar_wire::scsi::{cdb, inquiry};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The interval of checks while a logical unit has not shown its identity.
const VERIFY_PAUSE: Duration = Duration::from_millis(500);
/// The number of bytes of VPD page 83h that are read.
pub const IDENTITY_LEN: u16 = 1024;

/// Releases commands: those of a pinned logical unit after its identity check, all others at once.
pub fn admit(local: &Rc<LocalSession>) {
    let luns = local.pinned.borrow().luns();
    luns.into_iter().for_each(|lun| local.verify_first(lun));
    let mut state = local.state.borrow_mut();
    state.online = Online::Yes;
    state.pump();
    drop(state);
    local.flush_soon();
}

/// The result of an identity check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdentityCheck {
    /// The logical unit is the pinned one.
    Unchanged,
    /// It is another logical unit, with this identity.
    Changed(Vec<u8>),
}

impl LocalSession {
    /// Pins the logical unit to this identity. Replaces an earlier one.
    pub fn pin(self: &Rc<Self>, lun: u64, identity: Vec<u8>) {
        let is_new = self.pinned.borrow_mut().pin(lun, identity);
        if is_new {
            self.verify_with_others(lun);
        }
    }

    /// Adds a user of the pinned logical unit, until the returned hold is dropped.
    ///
    /// # Errors
    /// When it is pinned to another identity: its users must not write to this logical unit.
    pub fn hold(self: &Rc<Self>, held: Held, identity: Vec<u8>) -> Result<Held, Error> {
        let lun = held.lun();
        let holds = self.pinned.borrow_mut().hold(lun, identity);
        match holds {
            Hold::Again => {}
            Hold::First => self.verify_with_others(lun),
            Hold::Mismatch(identity) => {
                self.mark(lun, IdentityCheck::Changed(identity));
                return Err(changed());
            }
        }
        Ok(held.counted())
    }

    /// Checks a newly pinned logical unit while checks of others are running: its identity may come from an earlier
    /// connection.
    fn verify_with_others(self: &Rc<Self>, lun: u64) {
        let state = self.state.borrow();
        let are_looked_at = state.online == Online::Yes && !state.unverified.is_empty();
        drop(state);
        if are_looked_at {
            self.verify_first(lun);
        }
    }

    /// The pinned identity.
    pub fn identity(&self, lun: u64) -> Option<Vec<u8>> {
        self.pinned.borrow().identity(lun).cloned()
    }

    /// Removes a user. A logical unit without users is no longer pinned.
    pub fn release_hold(self: &Rc<Self>, lun: u64) {
        let is_free = self.pinned.borrow_mut().release(lun);
        if is_free {
            self.changed.borrow_mut().retain(|changed| *changed != lun);
            self.state.borrow_mut().release(lun);
            self.flush_soon();
        }
    }

    /// Records the result of a check. A LUN that leads to another logical unit accepts no commands.
    pub fn mark(&self, lun: u64, seen: IdentityCheck) {
        let was = self.changed.borrow().contains(&lun);
        match seen {
            IdentityCheck::Changed(identity) => {
                if !was {
                    tracing::error!(lun, "{}", changed());
                    self.changed.borrow_mut().push(lun);
                    self.listeners.notify(&Event::Changed { lun, identity });
                }
                self.state.borrow_mut().fail_queued(&changed(), |t| t.lun == lun && !t.urgent);
            }
            IdentityCheck::Unchanged if was => {
                tracing::info!(lun, "the LUN leads to the original logical unit again");
                self.changed.borrow_mut().retain(|l| *l != lun);
            }
            IdentityCheck::Unchanged => {}
        }
    }

    /// Holds back the commands of a logical unit until its identity is checked.
    pub(super) fn verify_first(self: &Rc<Self>, lun: u64) {
        let check = self.state.borrow_mut().unverified.add(lun, Instant::now());
        if let Some(check) = check {
            lunar_runtime::spawn(verify(self.clone(), lun, check));
        }
    }

    /// Sends an INQUIRY before all queued commands.
    fn inquire(self: &Rc<Self>, lun: u64, page: Option<u8>) -> Result<Pending, Error> {
        let data = Direction::In(Buf::zeroed(IDENTITY_LEN.into()));
        let command = Command::new(lun, cdb::inquiry(page, IDENTITY_LEN), data);
        let tag = self.state.borrow_mut().submit_urgently(command, Waiter::Unknown);
        let tag = tag.map_err(|_| {
            Error::new(ErrorCode::InvalidArgument, "no task tag is free for the identity check of the LUN")
        })?;
        self.flush_soon();
        Ok(self.pending(tag))
    }

    /// Reads the identity of a logical unit and compares it. None if the logical unit is missing (PERIPHERAL
    /// QUALIFIER, SPC-5 section 6.6.2) or reports no identity.
    async fn read_identity(
        self: &Rc<Self>,
        lun: u64,
        identity: &[u8],
    ) -> Result<Option<IdentityCheck>, Error> {
        let (standard, page) = (self.inquire(lun, None)?, self.inquire(lun, Some(0x83))?);
        let (standard, page) = (data_of(standard.await)?, data_of(page.await)?);
        let is_there = standard.is_some_and(|data| inquiry::is_connected(&data));
        let compare = |page: Vec<u8>| match designators::identity(&page) {
            now if now == identity => IdentityCheck::Unchanged,
            now => IdentityCheck::Changed(now),
        };
        Ok(page.filter(|_| is_there).map(compare))
    }

    /// Runs one check, if it is still needed. Returns true if no further check is needed.
    async fn verify_once(self: &Rc<Self>, lun: u64, check: u32) -> bool {
        let Some(identity) = self.identity(lun) else { return true };
        let doubts = self.state.borrow().doubts;
        let seen = self.read_identity(lun, &identity).await;
        if !self.state.borrow().unverified.wants(lun, check) {
            return true;
        }
        self.complete_recovery();
        // A unit attention during the check may announce a change after the response.
        if self.state.borrow().doubts != doubts || self.identity(lun) != Some(identity) {
            return false;
        }
        let found = match seen {
            Ok(Some(seen)) => {
                self.mark(lun, seen);
                if self.state.borrow_mut().release(lun) {
                    self.listeners.notify(&Event::Seen { lun });
                }
                self.flush_soon();
                return true;
            }
            Ok(None) => "the LUN is missing or reports no identity".into(),
            Err(e) => e.to_string(),
        };
        let is_over = self.state.borrow_mut().unverified.missed(lun, found);
        let pause = if is_over { VERIFY_PAUSE.max(self.options.timeouts.pause) } else { VERIFY_PAUSE };
        time_limit::sleep(pause).await;
        false
    }
}

/// The data of an INQUIRY. None if the command failed.
fn data_of((result, buf): CommandResult) -> Result<Option<Vec<u8>>, Error> {
    let done = result?;
    Ok(buf.filter(|_| done.status == 0).map(|buf| buf[..done.transferred.min(buf.len())].to_vec()))
}

/// Repeats the check of a logical unit on this connection until it succeeds: a starting target may add the LUN later.
/// Only the commands of this LUN wait.
async fn verify(local: Rc<LocalSession>, lun: u64, check: u32) {
    while local.state.borrow().unverified.wants(lun, check) && !local.verify_once(lun, check).await {}
}

/// Checks a LUN again that led to another logical unit. A missing logical unit does not count as restored.
pub async fn verify_again(local: Rc<LocalSession>, lun: u64, reply: flume::Sender<()>) {
    let is_seen = |local: &LocalSession| {
        let state = local.state.borrow();
        state.online == Online::Yes && !state.unverified.has(lun)
    };
    if let Some(identity) = local.identity(lun)
        && local.changed.borrow().contains(&lun)
        && is_seen(&local)
        && let Ok(page) = local.inquire(lun, Some(0x83))
        && let Ok(Some(page)) = data_of(page.await)
        && designators::identity(&page) == identity
    {
        local.mark(lun, IdentityCheck::Unchanged);
    }
    // The caller may have stopped waiting.
    let _ = reply.send(());
}

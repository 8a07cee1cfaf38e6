//! Orphans: commands that may change the medium and whose connection was lost. The target may still execute an
//! orphan, even after newer commands. Until it is certain that it will not, the orphan is neither sent again nor
//! reported as ended.

use super::error_handler::{carry_out, is_done};
use super::event::lock;
use super::local_session::LocalSession;
use super::proof::Proof;
use super::session_state::{Online, SessionState};
use super::task::{Task, TaskState};
use crate::options::LateWrites;
use crate::{Error, ErrorCode};
use lunar_wire::scsi::TaskManagementFunction;
use lunar_wire::scsi::lun::shown;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The interval of checks whether an orphan has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

impl SessionState {
    /// Applies the operation timeout to a command. If the target may still execute the command, its owner gets the
    /// error only when that is no longer possible. Otherwise the owner gets it now.
    pub(super) fn expire(&mut self, tag: u32, error: Error) {
        let waits = self.late_writes == LateWrites::Wait;
        match self.tasks.get(tag) {
            Some(task)
                if waits && task.changes && matches!(task.state, TaskState::Sent | TaskState::Orphaned) =>
            {
                task.overdue = Some(error);
            }
            _ => self.tasks.expire(tag, error),
        }
    }

    /// Turns these commands of the lost connection into orphans. Newer writes to the same bytes wait for them.
    pub(super) fn orphan(&mut self, tags: &[u32]) {
        let (port, now) = (self.port, (self.clock)());
        for tag in tags {
            let Some(task) = self.tasks.get(*tag) else { continue };
            (task.state, task.port, task.sent, task.waited) =
                (TaskState::Orphaned, port.map(Box::new), now, true);
            if let Some(hold) = &task.hold {
                hold.make_exclusive();
            }
        }
    }

    /// Resends the repeatable orphans that this proof covers, and ends the others.
    pub fn prove(&mut self, proof: Proof) {
        let covered = |t: &&mut Task| t.state == TaskState::Orphaned && proof.covers(t);
        let tags: Vec<u32> = self.tasks.iter().filter(covered).map(|t| t.tag).collect();
        let mut back: Vec<_> = tags.into_iter().filter_map(|tag| self.end_orphan(tag)).collect();
        if back.is_empty() {
            return;
        }
        // Merged by CmdSN with commands that are already queued for a resend.
        let waits = |t: &&mut Task| t.state == TaskState::Queued && t.tries > 0 && !t.urgent;
        let others = self.tasks.iter().filter(waits).map(|t| (t.cmd_sn, t.tag));
        back.extend(others);
        back.sort_unstable();
        back.dedup();
        self.queue_again(back);
    }

    /// Returns CmdSN and tag if the orphan is to be resent, and ends it otherwise. After the recovery timeout every
    /// orphan ends, and its owner decides whether to repeat it.
    fn end_orphan(&mut self, tag: u32) -> Option<(u32, u32)> {
        let (now, again) = ((self.clock)(), !self.gave_up);
        let task = self.tasks.get(tag)?;
        if again && task.may_be_sent_again() {
            task.rewind(now);
            return Some((task.cmd_sn, tag));
        }
        let kind = if task.aborting { ErrorCode::Aborted } else { ErrorCode::ConnectionLost };
        let what = "the connection was lost: the target may have executed the command, but will not execute it later";
        let error = task.overdue.take().unwrap_or_else(|| Error::new(kind, what));
        self.finish(tag, Err(error));
        None
    }

    /// The number of orphans of this logical unit, or of all, and the time when the oldest one became an orphan.
    pub fn orphans(&mut self, lun: Option<u64>) -> Option<(usize, Instant)> {
        let is_one = |t: &&mut Task| t.state == TaskState::Orphaned && lun.is_none_or(|lun| t.lun == lun);
        let all = self.tasks.iter().filter(is_one).map(|t| (1, t.sent));
        all.reduce(|(count, oldest), (one, started_at)| (count + one, oldest.min(started_at)))
    }

    /// Whether any write that became an orphan has not ended yet.
    pub(super) fn has_waiting(&mut self) -> bool {
        self.tasks.iter().any(|t| t.waited && t.result.is_none())
    }

    /// The logical units with overdue orphans.
    fn luns_of_orphans(&mut self, is_late: impl Fn(Instant) -> bool) -> Vec<u64> {
        if self.online != Online::Yes || self.connection.is_logging_out() {
            return Vec::new();
        }
        let late = |t: &&mut Task| t.state == TaskState::Orphaned && is_late(t.sent);
        let mut luns: Vec<u64> = self.tasks.iter().filter(late).map(|t| t.lun).collect();
        luns.sort_unstable();
        luns.dedup();
        luns.retain(|lun| !self.unverified.has(*lun));
        luns
    }

    /// Ends the orphans with this error, because the session ends without a proof.
    pub(super) fn leave_orphans(&mut self, error: &Error) {
        let tags: Vec<u32> =
            self.tasks.iter().filter(|t| t.state == TaskState::Orphaned).map(|t| t.tag).collect();
        tags.into_iter().for_each(|tag| self.finish(tag, Err(error.clone())));
    }
}

impl LocalSession {
    /// Ends or resends the orphans that this proof covers.
    pub(super) fn prove(self: &Rc<Self>, proof: Proof) {
        let mut state = self.state.borrow_mut();
        state.prove(proof);
        state.pump();
        drop(state);
        self.flush_soon();
        self.bell.notify(usize::MAX);
    }

    /// Whether the target may execute this command late, unless `late_writes` accepts that.
    pub(super) fn may_come_late(&self, tag: u32) -> bool {
        let waits = self.options.late_writes == LateWrites::Wait;
        waits && self.state.borrow_mut().tasks.get(tag).is_some_and(|t| t.changes)
    }

    pub(super) fn has_orphans(&self) -> bool {
        self.state.borrow_mut().orphans(None).is_some()
    }

    /// Whether no new connection may be made, so that the session ends.
    pub(super) fn is_to_end(&self) -> bool {
        self.gives_up.get() || self.closing.get() && (self.leaves_now.get() || !self.has_orphans())
    }

    /// Waits until the target can no longer execute this command.
    ///
    /// # Errors
    /// When the session ends first, with orphans left.
    pub(super) async fn no_orphan(&self, tag: u32) -> Result<(), Error> {
        let is_open = |t: &mut Task| matches!(t.state, TaskState::Sent | TaskState::Orphaned);
        while !self.over.get() && self.state.borrow_mut().tasks.get(tag).is_some_and(is_open) {
            compio::time::sleep(CHECK_INTERVAL).await;
        }
        self.orphans().map_or(Ok(()), Err)
    }

    /// Handles orphans while there is a connection. The connection is to another target port, so its login did not
    /// end them. After `fast_io_fail`, and again after each further such time, their logical units are reset.
    pub(super) fn reset_overdue_orphans(self: &Rc<Self>, now: Instant) {
        let is_late =
            |started_at: Instant| now.duration_since(started_at) >= self.options.timeouts.fast_io_fail;
        if self.reset.get().is_some_and(|at| !is_late(at)) {
            return;
        }
        let mut luns = self.state.borrow_mut().luns_of_orphans(is_late);
        luns.retain(|lun| !self.changed.borrow().contains(lun));
        if !luns.is_empty() {
            self.reset.set(Some(now));
            lunar_runtime::spawn(end_orphans(self.clone(), luns));
        }
    }

    /// Logs once that writes wait for a proof, and once how they ended.
    pub(super) fn say_what_waits(&self, now: Instant) {
        let orphans = self.state.borrow_mut().orphans(None);
        let late = |started_at: Instant| now.duration_since(started_at) >= self.options.timeouts.login;
        match orphans {
            Some((count, started_at)) if late(started_at) && !self.said_waits.replace(true) => {
                tracing::warn!(
                    target = %self.name(),
                    writes = count,
                    "writes wait until the target can no longer execute their earlier transmission; \
                     hint: the writes end when the session recovers; late_writes=risk in the URL does not wait",
                )
            }
            None => self.say_how_they_ended(),
            Some(_) => {}
        }
    }

    /// Logs the end of a wait if its start was logged.
    fn say_how_they_ended(&self) {
        let mut state = self.state.borrow_mut();
        if state.has_waiting() {
            return;
        }
        let [succeeded, repeated, failed] = state.tasks.count_waited();
        drop(state);
        let target = self.name();
        match self.said_waits.replace(false) {
            false => {}
            true if failed == 0 => {
                tracing::info!(
                    target,
                    succeeded,
                    repeated,
                    failed,
                    "the writes that waited for the end of a lost session have ended"
                );
            }
            // The error may be local to this path.
            true => {
                tracing::warn!(
                    target,
                    succeeded,
                    repeated,
                    failed,
                    "writes that waited for the end of a lost session have failed on this path"
                );
            }
        }
    }

    /// Fails the commands that wait for a connection.
    pub(super) fn fail_waiting(&self, error: &Error) {
        let failed = self.state.borrow_mut().fail_queued(error, |_| true);
        // A recovery timeout of zero means that the owner has another path.
        if failed > 0 && !self.options.timeouts.recovery.is_zero() {
            tracing::error!(target = %self.name(), failed, "writes waited for a connection and failed: {error}");
        }
    }

    /// Ends the orphans with the session.
    pub(super) fn leave_orphans(&self) {
        let mut state = self.state.borrow_mut();
        let Some((count, _)) = state.orphans(None) else { return };
        self.orphans.set(count);
        lock(&self.info).orphans = count;
        // Aborted is not a path error: the owner must not repeat the commands on another path.
        if let Some(error) = self.left_behind_as(ErrorCode::Aborted) {
            tracing::error!(target = %self.name(), failed = count, "{error}");
            state.leave_orphans(&error);
        }
    }

    /// The error of a close that has left orphans behind.
    pub(super) fn orphans(&self) -> Option<Error> {
        self.left_behind_as(ErrorCode::ConnectionLost)
    }

    fn left_behind_as(&self, kind: ErrorCode) -> Option<Error> {
        let count = self.orphans.get();
        let what =
            || format!("the session ended while target {} may still execute writes ({count})", self.name());
        let hint = "write nothing to the LUN before the old session has ended: restart the target to end it";
        (count > 0).then(|| Error::new(kind, what()).with_hint(hint))
    }
}

/// Resets logical units through the current connection.
async fn end_orphans(local: Rc<LocalSession>, luns: Vec<u64>) {
    for lun in luns {
        let (target, number) = (local.name(), shown(lun));
        tracing::warn!(
            target,
            lun = %number,
            "writes of another portal group may be in flight: the initiator resets the logical unit"
        );
        is_done(
            carry_out(&local, TaskManagementFunction::LunReset, lun).await,
            &format!("{target}/{number}"),
        );
    }
}

//! Commands that wait until the identity of their logical unit is verified.

use super::session_state::SessionState;
use super::task::TaskState;
use super::unverified_luns::Apart;

impl SessionState {
    /// Holds back a command if its logical unit is unverified. Returns false if the command may be sent.
    #[inline]
    pub(super) fn set_apart_unverified(&mut self, tag: u32) -> bool {
        if self.unverified.is_empty() {
            return false;
        }
        let waits = self.tasks.get(tag).is_some_and(|t| !t.urgent && self.unverified.has(t.lun));
        if waits {
            self.unverified.set_apart(tag);
        }
        waits
    }

    /// Releases the commands of a logical unit, in order. Returns true if the logical unit was missing.
    pub fn release(&mut self, lun: u64) -> bool {
        let was_missing = self.unverified.remove(lun);
        self.bring_back(|l| l == lun);
        self.pump();
        was_missing
    }

    /// Puts released commands before those that are still queued.
    pub(super) fn bring_back(&mut self, which: impl Fn(u64) -> bool) {
        let tasks = &mut self.tasks;
        let back =
            self.unverified.take_apart(|tag| match tasks.get(tag).filter(|t| t.state == TaskState::Queued) {
                Some(task) if which(task.lun) => Apart::Comes,
                Some(_) => Apart::Stays,
                None => Apart::Over,
            });
        back.into_iter().rev().for_each(|tag| self.queue_first(tag));
    }
}

//! Commands that wait until their logical unit is seen to be what it was.

use super::session_state::SessionState;
use super::task::TaskState;
use super::unverified_luns::Apart;

impl SessionState {
    /// A command whose turn has come waits for its logical unit. False: it need not.
    #[inline]
    pub(super) fn is_set_apart(&mut self, tag: u32) -> bool {
        if self.unverified.is_empty() {
            return false;
        }
        let waits = self.tasks.get(tag).is_some_and(|t| !t.urgent && self.unverified.has(t.lun));
        if waits {
            self.unverified.set_apart(tag);
        }
        waits
    }

    /// A logical unit takes commands again, in their order. True if it was missing.
    pub fn release(&mut self, lun: u64) -> bool {
        let was_missing = self.unverified.remove(lun);
        self.bring_back(|l| l == lun);
        self.pump();
        was_missing
    }

    /// Commands that were set apart wait before those whose turn has not come.
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

//! The abort and the removal of tasks.

use super::front_end::FrontEnd;
use super::nexus::State;
use super::task::{AbortResponse, Task};

impl<F: FrontEnd> State<F> {
    /// Number of tasks that have not ended.
    pub fn task_count(&self) -> usize {
        self.tasks().len()
    }

    /// Whether a task has this tag.
    #[inline]
    pub fn has_task(&self, tag: u32) -> bool {
        !self.tasks().is_empty() && self.tasks().get(tag).is_some()
    }

    /// Whether the task was aborted or has ended.
    pub(super) fn is_aborted(&self, tag: u32, serial: u64) -> bool {
        self.tasks().find(tag, serial).is_none_or(|task| task.is_aborted())
    }

    /// Removes a task, which the caller completes.
    pub(super) fn remove(&mut self, tag: u32) -> Option<Task> {
        let task = self.tasks_mut().remove(tag)?;
        self.count_ordered(task.command(), task.lu(), -1);
        if let (Some(lu), Some(unreported)) = (task.lu(), task.unreported()) {
            self.restore_attention(task.command(), lu.unit(), unreported);
        }
        Some(task)
    }

    /// Aborts tasks. Returns the serials of all matching tasks, even of those aborted before: the caller waits for
    /// them.
    ///
    /// With `wait`, tasks that receive data end when all requested data have arrived (RFC 7143 section 4.2.3.3).
    /// Otherwise they end at once.
    pub(super) fn abort(
        &mut self,
        scope: impl Fn(&Task) -> bool,
        how: AbortResponse,
        wait: bool,
    ) -> Vec<u64> {
        let (mut serials, mut idle) = (Vec::new(), Vec::new());
        for task in self.tasks_mut().values_mut().filter(|t| scope(t)) {
            serials.push(task.serial());
            let how = task.abort(how);
            if task.transfer_mut().is_some_and(|r| r.abort(wait)) {
                idle.push((task.command().tag, how));
            }
        }
        idle.into_iter().for_each(|(tag, how)| self.end_aborted(tag, how));
        self.notify();
        serials
    }

    /// Aborts the task with this tag, if there is one.
    pub fn abort_tag(&mut self, tag: u32, how: AbortResponse) {
        self.abort(|t| t.command().tag == tag, how, false);
    }
}

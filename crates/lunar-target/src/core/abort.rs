//! The abort and the removal of tasks.

use super::command::{ScsiCommand, TaskAttribute};
use super::complete::{CommandResult, Completion};
use super::front_end::FrontEnd;
use super::nexus::{ItNexus, NexusState};
use super::task::{AbortResponse, Task, TaskLu};
use crate::LogicalUnit;
use lunar_scsi::CommandError;
use lunar_wire::scsi::Sense;
use std::rc::Rc;
use std::sync::Arc;

impl<F: FrontEnd> NexusState<F> {
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
        self.forget(&task);
        Some(task)
    }

    /// The same for a tag that another task may have by now.
    pub(super) fn take(&mut self, tag: u32, serial: u64) -> Option<Task> {
        let task = self.tasks_mut().take(tag, serial)?;
        self.forget(&task);
        Some(task)
    }

    /// Undoes what a task has done to its logical unit.
    fn forget(&mut self, task: &Task) {
        self.count_ordered(task.command(), task.lu(), -1);
        if let (Some(lu), Some(unreported)) = (task.lu(), task.unreported()) {
            self.restore_attention(task.command(), lu.unit(), unreported);
        }
    }

    /// Counts unfinished ORDERED commands, for which later commands wait.
    pub(super) fn count_ordered(&mut self, c: &ScsiCommand, lu: Option<&TaskLu>, by: i32) {
        if c.attribute == TaskAttribute::Ordered
            && let Some(lu) = lu
            && let Some(handle) = self.luns_mut().unit(c.lun, lu.unit())
        {
            handle.count_ordered(by);
        }
    }

    /// Restores a unit attention that was not reported.
    pub(super) fn restore_attention(
        &mut self,
        c: &ScsiCommand,
        unit: &Arc<LogicalUnit>,
        unreported: &CommandError,
    ) {
        if let Some(sense) = unreported.sense.filter(Sense::is_unit_attention)
            && let Some(handle) = self.luns_mut().unit(c.lun, unit)
        {
            handle.nexus_mut().requeue_attention(sense);
        }
    }

    /// Ends a task that was not launched.
    pub(super) fn fail(&mut self, tag: u32, failure: CommandError) {
        if let Some(task) = self.remove(tag) {
            let times = Some(task.times());
            let result = CommandResult { times, ..CommandResult::of(Err(failure)) };
            self.complete(task.command(), Completion::Responded(result));
            self.notify();
        }
    }

    /// Ends a task that was aborted and not launched.
    pub(super) fn end_aborted(&mut self, tag: u32, how: AbortResponse) {
        if let Some(task) = self.remove(tag) {
            self.complete(task.command(), Completion::aborted(&task, how));
            self.notify();
        }
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
        let (mut serials, mut idle, mut passed) = (Vec::new(), Vec::new(), Vec::new());
        for task in self.tasks_mut().values_mut().filter(|t| scope(t)) {
            serials.push(task.serial());
            passed.extend(task.passed_lane().filter(|_| !task.is_aborted()).cloned());
            let how = task.abort(how);
            if task.transfer_mut().is_some_and(|r| r.abort(wait)) {
                idle.push((task.command().tag, how));
            }
        }
        idle.into_iter().for_each(|(tag, how)| self.end_aborted(tag, how));
        passed.into_iter().for_each(|lane| self.abort_passed(lane));
        self.notify();
        serials
    }

    /// Aborts the task with this tag, if there is one.
    pub fn abort_tag(&mut self, tag: u32, how: AbortResponse) {
        self.abort(|t| t.command().tag == tag, how, false);
    }
}

impl<F: FrontEnd> ItNexus<F> {
    /// Aborts all tasks, waits for running ones, and closes every I_T_L nexus. Other sessions may learn of the end
    /// only after that, because they rely on reservations being released.
    pub async fn end_tasks(&self) {
        let all = {
            let mut state = self.state();
            state.set_ended();
            state.abort(|_| true, AbortResponse::None, false)
        };
        self.wait_for(&all).await;
        let shared = {
            let mut state = self.state();
            let units: Vec<_> = state.luns_mut().used().map(|lun| lun.unit().clone()).collect();
            state.luns_mut().close();
            units.into_iter().filter(|unit| unit.sharing().is_some())
        };
        for unit in shared {
            unit.publish_nexuses().await;
        }
    }

    /// Aborts the task with this tag, which ends with TASK ABORTED, and waits for its end. False: there is none.
    pub async fn abort_one(self: &Rc<Self>, tag: u32) -> bool {
        let of_it = |task: &Task| task.command().tag == tag;
        let aborted = self.state().abort(of_it, AbortResponse::TaskAborted, false);
        F::flush(self);
        self.wait_for(&aborted).await;
        !aborted.is_empty()
    }

    /// Aborts the tasks of one connection without a response, and waits for those that execute.
    pub async fn end_tasks_of(&self, connection: u16) {
        let of_it = |task: &Task| task.command().connection == connection;
        let aborted = self.state().abort(of_it, AbortResponse::None, false);
        self.wait_for(&aborted).await;
    }
}

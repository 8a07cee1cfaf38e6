//! The execution of a task: its order relative to other tasks, and its end.

use super::command::{ScsiCommand, TaskAttribute};
use super::complete::{CommandResult, Completion};
use super::front_end::FrontEnd;
use super::lun_map::LunLookup;
use super::nexus::{ItNexus, NexusState};
use super::task::{AbortResponse, Task};
use crate::LogicalUnit;
use crate::end_reason::EndReason;
use crate::exec::ExecutionResult;
use crate::task_set_lock::{LockMode, TaskSetHandle};
use lunar_scsi::{Concurrency, PlanResult};
use lunar_wire::scsi::Sense;
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

/// The end of a task.
pub(super) struct TaskEnd {
    /// Its result.
    pub ended: ExecutionResult,
    /// Bytes of Data-Out that its CDB requests.
    pub moved: u64,
    /// Bytes that a WRITE wrote to the medium.
    pub written: Option<u32>,
    /// When it ended, if that is known already.
    pub at: Option<Instant>,
}

impl TaskEnd {
    /// The end of a task without Data-Out.
    pub fn of(ended: ExecutionResult) -> TaskEnd {
        TaskEnd { ended, moved: 0, written: None, at: None }
    }
}

/// The order of a command among others, and whether the length of its data must match.
pub(super) struct TaskOrdering {
    /// The task set of its logical unit, on this core.
    pub task_set: TaskSetHandle,
    /// The mode in which it takes the task set lock.
    pub mode: LockMode,
    /// Whether the length of the Data-Out must be exactly that of the CDB.
    pub exact: bool,
    /// Whether the write cache is flushed before the command takes effect.
    pub flushes_first: bool,
}

impl<F: FrontEnd> ItNexus<F> {
    /// The order of a command among others of its logical unit.
    ///
    /// None if the LUN has become another logical unit, or none.
    pub(super) fn ordering(&self, c: &ScsiCommand, unit: &Arc<LogicalUnit>) -> Option<TaskOrdering> {
        let mut state = self.state();
        let handle = state.luns_mut().unit(c.lun, unit)?;
        let mode = match (c.attribute, handle.nexus().concurrency(c.cdb())) {
            // The remote logical unit orders commands. Here a command that hangs must not block other hosts.
            _ if unit.passthrough().is_some() => LockMode::HeadOfQueue,
            (TaskAttribute::Ordered, _) | (_, Concurrency::Exclusive) => LockMode::Exclusive,
            (TaskAttribute::HeadOfQueue, _) => LockMode::HeadOfQueue,
            (TaskAttribute::Simple, _) => LockMode::Shared,
        };
        Some(TaskOrdering {
            task_set: handle.task_set(),
            mode,
            exact: handle.nexus().requires_exact_data_out(c.cdb()),
            flushes_first: handle.nexus().flushes_first(c.cdb()),
        })
    }

    /// Waits for older tasks of this session: an ORDERED task waits for all of them, a SIMPLE task for the ORDERED
    /// ones (SAM-5 section 8.6).
    ///
    /// The task set lock keeps this order among sessions, except for tasks that release it between their steps: copies
    /// and chunked writes.
    pub(super) async fn wait_for_order(&self, c: &ScsiCommand, serial: u64) {
        let precedes_this = |t: &Task| {
            let ordered =
                c.attribute == TaskAttribute::Ordered || t.command().attribute == TaskAttribute::Ordered;
            t.serial() < serial && ordered && t.is_of_lun(c.lun)
        };
        // Usually there is no ORDERED task.
        let none_ordered = match self.state().luns_mut().find(c.lun) {
            LunLookup::LogicalUnit(handle) => !handle.has_ordered(),
            LunLookup::WellKnown | LunLookup::Absent => false,
        };
        if c.attribute != TaskAttribute::HeadOfQueue && !none_ordered {
            self.wait_until(|s| {
                let mine = s.tasks().get(c.tag);
                mine.is_none_or(Task::is_aborted) || !s.tasks().values().any(precedes_this)
            })
            .await;
        }
    }

    /// Plans a command, with its parameter data if it has any.
    pub(super) fn decide(
        &self,
        c: &ScsiCommand,
        unit: &Arc<LogicalUnit>,
        parameters: Option<&[u8]>,
    ) -> PlanResult {
        match (self.state().luns_mut().unit(c.lun, unit), parameters) {
            (Some(handle), None) => handle.begin(c.cdb()),
            (Some(handle), Some(data)) => handle.nexus_mut().parameters(c.cdb(), data),
            (None, _) => Err(Sense::LUN_NOT_SUPPORTED.into()),
        }
    }

    /// Plans a command again that has begun and continues with more data.
    pub(super) fn go_on(&self, c: &ScsiCommand, unit: &Arc<LogicalUnit>) -> PlanResult {
        let mut state = self.state();
        let handle = state.luns_mut().unit(c.lun, unit).ok_or(Sense::LUN_NOT_SUPPORTED)?;
        handle.nexus_mut().resume(c.cdb())
    }

    /// Runs `work`, which may outlast the command. None: the command was aborted.
    pub(super) async fn until_aborted<T>(
        &self,
        c: &ScsiCommand,
        serial: u64,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let abort = self.wait_until(|s| s.is_aborted(c.tag, serial));
        let (mut work, mut abort) = (pin!(work), pin!(abort));
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(ended) => Poll::Ready(Some(ended)),
            Poll::Pending => abort.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    /// Ends a task: its response leaves, unless the task was aborted.
    pub(super) fn end_task(self: &Rc<Self>, tag: u32, serial: u64, end: TaskEnd) {
        self.state().end_task(tag, serial, end);
        self.ended_tasks();
    }

    /// Sends the responses of ended tasks, and wakes those that wait for their end.
    pub(super) fn ended_tasks(self: &Rc<Self>) {
        self.notify();
        F::flush_soon(self);
    }

    /// Polls `ends`, which ends tasks by [`NexusState::end_task`] and sets `any`. A poll calls [`ItNexus::ended_tasks`]
    /// once for all of them.
    pub(super) async fn end_together(self: &Rc<Self>, any: &Cell<bool>, ends: impl Future<Output = ()>) {
        let mut ends = pin!(ends);
        poll_fn(|cx| {
            let polled = ends.as_mut().poll(cx);
            if any.take() {
                self.ended_tasks();
            }
            polled
        })
        .await;
    }
}

impl<F: FrontEnd> NexusState<F> {
    /// Ends a task. The caller calls [`ItNexus::ended_tasks`], once for several tasks.
    pub(super) fn end_task(&mut self, tag: u32, serial: u64, end: TaskEnd) {
        if let Some(task) = self.take(tag, serial) {
            match task.lu().is_none_or(|lu| lu.unit().may_answer()) {
                true => self.respond(&task, end),
                false => self.withhold(&task),
            }
        }
    }

    /// Ends a task without a response, and its session with it: the outcome of the command is unknown.
    fn withhold(&mut self, task: &Task) {
        self.complete(task.command(), Completion::aborted(task, AbortResponse::None));
        self.end_with(EndReason::Fenced);
        self.front().stop_receiving();
    }

    fn respond(&mut self, task: &Task, TaskEnd { ended, moved, written, at: ended_at }: TaskEnd) {
        let (c, sent, times) = (task.command(), task.sent(), Some(task.times()));
        let Some(how) = task.aborted() else {
            let descriptor = ended.is_err() && self.uses_descriptor_sense(c.lun);
            let result = CommandResult { ended, moved, written, descriptor, sent, times, ended_at };
            return self.complete(c, Completion::Responded(result));
        };
        if let (Some(lu), Err(unreported)) = (task.lu(), &ended) {
            self.restore_attention(c, lu.unit(), unreported);
        }
        self.complete(c, Completion::aborted(task, how));
    }

    fn uses_descriptor_sense(&mut self, lun: u64) -> bool {
        match self.luns_mut().find(lun) {
            LunLookup::LogicalUnit(handle) => handle.nexus_mut().uses_descriptor_sense(),
            LunLookup::WellKnown | LunLookup::Absent => false,
        }
    }
}

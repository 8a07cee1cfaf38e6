//! A task while it executes, and the guards that it holds.

use super::command::ScsiCommand;
use super::front_end::FrontEnd;
use super::nexus::ItNexus;
use super::passed_commands::PassOrder;
use super::stale::WaitTracker;
use super::task::{LaunchedTask, TaskLu};
use super::task_context::TaskContext;
use crate::LogicalUnit;
use crate::fence::{InFlightGuard, SessionFence};
use crate::task_set_lock::{LockMode, TaskSetGuard, TaskSetHandle};
use lunar_scsi::{CommandError, Op, Plan, PlanResult};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// A task during its execution by task set, device server and backend.
pub(super) struct TaskExecution<F: FrontEnd> {
    nexus: Rc<ItNexus<F>>,
    serial: u64,
    command: ScsiCommand,
    lu: Option<TaskLu>,
    plan: Option<PlanResult>,
    /// The task set lock of its logical unit, and the mode in which the task takes it.
    lock: Option<(TaskSetHandle, LockMode)>,
    /// Its data arrive chunk by chunk while it runs.
    is_chunked: bool,
    /// Keeps later commands of its logical unit from being forwarded first.
    order: Option<PassOrder>,
}

/// The guards that a task holds while it executes.
pub(super) type ExecutionGuards = (TaskSetGuard, InFlightGuard<Arc<SessionFence>>);

impl<F: FrontEnd> TaskExecution<F> {
    /// The execution of a task of this nexus.
    pub fn new(nexus: Rc<ItNexus<F>>, task: LaunchedTask, order: Option<PassOrder>) -> TaskExecution<F> {
        let LaunchedTask { serial, command, lu, plan, is_chunked } = task;
        TaskExecution { nexus, serial, command, lu, plan, lock: None, is_chunked, order }
    }

    /// The command is forwarded now.
    pub fn take_pass_order(&mut self) -> Option<PassOrder> {
        self.order.take()
    }

    /// Its I_T nexus.
    pub fn nexus(&self) -> &Rc<ItNexus<F>> {
        &self.nexus
    }

    /// Identifies the task within its nexus.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Its command.
    pub fn command(&self) -> &ScsiCommand {
        &self.command
    }

    /// Acquires the guards of a task. None: the command was aborted or is stale. An aborted command stops waiting at
    /// once, because the holders of the lock may never end, and others queue behind it.
    pub async fn acquire(
        &self,
        task_set: &TaskSetHandle,
        mode: LockMode,
        tracker: &WaitTracker,
    ) -> Option<ExecutionGuards> {
        let nexus = &self.nexus;
        let inside = nexus.until_aborted(&self.command, self.serial, task_set.lock(mode));
        let inside = tracker.track(inside).await?;
        let is_aborted = nexus.state().is_aborted(self.command.tag, self.serial);
        let in_flight = (!is_aborted).then(|| nexus.begin_task(&self.command, self.serial, tracker));
        let in_flight = in_flight.flatten()?;
        Some((inside, in_flight))
    }

    /// Notes that the execution of the command begins now.
    pub fn end_wait(&self) {
        let mut state = self.nexus.state();
        if let Some(task) = state.tasks_mut().find_mut(self.command.tag, self.serial) {
            task.begin_execution(Instant::now());
        }
    }

    /// Notes that the plan is a change that is published to other servers, if it is one.
    pub fn note_publishing(&self, unit: &LogicalUnit, plan: &PlanResult) {
        if unit.sharing().is_none() {
            return;
        }
        let publishes =
            matches!(plan, Ok(Plan::Op(op)) if matches!(**op, Op::Persist(_) | Op::SetAccess { .. }));
        let mut state = self.nexus.state();
        if publishes && let Some(task) = state.tasks_mut().find_mut(self.command.tag, self.serial) {
            task.publish();
        }
    }

    /// See [`TaskLu::check_medium`].
    pub fn check_medium(&self) -> Result<(), CommandError> {
        self.lu.as_ref().map_or(Ok(()), TaskLu::check_medium)
    }

    /// Its logical unit, if it has one.
    pub fn lu(&self) -> Option<&TaskLu> {
        self.lu.as_ref()
    }

    /// The plan that was made before the data arrived.
    pub fn take_plan(&mut self) -> Option<PlanResult> {
        self.plan.take()
    }

    /// Whether its data arrive chunk by chunk while it runs.
    pub fn is_chunked(&self) -> bool {
        self.is_chunked
    }

    /// Sets the task set lock of the logical unit, and the mode in which the task takes it.
    pub fn set_lock(&mut self, task_set: TaskSetHandle, mode: LockMode) {
        self.lock = Some((task_set, mode));
    }

    /// The access of the command beyond its own logical unit.
    pub fn context(&self) -> TaskContext<'_, F> {
        let (nexus, command, lock) = (&self.nexus, &self.command, self.lock.clone());
        TaskContext { nexus, command, serial: self.serial, lock }
    }
}

//! The execution of a task after its data have arrived: order, plan, device server and backend.

use super::chunked_write;
use super::command::ScsiCommand;
use super::cut_through::{self, ReadBuffers};
use super::execution::{TaskEnd, TaskOrdering};
use super::front_end::FrontEnd;
use super::nexus::NexusState;
use super::stale::WaitTracker;
use super::task::TaskLu;
use super::task_execution::TaskExecution;
use crate::LogicalUnit;
use crate::exec::{self, ExecutionResult};
use lunar_runtime::{Buf, Pool};
use lunar_scsi::{CommandError, Op, Plan, PlanResult};
use lunar_wire::scsi::{Sense, Status, op};
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// Time that a READ waits for a buffer.
const BUFFER_TIMEOUT: Duration = Duration::from_secs(2);

impl<F: FrontEnd> NexusState<F> {
    /// Executes a task whose data have arrived.
    pub(super) fn launch(&mut self, tag: u32, data: Option<Buf>) {
        let Some(nexus) = self.nexus() else { return };
        let Some(task) = self.tasks_mut().get_mut(tag) else { return };
        let launched = task.launch();
        let order = launched.lu.as_ref().and_then(|lu| self.pass_order(launched.command.lun, lu.unit()));
        let mut execution = TaskExecution::new(nexus, launched, order);
        lunar_runtime::spawn(async move {
            let ended = execution.perform(data).await;
            let (nexus, tag, serial) = (execution.nexus(), execution.command().tag, execution.serial());
            if execution.is_chunked() {
                nexus.wait_for_requested_data(tag, serial).await;
            }
            nexus.end_task(tag, serial, ended);
        });
    }
}

impl<F: FrontEnd> TaskExecution<F> {
    /// Executes the command.
    async fn perform(&mut self, mut data: Option<Buf>) -> TaskEnd {
        let nexus = self.nexus().clone();
        let plan = self.take_plan();
        let Some(unit) = self.lu().map(|lu| lu.unit().clone()) else {
            let plan = plan.unwrap_or(Err(Sense::LUN_NOT_SUPPORTED.into()));
            return TaskEnd::of(exec::run_without_lu(plan, &self.context()));
        };
        let Some(TaskOrdering { task_set, mode, exact, flushes_first }) =
            nexus.ordering(self.command(), &unit)
        else {
            return TaskEnd::of(lun_gone());
        };
        self.set_lock(task_set.clone(), mode);
        let tracker = WaitTracker::default();
        tracker.track(nexus.wait_for_order(self.command(), self.serial())).await;
        let buffers = match tracker.track(self.read_buffers(&unit, plan.as_ref())).await {
            Ok(buffers) => buffers,
            Err(status) => return TaskEnd::of(Err(status.into())),
        };
        let inside = self.acquire(&task_set, mode, &tracker).await;
        let Some((inside, in_flight)) = inside else { return TaskEnd::of(unreported(plan)) };
        if let Err(failure) = self.check_medium() {
            return TaskEnd::of(Err(failure));
        }
        let plan = match self.refreshed_plan(self.current_plan(plan, &unit), &unit).await {
            Ok(plan) => plan,
            Err(f) => return TaskEnd::of(Err(f)),
        };
        self.end_wait();
        let needed = plan.data_out_len();
        if matches!(plan, Plan::Passthrough) {
            let order = self.take_pass_order();
            // Boxed, so that the futures of other commands stay small.
            return TaskEnd::of(Box::pin(self.pass(&unit, data, buffers.first, order)).await);
        }
        let exact = exact || nexus.state().front().requires_exact_data();
        if let Some(sense) = length_mismatch(self.command(), needed, exact) {
            return TaskEnd { moved: needed.into(), ..TaskEnd::of(Err(sense.into())) };
        }
        if let (true, &Plan::Write { offset, len, stable }) = (self.is_chunked(), &plan) {
            let (write, guards) = (chunked_write::WriteRange { offset, len, stable }, (inside, in_flight));
            let ended = Box::pin(self.write_in_chunks(&unit, write, guards)).await;
            return TaskEnd { moved: needed.into(), written: Some(len), ..TaskEnd::of(ended) };
        }
        hide_excess(&mut data, needed as usize);
        let plan = match plan {
            Plan::Read { offset, len } if buffers.is_cut_to(len as usize) => {
                return TaskEnd::of(Box::pin(self.read_in_parts(&unit, offset, buffers)).await);
            }
            Plan::Parameters { .. } => {
                nexus.decide(self.command(), &unit, Some(data.take().as_deref().unwrap_or_default()))
            }
            Plan::Read { offset, len } => {
                data = buffers.whole(len as usize);
                Ok(Plan::Read { offset, len })
            }
            plan => Ok(plan),
        };
        self.note_publishing(&unit, &plan);
        let plan = exec::persist(&unit, plan).await;
        let _inside = if plan.as_ref().is_ok_and(|plan| plan.attributes().releases_lock) {
            drop(inside);
            None
        } else {
            Some(inside)
        };
        let written = plan.as_ref().ok().and_then(Plan::written_len);
        let ended = self.carry_out(&unit, plan, data, flushes_first).await;
        TaskEnd { moved: needed.into(), written, ..TaskEnd::of(ended) }
    }

    /// The current plan. While the task waited, reservations, write protection, size or write cache may have changed.
    fn current_plan(&self, earlier: Option<PlanResult>, unit: &Arc<LogicalUnit>) -> PlanResult {
        let is_valid = |plan: &PlanResult| {
            !plan.as_ref().is_ok_and(|plan| plan.attributes().accesses_medium)
                || self.lu().is_some_and(TaskLu::is_current)
        };
        earlier.filter(is_valid).unwrap_or_else(|| self.nexus().decide(self.command(), unit, None))
    }

    /// The plan of a command that reports shared state is made after the changes of other servers.
    async fn refreshed_plan(&self, plan: PlanResult, unit: &Arc<LogicalUnit>) -> PlanResult {
        let Some(sharing) = unit.sharing().filter(|_| unit.reports_shared(self.command().cdb())) else {
            return plan;
        };
        plan?;
        match sharing.refresh().await {
            Ok(true) => self.nexus().decide(self.command(), unit, None),
            // After a loss, the status is not sent.
            Ok(false) | Err(_) => Err(Status::Busy.into()),
        }
    }

    /// Executes a plan. If MODE SELECT disables the write cache, its content is flushed first.
    async fn carry_out(
        &self,
        unit: &Arc<LogicalUnit>,
        plan: PlanResult,
        data: Option<Buf>,
        flushes_first: bool,
    ) -> ExecutionResult {
        let plan = plan?;
        if flushes_first {
            exec::flush(unit).await?;
        }
        self.execute(unit, plan, data).await
    }

    /// The buffers of a READ. They are allocated before the task set lock is taken, so that no command holds the lock
    /// while it waits for memory. The wait is limited, because the holders of all other buffers may wait for this
    /// READ.
    async fn read_buffers(
        &self,
        unit: &LogicalUnit,
        plan: Option<&PlanResult>,
    ) -> Result<ReadBuffers, Status> {
        let offered = self.command().data_in_len() as usize;
        let len = match plan {
            _ if unit.passthrough().is_some() => offered,
            Some(Ok(Plan::Read { len, .. })) => *len as usize,
            _ if op::is_read(self.command().cdb()) => offered,
            _ => 0,
        };
        let wanted = len > 0 && len <= Pool::MAX_BUFFER;
        if !wanted || (unit.passthrough().is_none() && unit.backend().info().null) {
            return Ok(ReadBuffers::default());
        }
        // Data that the initiator does not accept are not sent early either.
        let stride = unit.backend().preferred_read_size().filter(|_| len <= offered);
        let mut buffers = ReadBuffers::default();
        for len in cut_through::lengths(len, stride) {
            let part = self.buffer(len).await?;
            match &mut buffers.first {
                None => buffers.first = Some(part),
                Some(_) => buffers.rest.push(part),
            }
        }
        Ok(buffers)
    }

    async fn buffer(&self, len: usize) -> Result<Buf, Status> {
        if let Some(buf) = self.nexus().pool().try_get(len) {
            return Ok(buf);
        }
        let buffers = compio::time::timeout(BUFFER_TIMEOUT, self.nexus().pool().get(len));
        match self.nexus().until_aborted(self.command(), self.serial(), buffers).await {
            Some(Ok(buf)) => Ok(buf),
            // An aborted command gets no response, whatever its result.
            Some(Err(_)) | None => Err(Status::TaskSetFull),
        }
    }

    async fn execute(&self, unit: &Arc<LogicalUnit>, plan: Plan, data: Option<Buf>) -> ExecutionResult {
        let reports = matches!(&plan, Plan::Op(op) if matches!(**op, Op::ReportLuns { .. }));
        let goes_on = plan.attributes().outlasts_abort;
        let context = self.context();
        let work = exec::run(unit, self.nexus().pool(), plan, data, &context);
        let ended = match goes_on {
            true => {
                self.nexus().until_aborted(self.command(), self.serial(), work).await.unwrap_or_else(lun_gone)
            }
            false => work.await,
        };
        if ended.is_ok() && reports {
            self.nexus().state().luns_mut().used().for_each(|h| h.nexus_mut().luns_reported());
        }
        ended
    }
}

/// The mismatch between the Data-Out of a command and its CDB. Excess data are ignored, unless the command requires
/// the exact length (`exact`). Too little data fail the whole command (FCP-4 section 9.4.2).
fn length_mismatch(c: &ScsiCommand, needed: u32, exact: bool) -> Option<Sense> {
    match c.data_out_len().cmp(&needed) {
        Ordering::Less => Some(Sense::INVALID_FIELD_IN_COMMAND_IU),
        Ordering::Greater if exact => Some(Sense::INVALID_FIELD_IN_CDB),
        Ordering::Equal | Ordering::Greater => None,
    }
}

/// Hides excess data.
fn hide_excess(data: &mut Option<Buf>, needed: usize) {
    if let Some(buf) = data.as_mut().filter(|buf| buf.len() > needed) {
        buf.set_visible(needed);
    }
}

/// The result of an aborted command. Removing the task restores the unit attention that it did not report.
fn unreported(plan: Option<PlanResult>) -> ExecutionResult {
    plan.and_then(Result::err).map_or_else(lun_gone, Err)
}

fn lun_gone() -> ExecutionResult {
    Err(CommandError::from(Sense::LUN_NOT_SUPPORTED))
}

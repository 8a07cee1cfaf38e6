//! A task on its way through the task set: how it stands to others, and its end.

use super::command::{ScsiCommand, TaskAttribute};
use super::complete::CommandCompletion;
use super::front_end::FrontEnd;
use super::lun_map::LunLookup;
use super::nexus::{ItNexus, State};
use super::stale::WaitTracker;
use super::task::Task;
use crate::LogicalUnit;
use crate::exec::ExecutionResult;
use crate::fence::{InFlightGuard, SessionFence};
use crate::task_set_lock::{LockMode, TaskSetGuard, TaskSetHandle};
use lunar_scsi::{CommandError, Concurrency, PlanResult};
use lunar_wire::scsi::Sense;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

/// How a task ended.
pub(super) struct TaskEnd {
    /// What it came to.
    pub ended: ExecutionResult,
    /// Bytes of Data-Out that its CDB asked for.
    pub moved: u64,
    /// Bytes that a WRITE has put on the medium.
    pub written: Option<u32>,
}

impl TaskEnd {
    /// Of a task that asked for no data.
    pub fn of(ended: ExecutionResult) -> TaskEnd {
        TaskEnd { ended, moved: 0, written: None }
    }
}

/// A task on its way through task set, device server and backend.
pub(super) struct TaskExecution<F: FrontEnd> {
    /// Its I_T nexus.
    pub nexus: Rc<ItNexus<F>>,
    /// Names the task in its nexus.
    pub serial: u64,
    /// Its command.
    pub command: ScsiCommand,
    pub unit: Option<Arc<LogicalUnit>>,
    pub answer: Option<PlanResult>,
    pub epoch: u64,
    pub medium: u64,
    /// The gate of its logical unit, and how it steps in.
    pub lock: Option<(TaskSetHandle, LockMode)>,
    /// When its command arrived, if that is counted.
    pub started_at: Option<Instant>,
    /// Its data come piece by piece while it runs.
    pub is_chunked: bool,
}

/// What holds a command's place among others while it is carried out.
pub(super) type ExecutionGuards = (TaskSetGuard, InFlightGuard<Arc<SessionFence>>);

/// What the command table says of a command, where it waits for others and for data.
pub(super) struct TaskOrdering {
    /// Its core's place at the gate.
    pub member: TaskSetHandle,
    /// How it steps in.
    pub entry: LockMode,
    /// It takes as much Data-Out as its CDB asks for, or none.
    pub exact: bool,
}

impl<F: FrontEnd> TaskExecution<F> {
    /// Passes the gate; None when the command is aborted, or comes too late. It does not wait on then: what is inside may
    /// never come out by itself, and others wait behind it.
    pub async fn acquire(
        &self,
        member: &TaskSetHandle,
        entry: LockMode,
        tracker: &WaitTracker,
    ) -> Option<ExecutionGuards> {
        let nexus = &self.nexus;
        let inside = nexus.until_aborted(&self.command, self.serial, member.lock(entry));
        let inside = tracker.track(inside).await?;
        let is_aborted = nexus.state().is_aborted(self.command.tag, self.serial);
        let under_way = (!is_aborted).then(|| nexus.begin_task(&self.command, self.serial, tracker));
        let under_way = under_way.flatten()?;
        Some((inside, under_way))
    }

    /// While it waited, the unit may have gone, or its medium may have become another one.
    pub fn check_medium(&self, unit: &LogicalUnit) -> Result<(), CommandError> {
        if unit.lu.epoch() != self.epoch
            && let Some(status) = unit.lu.busy_status()
        {
            return Err(status.into());
        }
        if unit.lu.medium() == self.medium { Ok(()) } else { Err(Sense::MEDIUM_CHANGED.into()) }
    }
}

impl<F: FrontEnd> ItNexus<F> {
    /// How a command stands to others of its logical unit, and to its data.
    ///
    /// None when its LUN is another logical unit by now, or none.
    pub(super) fn ordering(&self, c: &ScsiCommand, unit: &Arc<LogicalUnit>) -> Option<TaskOrdering> {
        let mut state = self.state();
        let handle = state.luns.unit(c.lun, unit)?;
        let entry = match (c.attribute, handle.nexus.concurrency(c.cdb())) {
            // Who carries it out keeps the order: one command that hangs there is to stop no other host here.
            _ if unit.passthrough().is_some() => LockMode::HeadOfQueue,
            (TaskAttribute::Ordered, _) | (_, Concurrency::Exclusive) => LockMode::Exclusive,
            (TaskAttribute::HeadOfQueue, _) => LockMode::HeadOfQueue,
            (TaskAttribute::Simple, _) => LockMode::Shared,
        };
        Some(TaskOrdering {
            member: handle.task_set(),
            entry,
            exact: handle.nexus.requires_exact_data_out(c.cdb()),
        })
    }

    /// Waits until no older task of this session stands in the way: ORDERED waits for all, SIMPLE for the
    /// ORDERED ones (SAM-5 section 8.6). The gate keeps that order among sessions, but
    /// for what is in no gate between its parts: copies, and WRITEs in pieces.
    pub(super) async fn wait_for_order(&self, c: &ScsiCommand, serial: u64) {
        let precedes_this = |t: &Task| {
            let ordered =
                c.attribute == TaskAttribute::Ordered || t.command.attribute == TaskAttribute::Ordered;
            t.serial < serial && t.command.lun == c.lun && ordered
        };
        // Mostly there is none that is ORDERED.
        let nobody = match self.state().luns.find(c.lun) {
            LunLookup::LogicalUnit(handle) => handle.ordered == 0,
            LunLookup::WellKnown | LunLookup::Absent => false,
        };
        if c.attribute != TaskAttribute::HeadOfQueue && !nobody {
            self.wait_until(|s| {
                let mine = s.tasks.get(&c.tag);
                mine.is_none_or(|t| t.aborted.is_some()) || !s.tasks.values().any(precedes_this)
            })
            .await;
        }
    }

    /// What a command comes to, with its parameter data if it has some.
    pub(super) fn decide(
        &self,
        c: &ScsiCommand,
        unit: &Arc<LogicalUnit>,
        parameters: Option<&[u8]>,
    ) -> PlanResult {
        match (self.state().luns.unit(c.lun, unit), parameters) {
            (Some(handle), None) => handle.begin(c.cdb()),
            (Some(handle), Some(data)) => handle.nexus.parameters(c.cdb(), data),
            (None, _) => Err(Sense::LUN_NOT_SUPPORTED.into()),
        }
    }

    /// What a command comes to that has begun, and goes on behind a part of its data.
    pub(super) fn go_on(&self, c: &ScsiCommand, unit: &Arc<LogicalUnit>) -> PlanResult {
        let mut state = self.state();
        let handle = state.luns.unit(c.lun, unit).ok_or(Sense::LUN_NOT_SUPPORTED)?;
        handle.nexus.resume(c.cdb())
    }

    /// Waits for what outlives its command, or until the command is aborted: then None.
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

    /// Counts the time that a command took to be carried out.
    pub(super) fn record_front_latency(&self, started_at: Option<Instant>) {
        let Some(started_at) = started_at else { return };
        let state = self.state();
        state
            .info
            .instance_session
            .get()
            .into_iter()
            .for_each(|instance_session| instance_session.instance().front.add(started_at.elapsed()));
    }

    /// A task is over: its answer goes out, unless it was aborted.
    pub(super) fn end_task(self: &Rc<Self>, tag: u32, serial: u64, end: TaskEnd) {
        let mut state = self.state();
        if state.tasks.get(&tag).is_none_or(|t| t.serial != serial) {
            return;
        }
        let Some(task) = state.remove(tag) else { return };
        state.answer(&task, end);
        drop(state);
        self.notify();
        F::flush_soon(self);
    }
}

impl<F: FrontEnd> State<F> {
    fn answer(&mut self, task: &Task, TaskEnd { ended, moved, written }: TaskEnd) {
        let (c, sent) = (&task.command, task.sent);
        let Some(how) = task.aborted else {
            let descriptor = match self.luns.find(c.lun) {
                LunLookup::LogicalUnit(handle) => handle.nexus.uses_descriptor_sense(),
                LunLookup::WellKnown | LunLookup::Absent => false,
            };
            return self.complete(c, CommandCompletion { ended, moved, written, descriptor, sent });
        };
        if let (Some((unit, _)), Err(unreported)) = (&task.lu_nexus, &ended) {
            self.restore_attention(c, unit, unreported);
        }
        match how.failure() {
            Some(failure) => {
                self.complete(c, CommandCompletion { sent, ..CommandCompletion::of(Err(failure)) })
            }
            None => self.front.release(c),
        }
    }
}

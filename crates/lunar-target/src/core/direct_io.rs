//! READs and WRITEs that need only the medium: they hold the task set lock, their plan exists, and their data or
//! their buffer are available.

use super::command::ScsiCommand;
use super::cut_through;
use super::execution::TaskEnd;
use super::front_end::FrontEnd;
use super::io_queue::{DirectIo, DirectIoCommand, IoQueue};
use super::lun_handle::LunHandle;
use super::lun_map::LunLookup;
use super::nexus::{ItNexus, NexusState, Route};
use super::task::{Task, TaskLu};
use crate::LogicalUnit;
use crate::exec::{self, ExecutionOutput, ExecutionResult};
use crate::fence;
use lunar_runtime::{Pool, ReceivedData};
use lunar_scsi::Plan;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

impl DirectIo {
    /// None if the command needs more than that: outstanding data, a buffer, parts that are sent early, or a length
    /// that the initiator does not expect.
    fn of(
        pool: &Pool,
        handle: &LunHandle,
        c: &ScsiCommand,
        plan: &Plan,
        data: &ReceivedData<'_>,
    ) -> Option<DirectIo> {
        match (plan, data) {
            (&Plan::Read { offset, len }, _)
                if len > 0 && len <= c.data_in_len() && c.data_out_len() == 0 =>
            {
                let len = len as usize;
                let stride = handle.preferred_read_size();
                let is_whole = len <= Pool::MAX_BUFFER && cut_through::lengths(len, stride).nth(1).is_none();
                let buf = is_whole.then(|| pool.try_get(len)).flatten()?;
                Some(DirectIo::Read { offset, buf })
            }
            (&Plan::Write { offset, len, stable }, ReceivedData::Bytes(data))
                if data.len() == len as usize =>
            {
                let mut buf = pool.try_get(data.len())?;
                buf.copy_from_slice(data);
                Some(DirectIo::Write { offset, buf, stable })
            }
            _ => None,
        }
    }

    /// Bytes of Data-Out that are written.
    fn written(&self) -> u32 {
        match self {
            DirectIo::Read { .. } => 0,
            DirectIo::Write { buf, .. } => buf.len() as u32,
        }
    }

    async fn execute(self, unit: &Arc<LogicalUnit>) -> ExecutionResult {
        match self {
            DirectIo::Read { offset, buf } => {
                exec::read_part(unit, offset, buf).await.map(ExecutionOutput::Medium)
            }
            DirectIo::Write { offset, buf, stable } => exec::write(unit, offset, buf, stable).await,
        }
    }
}

impl<F: FrontEnd> NexusState<F> {
    /// Begins a READ, or a WRITE with all of its data. The command keeps the task set lock until it ends. False: the
    /// command needs more than that, and nothing was done.
    pub(super) fn try_direct_io(&mut self, c: &ScsiCommand, plan: &Plan, data: &ReceivedData<'_>) -> bool {
        let Some(nexus) = self.nexus() else { return false };
        let Route { lun: LunLookup::LogicalUnit(handle), pool, .. } = self.route(c.lun) else { return false };
        let Some(work) = DirectIo::of(pool, handle, c, plan, data) else { return false };
        let Some(in_flight) = fence::enter(nexus.fence().clone()) else { return false };
        let (unit, inside, queue) = (handle.unit().clone(), handle.task_set().into_guard(), handle.queue());
        let lu = TaskLu::new(unit.clone(), handle.nexus().id(), handle.nexus().epoch());
        let serial = self.tasks_mut().next_serial();
        let arrived = self.received_at();
        self.insert_task(Task::executing(serial, c.clone(), Some(lu), arrived));
        let begun = DirectIoCommand {
            tag: c.tag,
            connection: c.connection,
            serial,
            unit,
            inside,
            _in_flight: in_flight,
            written: work.written(),
            began: None,
        };
        match queue {
            Some(queue) => {
                if queue.begin(begun, work) {
                    lunar_runtime::spawn(serve(queue, nexus));
                }
            }
            None => lunar_runtime::spawn(run_unqueued(nexus, begun, work)),
        }
        true
    }
}

/// Executes the commands of a queue until it is empty.
async fn serve<F: FrontEnd>(queue: Rc<IoQueue>, nexus: Rc<ItNexus<F>>) {
    let is_stale = |connection| nexus.state().front().stale_reason(connection).is_some();
    let any = Cell::new(false);
    let ends = queue.take_ends(is_stale, |begun, ended, now| {
        any.set(true);
        nexus.end_direct(begun, ended, now);
    });
    nexus.end_together(&any, ends).await;
}

/// Executes a command at a medium without a queue.
async fn run_unqueued<F: FrontEnd>(nexus: Rc<ItNexus<F>>, mut begun: DirectIoCommand, work: DirectIo) {
    begun.began = Some(Instant::now());
    let stale_reason = nexus.state().front().stale_reason(begun.connection);
    let ended = match stale_reason {
        None => work.execute(&begun.unit).await,
        Some(_) => Err(exec::aborted_failure()),
    };
    nexus.end_direct(begun, ended, Instant::now());
    nexus.ended_tasks();
}

impl<F: FrontEnd> ItNexus<F> {
    /// Completes a direct I/O command. The caller calls [`ItNexus::ended_tasks`].
    fn end_direct(&self, begun: DirectIoCommand, ended: ExecutionResult, now: Instant) {
        let DirectIoCommand { tag, serial, written, inside, began, .. } = begun;
        drop(inside);
        let mut state = self.state();
        if let Some((task, began)) = state.tasks_mut().find_mut(tag, serial).zip(began) {
            task.begin_execution(began);
        }
        let (moved, written) = (written.into(), (written > 0).then_some(written));
        state.end_task(tag, serial, TaskEnd { ended, moved, written, at: Some(now) });
    }
}
